"""What the tests ask of an analysed kernel."""

from __future__ import annotations

import warp as wp

from warpops.effects import ArrayEffects, Effects, Limit, analyse


def effects_of(kernel: wp.Kernel) -> Effects:
    return analyse(kernel)


def array(kernel: wp.Kernel, name: str) -> ArrayEffects:
    return analyse(kernel).arrays[name]


def coordinates(kernel: wp.Kernel, name: str) -> list[int | None]:
    return [use.coordinate for use in array(kernel, name).axes]


def bounds(kernel: wp.Kernel, name: str) -> list[tuple[int, tuple[Limit, ...]]]:
    """The coordinates that index an array, and what each is below."""
    return [(below.coordinate, below.bounds) for use in array(kernel, name).axes for below in use.below]
