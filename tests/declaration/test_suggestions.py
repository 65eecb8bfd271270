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
    wp.atomic_add(y, 0, x[i, 0] * x1[i])


@wp.kernel
def an_array_named_like_a_size(n: Array, y: Array):
    i = wp.tid()
    wp.atomic_add(y, 0, n[i])


@wp.kernel
def a_number_named_like_a_size(x: Array, n: int, y: Array):
    i = wp.tid()
    wp.atomic_add(y, 0, x[i] * float(n))


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
    with pytest.raises(SignatureError, match='for example dim="n_"'):
        warp_op(told_by_nobody, "-> y[1]")
