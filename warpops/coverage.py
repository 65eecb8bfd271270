"""Whether a launch covers an array element by element, so that it need hold nothing before."""

from __future__ import annotations

from .declaration import Callback
from .effects import ArrayEffects, Premise
from .extents import Extents
from .sizes import Expr, integer
from .sizes import name as size_name


def covers_exactly(
    shape: tuple[Expr, ...] | Callback | None, effects: ArrayEffects, extents: Extents, names: dict[str, str]
) -> str | None:
    """Why the launch fails to cover this array element by element; None where it does so provably.

    ``names`` are schema names by label.
    """
    if not effects.filled and not (effects.filled_if and all(holds(p, extents, names) for p in effects.filled_if)):
        return effects.filled_why or "not every element is provably written"
    if shape is None or callable(shape) or extents.launch is None or callable(extents.launch):
        return "its shape and the launch size are computed by callables, which can't be compared before the call"
    for axis, coordinate in enumerate(effects.filled_by):
        if coordinate is None:
            continue
        if coordinate >= len(extents.launch):
            return f"its axis {axis} is run through by the threads of a block, of which there are as many as the device takes"
        if extents.launch[coordinate] != shape[axis]:
            return (
                f"its axis {axis} has size {shape[axis]}, and the launch has {extents.launch[coordinate]} threads there"
            )
    return None


def holds(premise: Premise, extents: Extents, names: dict[str, str]) -> bool:
    """Whether the declared and derived sizes say that a premise's two sizes are equal."""

    def size(of: int | str | tuple[str, int], coordinate: bool) -> Expr | None:
        if isinstance(of, tuple):
            name = names.get(of[0], of[0])
            dims = extents.dims.get(name) or extents.shapes.get(name)
            return None if dims is None or callable(dims) else dims[of[1]]
        if isinstance(of, str):
            return size_name(of)
        if not coordinate:
            return integer(of)
        launch = extents.launch
        return None if callable(launch) or of >= len(launch) else launch[of]

    left, right = size(premise.left, True), size(premise.right, False)
    return left is not None and left == right
