"""The options of ``warp_op`` and ``warp_program``; their docstrings say what each means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict

import warp as wp

from ..errors import did_you_mean

Dim = str | int | tuple[int | str, ...] | Callable[..., Any]
Names = str | Iterable[str]


class ProgramOptions(TypedDict, total=False):
    """Those of a program."""

    name: str | None
    shapes: Mapping[str, Dim] | None
    init: str | float | Mapping[str, str | float] | None
    mutates: Names | None
    scratch: Names | None
    sizes: Names | None
    optional: Names | None
    nondiff: Names | None
    tensor_scalars: Names | None
    backward: wp.Kernel | Callable[..., Any] | tuple[Any, Mapping[str, Any]] | None


class Options(ProgramOptions, total=False):
    """Those of a kernel: a launch has more to be said of."""

    dim: Dim | None
    block_dim: int | None
    tiled: bool


def check_options(caller: str, options: Iterable[str], known: type) -> None:
    """Raise Python's own error for an option that there isn't, with those that there are."""
    names = [*known.__annotations__]
    for option in options:
        if option not in names:
            hint = did_you_mean(option, names, ".")
            raise TypeError(
                f"{caller}() got an unexpected keyword argument {option!r}{hint} The options are {', '.join(names)}"
            )
