"""Warp's own functions inside a program: fills, copies, scans, sorts, arrays made, values read."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from programs import accumulate, blur, blur_reference, divide, gather, product, scale
from support import check_against, close, leaf
from warpops import GradientError, warp_program


def test_fills_end_gradients(x):
    """What an array held before a fill has no part in the result."""

    @warp_program("x[n] -> y[1], z[n]", scratch="total[1]")
    def sums(x: wp.array[float], y: wp.array[float], z: wp.array[float], total: wp.array[float]):
        wp.launch(accumulate, dim=x.shape, inputs=[x], outputs=[total])
        wp.launch(divide, dim=x.shape, inputs=[x, total], outputs=[z])
        total.zero_()
        wp.launch(accumulate, dim=x.shape, inputs=[z], outputs=[total])
        wp.copy(y, total)
        total.fill_(3.0)

    def reference(x):
        z = x / (x * x).sum()
        return (z * z).sum().reshape(1), z

    check_against(sums, reference, [x])


@pytest.mark.parametrize("inclusive", [True, False])
def test_float_scans(x, inclusive):
    @warp_program("x[n] -> y[n]", scratch="tmp[n]")
    def scanned(x: wp.array[float], y: wp.array[float], tmp: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[tmp])
        wp.utils.array_scan(tmp, tmp, inclusive)
        wp.launch(product, dim=x.shape, inputs=[tmp, x], outputs=[y])

    check_against(scanned, lambda x: x * ((2.0 * x).cumsum(0) - (0.0 if inclusive else 2.0 * x)), [x])


def test_copies_of_ranges():
    @warp_program("x[n] -> y[n]")
    def rotate(x: wp.array[float], y: wp.array[float]):
        n = x.shape[0]
        wp.copy(y, x, dest_offset=0, src_offset=2, count=n - 2)
        wp.copy(y, x, dest_offset=n - 2, src_offset=0, count=2)
        y[1:3].assign(x[0:2])

    def reference(x):
        y = x.roll(-2)
        return torch.cat([y[:1], x[:2], y[3:]])

    check_against(rotate, reference, [torch.rand(6)])


def test_arrays_of_the_programs_own(x):
    @warp_program("x[n] -> y[n]")
    def own(x: wp.array[float], y: wp.array[float]):
        tmp = wp.zeros(x.shape, dtype=float, device=x.device)
        for _ in range(2):
            wp.launch(blur, dim=x.shape, inputs=[x], outputs=[tmp])
            other = wp.clone(tmp)
            wp.launch(product, dim=x.shape, inputs=[tmp, other], outputs=[y])

    check_against(own, lambda x: blur_reference(x, 1) ** 2, [x])


def test_int_sorts_are_no_obstacle(x):
    @warp_program("x[n], keys[n] -> y[n]", scratch="pairs[2 * n], index[2 * n]")
    def sort_by(
        x: wp.array[float], keys: wp.array[int], y: wp.array[float], pairs: wp.array[int], index: wp.array[int]
    ):
        wp.copy(pairs, keys, count=keys.size)
        wp.launch(iota, dim=x.shape, outputs=[index])
        wp.utils.radix_sort_pairs(pairs, index, x.size)
        wp.launch(gather, dim=x.shape, inputs=[x, index], outputs=[y])

    keys = torch.tensor([5, 1, 4, 0, 2, 3], dtype=torch.int32)
    check_against(lambda x: sort_by(x, keys), lambda x: x[keys.argsort()] ** 2, [x])


@wp.kernel
def iota(index: wp.array[int]):
    i = wp.tid()
    index[i] = i


@warp_program("x[n] -> y[n]", scratch="keys[2 * n], index[2 * n]")
def float_sort(x: wp.array[float], y: wp.array[float], keys: wp.array[float], index: wp.array[int]):
    wp.copy(keys, x, count=x.size)
    wp.launch(iota, dim=x.shape, outputs=[index])
    wp.utils.radix_sort_pairs(keys, index, x.size)
    wp.copy(y, keys, count=x.size)


def test_sorted_floats_have_no_gradient(x):
    close(float_sort(x), x.sort().values)
    with pytest.raises(GradientError, match=r"gradient passes through wp\.utils\.radix_sort_pairs, which has none"):
        float_sort(leaf(x)).sum().backward()


def test_values_read_as_numbers(x):
    @warp_program("x[n] -> y[n]")
    def by_maximum(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, float(x.numpy().max())], outputs=[y])

    @warp_program("x[n] -> y[n]", nondiff="x")
    def constant(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, float(wp.utils.array_sum(x))], outputs=[y])

    @warp_program("x[n] -> y[n]")
    def by_sum(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, float(wp.utils.array_sum(x))], outputs=[y])

    close(by_maximum(x), x * x.max())
    close(constant(leaf(x)), x * x.sum())
    for op in (by_maximum, by_sum):
        with pytest.raises(GradientError, match="reads 'x' as numbers"):
            op(leaf(x)).sum().backward()
