"""The signature: what it accepts, what it binds and compares, and what a wrong one is told."""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
from support import afresh, check_against, close, values_and_grads
from warpops import ArgumentError, SignatureError, WarpOpError, warp_op, warp_program


@wp.kernel
def fold(x: wp.array[float], w: wp.array[float], stride: int, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i * stride] * w[0]


@wp.kernel
def copy_first(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i, 0]


@wp.kernel
def pair(a: wp.array[float], b: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    y[i] = a[i] + b[i]
    z[i] = a[i] * b[i]


def refuse(signature, kernel=kernels.square, **options):
    with pytest.raises(SignatureError) as caught:
        warp_op(kernel, signature, **{"dim": "n", **options})
    assert isinstance(caught.value, (ValueError, WarpOpError))
    return str(caught.value)


# --- what can't be read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signature", "advice"),
    [
        ("x(n) -> y[n]", "write sizes in square brackets, as in 'x[n, k]'"),
        ("x[n] y[n]", "separate arrays with commas, as in 'x[n], w[k] -> y[n, k]'"),
        ("x[n] -> y[n] -> y[n]", "more than one '->'"),
        ("x[n] => y[n]", "can't be read at '=> y[n]'"),
        ("x[n -> y[n]", "can't be read at '[n'"),
        ("x[n]] -> y[n]", "can't be read at ']'"),
        ("x[n] -> y[n", "can't be read at '[n'"),
        ("x[n],, -> y[n]", "can't be read at ','"),
        (", x[n] -> y[n]", "can't be read at ', x[n]'"),
        ("x[n], -> y[n]", "an array's name is missing after a comma"),
        ("x[n m] -> y[n]", "separate the sizes in 'n m' with commas: 'n, m'"),
        ("x[n/2] -> y[n]", "write '//' for a size"),
        ("x[n**2] -> y[n]", "'n ** 2' uses an operator that sizes don't have (+ - * // %)"),
        ("x[n], x[n] -> y[n]", "'x' stands twice on one side"),
        ("x[n] -> y[n], y[n]", "'y' stands twice on one side"),
        ("x[_ + 1] -> y[n]", "'_' stands for any size and can't be part of an expression"),
    ],
)
def test_what_can_not_be_read_is_told_with_advice(signature, advice):
    message = refuse(signature)
    assert message.startswith("square: ")
    assert repr(signature) in message
    assert advice in message


@pytest.mark.parametrize(
    "size",
    [
        "foo(n)",
        "__import__('os')",
        "n.a",
        "'n'",
        "1.5",
        "n if n else 1",
        "lambda: 1",
        "(n := 3)",
        "abs(n)",
        "True",
        "min(n)",
        "max(n, key=n)",
        "n < 3",
        "not n",
        "~n",
        "n << 1",
        "*n",
        "f'{n}'",
        "{n}",
        "n @ n",
        "n and n",
        "None",
    ],
)
def test_nothing_but_integer_expressions_is_accepted(size):
    assert "square: " in refuse(f"x[{size}] -> y[3]", dim=3)


def test_nothing_is_ever_evaluated():
    refuse("x[__import__('builtins').exit()] -> y[3]", dim=3)


@pytest.mark.parametrize(
    ("signature", "options", "needles"),
    [
        ("x[n] -> z[n]", {}, ["names 'z', which is no argument of the kernel", "x, y"]),
        ("q[n] -> y[n]", {}, ["names 'q', which is no argument of the kernel"]),
        ("x[n, m] -> y[n]", {}, ["'x' is declared with 2 sizes", "which has 1"]),
        ("x[] -> y[n]", {}, ["'x'", "0 sizes"]),
        ("x[n] -> y[m]", {}, ["'y'", "'m'", 'sizes="m"']),
        ("x[_] -> y[n]", {}, ["'y'", "'n'"]),
        ("x[n // 2] -> y[n]", {}, ["'n // 2' alone can't be solved for", "'n'"]),
        ("x[n] -> y[_]", {}, ["'y'", "'_'"]),
        ("x[n] -> y[n]", {"dim": "m"}, ["dim", "'m'"]),
        ("x[n] -> y[n]", {"dim": "n, n"}, ["dim has 2 sizes", "takes 1 coordinate"]),
        ("x[n] -> y[n]", {"dim": (3, 3)}, ["dim has 2 sizes"]),
        ("x[n] -> y[n]", {"dim": ()}, ["dim has 0 sizes"]),
        ("x[n] -> y[n]", {"dim": -1}, ["dim", "-1"]),
        ("x[n] -> y[n]", {"dim": "_"}, ["dim", "'_'"]),
        ("x[n] -> y[n]", {"dim": 1.5}, ["dim", "1.5"]),
        ("x[n] -> y[n]", {"shapes": {"y": "n"}}, ["'y'", "shapes"]),
        ("-> y", {"shapes": {"y": "3"}, "dim": 3, "sizes": "x"}, ["'x'", "sizes"]),
        ("x[n] -> y[n]", {"shapes": {"x": "n"}}, ["'x'", "no output"]),
        ("x[n] -> y[n]", {"init": "ones"}, ["init", "'ones'"]),
        ("x[n] -> y[n]", {"init": {"z": 0}}, ["init", "'z'"]),
        ("x[n] -> y[n]", {"init": {"x": 0}}, ["init", "'x'"]),
        ("x[n] -> y[n]", {"init": {"y": "ones"}}, ["init", "'y'", "'ones'"]),
        ("x[n] -> y[n]", {"mutates": "y"}, ["'y'", "mutates"]),
        ("x[n] -> y[n]", {"mutates": "z"}, ["'z'", "mutates"]),
        ("x[n] -> y[n]", {"scratch": "y[n]"}, ["'y'", "scratch"]),
        ("x[n] -> y[n]", {"scratch": "t[n]"}, ["'t'", "scratch"]),
        ("x[n] -> y[n]", {"optional": "y"}, ["'y'", "optional"]),
        ("x[n] -> y[n]", {"optional": "q"}, ["'q'", "optional"]),
        ("x[n] -> y[n]", {"nondiff": "q"}, ["'q'", "nondiff"]),
        ("x[n] -> y[n]", {"tensor_scalars": "x"}, ["'x'", "tensor_scalars"]),
        ("x[n] -> y[n]", {"name": "plain"}, ["name", "'plain'"]),
        ("x[n] -> y[n]", {"name": 3}, ["name", "3"]),
        ("x[n] -> y[n]", {"block_dim": 0}, ["block_dim", "0"]),
        ("->", {"dim": 3}, ["no output", 'warp_op("x[n] -> y[n]"']),
        ("x[n] ->", {}, ["no output", 'warp_op("x[n] -> y[n]"']),
        (5, {}, ["signature", "5"]),
    ],
)
def test_a_declaration_that_does_not_fit_the_kernel(signature, options, needles):
    message = refuse(signature, **options)
    assert message.startswith("square: ")
    for needle in needles:
        assert needle in message


def test_numbers_have_no_brackets():
    assert "'s', which is a float32 and no array" in refuse("x[n], s[n] -> y[n]", kernels.scale)


def test_a_near_miss_is_named():
    assert "did you mean 'index'?" in refuse("x[n], indx[n] -> y[3]", kernels.scatter)


def test_the_kernel_is_named_with_file_and_line():
    message = refuse("x[n] -> z[n]")
    assert "kernels.py:" in message


@pytest.mark.parametrize("wrong", [3, "x", None.__class__, object()])
def test_only_kernels_and_functions_are_taken(wrong):
    with pytest.raises(SignatureError, match="kernel"):
        warp_op("x[n] -> y[n]")(wrong)


def test_an_unknown_option_is_python_s_own_error():
    with pytest.raises(TypeError, match="lanch"):
        warp_op(kernels.square, "x[n] -> y[n]", lanch="n")


# --- sizes ------------------------------------------------------------------------------------------------------------


def test_a_name_is_bound_once_and_then_compared(mode):
    function = mode(kernels.product_op)
    close(function(torch.ones(3), torch.ones(3)), torch.ones(3))
    with pytest.raises(Exception, match=r"'w': expected size 3 on axis 0 \('n', bound by 'x'\), got 4"):
        afresh(mode, kernels.product_op)(torch.ones(3), torch.ones(4))


@pytest.mark.parametrize(
    ("left", "fits", "short"),
    [
        ("w[n], x[2 * n]", (6, 3), (7, 3)),
        ("w[n], x[n * 2]", (6, 3), (5, 3)),
        ("w[n], x[n + n]", (6, 3), (4, 3)),
        ("w[n], x[4 * n - 6]", (6, 3), (8, 3)),
        ("w[n], x[(n + 1) * n // 2]", (6, 3), (7, 3)),
        ("w[n], x[n % 2 + 5]", (6, 3), (7, 3)),
        ("w[n], x[max(n, 6)]", (6, 3), (7, 3)),
        ("w[n], x[min(n, 7) + 3]", (6, 3), (7, 3)),
        ("w[n], x[-n + 9]", (6, 3), (7, 3)),
        ("w[n], x[min(n, 6, 9) * 2]", (6, 3), (7, 3)),
        ("x[2 * n], w[n]", (6, 3), (8, 3)),
    ],
)
def test_expressions_are_compared_whatever_the_order_of_names(left, fits, short):
    op = warp_op(fold, f"{left} -> y[n]", dim="n")
    x, w = (torch.arange(float(size)) + 1 for size in fits)
    close(op(x, w, 2), x[::2] * w[0])
    x, w = (torch.arange(float(size)) + 1 for size in short)
    with pytest.raises(ArgumentError, match=r"argument 'x': expected size 6 on axis 0") as caught:
        op(x, w, 2)
    assert f"got {short[0]}" in str(caught.value)


def test_an_integer_argument_is_compared_and_never_bound(mode):
    op = warp_op(fold, "x[stride * 3] -> y[3]", dim=3)

    def call(x, n):
        return op(x, torch.ones(1), n)

    close(mode(call)(torch.arange(6.0), 2), torch.tensor([0.0, 2.0, 4.0]))
    with pytest.raises(Exception, match=r"argument 'x': expected size 9 on axis 0 \('stride \* 3'\), got 6"):
        afresh(mode, call)(torch.arange(6.0), 3)


def test_a_bare_integer_argument_is_compared_too():
    op = warp_op(kernels.mixed, "x[n] -> y[n]", dim="n")
    x = torch.ones(3)
    close(op(x, 1.0, 3, False), torch.full((3,), 4.0))
    with pytest.raises(ArgumentError, match=r"'x': expected size 2 on axis 0 \('n'\), got 3"):
        op(x, 1.0, 2, False)


def test_a_number_in_brackets_is_that_size(mode):
    op = warp_op(copy_first, "x[n, 4] -> y[n]", dim="n")
    close(mode(op)(torch.ones(2, 4)), torch.ones(2))
    with pytest.raises(Exception, match="'x': expected size 4 on axis 1, got 3"):
        afresh(mode, op)(torch.ones(2, 3))


def test_underscore_is_any_size():
    op = warp_op(copy_first, "x[n, _] -> y[n]", dim="n")
    for m in (1, 2, 7):
        close(op(torch.ones(2, m)), torch.ones(2))


@pytest.mark.parametrize(("size", "n"), [("n // (n - 3)", 3), ("n % (3 - n)", 3)])
def test_division_by_zero_is_an_argument_error(mode, size, n):
    op = warp_op(kernels.square, f"x[n] -> y[{size} + n]", dim="n")
    with pytest.raises(Exception, match="division by zero") as caught:
        mode(op)(torch.ones(n))
    assert "'y'" in str(caught.value)
    if mode.__name__ == "eager":
        assert isinstance(caught.value, ArgumentError)


def test_a_negative_size_is_an_argument_error(mode):
    op = warp_op(kernels.square, "x[n] -> y[n - 4]", dim=0)
    with pytest.raises(Exception, match=r"'y': the size -1 \('n - 4'\) is negative") as caught:
        mode(op)(torch.ones(3))
    if mode.__name__ == "eager":
        assert isinstance(caught.value, ArgumentError)


def test_an_output_may_have_sizes_of_its_own(mode):
    op = warp_op(kernels.square, "x[n] -> y[n + 2]", dim="n", init=7.0)
    got = mode(op)(torch.tensor([2.0, 3.0]))
    assert got.tolist() == [4.0, 9.0, 7.0, 7.0]


def test_floor_division_and_modulo_round_as_python_does():
    op = warp_op(kernels.square, "x[n] -> y[(0 - n) // 2 + 5]", dim="n")
    assert op(torch.ones(3)).shape == (3,)
    op = warp_op(kernels.square, "x[n] -> y[(0 - n) % 4 + 2]", dim="n")
    assert op(torch.ones(3)).shape == (3,)


# --- sides ------------------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_right_hand_side(mode):
    a, b = torch.randn(3), torch.randn(3)
    one = warp_op(pair, "a[n], b[n] -> y[n], z[n]", dim="n")
    other = warp_op(pair, "a[n], b[n] -> z[n], y[n]", dim="n")
    check_against(mode(one), lambda a, b: (a + b, a * b), (a, b))
    check_against(mode(other), lambda a, b: (a * b, a + b), (a, b))


def test_arguments_stay_in_the_order_of_the_kernel():
    op = warp_op(kernels.product, "w[n], x[n] -> y[n]", dim="n")
    x, w = torch.tensor([2.0]), torch.tensor([5.0])
    close(op(x, w), torch.tensor([20.0]))


def test_inputs_may_be_left_out_of_the_signature():
    op = warp_op(kernels.product, "x[n] -> y[n]", dim="n")
    x, w = torch.randn(3), torch.randn(3)
    close(op(x, w), x * x * w)
    _, grads = values_and_grads(op, (x, w))
    assert len(grads) == 2


def test_only_outputs_may_be_named():
    op = warp_op(kernels.product, "-> y", dim=lambda x: x.shape[0], shapes={"y": lambda x: x.shape})
    x, w = torch.randn(3), torch.randn(3)
    close(op(x, w), x * x * w)


def test_spaces_do_not_matter():
    op = warp_op(kernels.square, "  x [ n ]->y[n]  ", dim=" n ")
    close(op(torch.tensor([3.0])), torch.tensor([9.0]))


@pytest.mark.parametrize(
    "shape",
    ["n", "[n]", ("n",), lambda x: x.shape[0], lambda x: (x.shape[0],), lambda x: x.shape, lambda **kw: kw["x"].shape],
)
def test_every_way_to_give_a_shape_and_a_launch_size(mode, shape):
    op = warp_op(kernels.square, "x[n] -> y", dim=shape, shapes={"y": shape})
    x = torch.randn(4)
    check_against(mode(op), kernels.square_, (x,))


def test_dims_are_those_of_the_warp_array():
    op = warp_op(kernels.weigh, "p[n], w[n] -> y[n]", dim="n")
    p, w = torch.randn(4, 3), torch.randn(4)
    close(op(p, w), kernels.weigh_(p, w))


# --- callables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dim": lambda x: 3}, "dim: the kernel gauss takes 2 coordinates from wp.tid(), and dim has 1"),
        ({"dim": lambda x: (3, 2, 2)}, "dim: the kernel gauss takes 2 coordinates from wp.tid(), and dim has 3"),
        ({"dim": lambda x: (3, -2)}, "dim: the size -2 is negative"),
        ({"dim": lambda x: (3, 2.0)}, "dim: expected ints from the callable, got 2.0"),
        ({"dim": lambda x: "n"}, "dim: expected an int or a tuple of ints from the callable, got 'n'"),
        (
            {"dim": lambda x, q: 3},
            "dim: the callable asks for 'q', which is no argument of the op; those are x, w",
        ),
        ({"shapes": {"y": lambda x: (3,)}}, "the shape of 'y': expected 2 sizes, got 1: (3,)"),
        ({"shapes": {"y": lambda x: (3, -2)}}, "the shape of 'y': the size -2 is negative"),
        ({"shapes": {"y": lambda x: (3, None)}}, "the shape of 'y': expected ints from the callable, got None"),
        ({"shapes": {"y": lambda x: None}}, "the shape of 'y': expected an int or a tuple of ints"),
    ],
)
def test_a_callable_that_returns_something_wrong(mode, options, text):
    op = warp_op(
        kernels.gauss,
        "-> y",
        **{
            "dim": lambda x, w: (x.shape[0], w.shape[0]),
            "shapes": {"y": lambda x, w: (x.shape[0], w.shape[0])},
            **options,
        },
    )
    with pytest.raises(Exception, match="gauss") as caught:
        mode(op)(torch.ones(3), torch.ones(2))
    assert f"{op.name}: {text}" in str(caught.value)
    if mode.__name__ == "eager":
        assert isinstance(caught.value, ArgumentError)


def test_a_callable_sees_numbers_sizes_and_defaults():
    seen = {}

    def shape(x, s, extra, **rest):
        seen.update(s=s, extra=extra, rest=rest)
        return extra

    op = warp_op(kernels.scale, "x[n] -> y", dim="n", shapes={"y": shape}, sizes="extra")
    assert op(torch.ones(2), 3.0, 4).tolist() == [3.0, 3.0, 0.0, 0.0]
    assert (seen["s"], seen["extra"]) == (3.0, 4)
    assert "y" not in seen["rest"]
    assert "x" not in seen["rest"]


# --- names and functions that can't be had ----------------------------------------------------------------------------


@wp.kernel
def plain(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i]


@pytest.mark.parametrize("name", ["aten::add", "prims::mul", "a::class", "ü::x", "a::b::c", "a", "", 3])
def test_names_that_no_operator_can_have(name):
    with pytest.raises(SignatureError, match=r"plain: (name is 'namespace::op'|the namespace of)"):
        warp_op(plain, name=name)


@wp.kernel
def two_ways(forward: wp.array[float], backward: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = forward[i] * backward[i]


@wp.kernel
def context(ctx: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = ctx[i]


def test_arguments_named_like_the_generated_code(mode):
    check_against(mode(warp_op(two_ways)), lambda a, b: a * b, (torch.randn(3), torch.randn(3)))
    with pytest.raises(SignatureError, match="context: an argument can't be named 'ctx'"):
        warp_op(context)
    with pytest.raises(SignatureError, match="plain: an argument can't be named 'len'"):
        warp_op(plain, "x[n] -> y[n]", sizes="len")


def test_functions_that_are_no_kernels():
    with pytest.raises(SignatureError, match="and got a lambda"):
        warp_op(lambda x: x)

    def bare(x, y: wp.array[float]):
        pass

    with pytest.raises(SignatureError, match="and got arguments without a type: x"):
        warp_op(bare)

    async def waits(x: wp.array[float], y: wp.array[float]):
        y[wp.tid()] = x[wp.tid()]

    def yields(x: wp.array[float], y: wp.array[float]):
        yield x

    for function in (waits, yields):
        with pytest.raises(SignatureError, match=f"{function.__name__} is a generator or async"):
            warp_op(function)
        with pytest.raises(SignatureError, match=f"{function.__name__} is a generator or async"):
            warp_program("x[n] -> y[n]")(function)


@wp.kernel
def of_another_type(x: wp.array[float], grad_y: wp.array[float], grad_x: wp.array[wp.vec3]):
    i = wp.tid()
    grad_x[i] = wp.vec3(grad_y[i], 0.0, 0.0)


def test_a_gradient_of_another_type_than_its_input():
    message = (
        "plain: backward: of_another_type: argument 'grad_x': expected wp.array[wp.float32], the type of 'x' in the "
        "forward, got wp.array[wp.vec3f]"
    )
    with pytest.raises(SignatureError) as caught:
        warp_op(plain, "x[n] -> y[n]", backward=of_another_type)
    assert str(caught.value) == message
