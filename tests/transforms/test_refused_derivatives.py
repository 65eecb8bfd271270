"""What a derivative is asked of and has none: arrays changed in place, numbers, ``nondiff`` inputs. Never a silent zero."""

from __future__ import annotations

import weakref

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import warp as wp
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import kernels
from support import close, compiled
from warpops import ArgumentError, GradientError, warp_op, warp_program
from warpops.launch import reverse
from warpops.program import tangent
from warpops.rewrite.adjoint import make_adjoint
from warpops.rewrite.tangent import tangent_kernel
from warpops.transforms import tangents


@wp.kernel
def multiply(x: wp.array[float], g: wp.array[float]):
    i = wp.tid()
    g[i] = g[i] * g[i] * x[i]


@wp.kernel
def use(x: wp.array[float], g: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * g[i]
    g[i] = g[i] + 1.0


@wp.kernel
def scale(x: wp.array[float], dt: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * dt


@wp.kernel
def weigh(x: wp.array[float], w: wp.array[float], y: wp.array[float], n: wp.array[int]):
    i = wp.tid()
    y[i] = x[i] * x[i] * w[i]
    n[i] = i


def use_program(x: wp.array[float], g: wp.array[float], y: wp.array[float]):
    wp.launch(use, dim=x.shape, inputs=[x, g], outputs=[y])


def scale_program(x: wp.array[float], dt: float, y: wp.array[float]):
    wp.launch(scale, dim=x.shape, inputs=[x, dt], outputs=[y])


def weigh_program(x: wp.array[float], w: wp.array[float], y: wp.array[float], n: wp.array[int]):
    wp.launch(weigh, dim=x.shape, inputs=[x, w], outputs=[y, n])


X, ONES, HALF, ONE = torch.arange(1.0, 4.0), torch.ones(3), torch.tensor(0.5), torch.tensor(1.0)
multiply_op = warp_op(multiply, mutates="g", name="followed::multiply")
USING = [
    warp_op(use, "x[n], g[n] -> y[n]", mutates="g", name="followed::use"),
    warp_program("x[n], g[n] -> y[n]", mutates="g", name="followed::use_program")(use_program),
]
SCALING = [
    warp_op(scale, "x[n] -> y[n]", tensor_scalars="dt", name="followed::scale"),
    warp_program("x[n] -> y[n]", tensor_scalars="dt", name="followed::scale_program")(scale_program),
]
WEIGHING = [
    warp_op(weigh, "x[k], w[k] -> y[k], n[k]", nondiff="w", name="followed::weigh"),
    warp_program("x[k], w[k] -> y[k], n[k]", nondiff="w", name="followed::weigh_program")(weigh_program),
]
names = "{0.name}".format


def dual(f, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


FORWARD = {
    "jvp": lambda f: jvp(f, (X,), (ONES,)),
    "jacfwd": lambda f: jacfwd(f)(X),
    "dual": lambda f: dual(f, X),
    "jvp, grad inside": lambda f: jvp(lambda z: grad(lambda q: (f(z) * q).sum())(X), (X,), (ONES,)),
    "linear in another": lambda f: jvp(lambda z: jvp(lambda q: f(z) * q, (X,), (ONES,))[1], (X,), (ONES,)),
}


@pytest.mark.parametrize("op", [multiply_op, *USING], ids=names)
@pytest.mark.parametrize("way", FORWARD)
def test_an_array_changed_in_place_has_no_tangent(op, way):
    def changed(z):
        g = z * 1.0
        op(X, g)
        return g

    with pytest.raises(GradientError, match="'g' is changed in place and has a tangent; pass g.detach"):
        FORWARD[way](changed)

    def quietly(z):
        with torch.no_grad():  # stops gradients, and no tangents
            return changed(z)

    with pytest.raises(GradientError, match="'g' is changed in place and has a tangent"):
        FORWARD[way](quietly)


@pytest.mark.parametrize("way", FORWARD)
def test_without_outputs_nothing_carries_a_tangent(way):
    def changed(z):
        g = torch.full((3,), 2.0)
        multiply_op(z, g)
        return g

    with pytest.raises(GradientError, match="'x' has a tangent, and an op that only changes arrays in place"):
        FORWARD[way](changed)


def test_nothing_was_changed_where_it_is_refused():
    g = ONES * 2
    with pytest.raises(GradientError):
        jvp(lambda z: multiply_op(z, g), (X,), (ONES,))
    close(g, ONES * 2)


@pytest.mark.parametrize("op", USING, ids=names)
def test_outputs_of_an_op_that_mutates_have_tangents(op):
    close(jvp(lambda z: op(z, ONES * 2.0), (X,), (ONES,))[1], 4 * X)
    close(dual(lambda z: op(z, ONES * 2.0), X), 4 * X)
    with pytest.raises(GradientError, match="'g' is changed in place and requires grad; call under"):
        jacrev(lambda z: jvp(lambda q: op(q, z * 1.0), (X,), (ONES,))[1])(X)
    with forward_ad.dual_level(), pytest.raises(GradientError, match="'g' is changed in place and has a tangent"):
        op.overload(X, forward_ad.make_dual(ONES * 2.0, ONES))


NUMBERS = {
    "autograd": lambda f: f(HALF.clone().requires_grad_()),
    "grad": lambda f: grad(lambda d: f(d).sum())(HALF),
    "vjp": lambda f: vjp(f, HALF),
    "jacrev": lambda f: jacrev(f)(HALF),
    "vmap of grad": lambda f: vmap(grad(lambda d: f(d).sum()))(X),
    "grad of vmap": lambda f: grad(lambda d: vmap(f)(d).sum())(X),
    "vmap": lambda f: vmap(f)(X.clone().requires_grad_()),
    "jvp": lambda f: jvp(f, (HALF,), (ONE,)),
    "jacfwd": lambda f: jacfwd(f)(HALF),
    "dual": lambda f: dual(f, HALF),
    "vmap of dual": lambda f: dual(vmap(f), X),
    "further out": lambda f: grad(lambda d: jvp(lambda q: f(d) * q, (X,), (ONES,))[1].sum())(HALF),
    "tangent further out": lambda f: jvp(lambda d: grad(lambda q: (f(d) * q).sum())(X), (HALF,), (ONE,)),
}


@pytest.mark.parametrize("op", SCALING, ids=names)
@pytest.mark.parametrize("way", NUMBERS)
def test_a_number_that_a_derivative_is_asked_of_is_refused(op, way):
    for f in (lambda d: op(X, d), lambda d: op.tangent(X, d, tangent_x=ONES)[1], lambda d: op(X * d, d)):
        with pytest.raises(ArgumentError, match="'dt': it requires grad, and a number of the kernel gets no gradient"):
            NUMBERS[way](f)


@pytest.mark.parametrize("op", SCALING, ids=names)
def test_numbers_beside_what_a_derivative_is_asked_of(op):
    close(jvp(lambda z: op(z, HALF), (X,), (ONES,))[1], X)
    close(grad(lambda z: op(z, z[0].detach()).sum())(X), 2 * X)
    close(vmap(lambda d: op(X, d))(X), X[:, None] * X * X)
    with pytest.raises(ArgumentError, match="'dt': it requires grad"):
        vmap(lambda d: op.overload(X, d))(X.clone().requires_grad_())


@pytest.mark.parametrize("op", SCALING, ids=names)
def test_a_number_beside_an_array_that_requires_grad(op):
    x, d = X.clone().requires_grad_(), HALF.clone().requires_grad_()
    for _ in range(3):  # the last launches are remembered
        close(op(x, HALF), x * x * HALF)
        for call in (op, op.overload):
            with pytest.raises(ArgumentError, match="'dt': it requires grad, and a number"):
                call(x, d)
    with torch.no_grad():
        close(op(x, d), x * x * d)
    with pytest.raises(Exception, match="'dt': it requires grad, and a number"):
        compiled(op)(x, d)


@pytest.mark.parametrize("op", WEIGHING, ids=names)
def test_of_a_nondiff_input_alone_all_is_zero(op):
    zero, square = torch.zeros(3), torch.zeros(3, 3)

    def f(w):
        return op(X, w)[0]

    close(jvp(f, (X,), (ONES,)), (X**3, zero))
    assert jvp(lambda w: op(X, w)[1], (X,), (ONES,))[1].dtype is torch.int32
    close(dual(f, X), zero)
    close(jacfwd(f)(X), square)
    close(hessian(lambda w: f(w).sum())(X), square)
    close(vmap(lambda w: jvp(f, (w,), (ONES,))[1])(torch.stack([X, X])), torch.zeros(2, 3))
    close(jvp(vmap(f), (square,), (square,))[1], square)
    close(jvp(lambda w: grad(lambda x: op(x, w)[0].sum())(X), (X,), (ONES,)), (2 * X * X, zero))
    close(jvp(lambda w: op.tangent(X, w, tangent_x=ONES)[2], (X.clone(),), (ONES,)), (2 * X * X, zero))


def weigh_both(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    wp.launch(multiply_and_weigh, dim=x.shape, inputs=[x, w], outputs=[y])


@wp.kernel
def multiply_and_weigh(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * x[i] * w[i]


@pytest.mark.parametrize("same", [True, False], ids=["one memory", "two"])
def test_a_programs_inputs_may_share_memory_and_have_tangents_of_their_own(same):
    op = warp_program("x[k], w[k] -> y[k]", name="followed::weigh_both")(weigh_both)  # afresh: nothing is recorded
    w = X if same else X.clone()
    close(op.tangent(X, w, tangent_x=ONES)[1], 2 * X * X)
    close(op.tangent(X, w, tangent_w=ONES)[1], X * X)
    close(op.tangent(X, w, tangent_x=ONES, tangent_w=2 * ONES)[1], 4 * X * X)
    close(op.tangent(X, w, tangent_x=X, tangent_w=X)[1], 3 * X**3)
    close(jvp(lambda x: op(x, w), (X,), (ONES,))[1], 2 * X * X)


TANGENTS = {
    "jvp": lambda f: jvp(f, (X,), (ONES,))[1],
    "grad": lambda f: grad(lambda z: f(z).sum())(X),
    "jacrev": lambda f: jacrev(f)(X).diagonal(),
    "jacfwd": lambda f: jacfwd(f)(X).diagonal(),
    "dual": lambda f: dual(f, X),
    "vmap of jvp": lambda f: vmap(lambda z: jvp(f, (z,), (ONES,))[1])(X[None])[0],
    "vmap of grad": lambda f: vmap(grad(lambda z: f(z).sum()))(X[None])[0],
    "jvp of vmap": lambda f: jvp(vmap(f), (X[None],), (ONES[None],))[1][0],
}


@pytest.mark.parametrize("way", TANGENTS)
def test_the_tangent_op_under_transforms(way):
    tangent = kernels.square_op.tangent
    close(TANGENTS[way](lambda z: tangent(z, ONES)[1]), 2 * ONES)
    close(TANGENTS[way](lambda z: tangent(z, z)[1]), 4 * X)
    close(hessian(lambda z: tangent(z, z)[1].sum())(X).diagonal(), 4 * ONES)


@pytest.mark.parametrize("way", ["jvp", "grad", "jacrev"])
def test_the_tangent_ops_overload_is_refused_as_the_ops_is(way):
    with pytest.raises(GradientError, match="not on op.tangent.overload"):
        TANGENTS[way](lambda z: kernels.square_op.tangent.overload(z, ONES)[1])


# --- what Warp can't build --------------------------------------------------------------------------------------------


def broken(make, kernel_of=lambda made: made):
    """What makes a kernel, with one that Warp can't build."""

    def load(*_):
        raise RuntimeError("no such builtin")

    def made(*given):
        found = make(*given)
        kernel_of(found).module.load = load
        return found

    return made


def power(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    v = float(1.0)
    for _ in range(n):
        v = v * x[i]
    y[i] = v


@pytest.fixture(params=["op", "program"])
def powers(request, monkeypatch):
    """An op whose gradient needs another kernel. None of them has been made."""
    kernel = wp.kernel(power, module="unique")

    def program(x: wp.array[float], n: int, y: wp.array[float]):
        wp.launch(kernel, dim=x.shape, inputs=[x, n], outputs=[y])

    op = warp_op(kernel, "x[m] -> y[m]") if request.param == "op" else warp_program("x[m] -> y[m]")(program)
    monkeypatch.setattr(reverse, "_made", weakref.WeakKeyDictionary())
    return op


def test_a_tangent_kernel_that_cannot_be_built(powers, monkeypatch):
    op = powers
    for room in (tangents, tangent):
        monkeypatch.setattr(room, "tangent_kernel", broken(tangent_kernel))
    said = rf"{op.name}: .*Warp can't build.*: no such builtin \(.*test_refused_derivatives.py:\d+\)"
    for _ in range(2):
        with pytest.raises(GradientError, match=f"(?s){said}"):
            jvp(lambda z: op(z, 3), (X,), (ONES,))
    x = X.clone().requires_grad_()
    close(torch.autograd.grad(op(x, 3).sum(), x)[0], 3 * X * X)


def test_an_adjoint_that_cannot_be_built(powers, monkeypatch):
    op = powers
    monkeypatch.setattr(reverse, "make_adjoint", broken(make_adjoint, lambda made: made.kernel))
    x = X.clone().requires_grad_()
    for _ in range(2):
        with pytest.raises(GradientError, match=f"(?s){op.name}: .*power in another form .*: no such builtin"):
            op(x, 3).sum().backward()


@wp.func
def put(y: wp.array[wp.float64], i: int, v: wp.float64):
    y[i] = v * v
    return v * wp.float64(2.0)


@wp.kernel
def puts_inside(x: wp.array[wp.float64], y: wp.array[wp.float64], z: wp.array[wp.float64]):
    i = wp.tid()
    z[i] = put(y, i, x[i]) + wp.float64(1.0)


@wp.kernel
def puts_first(x: wp.array[wp.float64], y: wp.array[wp.float64], z: wp.array[wp.float64]):
    i = wp.tid()
    p = put(y, i, x[i])
    z[i] = p + wp.float64(1.0)


def test_a_function_that_stores_inside_of_an_expression():
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    inside, first = (warp_op(kernel, "x[n] -> y[n], z[n]") for kernel in (puts_inside, puts_first))
    with pytest.raises(GradientError, match="'put' writes to arrays, and is called inside of an expression"):
        jvp(inside, (x,), (x,))
    assert torch.autograd.gradcheck(inside, x)
    assert torch.autograd.gradcheck(first, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(first, x)
