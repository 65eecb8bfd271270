"""What a message suggests works: its names are nobody else's, and it can be typed as it stands."""

from __future__ import annotations

import re

import pytest
import torch
import warp as wp

from support import close
from warpops import SignatureError, warp_op

Array = wp.array[float]
Matrix = wp.array2d[float]


@wp.kernel
def a_row_named_like_an_axis(x: Matrix, x1: Array, y: Array):
    i = wp.tid()
    wp.atomic_add(y, int(x1[i]) - 1, x[i, 0] * x1[i])


@wp.kernel
def an_array_named_like_a_size(n: Array, y: Array):
    i = wp.tid()
    wp.atomic_add(y, int(n[i]) - 1, n[i])


@wp.kernel
def a_number_named_like_a_size(x: Array, n: int, y: Array):
    i = wp.tid()
    wp.atomic_add(y, int(x[i]) - 1, x[i] * float(n))


@wp.kernel
def told_by_nobody(n: int, y: Array):
    i = wp.tid()
    wp.atomic_add(y, 0, float(i * n))


ARGUMENTS = {
    a_row_named_like_an_axis: (torch.ones(3, 2), torch.ones(3), 1),
    an_array_named_like_a_size: (torch.ones(3), 1),
    a_number_named_like_a_size: (torch.ones(3), 1, 1),
}


@pytest.mark.parametrize("kernel", ARGUMENTS, ids=lambda kernel: kernel.key)
def test_a_suggestion_works_as_it_stands(kernel):
    with pytest.raises(SignatureError) as raised:
        warp_op(kernel)
    signature, sizes = re.search(r'@warp_op\("(.*)", sizes="(.*)"\)', str(raised.value)).groups()
    close(warp_op(kernel, signature, sizes=sizes)(*ARGUMENTS[kernel]), torch.tensor([3.0]))


def test_an_example_of_a_size_is_no_argument_s_name():
    with pytest.raises(SignatureError, match='@warp_op."-> y.1.", dim="n_", sizes="n_".'):
        warp_op(told_by_nobody, "-> y[1]")


# --- sizes that nothing says --------------------------------------------------------------------------------------------


@wp.kernel
def blur(x: Array, y: Array):
    i = wp.tid()
    y[i] = 0.25 * x[i] + 0.5 * x[i + 1] + 0.25 * x[i + 2]


@wp.kernel
def mean_of_rows(start: wp.array[int], column: wp.array[int], x: Array, mean: Array):
    i = wp.tid()
    total = float(0.0)
    for k in range(start[i], start[i + 1]):
        total += x[column[k]]
    mean[i] = total / float(start[i + 1] - start[i])


@wp.kernel
def pooled(x: Array, y: Array):
    i = wp.tid()
    y[i] = wp.max(x[2 * i], x[2 * i + 1])


@wp.kernel
def convolved(x: Array, w: Array, n: int, y: Array):
    i = wp.tid()
    total = float(0.0)
    for k in range(n):
        total += w[k] * x[i + k]
    y[i] = total


@wp.kernel
def filtered(x: Array, w: Array, y: Array):
    i = wp.tid()
    total = float(0.0)
    for k in range(w.shape[0]):
        total += w[k] * x[i + 1 + k]
    y[i] = total


@wp.kernel
def product_of_tiles(a: Matrix, b: Matrix, c: Matrix):
    i, j = wp.tid()
    total = wp.tile_zeros(shape=(8, 8), dtype=float)
    for k in range(a.shape[1] // 8):
        left = wp.tile_load(a, shape=(8, 8), offset=(i * 8, k * 8))
        right = wp.tile_load(b, shape=(8, 8), offset=(k * 8, j * 8))
        wp.tile_matmul(left, right, total)
    wp.tile_store(c, total, offset=(i * 8, j * 8))


@wp.kernel
def shifted(x: Array, by: int, first: Array, second: Array):
    i = wp.tid()
    first[i] = x[i + by]
    second[i] = 2.0 * x[i + by]


x = torch.arange(6.0)
MISSING = [
    (blur, "y", '"x[n + 2] -> y[n]"', (x,), x[1:-1]),
    (pooled, "y", '"x[2 * n] -> y[n]"', (x,), x[1::2]),
    (
        mean_of_rows,
        "mean",
        '"start[n + 1], column[column_size], x[x_size] -> mean[n]"',
        (torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([0, 2, 5], dtype=torch.int32), x),
        torch.tensor([1.0, 5.0]),
    ),
    (convolved, "y", '"x[n_ + n - 1], w[n] -> y[n_]"', (x, torch.ones(2), 2), x[1:] + x[:-1]),
    (filtered, "y", '"x[n + w_size], w[w_size] -> y[n]"', (x, torch.ones(2)), x[2:] + x[1:-1]),
    (
        product_of_tiles,
        "c",
        '"a[a0, a1], b[b0, b1] -> c[c0, c1]", dim="n, m", sizes="c0, c1, n, m", tiled=True',
        (torch.ones(16, 8), torch.ones(8, 8), 16, 8, 2, 1),
        torch.full((16, 8), 8.0),
    ),
]


@pytest.mark.parametrize(
    ("kernel", "output", "suggested", "arguments", "want"), MISSING, ids=lambda v: getattr(v, "key", "")
)
def test_the_output_whose_size_is_unknown_is_named_and_what_is_suggested_works(
    kernel, output, suggested, arguments, want
):
    with pytest.raises(SignatureError) as raised:
        warp_op(kernel)
    message = str(raised.value)
    assert f"and so how large output '{output}' is" in message
    assert message.endswith(f"Say it, for example\n    @warp_op({suggested})")
    signature, options = re.search(r'@warp_op\("([^"]*)"(.*)\)$', message).groups()
    close(warp_op(kernel, signature, **eval(f"dict({options.removeprefix(', ')})"))(*arguments), want)


def test_several_outputs_are_named():
    with pytest.raises(SignatureError, match="and so how large outputs 'first' and 'second' are") as raised:
        warp_op(shifted)
    assert '@warp_op("x[n] -> first[n], second[n]")' in str(raised.value)


def test_what_was_said_is_kept():
    with pytest.raises(SignatureError, match=r'@warp_op."x.m. -> y.n.", sizes="m, n".'):
        warp_op(blur, "x[m] -> y", sizes="m")


def test_a_shape_that_can_not_be_read():
    with pytest.raises(SignatureError, match=r"the shape of output 'y' can't be read") as raised:
        warp_op(told_by_nobody, "-> y", dim="n")
    assert '@warp_op("-> y[1]", dim="n")' in str(raised.value)


def test_an_axis_as_long_as_the_launch_is_not_indexed_by_a_multiple():
    message = (
        "'x' has the size 'n' on axis 0, .* indexes it by the coordinate times 2.*for example '2 [*] n', or dim shorter"
    )
    with pytest.raises(SignatureError, match=message):
        warp_op(pooled, "x[n] -> y[n]", dim="n")
    op = warp_op(pooled, "x[n] -> y[n // 2]", dim="n // 2")
    close(op(x), x[1::2])
