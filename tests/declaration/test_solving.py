"""Sizes that are solved for: ``start[n + 1]``, ``a[16 * n, k]``; what is left, and what doesn't divide, is told."""

from __future__ import annotations

import pytest
import torch
import warp as wp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from support import check_against, close, compiled, graph_count
from warpops import ArgumentError, SignatureError, warp_op, warp_program

Array = wp.array[float]


@wp.kernel
def segment_sums(start: wp.array[int], value: Array, out: Array):
    i = wp.tid()
    total = float(0.0)
    for k in range(start[i], start[i + 1]):
        total += value[k] * value[k]
    out[i] = total


@wp.kernel
def blocks(a: wp.array2d[float], out: wp.array2d[float]):
    i, j = wp.tid()
    out[i, j] = a[4 * i, j] + 2.0 * a[4 * i + 3, j]


@wp.kernel
def counted(x: Array, y: Array, extra: Array, factor: int, z: Array):
    i = wp.tid()
    z[i] = float(factor)


@wp.struct
class Segments:
    start: wp.array[int]
    value: wp.array[float]


@wp.kernel
def sums_of_a_struct(s: Segments, out: Array):
    i = wp.tid()
    total = float(0.0)
    for k in range(s.start[i], s.start[i + 1]):
        total += s.value[k] * s.value[k]
    out[i] = total


sums = warp_op(segment_sums, "start[n + 1], value[k] -> out[n]")
fields = warp_op(sums_of_a_struct, "s.start[n + 1], s.value[k] -> out[n]")
rows = warp_op(blocks, "a[4 * n, k] -> out[n, k]")


@warp_program("start[n + 1], value[k] -> out[n]")
def program(start: wp.array[int], value: wp.array[float], out: wp.array[float]):
    wp.launch(segment_sums, dim=out.shape[0], inputs=[start, value], outputs=[out])


def starts(lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int()


def reference(start, value):
    lengths = (start[1:] - start[:-1]).long()
    owner = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return torch.zeros(len(lengths)).index_add(0, owner, value * value)


def by_struct(start, value):
    return fields({"start": start, "value": value})


@pytest.mark.parametrize("op", [sums, by_struct, program])
@pytest.mark.parametrize("lengths", [[2, 0, 3], [1], []])
def test_a_prefix_array_says_how_many_segments_there_are(op, lengths):
    start, value = starts(lengths), torch.randn(sum(lengths))
    assert op(start, value).shape == (len(lengths),)
    check_against(op, reference, (start, value))


@pytest.mark.parametrize("op", [sums, by_struct, program])
def test_dynamic_sizes_are_solved_in_one_graph(op):
    torch._dynamo.reset()
    function = compiled(op, dynamic=True)
    before = graph_count()
    for lengths in ([2, 0, 3], [4, 1], [1, 1, 1, 1, 5]):
        check_against(function, reference, (starts(lengths), torch.randn(sum(lengths))))
    assert graph_count() == before + 1


def test_a_factor_is_divided_by(mode):
    a = torch.randn(12, 3)
    check_against(mode(rows), lambda a: a[::4] + 2.0 * a[3::4], (a,))


def test_rows_that_leave_a_remainder(mode):
    with pytest.raises(
        Exception, match=r"'a': its axis 0 has size 10, and is declared '4 \* n': no whole 'n'"
    ) as caught:
        mode(rows)(torch.ones(10, 3))
    if mode.__name__ == "eager":
        assert isinstance(caught.value, ArgumentError)


def test_a_remainder_in_compiled_code_of_dynamic_sizes():
    torch._dynamo.reset()
    function = compiled(rows, dynamic=True)
    assert function(torch.ones(8, 3)).shape == (2, 3)
    with pytest.raises(Exception, match=r"declared '4 \* n'"):
        function(torch.ones(10, 3))


def test_a_negative_size_is_refused():
    with pytest.raises(
        ArgumentError, match=r"'start': its axis 0 has size 0, and is declared 'n \+ 1': 'n' would be -1"
    ):
        sums(torch.ones(0, dtype=torch.int32), torch.ones(0))


def test_vmap_solves_the_sizes_of_one_element():
    start = torch.stack([starts([2, 0, 3]), starts([1, 1, 3])])
    value = torch.randn(2, 5)
    want = torch.stack([reference(s, v) for s, v in zip(start, value, strict=True)])
    close(torch.vmap(sums)(start, value), want)
    close(torch.vmap(sums, in_dims=(None, 0))(start[0], value), torch.stack([reference(start[0], v) for v in value]))


def test_a_factor_that_the_caller_gives(mode):
    op = warp_op(counted, "x[factor * n + 1] -> z[n]")
    x, none = torch.ones(7), torch.ones(0)
    assert mode(op)(x, none, none, 3).tolist() == [3.0, 3.0]
    with pytest.raises(ArgumentError, match="'factor', by which 'n' is multiplied, is 0"):
        op(x, none, none, 0)
    with pytest.raises(ArgumentError, match="'n' would be -3"):
        op(x, none, none, -2)


def test_the_name_of_an_int_argument_is_compared():
    op = warp_op(counted, "x[factor + 1], y[n - factor] -> z[n]")
    assert op(torch.ones(3), torch.ones(1), torch.ones(0), 2).shape == (3,)
    with pytest.raises(ArgumentError, match=r"'x': expected size 4 on axis 0 \('factor \+ 1'\), got 3"):
        op(torch.ones(3), torch.ones(1), torch.ones(0), 3)


def test_one_size_follows_from_another_whatever_the_order():
    for signature in ("x[m - n], y[2 * n], extra[m // n]", "extra[m // n], x[m - n], y[2 * n]"):
        op = warp_op(counted, f"{signature} -> z[m]")
        assert op(torch.ones(5), torch.ones(4), torch.ones(3), 0).shape == (7,)
        with pytest.raises(ArgumentError, match=r"'extra': expected size 3 on axis 0 \('m // n'\), got 2"):
            op(torch.ones(5), torch.ones(4), torch.ones(2), 0)
        with pytest.raises(ArgumentError, match="division by zero in 'm // n'"):
            op(torch.ones(5), torch.ones(0), torch.ones(2), 0)


@pytest.mark.parametrize(
    ("left", "unknown"),
    [
        ("x[n // 2]", "n"),
        ("x[n % 2]", "n"),
        ("x[min(n, 4)]", "n"),
        ("x[n + max(n, 4)]", "n"),
        ("x[n * n]", "n"),
        ("x[n + m]", "n"),
        ("x[n + m], y[m - n]", "n"),
        ("x[2 * n], y[(n + m) // 2]", "m"),
    ],
)
def test_what_is_not_solved_is_refused_when_decorated(left, unknown):
    with pytest.raises(SignatureError, match=f"uses '{unknown}', which .* alone can't be solved for"):
        warp_op(counted, f"{left} -> z[n]")


def test_an_array_that_is_none_solves_nothing(mode):
    op = warp_op(counted, "x[n + m], y[m + 1], extra[2 * m] -> z[n]", optional="y, extra")
    x, y, extra = torch.ones(5), torch.ones(3), torch.ones(4)
    for given_ in ((y, extra), (y, None), (None, extra)):
        assert mode(op)(x, *given_, 1).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ArgumentError, match="the size 'n' is not known|the size 'm' is not known"):
        op(x, None, None, 1)
    with pytest.raises(ArgumentError, match=r"'extra': expected size 4 on axis 0 \('2 \* m'\), got 6"):
        op(x, y, torch.ones(6), 1)


# --- any such declaration -----------------------------------------------------------------------------------------------

coefficients = st.integers(-3, 4)


@settings(max_examples=60, deadline=None)
@given(coefficients, coefficients, coefficients, coefficients, coefficients, st.integers(0, 4), st.integers(0, 4))
@example(0, 1, 1, 1, 1, 1, 1)
@example(2, -3, 0, 1, 0, 2, 2)
def test_what_fits_is_solved_and_what_does_not_is_refused(a, b, c, d, e, size_x, size_y):
    """Against all ``n`` and ``m`` that fit: one pair is the answer, none is an error; real and fake alike."""
    op = warp_op(counted, f"y[{c} * n + m * ({d}) + {e}], x[n * {a} + ({b})] -> z[n + m]", dim=0)
    x, y, extra = torch.ones(size_x), torch.ones(size_y), torch.ones(0)
    few = range(30)
    fits = [(n, m) for n in few for m in few if a * n + b == size_x and c * n + d * m + e == size_y]

    def outcome():
        try:
            return op(x, y, extra, 1).shape
        except ArgumentError as error:
            return str(error)

    def pretended():
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            try:
                return op.overload(*map(fake.from_tensor, (x, y, extra)), 1).shape
            except ArgumentError as error:
                return str(error)

    if a == 0 or d == 0:
        assert isinstance(outcome(), str)
    elif fits:
        assert outcome() == (sum(fits[0]),)
    else:
        assert "is declared" in outcome()
    assert outcome() == pretended()
