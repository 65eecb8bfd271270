"""Canaries: what ``warpops.private`` takes for granted about Warp's private side. A new Warp that differs fails here first."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
import warp as wp

from cuda_stand_in import struct_layout
from warpops.kernel.signature import inspect_kernel
from warpops.launch.packing import BOUNDS, Parts, bfloat16_bits
from warpops.private import warp_built, warp_calls, warp_code, warp_types


@wp.struct
class Inner:
    gain: float
    data: wp.array[wp.vec3]


@wp.struct
class Outer:
    count: int
    inner: Inner


@wp.kernel
def everything(
    x: wp.array[float],
    m: wp.array3d[wp.mat22],
    s: Outer,
    flag: bool,
    small: wp.float16,
    big: wp.int64,
    v: wp.vec3,
    q: wp.quatd,
    out: wp.array[float],
):
    i = wp.tid()
    out[i] = x[i] * s.inner.gain


@wp.kernel
def scale(x: wp.array[float], s: float, out: wp.array[float]):
    i = wp.tid()
    out[i] = x[i] * s


def test_arguments_come_with_resolved_types():
    names = [name for name, _ in warp_types.argument_types(everything)]
    assert names == ["x", "m", "s", "flag", "small", "big", "v", "q", "out"]
    types = dict(warp_types.argument_types(everything))
    assert warp_types.is_plain_array(types["m"]) and types["m"].ndim == 3 and types["m"].dtype is wp.mat22
    assert list(warp_types.struct_fields(types["s"])) == ["count", "inner"]
    assert warp_types.struct_fields(types["x"]) is None


def test_a_descriptor_has_the_fields_and_size_that_are_packed():
    fields = [(name, kind) for name, kind in wp._src.types.array_t._fields_]
    assert [name for name, _ in fields] == ["data", "grad", "shape", "strides", "ndim", "flags"]
    assert ctypes.sizeof(wp._src.types.array_t) == 56
    assert wp._src.types.array_t.flags.offset == 16 + 16 + 16 + 2


def test_packed_arguments_are_what_warp_would_build():
    """The layout's bytes, read back through Warp's own ctypes structure."""
    signature = inspect_kernel(everything)
    layout = Parts(signature).layout()
    structure = struct_layout(everything)
    assert layout.size == ctypes.sizeof(structure)
    packed = layout.packer()(
        *(111, 222, 5, 4, 1, 0),
        *(333, 0, 2, 3, 4, 192, 64, 16, 3, 1),
        *(7, 1.5, 444, 0, 9, 12, 1, 0),
        *(True, 0.5, -(2**40), 1.0, 2.0, 3.0, 0.1, 0.2, 0.3, 0.4),
        *(555, 0, 5, 4, 1, 0),
    )
    found = structure.from_buffer_copy(packed)
    assert (found.a0.data, found.a0.grad, found.a0.shape[0], found.a0.strides[0]) == (111, 222, 5, 4)
    assert (list(found.a1.shape), list(found.a1.strides)) == ([2, 3, 4, 0], [192, 64, 16, 0])
    assert (found.a1.ndim, found.a1.flags) == (3, 1)
    assert (found.a2.count, found.a2.inner.gain, found.a2.inner.data.data) == (7, 1.5, 444)
    assert found.a5 == -(2**40) and list(found.a6) == [1.0, 2.0, 3.0]
    assert found.a8.data == 555


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_packed_bounds_are_warps(rank):
    dims = tuple(range(2, 2 + rank))
    size = 1
    for extent in dims:
        size *= extent
    ours = BOUNDS[rank](*dims, size, 1)
    theirs = wp._src.types.launch_bounds_t(dims)
    assert ours == bytes(theirs)


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 3.1415926, 1e-30, 3e38, float("inf"), float("nan")])
def test_bfloat16_bits_are_torchs(value):
    expected = torch.tensor(value, dtype=torch.bfloat16).view(torch.int16).item() & 0xFFFF
    if value != value:
        assert torch.tensor([bfloat16_bits(value)]).to(torch.int16).view(torch.bfloat16).isnan().all()
    else:
        assert bfloat16_bits(value) == expected


def test_entry_points_take_bytes_and_hashers_tell_of_changes():
    """A module that Warp marks modified gets a new ``hashers``, which is what makes a launch load it again."""
    warp_code.runtime_ready()
    compiled = warp_code.Compiled(scale, wp.get_device("cpu"), 1)
    compiled.load()
    x, out = torch.arange(3.0), torch.zeros(3)
    layout = Parts(inspect_kernel(scale)).layout()
    packed = layout.packer()(x.data_ptr(), 0, 3, 4, 1, 0, 2.0, out.data_ptr(), 0, 3, 4, 1, 0)
    compiled.launch(BOUNDS[1](3, 3, 1), packed)
    assert out.tolist() == [0.0, 2.0, 4.0]
    before = scale.module.hashers
    assert before is scale.module.hashers
    scale.module.mark_modified()
    assert scale.module.hashers is not before


def test_the_rank_of_tid_is_known_once_loaded():
    warp_code.runtime_ready()
    scale.module.load(wp.get_device("cpu"), 1)
    assert warp_code.launch_rank(scale) == 1


def test_an_argument_unpacks_for_the_public_launch():
    layout = Parts(inspect_kernel(scale)).layout()
    packed = layout.packer()(11, 12, 3, 4, 1, 0, 2.5, 13, 0, 3, 4, 1, 0)
    types = [kind for _, kind in warp_types.argument_types(scale)]
    array, number = (warp_types.unpack_argument(types[k], packed, layout.offsets[k]) for k in (0, 1))
    assert (array.data, array.grad, array.shape[0]) == (11, 12, 3)
    assert number == 2.5


def test_backward_can_be_switched_off_in_both_places():
    assert warp_code.backward_enabled(scale)
    off = wp.kernel(enable_backward=False)(scale.func)
    assert not warp_code.backward_enabled(off)


def test_a_kernel_can_be_taken_out_of_its_module():
    module = wp.get_module("test_warp_private_disown")

    @wp.kernel(module=module)
    def stays(x: wp.array[float]):
        x[wp.tid()] = 1.0

    @wp.kernel(module=module)
    def goes(x: wp.array[float]):
        x[wp.tid()] = 1.0

    assert set(module._get_live_kernels()) == {stays, goes}
    hashers = module.hashers
    warp_code.disown(goes)
    assert module._get_live_kernels() == [stays]
    assert list(module.kernels.values()) == [stays]
    assert module.hashers is not hashers


@wp.kernel
def keeps(n: int, out: wp.array[float]):
    kept = wp.zeros(shape=(2, 3), dtype=float)
    out[0] = kept[0, n]


def test_an_array_of_the_thread_s_own_tells_its_shape():
    ((_, _, types, _),) = warp_built.local_types(keeps)
    assert warp_types.fixed_shape(types["kept"]) == (2, 3)
    assert warp_types.fixed_shape(types["out"]) is None and warp_types.fixed_shape(types["n"]) is None


@wp.kernel
def copies(x: wp.array[Any], out: wp.array[Any]):
    out[0] = x[0]


def test_the_overload_of_a_launch():
    arguments = wp.zeros(1, dtype=wp.float64), wp.zeros(1, dtype=wp.float64)
    found = warp_calls.overload_for(copies, arguments)
    assert [t.dtype for _, t in warp_types.argument_types(found)] == [wp.float64, wp.float64]
    assert warp_calls.overload_for(copies, arguments) is found
    assert warp_calls.overload_for(scale, ()) is scale
