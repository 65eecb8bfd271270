"""Unsigned integers under both of their dtypes, bool arrays, four dimensions, sizes of zero, and sizes too large."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import check_against, close, compiled, inductor
from warpops import ArgumentError, warp_op


@wp.kernel
def next16(x: wp.array[wp.uint16], y: wp.array[wp.uint16]):
    i = wp.tid()
    y[i] = x[i] + wp.uint16(1)


@wp.kernel
def next32(x: wp.array[wp.uint32], y: wp.array[wp.uint32]):
    i = wp.tid()
    y[i] = x[i] + wp.uint32(1)


@wp.kernel
def next64(x: wp.array[wp.uint64], y: wp.array[wp.uint64]):
    i = wp.tid()
    y[i] = x[i] + wp.uint64(1)


UNSIGNED = [
    (next16, torch.uint16, torch.int16),
    (next32, torch.uint32, torch.int32),
    (next64, torch.uint64, torch.int64),
]


@pytest.mark.parametrize(("kernel", "unsigned", "signed"), UNSIGNED, ids=["16", "32", "64"])
def test_unsigned_integers_come_in_two_dtypes(kernel, unsigned, signed, mode):
    op = warp_op(kernel)
    call = mode(op)
    half = 2 ** (unsigned.itemsize * 8 - 1)
    for dtype in (unsigned, signed):
        # The largest signed number: one more is only seen right by an unsigned kernel.
        x = torch.tensor([0, 7, half - 1], dtype=signed).view(dtype)
        result = call(x)
        assert result.dtype == unsigned
        assert result.view(signed).tolist() == [1, 8, -half]
        assert op(x.repeat(2)[::2]).view(signed).tolist() == [1, -half, 8]
        torch.library.opcheck(op.overload, (x,))
    with pytest.raises(ArgumentError, match=f"'x': expected dtype {unsigned} or {signed} .*got torch.int8"):
        op(torch.zeros(3, dtype=torch.int8))


@pytest.mark.slow
def test_unsigned_integers_under_inductor():
    x = torch.tensor([1, 2], dtype=torch.int32)
    assert inductor(warp_op(next32))(x).view(torch.int32).tolist() == [2, 3]


@wp.kernel
def squares(m: wp.array4d[wp.mat33], keep: wp.array[wp.bool], index: wp.array[wp.int64], y: wp.array4d[wp.mat33]):
    a, b, c, d = wp.tid()
    if keep[a]:
        y[a, b, c, d] = m[a, b, c, index[d]] * m[a, b, c, index[d]]


squares_op = warp_op(squares, "m[a, b, c, _], keep[a], index[d] -> y[a, b, c, d]")


def squares_reference(m, keep, index):
    picked = m[:, :, :, index]
    return torch.where(keep.reshape(-1, 1, 1, 1, 1, 1), picked @ picked, torch.zeros(()))


def test_four_dimensions_of_matrices_with_bool_and_int64_arrays(mode):
    given = [torch.randn(2, 2, 2, 3, 3, 3), torch.tensor([True, False]), torch.tensor([2, 0, 2])]
    check_against(mode(squares_op), squares_reference, given)
    given[0] = given[0].transpose(0, 2).transpose(4, 5)
    check_against(mode(squares_op), squares_reference, given)


@pytest.mark.parametrize("axis", range(4))
def test_zero_size_in_any_dimension(axis, mode):
    shape = [2, 2, 2, 3]
    shape[axis] = 0
    given = [
        torch.randn(*shape, 3, 3),
        torch.ones(shape[0], dtype=torch.bool),
        torch.zeros(shape[3], dtype=torch.int64),
    ]
    check_against(mode(squares_op), squares_reference, given)


@wp.kernel
def flip(x: wp.array2d[wp.bool], y: wp.array2d[wp.bool]):
    i, j = wp.tid()
    y[i, j] = not x[i, j]


def test_bool_arrays(mode):
    x = torch.tensor([[True, False], [False, False]])
    result = mode(warp_op(flip))(x.t())
    assert result.dtype == torch.bool
    assert torch.equal(result, ~x.t())


@wp.kernel
def first(x: wp.array2d[wp.int8], y: wp.array[wp.int8]):
    i = wp.tid()
    y[i] = x[0, 0]


def test_array_that_descriptors_cannot_hold(mode):
    """Sizes and byte strides have 31 bits; more elements than that are fine."""
    call = mode(warp_op(first, "x[_, _] -> y[1]", dim=1))
    one = torch.ones(1, 1, dtype=torch.int8)
    assert call(one.expand(2**20, 2**20)).tolist() == [1]
    assert call(one.expand(2**31 - 1, 1)).tolist() == [1]
    for large in (one.expand(2**31, 1), one.as_strided((1, 1), (2**31, 1))):
        with pytest.raises(ArgumentError, match="'x': .*below 2.*descriptors hold"):
            call(large)


def test_leading_batch_dimensions_name_vmap():
    message = r"'m': expected 6 dimensions .* for 1 leading batch dimension use torch.vmap"
    given = [torch.randn(2, 2, 2, 2, 3, 3, 3), torch.ones(2, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)]
    with pytest.raises(ArgumentError, match=message):
        squares_op(*given)
    with pytest.raises(Exception, match=message):
        compiled(squares_op)(*given)
    batched = torch.vmap(squares_op, in_dims=(0, None, None))(*given)
    close(batched[1], squares_op(given[0][1], *given[1:]))


def test_opcheck_of_four_dimensions():
    given = (torch.randn(2, 1, 2, 2, 3, 3, requires_grad=True), torch.tensor([True, False]), torch.tensor([1, 0]))
    torch.library.opcheck(squares_op.overload, given)
