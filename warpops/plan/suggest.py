"""A declaration to start from, where the kernel doesn't say how large its arrays and its launch are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ..effects import AxisUse, Effects
from ..frozen import replace
from ..kernel.signature import KernelSignature, Leaf
from .declaration import Declaration, Dims, Term
from .roles import RESERVED, Role
from .sizes import Expr, integer, name, unused
from .solving import bound, folded

LETTERS = ("n", "m", "k", "l")
"""Names of sizes by the coordinate that runs over them."""


def suggest(
    kernel: KernelSignature,
    declaration: Declaration,
    effects: Effects,
    roles: Mapping[str, Role],
    given: Mapping[str, Dims],
    fits: Callable[[Declaration], bool],
) -> str | None:
    """A decorator line that works: sizes from the kernel's indices where they say one, else as names.

    Where nothing says how many threads there are, inputs of as many axes are taken to be as large as the launch.

    Args:
        roles: by schema name.
        given: the sizes that are declared, by schema name.
        fits: whether sizes and launch size follow from a declaration.
    """
    terms = _Terms(kernel, declaration, effects, roles, given)
    sides, none = terms.terms(), frozenset[str]()
    unsaid = frozenset(terms.letters).intersection(terms.unbound(*sides, None))
    for read, alike in dict.fromkeys([(True, unsaid), (True, none), (False, none)]):
        left, right = sides if read and not alike else terms.terms(read, alike)
        for dim in (declaration.dim, terms.launch()):
            said = {"signature": "(suggested)", "left": left, "right": right, "dim": dim, "shapes": ()}
            sizes = (*declaration.sizes, *terms.unbound(left, right, dim))
            wanted = replace(declaration, **said, sizes=sizes, tiled=declaration.tiled or effects.tiled)
            if fits(wanted):
                return _text(wanted)
    return None


class _Terms:
    def __init__(
        self,
        kernel: KernelSignature,
        declaration: Declaration,
        effects: Effects,
        roles: Mapping[str, Role],
        given: Mapping[str, Dims],
    ) -> None:
        self.kernel, self.declaration, self.effects, self.roles, self.given = kernel, declaration, effects, roles, given
        labels = {part for leaf in kernel.leaves for part in (*leaf.path, leaf.name, leaf.label)}
        self.taken = {*labels, *RESERVED, *declaration.sizes}
        self.letters = [unused(letter, self.taken) for letter in LETTERS]
        self.taken |= set(self.letters)
        self.ints = {leaf.label for leaf in kernel.leaves if leaf.is_integral} - set(declaration.tensor_scalars)

    def launch(self) -> tuple[Expr, ...]:
        return tuple(name(letter) for letter in self.letters[: max(self.effects.tid_rank or 0, 1)])

    def terms(self, read: bool = True, alike: Collection[str] = ()) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """Both sides; ``read``: inputs have sizes from their indices; ``alike``: the launch's sizes that they may be guessed
        to have."""
        left, right = [], []
        for leaf in self.kernel.leaves:
            role = self.roles[leaf.name]
            if not leaf.is_array or role == "scratch":
                continue
            term = Term(leaf.label, self.dims(leaf, read, alike))
            if role != "output":
                left.append(term)
            if role in ("output", "inout"):
                right.append(term)
        order = [term.name for term in self.declaration.right or ()]
        right.sort(key=lambda term: order.index(term.name) if term.name in order else len(order))
        return tuple(left), tuple(right)

    def dims(self, leaf: Leaf, read: bool, alike: Collection[str]) -> Dims:
        known = self.effects.arrays.get(leaf.label)
        uses = known.axes if known is not None and len(known.axes) == leaf.ndim else (AxisUse(),) * leaf.ndim
        named = self.given.get(leaf.name, (None,) * leaf.ndim)
        return tuple(
            own or self.size(leaf, axis, use, read, alike)
            for axis, (own, use) in enumerate(zip(named, uses, strict=True))
        )

    def size(self, leaf: Leaf, axis: int, use: AxisUse, read: bool, alike: Collection[str]) -> Expr:
        role = self.roles[leaf.name]
        found = self.from_indices(use, role != "input") if read or role == "output" else None
        if found is None and role != "output" and leaf.ndim == self.effects.tid_rank and self.letters[axis] in alike:
            return name(self.letters[axis])
        return found or self.own_name(leaf, axis)

    def from_indices(self, use: AxisUse, written: bool) -> Expr | None:
        """The size that an axis takes for its indices, where they say one."""
        if written and use.constants and use == AxisUse(constants=use.constants):
            return integer(max(use.constants) + 1)
        if use.run is not None:
            return self.length(use.run)
        if use.window is not None and not use.below:
            coordinate, more, of = use.window
            size = folded("+", name(self.letters[coordinate]), self.length(of))
            return folded("+" if more > 0 else "-", size, integer(abs(more - 1))) if more != 1 else size
        if use.coordinate is not None and not use.offset and not use.guarded:
            return name(self.letters[use.coordinate])
        places = {(below.coordinate, below.factor, below.divisor) for below in use.below}
        if any(below.doubt or below.bounds for below in use.below) or use.uncovered or len(places) > 1:
            return None
        if not places:
            return None
        (coordinate, factor, divisor) = places.pop()
        most = max(below.offset for below in use.below)
        if divisor > 1:
            return None
        size = folded("*", integer(factor), name(self.letters[coordinate]))
        return folded("+", size, integer(max(most - factor + 1, 0)))

    def length(self, of: tuple[str, int] | str) -> Expr:
        """The name of another axis's size, or of an int argument."""
        if isinstance(of, str):
            return name(of)
        leaf = next(leaf for leaf in self.kernel.leaves if leaf.label == of[0])
        own = self.given.get(leaf.name, (None,) * leaf.ndim)[of[1]]
        return own or self.own_name(leaf, of[1])

    def own_name(self, leaf: Leaf, axis: int) -> Expr:
        return name(unused(f"{leaf.name}{axis}" if leaf.ndim > 1 else f"{leaf.name}_size", self.taken))

    def unbound(self, left: tuple[Term, ...], right: tuple[Term, ...], dim: object) -> list[str]:
        """The names that nothing on the left says."""
        sizes, more = ([d for t in side for d in t.dims or () if d is not None] for side in (left, right))
        known = bound(sizes, self.ints).union(self.declaration.sizes)
        sizes += more
        sizes += dim if isinstance(dim, tuple) else ()
        return list(dict.fromkeys([used for expr in sizes for used in expr.names() if used not in known]))


def _text(declaration: Declaration) -> str:
    left, right = (", ".join(map(str, side)) for side in (declaration.left, declaration.right or ()))
    if not right and not declaration.mutates:
        right = "..."
    text = f'@warp_op("{f"{left} -> {right}".strip()}"'
    if isinstance(declaration.dim, tuple):
        text += f', dim="{", ".join(map(str, declaration.dim))}"'
    elif declaration.dim is not None:
        text += ", dim=..."
    if declaration.sizes:
        text += f', sizes="{", ".join(declaration.sizes)}"'
    return text + (", tiled=True)" if declaration.tiled else ")")
