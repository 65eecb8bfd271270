"""Probes for JAX. None of them takes part where arrays have neither ``.grad`` nor in-place changes."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import warp as wp

from feature_cases import PRODUCT, SQUARE, SWIRL, Case, Op
from feature_probes import Probe, leaves, ramp, refused, refuses, same


def in_jax(given: list[torch.Tensor]) -> list[Any]:
    import jax

    return [jax.numpy.asarray(t.detach().numpy()) for t in given]


def in_torch(array: Any) -> torch.Tensor:
    import numpy

    return torch.from_numpy(numpy.array(array))


def jax_right(op: Op, case: Case, given: list[Any], expanded: bool = False, what: str = "") -> None:
    import jax

    plain = [in_torch(a).requires_grad_() for a in given]
    expected = case.reference(*plain)
    cotangent = torch.ones_like(expected) if expanded else ramp(expected)
    wanted = torch.autograd.grad(expected, plain, cotangent)
    result, pullback = jax.vjp(op, *given)
    what = f"{case.kernel.key} {what}".strip()
    same(in_torch(result), expected.detach(), f"{what}: value")
    factor = in_jax([cotangent])[0]
    if expanded:
        found = jax.grad(lambda *a: op(*a).sum(), argnums=tuple(range(len(given))))(*given)
    else:
        found = pullback(factor)
        same(in_torch(factor), cotangent, f"{what}: the cotangent afterwards")
    for name, got, want in zip(case.inputs, found, wanted, strict=True):
        same(in_torch(got), want, f"{what}: gradient of {name}")


def jax_gradients_of(*cases: Case, expanded: bool = False) -> tuple[Probe, ...]:
    def probe_of(case: Case) -> Probe:
        def probe(make: Any) -> str:
            jax_right(make(case, 6), case, in_jax(case.given()), expanded)
            return "yes"

        return probe

    return tuple(probe_of(case) for case in cases)


def jax_cotangent_kept(case: Case) -> Probe:
    def probe(make: Any) -> str:
        import jax

        result, pullback = jax.vjp(make(case, 6), *in_jax(case.given()))
        cotangent = jax.numpy.linspace(-1.0, 2.0, result.size).reshape(result.shape)
        kept = in_torch(cotangent)
        jax.block_until_ready(pullback(cotangent))
        same(in_torch(cotangent), kept, f"{case.kernel.key}: the cotangent afterwards")
        return "yes"

    return probe


def jax_twice(case: Case) -> Probe:
    def probe(make: Any) -> str:
        import jax

        result, pullback = jax.vjp(make(case, 6), *in_jax(case.given()))
        cotangent = jax.numpy.linspace(-1.0, 2.0, result.size).reshape(result.shape)
        first, second = in_torch(pullback(cotangent)[0]), in_torch(pullback(cotangent)[0])
        same(second, first, f"{case.kernel.key}: the second gradient")
        return "yes"

    return probe


def jax_strides(make: Any) -> str:
    import jax

    (x,) = in_jax([torch.randn(12, generator=torch.Generator().manual_seed(1))])
    jax_right(make(SQUARE), SQUARE, [x[::2]], what="sliced")
    (x,) = in_jax([torch.randn(3, 6, generator=torch.Generator().manual_seed(1))])
    jax_right(make(SWIRL), SWIRL, [x.T], what="transposed")
    op = make(SWIRL)
    same(in_torch(jax.jit(lambda x: op(x.T))(x)), SWIRL.reference(in_torch(x).T), "swirl transposed inside jit")
    return "yes"


def jax_expanded_inputs(make: Any) -> str:
    import jax

    (x,) = in_jax([torch.randn(1, 3, generator=torch.Generator().manual_seed(1))])
    jax_right(make(SWIRL), SWIRL, [jax.numpy.broadcast_to(x, (6, 3))], what="expanded")
    return "yes"


def jax_starts_at_zero(case: Case) -> Probe:
    """Warp's manual: such an output is an in-out argument, for which the caller brings the zeros."""

    def probe(make: Any) -> str:
        import jax

        function = wp.jax_kernel(case.kernel, in_out_argnames=["y"])
        for n in (6, 64, 1000):
            given = case.given(n)
            found = function(*in_jax([given[0], torch.zeros(n)]))[0]
            same(in_torch(found), case.reference(*given), f"{case.kernel.key}: value, as an in-out argument")

        def value(x: Any) -> Any:
            differentiable = wp.jax_kernel(case.kernel, in_out_argnames=["y"], enable_backward=True)
            return differentiable(x, jax.numpy.zeros_like(x))[0].sum()

        given = case.given()
        found = in_torch(jax.grad(value)(in_jax(given)[0]))
        (x,) = leaves(given)
        same(found, torch.autograd.grad(case.reference(x).sum(), x)[0], f"{case.kernel.key}: gradient")
        return "yes"

    return probe


def jax_some_require_grad(make: Any) -> str:
    import jax

    op, given = make(PRODUCT), in_jax(PRODUCT.given())
    for index in (0, 1):
        found = jax.grad(lambda *a: op(*a).sum(), argnums=index)(*given)
        same(in_torch(found), in_torch(given[1 - index]), PRODUCT.inputs[index])
    return "yes"


def jax_compiles(make: Any) -> str:
    import jax

    for case in (SQUARE, PRODUCT, SWIRL):
        jax_right(jax.jit(make(case)), case, in_jax(case.given()))
    return "yes"


def jax_sizes_change(make: Any) -> str:
    import jax

    op, traces = make(PRODUCT), itertools.count()

    @jax.jit
    def function(left: Any, right: Any) -> Any:
        next(traces)
        return op(left, right)

    for n in (6, 7, 9, 14, 33):
        given = PRODUCT.given(n)
        same(in_torch(function(*in_jax(given))), given[0] * given[1], "product")
    traced = next(traces)
    return "yes" if traced <= 2 else f"no: traced {traced} times for 5 sizes"


def jax_maps(make: Any) -> str:
    import jax

    for case in (SQUARE, SWIRL):
        given = torch.stack([case.given(seed=k)[0] for k in range(4)])
        wanted, array = torch.vmap(case.reference)(given), in_jax([given])[0]
        same(in_torch(jax.vmap(make(case))(array)), wanted, f"{case.kernel.key}: vmap")
        turned = jax.numpy.moveaxis(array, 0, 1)
        same(in_torch(jax.vmap(make(case), in_axes=1)(turned)), wanted, f"{case.kernel.key}: vmap, in_axes=1")
    left, right_ = (torch.stack([PRODUCT.given(seed=k)[i] for k in range(4)]) for i in (0, 1))
    found = jax.vmap(make(PRODUCT), in_axes=(0, None))(*in_jax([left, right_[0]]))
    same(in_torch(found), left * right_[0], "product: vmap over the left factor")
    return "yes"


def jax_maps_gradients(make: Any) -> str:
    import jax

    for case in (SQUARE, SWIRL):
        op = make(case)
        given = torch.stack([case.given(seed=k)[0] for k in range(4)])
        weights = in_jax([ramp(given[0])])[0]
        found = jax.vmap(jax.grad(lambda x, op=op, w=weights: (op(x) * w).sum()))(in_jax([given])[0])
        wanted = torch.vmap(torch.func.grad(lambda x, case=case: (case.reference(x) * ramp(x)).sum()))(given)
        same(in_torch(found), wanted, f"{case.kernel.key}: vmap of grad")
    return "yes"


def jax_double_backward(make: Any) -> str:
    import jax

    op = make(SQUARE)
    (x,) = in_jax(SQUARE.given())

    def loss(x: Any) -> Any:
        return op(x).sum() + (jax.grad(lambda x: op(x).sum())(x) ** 2).sum()

    try:
        found = in_torch(jax.grad(loss)(x))
    except Exception as error:
        return refused(error)
    same(found, 10 * in_torch(x), "gradient of a loss with a gradient penalty")
    return "yes"


def jax_forward_mode(make: Any) -> str:
    import jax

    (x,) = in_jax(SQUARE.given())
    try:
        found = in_torch(jax.jvp(make(SQUARE), (x,), (jax.numpy.ones_like(x),))[1])
    except Exception as error:
        return refused(error)
    same(found, 2 * in_torch(x), "tangent")
    return "yes"


def jax_refuses(case: Case, arguments: Callable[[list[Any]], list[Any]], name: str) -> Probe:
    def probe(make: Any) -> str:
        import jax

        jax.config.update("jax_enable_x64", True)
        op = make(case)
        return refuses(case, lambda given: in_jax(arguments(given)), name)(
            lambda _: lambda *given: jax.block_until_ready(op(*given))
        )

    return probe
