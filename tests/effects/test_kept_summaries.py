"""Summaries of functions outlive the kernel that they were made for, and what the functions refer to doesn't change unseen."""

import sys
from typing import Any

import pytest
import warp as wp

from warpops.effects import analyse

ROW = 1
TABLE = [1, 2]
HERE = sys.modules[__name__]


@wp.func
def row():
    return ROW


@wp.func
def row_within():
    return row()


@wp.func
def row_of_table():
    return TABLE[0]


@wp.func
def measure(x: wp.array[float], i: int):
    return x[wp.min(i, x.shape[0] - 1)]


def stores_at(function: Any) -> Any:
    @wp.kernel
    def kernel(x: wp.array[float], y: wp.array[float]):
        y[function()] = x[wp.tid()]

    return kernel


def measures(name: str) -> Any:
    if name == "x":

        @wp.kernel
        def kernel(x: wp.array[float], y: wp.array[float]):
            i = wp.tid()
            y[i] = measure(x, i)
    else:

        @wp.kernel
        def kernel(x: wp.array[float], z: wp.array[float], y: wp.array[float]):
            i = wp.tid()
            y[i] = measure(x, i) + measure(z, i)

    return kernel


def constants(kernel: Any) -> tuple[int, ...]:
    return analyse(kernel).arrays["y"].axes[0].constants


@pytest.mark.parametrize("function", [row, row_within])
def test_a_global_given_another_value(function, monkeypatch):
    assert constants(stores_at(function)) == (1,)
    assert constants(stores_at(function)) == (1,)
    monkeypatch.setattr(HERE, "ROW", 2)
    assert constants(stores_at(function)) == (2,)


def test_a_global_function_replaced(monkeypatch):
    assert constants(stores_at(row_within)) == (1,)

    @wp.func
    def other():
        return 3

    monkeypatch.setattr(HERE, "row", other)
    assert constants(stores_at(row_within)) == (3,)


def test_a_global_list_changed_in_place():
    assert constants(stores_at(row_of_table)) == (1,)
    TABLE.reverse()
    assert constants(stores_at(row_of_table)) == (2,)


def test_what_a_function_does_to_its_arrays_is_said_of_each_kernel():
    for _ in range(2):
        effects = analyse(measures("x"))
        assert effects.arrays["x"].measured
        assert effects.arrays["x"].reads
        effects = analyse(measures("z"))
        assert effects.arrays["x"].measured
        assert effects.arrays["z"].measured
        assert effects.arrays["z"].reads
