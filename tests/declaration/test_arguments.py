"""Every check of a call's arguments: the whole message in eager code, and the same text under ``torch.compile``."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import warp as wp

import kernels
from support import afresh, close, compiled
from warpops import ArgumentError, WarpOpError, warp_op


@wp.kernel
def everything(
    x: wp.array2d[float],
    v: wp.array[wp.vec3],
    n: int,
    small: wp.uint8,
    large: wp.int64,
    s: float,
    half: wp.float16,
    flag: bool,
    g: wp.vec3,
    m: wp.mat22,
    y: wp.array[float],
):
    i = wp.tid()
    y[i] = x[i, 0] * v[i][0] + s * float(n)


op = warp_op(everything, "x[k, 2], v[k] -> y[k]", dim="k")


@wp.kernel
def bfloat(x: wp.array[float], s: wp.bfloat16, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * float(s)


bfloat_op = warp_op(bfloat)


def good(**changes):
    arguments = {
        "x": torch.ones(3, 2),
        "v": torch.ones(3, 3),
        "n": 1,
        "small": 1,
        "large": 1,
        "s": 1.0,
        "half": 1.0,
        "flag": True,
        "g": (1.0, 2.0, 3.0),
        "m": ((1.0, 2.0), (3.0, 4.0)),
    }
    return {**arguments, **changes}


X, V = "wp.array2d[wp.float32]", "wp.array[wp.vec3f]"
TENSOR = (
    "expected a number ({}), got a tensor of shape torch.Size([]); declare tensor_scalars='{}' to give it as a 0-d "
    "tensor, or pass a Python number, with .item() (its gradient would be lost)"
)
LEARN = ", or take an array of one element in the kernel, s[0], to keep it"
TENSOR_FOR_BOOL = (
    "expected a number (bool), got a tensor of shape torch.Size([]); pass a Python number, with .item() (its gradient "
    "would be lost)"
)
DTYPE = f"expected dtype torch.float32 ({X}), got torch.{{}}; convert it with .to(...)"
TOO_LARGE = "expected a float that float32 can hold, got 1e+39; inf and nan are allowed"
BATCH = "for 1 leading batch dimension use torch.vmap"
INT32 = "[-2147483648, 2147483647] (int32)"
INT64 = "[-9223372036854775808, 9223372036854775807] (int64)"

CASES = {
    "float64": ("x", torch.ones(3, 2).double(), DTYPE.format("float64")),
    "float16": ("x", torch.ones(3, 2).half(), DTYPE.format("float16")),
    "int64": ("x", torch.ones(3, 2).long(), DTYPE.format("int64")),
    "bool": ("x", torch.ones(3, 2).bool(), DTYPE.format("bool")),
    "complex": (
        "x",
        torch.ones(3, 2).cfloat(),
        DTYPE.format("complex64"),
    ),
    "list": ("x", [[1.0, 2.0]], f"expected a tensor ({X}), got list; convert it with torch.as_tensor"),
    "ndarray": ("x", np.ones((3, 2), "f"), f"expected a tensor ({X}), got ndarray; convert it with torch.as_tensor"),
    "None": ("x", None, f"expected a tensor ({X}), got None; only arrays declared optional may be None"),
    "float": ("x", 1.0, f"expected a tensor ({X}), got float"),
    "rank too low": ("x", torch.ones(6), f"expected 2 dimensions (k, 2) ({X}), got shape torch.Size([6])"),
    "batched": (
        "x",
        torch.ones(1, 3, 2),
        f"expected 2 dimensions (k, 2) ({X}), got shape torch.Size([1, 3, 2]); {BATCH}",
    ),
    "0-d": (
        "x",
        torch.tensor(1.0),
        f"expected 2 dimensions (k, 2) ({X}), got shape torch.Size([]); a 0-d tensor is no array, pass a tensor of one "
        "element with .reshape(1)",
    ),
    "one vector": (
        "v",
        torch.ones(3),
        f"expected 2 dimensions (k, 3) ({V}), got shape torch.Size([3]); for a single element pass v.unsqueeze(0)",
    ),
    "components": ("v", torch.ones(3, 4), f"expected shape (k, 3) ({V}), got torch.Size([3, 4])"),
    "size": ("v", torch.ones(4, 3), "expected size 3 on axis 0 ('k', bound by 'x'), got 4: shape torch.Size([4, 3])"),
    "constant size": ("x", torch.ones(3, 5), "expected size 2 on axis 1, got 5: shape torch.Size([3, 5])"),
    "device": ("v", torch.ones(3, 3, device="meta"), "expected device cpu, that of 'x', got meta"),
    "int above": ("n", 2**31, f"expected an int in {INT32}, got 2147483648"),
    "int below": ("n", -(2**31) - 1, f"expected an int in {INT32}, got -2147483649"),
    "float for int": ("n", 1.5, "expected an int (int32), got the float 1.5"),
    "whole float for int": ("n", 2.0, "expected an int (int32), got the float 2.0"),
    "str for int": ("n", "1", "expected a number (int32), got str"),
    "None for int": ("n", None, "expected a number (int32), got NoneType"),
    "list for int": ("n", [1], "expected a number (int32), got list"),
    "tensor for int": ("n", torch.tensor(1), TENSOR.format("int32", "n")),
    "negative for unsigned": ("small", -1, "expected an int in [0, 255] (uint8), got -1"),
    "unsigned above": ("small", 256, "expected an int in [0, 255] (uint8), got 256"),
    "int64 above": ("large", 2**63, f"expected an int in {INT64}, got 9223372036854775808"),
    "float above": ("s", 1e39, TOO_LARGE),
    "half above": ("half", 1e5, "expected a float that float16 can hold, got 100000.0; inf and nan are allowed"),
    "str for float": ("s", "a", "expected a number (float32), got str"),
    "complex for float": ("s", 1j, "expected a number (float32), got complex"),
    "tensor for float": ("s", torch.tensor(1.0), TENSOR.format("float32", "s")),
    "learned tensor for float": ("s", torch.tensor(1.0, requires_grad=True), TENSOR.format("float32", "s") + LEARN),
    "int for bool": ("flag", 2, "expected a bool, got 2"),
    "str for bool": ("flag", "x", "expected a number (bool), got str"),
    "tensor for bool": ("flag", torch.tensor(True), TENSOR_FOR_BOOL),
    "vector too short": ("g", (1.0, 2.0), "expected 3 numbers (vec3f), got 2"),
    "matrix too short": ("m", (1.0, 2.0, 3.0), "expected 4 numbers (mat22f), got 3"),
    "float for vector": ("g", 1.0, "expected 3 numbers (vec3f), got float"),
    "None for vector": ("g", None, "expected 3 numbers (vec3f), got NoneType"),
    "tensor for vector": (
        "g",
        torch.ones(3),
        "expected 3 numbers (vec3f), got a tensor of shape torch.Size([3]); pass numbers with .tolist() (its gradient "
        "would be lost), or take an array in the kernel",
    ),
    "float above in a vector": ("g", (1.0, 2.0, 1e39), TOO_LARGE),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_argument_in_eager_code(case):
    name, value, text = CASES[case]
    with pytest.raises(ArgumentError) as caught:
        op(**good(**{name: value}))
    assert str(caught.value) == f"test_arguments::everything: argument '{name}': {text}"
    assert isinstance(caught.value, (ValueError, WarpOpError))


# An int beyond 64 bits never gets to the op: PyTorch's own parser refuses it while it traces.
COMPILED_CASES = [case for case in CASES if case != "int64 above"]


@pytest.mark.parametrize("case", COMPILED_CASES)
def test_a_wrong_argument_in_compiled_code(case):
    name, value, text = CASES[case]
    with pytest.raises(Exception, match="everything") as caught:
        compiled(lambda changed: op(**good(**{name: changed})))(value)
    arrived = str(caught.value).replace("\\'", "'")  # PyTorch 2.14 shows it by its repr
    assert f"test_arguments::everything: argument '{name}': {text}" in arrived


def test_a_sparse_tensor():
    with pytest.raises(ArgumentError) as caught:
        op(**good(x=torch.ones(3, 2).to_sparse()))
    assert str(caught.value) == (
        "test_arguments::everything: argument 'x': expected a strided tensor, got layout torch.sparse_coo; "
        "convert it with .to_dense(), or pass its parts"
    )


@pytest.mark.parametrize("bad", [(1.0, 2.0, "a"), (1.0, 2.0, None), (1.0, 2.0, torch.tensor(3.0))])
def test_something_else_among_a_vector_s_numbers(mode, bad):
    with pytest.raises(Exception, match=r"argument \\?'g\\?': expected a number"):
        mode(lambda g: op(**good(g=g)))(bad)


@pytest.mark.parametrize(
    "call",
    [
        lambda: op(torch.ones(3, 2)),
        lambda: op(**good(), q=1),
        lambda: op(*good().values(), 3),
        lambda: op(torch.ones(3, 2), **good()),
    ],
)
def test_missing_and_superfluous_arguments_name_the_op(call):
    with pytest.raises(TypeError, match="everything"):
        call()


def test_nothing_is_launched_for_a_wrong_argument():
    """The last argument is wrong, and the array that would change comes first."""
    x, v = torch.ones(3), torch.ones(3)
    with pytest.raises(ArgumentError, match="'dt'"):
        kernels.step_op(x, v, "no")
    assert torch.equal(x, torch.ones(3))
    with pytest.raises(ArgumentError, match="'v'"):
        kernels.step_op(x, torch.ones(4), 1.0)
    assert torch.equal(x, torch.ones(3))


# --- what passes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 5, -7, 2**31 - 1, -(2**31), True])
def test_the_whole_range_of_an_int(mode, n):
    got = mode(lambda n: op(**good(n=n)))(n)
    close(got, torch.full((3,), 1.0 + float(n)))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.4e38, 1e-300, 2, True])
def test_what_a_float_takes(mode, value):
    got = mode(lambda s: kernels.scale_op(torch.ones(2), s))(value)
    want = torch.full((2,), float(value), dtype=torch.float64).float()
    assert torch.equal(got, want) or bool((got.isnan() & want.isnan()).all())


@pytest.mark.parametrize("number", [np.float32(2.0), np.int64(2), np.float64(2.0), wp.float32(2.0)])
def test_numbers_of_numpy_and_warp_are_numbers(number):
    close(kernels.scale_op(torch.ones(2), number), torch.full((2,), 2.0))


@pytest.mark.parametrize("number", [np.int32(3), np.int64(3), wp.int32(3)])
def test_ints_of_numpy_and_warp_are_ints(number):
    close(op(**good(n=number)), torch.full((3,), 4.0))


@pytest.mark.parametrize("flag", [True, False, 0, 1, np.bool_(True)])
def test_what_a_bool_takes(flag):
    got = kernels.mixed_op(torch.ones(2), 1.0, 2, flag)
    close(got, torch.full((2,), -3.0 if flag else 3.0))


def test_a_gradient_is_never_lost_through_a_number():
    s = torch.tensor(2.0, requires_grad=True)
    with pytest.raises(ArgumentError, match="argument 's'.*gradient would be lost"):
        kernels.scale_op(torch.ones(2), s)
    with pytest.raises(ArgumentError, match="argument 's'"):
        kernels.scale_op(torch.ones(2), torch.nn.Parameter(torch.tensor(2.0)))


# --- devices ----------------------------------------------------------------------------------------------------------


def test_meta_in_meta_out():
    got = op(**good(x=torch.ones(3, 2, device="meta"), v=torch.ones(3, 3, device="meta")))
    assert got.device.type == "meta"
    assert got.shape == (3,)
    assert got.dtype == torch.float32


def test_the_default_device_and_dtype_are_not_asked(mode):
    function = mode(kernels.square_op)
    x = torch.randn(3, requires_grad=True)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            y = function(x)
            (grad,) = torch.autograd.grad(y.sum(), x)
    finally:
        torch.set_default_dtype(default)
    assert (y.device.type, y.dtype, grad.device.type, grad.dtype) == ("cpu", torch.float32, "cpu", torch.float32)
    close(grad, 2 * x.detach())


def test_a_tensor_elsewhere_in_the_fake_world_is_refused():
    with pytest.raises(ArgumentError, match=r"argument 'w': expected device meta, that of 'x', got cpu"):
        kernels.product_op(torch.ones(3, device="meta"), torch.ones(3))


# --- indices that the launch size gives -------------------------------------------------------------------------------


@wp.kernel
def third(x: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i, 2]


@wp.kernel
def dot_rows(x: wp.array2d[float], w: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    total = wp.float32(0.0)
    for j in range(x.shape[1]):
        total += x[i, j] * w[i, j]
    y[i] = total


def test_a_launch_larger_than_an_array():
    wide = warp_op(kernels.product, "x[n] -> y[n]", dim="n")
    with pytest.raises(ArgumentError, match="'w'.*size 2.*3"):
        wide(torch.ones(3), torch.ones(2))
    beyond = warp_op(kernels.square, "x[n] -> y[n + 1]", dim="n + 1")
    with pytest.raises(ArgumentError, match="'x'.*size 3.*4"):
        beyond(torch.ones(3))
    into = warp_op(kernels.square, "x[n] -> y[n - 1]", dim="n")
    with pytest.raises(ArgumentError, match="'y'.*size 2.*3"):
        into(torch.ones(3))


def test_a_constant_index_beyond_an_array(mode):
    op = warp_op(third, "x[n, _] -> y[n]", dim="n")
    close(mode(op)(torch.ones(2, 3)), torch.ones(2))
    with pytest.raises(Exception, match=r"'x\\?': its axis 1 has size 2"):
        afresh(mode, op)(torch.ones(2, 2))


def test_a_loop_over_another_array_s_shape():
    op = warp_op(dot_rows, "x[n, _], w[n, _] -> y[n]", dim="n")
    close(op(torch.ones(2, 3), torch.ones(2, 4)), torch.full((2,), 3.0))
    with pytest.raises(ArgumentError, match="'w': its axis 1 has size 2.*'x'"):
        op(torch.ones(2, 3), torch.ones(2, 2))


# --- checks at run time raise the class itself ------------------------------------------------------------------------


def test_an_int_out_of_range_at_run_time():
    function = compiled(lambda x, n: kernels.mixed_op(x, 1.0, n, False), dynamic=True)
    x = torch.zeros(2)
    for n in (3, 4, 5):
        close(function(x, n), torch.full((2,), float(n)))
    with pytest.raises(ArgumentError, match=r"argument 'n': expected an int in \[-2147483648, 2147483647\]"):
        function(x, 2**31)


# --- tensors that aren't just memory ----------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_nested_tensor():
    fresh = warp_op(kernels.product)  # PyTorch's guard on tensors of a call before aborts at a nested one
    with pytest.raises(ArgumentError, match="argument 'w': expected a dense tensor, got a nested one"):
        fresh(torch.ones(4), torch.nested.nested_tensor([torch.ones(4)]))


@pytest.mark.parametrize("first", [True, False], ids=["first", "after others"])
def test_an_all_zero_tensor_without_memory(first):
    fresh = warp_op(kernels.product)
    x, zero = torch.ones(4, requires_grad=True), torch._efficientzerotensor(4)
    if not first:
        for _ in range(3):
            fresh(x, torch.ones(4))
    for _ in range(3):
        y = fresh(x, zero)
        assert y.tolist() == [0.0] * 4
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [0.0] * 4


@pytest.mark.filterwarnings("ignore")  # PyTorch 2.14 warns of jit.trace itself
@pytest.mark.parametrize("grad", [False, True])
def test_jit_trace_records_the_op(grad):
    fresh = warp_op(kernels.product)
    x, w = torch.ones(4, requires_grad=grad), torch.ones(4)
    for _ in range(2):
        traced = torch.jit.trace(lambda x, w: fresh(x, w) + 1.0, (x, w), check_trace=False)
        z = torch.randn(4, requires_grad=grad)
        y = traced(z, 2.0 * w)
        close(y, 2.0 * z * z + 1.0)
        if grad:
            close(torch.autograd.grad(y.sum(), z), (4.0 * z,))
        fresh(x, w)


def trace(op):
    x = torch.ones(4)
    return torch.jit.trace(lambda x, w: op(x, w) + 1.0, (x, x), check_trace=False)


@pytest.mark.filterwarnings("ignore")
def test_jit_trace_does_not_record_an_older_op():
    """TorchScript finds operators by their names alone, the oldest first, called or not."""
    older = [warp_op(kernels.product, "x[n], w[n] -> y[n]", name="arguments::traced") for _ in range(4)]
    x, op = torch.ones(4), warp_op(kernels.gauss, "x[n], w[m] -> y[n, m]", name="arguments::traced")
    with pytest.raises(ArgumentError, match="arguments::traced: torch.jit.trace tells operators apart by their names"):
        trace(op)
    older.clear()
    close(trace(op)(x, x), op(x, x) + 1.0)


@pytest.mark.parametrize("value", [3.38e38, float("inf")])
def test_the_largest_bfloat16(value):
    got = bfloat_op(torch.ones(2), value)
    assert got[0].item() == torch.tensor(value).bfloat16().float().item()


@pytest.mark.parametrize("value", [3.4e38, -3.4e38, 1e39, 10**400])
def test_a_number_beyond_bfloat16(value):
    with pytest.raises(ArgumentError, match="argument 's': expected a float that bfloat16 can hold"):
        bfloat_op(torch.ones(2), value)


# --- the nesting of what comes by value -------------------------------------------------------------------------------

mat23, mat32 = (wp.types.matrix(shape, wp.float32) for shape in ((2, 3), (3, 2)))


@wp.kernel
def rotated(x: wp.array[wp.vec3], m: mat23, t: wp.transform, q: wp.quat, s: wp.spatial_vector, y: wp.array[wp.vec2]):
    i = wp.tid()
    y[i] = m * (wp.transform_point(t, x[i]) + wp.quat_rotate(q, x[i]) + wp.spatial_top(s))


rotated_op = warp_op(rotated)
EIGHT = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
RIGHT = {
    "m": [((1, 0, 0), (0, 1, 0)), [1, 0, 0, 0, 1, 0], mat23(1.0, 0.0, 0.0, 0.0, 1.0, 0.0)],
    "t": [EIGHT, (EIGHT[:3], EIGHT[3:]), wp.transform_identity()],
    "q": [EIGHT[3:], (EIGHT[3:6], 1.0), wp.quat_identity()],
    "s": [(1.0,) * 6, ((1.0,) * 3, (1.0,) * 3)],
}
WRONG = {
    "transposed": ("m", [[1, 2], [3, 4], [5, 6]], "expected 2 times 3 numbers (mat23f), got 3 times 2 numbers"),
    "another type": ("m", mat32(1.0, 2.0, 3.0, 4.0, 5.0, 6.0), "got 3 times 2 numbers"),
    "ragged": ("m", [[1, 2, 3, 4], [5, 6]], "got 4, 2 numbers"),
    "mixed": ("m", [1, [2, 3, 4, 5], 6], "got 1, 4, 1 numbers"),
    "parts swapped": ("t", (EIGHT[3:], EIGHT[:3]), "expected 3, 4 numbers (transformf), got 4, 3 numbers"),
    "number first": ("q", (1.0, EIGHT[3:6]), "expected 3, 1 numbers (quatf), got 1, 3 numbers"),
    "in pairs": ("s", ((1.0, 2.0),) * 3, "got 3 times 2 numbers"),
}


def rotated_with(**given):
    return rotated_op(torch.tensor([[1.0, 2.0, 3.0]]), **{name: values[0] for name, values in RIGHT.items()} | given)


@pytest.mark.parametrize(("name", "place"), [(n, k) for n, values in RIGHT.items() for k in range(len(values))])
def test_each_nesting_of_a_value(mode, name, place):
    value = RIGHT[name][place]
    close(mode(lambda: rotated_with(**{name: value}))(), torch.tensor([[3.0, 5.0]]))


@pytest.mark.parametrize("what", WRONG)
def test_another_nesting_of_a_value(mode, what):
    name, value, text = WRONG[what]
    expected = re.escape(text.split("expected ")[-1])
    with pytest.raises(Exception, match=rf"argument \\?'{name}\\?': expected .*{expected}"):
        afresh(mode, lambda: rotated_with(**{name: value}))()


def test_the_nesting_of_a_numpy_array():
    close(rotated_with(m=np.eye(2, 3)), torch.tensor([[3.0, 5.0]]))
    with pytest.raises(ArgumentError, match="got 3 times 2 numbers"):
        rotated_with(m=np.eye(3, 2))
    with pytest.raises(Exception, match=r"a numpy array, .*pass them with .tolist\(\)"):
        compiled(lambda m: rotated_with(m=m))(np.eye(2, 3))


@pytest.mark.parametrize("value", [np.ones(1), np.ones(2), np.array(2.0), np.array(2)])
@pytest.mark.parametrize("name", ["n", "s"])
def test_a_numpy_array_for_a_number(name, value):
    with pytest.raises(ArgumentError, match=f"argument '{name}': expected a number .*, got ndarray"):
        op(**good(**{name: value}))
