"""Shapes and the launch size: what brackets, options and the kernel's own indexing say about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from ..effects import AxisUse, Effects, Premise
from ..errors import SignatureError
from ..frozen import frozen
from ..kernel.signature import KernelSignature, Leaf
from .bounds import Bounds, Cover, Reach
from .declaration import Callback, Declaration, Dims
from .roles import Role, Roles
from .sizes import Expr, integer, name, unused
from .solving import bound, folded
from .suggest import LETTERS, suggest


@frozen
class Extents:
    dims: dict[str, Dims]
    """What each given array's Warp shape must be, by schema name."""
    shapes: dict[str, tuple[Expr, ...] | Callback]
    """The Warp shapes of fresh outputs and scratch."""
    launch: tuple[Expr, ...] | Callback
    rank: int | None
    """The launch rank that the kernel demands, where it is known."""
    covers: tuple[Cover, ...] = ()
    reaches: tuple[Reach, ...] = ()
    why: dict[str, str] = field(default_factory=dict)
    uncovered: tuple[tuple[str, int, str], ...] = ()
    """Axes whose indices aren't checked, with the reason."""
    names: dict[str, str] = field(default_factory=dict)
    """Schema names by label."""

    def holds(self, premise: Premise) -> bool:
        """Whether the declared and derived sizes say that a premise's two sizes are equal."""
        left, right = premise.left, premise.right
        if isinstance(left, tuple):
            size = self._size(*left)
        else:
            size = None if callable(self.launch) or left >= len(self.launch) else self.launch[left]
        if isinstance(right, tuple):
            return size is not None and size == self._size(*right)
        return size == (name(right) if isinstance(right, str) else integer(right))

    def _size(self, label: str, axis: int) -> Expr | None:
        array = self.names.get(label, label)
        dims = self.dims.get(array) or self.shapes.get(array)
        return None if dims is None or callable(dims) else dims[axis]


def _runs_over(use: AxisUse) -> int | None:
    """The coordinate that runs over an axis from its first element on, wherever it indexes it."""
    return None if use.offset or use.guarded or use.mirrored else use.coordinate


class _Deriver(Bounds):
    def __init__(
        self,
        kernel: KernelSignature,
        declaration: Declaration,
        effects: Effects,
        roles: Mapping[str, Role],
        *,
        trial: bool = False,
    ) -> None:
        self.kernel, self.declaration, self.effects, self.roles = kernel, declaration, effects, roles
        self.trial = trial
        self.by_label = {leaf.label: leaf for leaf in kernel.leaves}
        self.arrays = [leaf for leaf in kernel.leaves if leaf.is_array]
        self.dims: dict[str, Dims] = {}
        self.shapes: dict[str, tuple[Expr, ...] | Callback] = {}
        self.why: dict[str, str] = {}
        self.implicit: dict[int, str] = {}
        self.implied: dict[str, dict[int, int]] = {}

    def fail(self, text: str) -> SignatureError:
        return SignatureError(f"{self.kernel.name}: {text}")

    def given(self, leaf: Leaf) -> bool:
        return self.roles[leaf.name] in ("input", "inout", "mutated")

    def fresh(self, leaf: Leaf) -> bool:
        return self.roles[leaf.name] in ("output", "scratch")

    def optional(self, leaf: Leaf) -> bool:
        return leaf.default is None or leaf.label in self.declaration.optional

    def nullable(self, leaf: Leaf) -> bool:
        return self.roles[leaf.name] == "output" and leaf.label in self.declaration.optional

    def decide(self) -> tuple[tuple[Expr, ...] | Callback, int | None]:
        """The launch size and its rank. All that can be refused is refused here."""
        self.read_brackets()
        self.brackets = dict(self.dims)
        self.imply()
        launch = self.launch()
        self.name_implied(launch)
        self.fill_shapes(launch)
        self.check_names(launch)
        rank = self.check_rank(launch)
        self.check_multiples(launch)
        return launch, rank

    def run(self) -> Extents:
        launch, rank = self.decide()
        return Extents(
            dims=self.dims,
            shapes=self.shapes,
            launch=launch,
            rank=rank,
            covers=tuple(self.covers(launch)),
            reaches=tuple(self.reaches(launch)),
            why=self.why,
            uncovered=tuple(
                (leaf.label, axis, reason)
                for leaf, axis, use in self.axes
                for reason in (*use.uncovered, *self.doubts(leaf, axis, use, launch))
            ),
            names={leaf.label: leaf.name for leaf in self.kernel.leaves},
        )

    def read_brackets(self) -> None:
        for term in self.declaration.left:
            leaf = self.by_label[term.name]
            if term.dims is not None:
                self.check_ndim(leaf, term.dims)
                self.dims[leaf.name] = term.dims
        terms = (*(self.declaration.right or ()), *self.declaration.scratch)
        brackets = [(term.name, term.dims) for term in terms if term.dims is not None]
        for label, dims in (*brackets, *self.declaration.shapes):
            leaf = self.by_label[label]
            if callable(dims):
                self.shapes[leaf.name] = dims
                continue
            self.check_ndim(leaf, dims)
            if self.roles[leaf.name] == "inout":
                if self.dims.setdefault(leaf.name, dims) != dims:
                    raise self.fail(f"in-out '{label}' has other sizes on the left than on the right")
                continue
            exact = tuple(d for d in dims if d is not None)
            if len(exact) < len(dims):
                raise self.fail(f"output '{label}' can't have the size '_': say how large it is")
            self.shapes[leaf.name] = exact

    def check_ndim(self, leaf: Leaf, dims: Dims) -> None:
        if len(dims) != leaf.ndim:
            component = f" (the axes {leaf.component} of its elements are not listed)" if leaf.component else ""
            raise self.fail(
                f"'{leaf.label}' is declared with {len(dims)} sizes, and the kernel takes {leaf.type_name}, which has "
                f"{leaf.ndim}{component}"
            )

    def imply(self) -> None:
        """Axes of given arrays without brackets that a coordinate indexes bare."""
        for leaf in self.arrays:
            if not self.given(leaf) or leaf.name in self.dims:
                continue
            self.implied[leaf.name] = {
                axis: c for axis, use in enumerate(self.uses(leaf)) if (c := _runs_over(use)) is not None
            }
        for leaf in self.arrays:
            for axis, coordinate in self.implied.get(leaf.name, {}).items():
                self.why.setdefault(f"dim {coordinate}", f"it indexes axis {axis} of '{leaf.label}'")
                if not self.optional(leaf):
                    self.implicit.setdefault(coordinate, self.fresh_letter(coordinate))

    def fresh_letter(self, coordinate: int) -> str:
        taken = set(self.by_label) | set(self.declaration.sizes) | set(self.implicit.values())
        for dims in (*self.dims.values(), *self.shapes.values()):
            if not callable(dims):
                taken |= {n for d in dims if d is not None for n in d.names()}
        if isinstance(self.declaration.dim, tuple):
            taken |= {n for d in self.declaration.dim for n in d.names()}
        return unused(LETTERS[coordinate] if coordinate < len(LETTERS) else "n", taken)

    def outputs_of(self, coordinate: int) -> str:
        """The outputs whose sizes the launch would say."""
        unknown = [leaf for leaf in self.arrays if self.fresh(leaf) and leaf.name not in self.shapes]
        own = [
            leaf
            for leaf in unknown
            if any(coordinate in (use.coordinate, (use.spread or [None])[0]) for use in self.uses(leaf))
        ]
        names = [f"'{leaf.label}'" for leaf in own or unknown]
        if not names:
            return ""
        return f", and so how large output{'s' * (len(names) > 1)} {' and '.join(names)} {'are' if len(names) > 1 else 'is'}"

    def advice(self, rank: int) -> str:
        """What to say instead, tried before."""
        found = None
        if not self.trial:
            dims = {n: d for n, d in (*self.brackets.items(), *self.shapes.items()) if not callable(d)}
            found = example_line(self.kernel, self.declaration, self.effects, self.roles, dims)
        if found is not None:
            return f"Say it, for example\n    {found}"
        example = ", ".join(unused(letter, {*self.by_label, *self.declaration.sizes}) for letter in LETTERS[:rank])
        return f'Give dim, for example dim="{example}" with these sizes named in the signature'

    def launch(self) -> tuple[Expr, ...] | Callback:
        declared = self.declaration.dim
        if declared is not None:
            self.why["dim"] = "declared"
            return declared
        rank = self.effects.tid_rank
        if rank is None:
            raise self.fail(
                f"the launch size can't be read from the kernel ({self.kernel.file}:{self.kernel.line}). {self.advice(1)}"
            )
        if rank == 0:
            self.why["dim"] = "the kernel doesn't call wp.tid(): one thread"
            return ()
        sizes = []
        for coordinate in range(rank):
            found: dict[Expr, str] = {}
            for leaf in self.arrays:
                dims = self.dims.get(leaf.name) or self.shapes.get(leaf.name)
                if dims is None or callable(dims) or self.nullable(leaf):
                    continue
                for axis, use in enumerate(self.uses(leaf)):
                    size = dims[axis]
                    if _runs_over(use) == coordinate and size is not None:
                        found.setdefault(size, f"it indexes axis {axis} of '{leaf.label}'")
            if len(found) > 1:
                self.check_names(())  # a size that nothing binds isn't one to choose
                options = " or ".join(f"'{size}' ({why})" for size, why in found.items())
                raise self.fail(f"coordinate {coordinate} of wp.tid() may run over {options}; say which with dim")
            if found:
                size, why = next(iter(found.items()))
                sizes.append(size)
                self.why[f"dim {coordinate}"] = why
                continue
            if coordinate not in self.implicit and self.declaration.tiled and 0 < coordinate == rank - 1:
                break  # the lane, which a tiled launch adds
            if coordinate not in self.implicit:
                raise self.fail(
                    f"no array's size says how many threads coordinate {coordinate} of wp.tid() has"
                    f"{self.outputs_of(coordinate)} ({self.kernel.file}:{self.kernel.line}). {self.advice(rank)}"
                )
            sizes.append(name(self.implicit[coordinate]))
        return tuple(sizes)

    def name_implied(self, launch: tuple[Expr, ...] | Callback) -> None:
        """Axes under one coordinate agree: with the launch size where it was derived, else with each other."""
        derived = self.declaration.dim is None and not callable(launch)
        for leaf in self.arrays:
            dims: list[Expr | None] = [None] * leaf.ndim
            for axis, coordinate in self.implied.get(leaf.name, {}).items():
                if derived and not callable(launch) and coordinate < len(launch):
                    dims[axis] = launch[coordinate]
                elif coordinate in self.implicit:
                    dims[axis] = name(self.implicit[coordinate])
            if any(d is not None for d in dims):
                self.dims[leaf.name] = tuple(dims)

    def fill_shapes(self, launch: tuple[Expr, ...] | Callback) -> None:
        for leaf in self.arrays:
            if not self.fresh(leaf) or leaf.name in self.shapes:
                continue
            sizes = [size for size in (self.size_read(use, launch) for use in self.uses(leaf)) if size is not None]
            if len(sizes) < leaf.ndim:
                unread = ((k, use) for k, use in enumerate(self.uses(leaf)) if self.size_read(use, launch) is None)
                axis, use = next(unread, (0, AxisUse()))
                reason = f" (axis {axis}: {use.uncovered[0]})" if use.uncovered else ""
                raise self.fail(
                    f"the shape of output '{leaf.label}' can't be read from the kernel{reason} "
                    f"({self.kernel.file}:{self.kernel.line}); give it in brackets, or with "
                    f"shapes={{'{leaf.label}': ...}}. {self.advice(self.effects.tid_rank or 1)}"
                )
            self.shapes[leaf.name] = tuple(sizes)
            self.why[leaf.name] = "from what indexes it"

    def size_read(self, use: AxisUse, launch: tuple[Expr, ...] | Callback) -> Expr | None:
        """The size of a fresh array's axis, of which every element is meant, from its indices."""
        c, factor = use.spread or (use.coordinate, 1)
        if c is not None and not use.guarded and (use.spread or not use.offset):
            if callable(launch) or c >= len(launch):
                return None
            size = self.implicit.get(c)
            return folded("*", integer(factor), name(size) if size and self.declaration.dim is not None else launch[c])
        if isinstance(use.run, tuple) and use.run[0] in self.by_label and not use.uncovered:
            return self.size_named(self.by_label[use.run[0]], use.run[1])
        return name(use.run) if isinstance(use.run, str) and use.run not in self.declaration.tensor_scalars else None

    def size_named(self, leaf: Leaf, axis: int) -> Expr | None:
        """The size of an axis, which gets a name where it has none."""
        if not self.given(leaf) or self.optional(leaf):
            shape = self.shapes.get(leaf.name)
            return None if shape is None or callable(shape) else shape[axis]
        dims = list(self.dims.get(leaf.name) or (None,) * leaf.ndim)
        if dims[axis] is None:
            dims[axis] = name(self.fresh_letter(len(self.implicit) + axis))
            self.dims[leaf.name] = tuple(dims)
        return dims[axis]

    def check_names(self, launch: tuple[Expr, ...] | Callback) -> None:
        ints = {
            leaf.label
            for leaf in self.kernel.leaves
            if leaf.is_number
            and (leaf.is_integral or leaf.scalar is None)
            and leaf.label not in self.declaration.tensor_scalars
        }
        axes = [size for dims in self.dims.values() for size in dims if size is not None]
        known = bound(axes, ints.union(self.declaration.sizes))

        named = ((f"'{label}'", sizes) for label, sizes in (*self.dims.items(), *self.shapes.items()))
        listed = [(what, size) for what, sizes in (*named, ("dim", launch)) if not callable(sizes) for size in sizes]
        for what, expr in listed:
            for used in expr.names() if expr is not None else ():
                leaf = self.by_label.get(used)
                if used in known and (leaf is None or used in ints):
                    continue
                if leaf is not None:
                    kind = "an array" if leaf.is_array else f"a {leaf.type_name}"
                    if used in self.declaration.tensor_scalars:
                        kind = "in tensor_scalars, so that its value is known only inside the launch"
                    raise self.fail(f"the size '{expr}' of {what} uses '{used}', which is {kind}, not an int")
                inside = next((size for size in axes if used in size.names()), None)
                why = "which no input's brackets bind"
                if inside is not None:
                    why = f"which '{inside}' alone can't be solved for"
                raise self.fail(
                    f"the size '{expr}' of {what} uses '{used}', {why}; bind it on the left, as "
                    f"in 'x[{used}]', or make it an argument with sizes=\"{used}\""
                )

    def check_multiples(self, launch: tuple[Expr, ...] | Callback) -> None:
        """Refuse what fits no call: an axis as long as the launch, indexed by a multiple of its coordinate."""
        if not any(below.factor > below.divisor for _, _, use in self.axes for below in use.below):
            return
        for cover in self.covers(launch):
            leaf = next(leaf for leaf in self.arrays if leaf.name == cover.array)
            if callable(launch) or cover.coordinate >= len(launch) or cover.bounds or self.nullable(leaf):
                continue
            threads = launch[cover.coordinate]
            if cover.factor > cover.divisor and threads == self.size_of(leaf, cover.axis) and not threads.is_int:
                larger = folded("*", integer(-(-cover.factor // cover.divisor)), threads)
                raise self.fail(
                    f"'{leaf.label}' has the size '{threads}' on axis {cover.axis}, over which coordinate {cover.coordinate} "
                    f"of wp.tid() runs, and the kernel indexes it by the coordinate{cover.text} "
                    f"({self.kernel.file}:{self.kernel.line}); declare it longer, for example '{larger}', or dim shorter"
                )

    def check_rank(self, launch: tuple[Expr, ...] | Callback) -> int | None:
        rank = self.effects.tid_rank
        if rank is None or callable(launch):
            return rank
        given = len(launch)
        if self.declaration.tiled:
            if given in (rank, rank - 1):
                return given
        elif given == rank or (rank == 0 and given == 1 and launch[0].value == 1 and launch[0].is_int):
            return given
        takes = f"takes {rank} coordinate{'s' if rank != 1 else ''} from wp.tid()" if rank else "doesn't call wp.tid()"
        raise self.fail(
            f"dim has {given} size{'s' if given != 1 else ''} ({', '.join(map(str, launch))}), and the kernel {takes} "
            f"({self.kernel.file}:{self.kernel.line})"
        )


def derive_extents(kernel: KernelSignature, declaration: Declaration, effects: Effects, roles: Roles) -> Extents:
    """Derive shapes and the launch size, and what must be checked about them at each call.

    Raises:
        SignatureError: a size is unknown, ambiguous or contradicts the kernel.
    """
    return _Deriver(kernel, declaration, effects, roles.by_name).run()


def example_line(
    kernel: KernelSignature,
    declaration: Declaration,
    effects: Effects,
    roles: Mapping[str, Role],
    given: Mapping[str, Dims] | None = None,
) -> str | None:
    """A decorator line from which everything follows, tried before; ``given``: the sizes that are declared."""

    def fits(declaration: Declaration) -> bool:
        try:
            _Deriver(kernel, declaration, effects, roles, trial=True).decide()
        except SignatureError:
            return False
        return True

    return suggest(kernel, declaration, effects, roles, given or {}, fits)
