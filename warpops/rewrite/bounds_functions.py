"""What a kernel that compares its indices calls. A module of its own, which few need: declaring functions costs time."""

# mypy: ignore-errors

from typing import Any

import warp as wp

RECORD = 8
"""How many numbers a launch has for its record: how often an index was wrong; of the first one which it is in the kernel, what
it was, and the size; the thread's coordinates."""


@wp.struct
class Watch:
    record: wp.array(dtype=wp.int64)
    thread: wp.vec4i


@wp.func
def wide(index: Any) -> wp.int64:
    """An index of any type. Warp's own cast of a constant, as an unrolled loop's variable is, changes the constant."""
    return wp.int64(index)


@wp.func
def failed(watch: Watch) -> bool:
    """Whether a thread of the launch had a wrong index: none needs to go on."""
    return watch.record[0] != wp.int64(0)


@wp.func
def inside(watch: Watch, index: wp.int64, size: int, site: int) -> bool:
    """Whether an index may be used. The first wrong one is recorded, and after it none may."""
    if watch.record[0] != wp.int64(0):
        return False
    if index >= -wp.int64(size) and index < wp.int64(size):
        return True
    if wp.atomic_add(watch.record, 0, wp.int64(1)) == wp.int64(0):
        watch.record[1] = wp.int64(site)
        watch.record[2] = index
        watch.record[3] = wp.int64(size)
        watch.record[4] = wp.int64(watch.thread[0])
        watch.record[5] = wp.int64(watch.thread[1])
        watch.record[6] = wp.int64(watch.thread[2])
        watch.record[7] = wp.int64(watch.thread[3])
    return False


@wp.func
def kept(watch: Watch, index: wp.int64, size: int, site: int) -> int:
    """An index as it is, or 0 where it may not be used: of what has a first element, or isn't touched through it."""
    if inside(watch, index, size, site):
        return int(index)
    return 0
