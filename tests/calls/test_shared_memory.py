"""Arrays changed in place: what shares their memory, what may not be changed, what has no memory."""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
from support import INDUCTOR, close, compiled, eager, inductor
from warpops import ArgumentError, warp_op


@wp.kernel
def blend(old: wp.array[float], w: wp.array[float], u: wp.array[float]):
    """Each element from its neighbour's value of before, which ``u`` may have lost already."""
    i = wp.tid()
    u[i] = w[i] * old[(i + 1) % old.shape[0]]


@wp.kernel
def swap(a: wp.array[float], b: wp.array[float]):
    i = wp.tid()
    t = a[i]
    a[i] = b[i]
    b[i] = t


@wp.kernel
def spread(old: wp.array[wp.vec2], u: wp.array[wp.vec2]):
    i = wp.tid()
    u[i] = 2.0 * old[(i + 1) % old.shape[0]]


blend_op = warp_op(blend, "old[n], w[n], u[n]", dim="n", mutates="u")
swap_op = warp_op(swap, "a[n], b[n]", dim="n", mutates="a, b")
spread_op = warp_op(spread, "old[n], u[n]", dim="n", mutates="u")


def blended(u, w):
    return w * u.roll(-1)


@pytest.fixture(scope="module")
def clones_are_kept():
    """Whether Inductor takes a clone of an array from before an operator of PyTorch's own kind changes it; 2.15 doesn't."""

    @torch.library.custom_op("test_shared_memory::doubled", mutates_args=("u",))
    def doubled(old: torch.Tensor, u: torch.Tensor) -> None:
        u.copy_(2.0 * old)

    def run(u):
        old = u.clone()
        doubled(old, u)
        return old + 1.0

    return compiled(run, backend="inductor")(torch.ones(3)).tolist() == [2.0] * 3


@pytest.mark.parametrize("mode", [eager, INDUCTOR])
class TestAClone:
    """In compiled code PyTorch drops clones that it takes for needless."""

    def test_of_the_mutated_array(self, mode):
        def run(u, w):
            old = u.clone()
            blend_op(old, w, u)
            return u.sum()

        u, w = torch.arange(1.0, 6.0), torch.linspace(1.0, 2.0, 5)
        expected = blended(u, w)
        close(mode(run)(u, w), expected.sum())
        close(u, expected)

    def test_that_is_used_afterwards(self, mode, request):
        if mode is inductor and not request.getfixturevalue("clones_are_kept"):
            pytest.skip(
                "this PyTorch takes a clone after the operator that changes the array, torch.library.custom_op's too"
            )

        def run(u, w):
            old = u.clone()
            blend_op(old, w, u)
            return old + 1.0, u * 2.0

        u, w = torch.arange(1.0, 6.0), torch.linspace(1.0, 2.0, 5)
        before, expected = u.clone(), blended(u, w)
        old, new = mode(run)(u, w)
        close(old, before + 1.0)
        close(new, expected * 2.0)
        close(u, expected)

    def test_of_a_part(self, mode):
        def run(u, w):
            blend_op(u[:4].clone(), w, u[1:])
            return u

        u, w = torch.arange(1.0, 6.0), torch.linspace(1.0, 2.0, 4)
        expected = torch.cat([u[:1], blended(u[:4], w)])
        close(mode(run)(u, w), expected)

    def test_of_a_tensor_of_the_graph(self, mode):
        def run(x, w):
            u = x * 2.0
            blend_op(u.clone(), w, u)
            return u

        x, w = torch.arange(1.0, 6.0), torch.linspace(1.0, 2.0, 5)
        close(mode(run)(x, w), blended(2.0 * x, w))

    def test_of_vectors(self, mode):
        def run(u):
            spread_op(u.clone(), u)
            return u

        u = torch.randn(5, 2)
        expected = 2.0 * u.roll(-1, 0)
        close(mode(run)(u), expected)

    def test_both_of_which_are_mutated(self, mode):
        def run(u):
            v = u.clone() + 0.0
            v[0] = 7.0
            swap_op(u, v)
            return v

        u = torch.arange(1.0, 6.0)
        before = u.clone()
        close(mode(run)(u), before)
        close(u, torch.cat([torch.tensor([7.0]), before[1:]]))


@pytest.mark.parametrize("mode", [eager, compiled], ids=["eager", "compiled"])
def test_what_really_shares_memory_is_refused(mode):
    u, w = torch.arange(1.0, 6.0), torch.ones(5)
    with pytest.raises(Exception, match="'u': is changed in place, and shares memory with 'old'"):
        mode(lambda u, w: blend_op(u, w, u))(u, w)


def test_two_written_arrays_that_share_memory_are_refused_where_graphs_call():
    u = torch.arange(1.0, 6.0)
    with pytest.raises(ArgumentError, match="'a': is changed in place, and shares memory with 'b', which is written"):
        swap_op._registration.ways.ops.forward_into(u, u)


class TestInference:
    """An inference tensor is changed in inference mode only, as PyTorch has it."""

    @staticmethod
    def tensor():
        with torch.inference_mode():
            return torch.ones(3)

    def test_outside(self):
        """In eager code. Compiled code does what PyTorch's own in-place operators do there."""
        x = self.tensor()
        with (
            pytest.raises(ArgumentError, match="'x': is changed in place, and is an inference tensor"),
            torch.no_grad(),
        ):
            kernels.step_op(x, torch.ones(3), 0.5)
        assert x.tolist() == [1.0, 1.0, 1.0]

    def test_inside(self):
        x = self.tensor()
        with torch.inference_mode():
            kernels.step_op(x, torch.ones(3), 0.5)
        assert x.tolist() == [1.5, 1.5, 1.5]

    def test_an_input_may_be_one(self):
        x, v = torch.ones(3), self.tensor()
        kernels.step_op(x, v, 0.5)
        assert x.tolist() == [1.5, 1.5, 1.5]

    def test_an_ordinary_tensor_in_inference_mode(self):
        x = torch.ones(3)
        with torch.inference_mode():
            kernels.step_op(x, torch.ones(3), 0.5)
        assert x.tolist() == [1.5, 1.5, 1.5]


@pytest.mark.parametrize("bytes_left", [0, 8])
@pytest.mark.parametrize("name", ["x", "v"])
def test_a_storage_that_was_made_smaller(name, bytes_left):
    tensors = {"x": torch.ones(4), "v": torch.ones(4)}
    tensors[name].untyped_storage().resize_(bytes_left)
    with pytest.raises(
        ArgumentError, match=f"'{name}': expected a storage of 16 bytes or more .* got one of {bytes_left}"
    ):
        kernels.step_op(tensors["x"], tensors["v"], 0.5)


@pytest.mark.parametrize("bytes_left", [0, 8])
def test_an_input_whose_storage_was_made_smaller(mode, bytes_left):
    call = mode(warp_op(kernels.square, "x[n] -> y[n]", name="shared_memory::square"))
    text = f"'x': expected a storage of 16 bytes or more .* got one of {bytes_left}"
    x = torch.ones(4)
    x.untyped_storage().resize_(bytes_left)
    with pytest.raises(ArgumentError, match=text):
        call(x)


def test_an_input_whose_storage_was_freed_since(mode):
    """Remembered launches see it, too."""
    call = mode(warp_op(kernels.square, "x[n] -> y[n]", name="shared_memory::square_again"))
    for _ in range(4):
        x = torch.ones(4, requires_grad=True)
        y = call(x)
        y.sum().backward()
    y = call(x)
    x.untyped_storage().resize_(0)
    with pytest.raises(ArgumentError, match="'x': expected a storage of 16 bytes or more"):
        call(x)
    with pytest.raises(ArgumentError, match="'x': expected a storage of 16 bytes or more"):
        y.sum().backward()


def test_a_view_of_a_storage_that_was_made_smaller():
    whole = torch.ones(8)
    part = whole[4:]
    whole.untyped_storage().resize_(16)
    with pytest.raises(ArgumentError, match="'x': expected a storage of 32 bytes"):
        kernels.step_op(part, torch.ones(4), 0.5)
