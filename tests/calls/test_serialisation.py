"""Ops copy and pickle by reference, so that modules which hold them do too."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import warp as wp

import kernels
from support import close, compiled
from warpops import warp_op


@warp_op("x[n], w[n] -> y[n]", dim="n")
@wp.kernel
def gate(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] * w[i]


@wp.kernel
def hidden(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i]


found_by_search = warp_op(hidden, "x[n] -> y[n]", dim="n", name="test_serialisation::renamed")


class Holder:
    op = warp_op(kernels.scale, "x[n] -> y[n]", dim="n", name="test_serialisation::held")


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.op = gate

    def forward(self, x):
        return self.op(x, self.w)


X = torch.tensor([1.0, 1.0, 2.0])


def same(one, other):
    close(one(X).detach(), other(X).detach())
    other(X).sum().backward()
    close(other.w.grad, X)
    other.w.grad = None


def test_copies_are_the_op_itself():
    assert copy.copy(gate) is gate
    assert copy.deepcopy(gate) is gate
    assert copy.deepcopy({"op": [gate]})["op"][0] is gate


@pytest.mark.parametrize("op", [gate, found_by_search, kernels.square_op])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_the_op_itself(op, protocol):
    assert pickle.loads(pickle.dumps(op, protocol)) is op


def test_an_op_after_its_first_launch():
    """A kernel that was launched holds pointers, which don't copy."""
    module = Gate()
    same(module, copy.deepcopy(module))
    module(X)
    same(module, copy.deepcopy(module))
    same(module, copy.copy(module))
    same(module, pickle.loads(pickle.dumps(module)))


def test_torch_save():
    module = Gate()
    module(X)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    same(module, torch.load(buffer, weights_only=False))


def test_the_state_holds_parameters_only():
    module = Gate()
    module(X)
    assert list(module.state_dict()) == ["w"]
    other = Gate()
    other.load_state_dict({"w": torch.tensor([5.0, 5.0, 5.0])}, strict=True)
    close(other(X).detach(), 5 * X)
    same(module.to("cpu").eval(), copy.deepcopy(module).train())


def test_a_compiled_module_copies():
    module = Gate()
    compiled(module)(X)
    same(module, copy.deepcopy(module))


def test_an_op_that_no_module_holds():
    op = warp_op(hidden, "x[n] -> y[n + 1]", dim="n", name="test_serialisation::lost")
    with pytest.raises(pickle.PicklingError, match="test_serialisation::lost"):
        pickle.dumps(op)
    assert copy.deepcopy(op) is op


def make_local():
    @wp.kernel
    def local(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i]

    return warp_op(local, "x[n] -> y[n]", dim="n")


def test_an_op_whose_name_was_taken_pickles_where_a_module_holds_it():
    newer = warp_op(hidden, "x[n] -> y[n]", dim="n", name="test_serialisation::renamed")
    assert pickle.loads(pickle.dumps(found_by_search)) is found_by_search
    with pytest.raises(pickle.PicklingError, match="no attribute"):
        pickle.dumps(newer)


def test_a_numbered_name_does_not_pickle():
    globals()["second_hidden"] = first = make_local()
    globals()["third_hidden"] = second = make_local()
    try:
        assert pickle.loads(pickle.dumps(first)) is first
        with pytest.raises(Exception, match="name=") as caught:
            pickle.dumps(second)
        assert second.name in str(caught.value)
    finally:
        del globals()["second_hidden"], globals()["third_hidden"]
