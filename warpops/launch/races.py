"""Threads that store to one element where a launch has more of them than there are elements: told at such a launch."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from ..effects import Hazard
from ..errors import GradientWarning
from ..kernel.signature import KernelSignature
from ..private import warp_types


def tell_races(
    kernel: KernelSignature, suspects: Iterable[Hazard], dims: tuple[int, ...], arguments: list[Any]
) -> None:
    """Warn of what the adjoint of a launch over ``dims`` has wrong. ``arguments``: as ``wp.launch`` takes them."""
    given = {
        label: value for (label, _), value in zip(warp_types.argument_types(kernel.kernel), arguments, strict=True)
    }
    for hazard in suspects:
        premise = hazard.unless
        assert premise is not None
        assert isinstance(premise.left, int)
        assert isinstance(premise.right, tuple)
        (label, *fields), axis = premise.right[0].split("."), premise.right[1]
        array = given[label]
        for field in fields:
            array = getattr(getattr(array, "_ctype", array), field)
        threads, elements = dims[premise.left], array.shape[axis]
        if threads > elements:
            warnings.warn(
                f"{kernel.name}: Warp's adjoint may be wrong at {hazard.site}: {hazard.message}; there are {threads} threads "
                f"along coordinate {premise.left}, and '{premise.right[0]}' has size {elements} there; launch as many as there "
                f"are elements (dim=), or add by wp.atomic_add",
                GradientWarning,
                stacklevel=2,
            )
