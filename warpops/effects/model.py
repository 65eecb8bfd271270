"""What a kernel's body does, as plain data: the hand-over from the analysis to the plan."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from ..frozen import frozen, hashed


@hashed
class Site:
    """A place in the user's source."""

    file: str
    line: int
    code: str = ""
    """The source text of the statement's first line, stripped."""
    column: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@frozen
class AxisUse:
    """How one axis of an array is indexed over the whole kernel.

    ``coordinate`` is the ``wp.tid()`` coordinate that indexes the axis bare (every bare use agrees), or None.
    ``offset`` tells that the axis is also indexed by an unclamped offset of a coordinate (``i + 1``).
    ``constants`` are the literal indices used. ``loops`` are axes ``(array, axis)`` whose length bounds a loop
    variable that indexes this axis. ``uncovered`` gives the reasons why an index could not be followed;
    empty where every index into the axis is understood.

    ``guarded`` tells that every bare use happens under a condition on coordinates that some accesses of the kernel
    aren't under (``if i < 10: y[i] = ...``), so that the size of the axis needn't be the launch size.
    ``int_loops`` are int arguments that bound a loop variable that indexes this axis.
    """

    coordinate: int | None = None
    offset: bool = False
    constants: tuple[int, ...] = ()
    loops: tuple[tuple[str, int], ...] = ()
    uncovered: tuple[str, ...] = ()
    guarded: bool = False
    int_loops: tuple[str, ...] = ()
    below: tuple[Below, ...] = ()
    """The indices by a coordinate, or by no more than one, that nothing else keeps in bounds."""
    needs: tuple[Need, ...] = ()
    """Lengths that indices kept inside the axis take."""
    mirrored: bool = False
    """``coordinate`` counts from the axis's end in some places (``y[y.shape[0] - 1 - i]``), which takes no more elements than
    there are threads, and may leave some out."""
    window: tuple[int, int, tuple[str, int] | str] | None = None
    """What can't be followed is a coordinate plus a number plus the variable of a loop from 0 to this length."""
    spread: tuple[int, int] | None = None
    """All of its indices are ``factor * coordinate`` plus 0 to ``factor - 1``, each by all threads: coordinate and factor."""
    run: tuple[str, int] | str | None = None
    """All of its indices are those of loops from 0 to this length (``(array, axis)`` or an int argument)."""


@frozen
class Limit:
    """A number that is the same for all threads: ``base`` (an int argument's name, an ``(array, axis)`` pair or an int) plus
    ``offset``."""

    base: str | tuple[str, int] | int
    offset: int = 0

    def __str__(self) -> str:
        base = f"'{self.base}'" if isinstance(self.base, str) else str(self.base)
        if isinstance(self.base, tuple):
            base = f"{self.base[0]}.shape[{self.base[1]}]"
        return base + added(self.offset)


def added(offset: int) -> str:
    """What is added to an index, as text."""
    return f" {'+' if offset > 0 else '-'} {abs(offset)}" if offset else ""


@frozen
class Below:
    """An index ``coordinate // divisor * factor + offset`` by all threads whose coordinate is below each of ``bounds``.

    With ``doubt`` it is by some of the threads, which the analysis can't tell: the reason, as reports print it.
    """

    coordinate: int
    offset: int = 0
    bounds: tuple[Limit, ...] = ()
    doubt: str = ""
    factor: int = 1
    divisor: int = 1

    @property
    def index(self) -> str:
        """The index, as text."""
        factor = f"{self.factor} * " if self.factor > 1 and self.divisor == 1 else ""
        divisor = f" // {self.divisor}" if self.divisor > 1 else ""
        times = f" * {self.factor}" if self.factor > 1 and divisor else ""
        return f"{factor}coordinate {self.coordinate}{divisor}{times}{added(self.offset)}"


@frozen
class Need:
    """An axis must have ``size`` elements where each of ``limits`` is above 0, so that a thread gets there.

    With ``doubt`` nobody can tell whether one does: the reason, as reports print it.
    """

    size: int
    limits: tuple[Limit, ...] = ()
    doubt: str = ""


@frozen
class Premise:
    """A size that ``filled_if`` relies on: ``left`` is equal to ``right``.

    ``left`` is a launch coordinate (its launch size) or an ``(array, axis)`` pair; ``right`` is an int argument's
    name, an ``(array, axis)`` pair or an int.
    """

    left: int | tuple[str, int]
    right: str | tuple[str, int] | int


@frozen
class ArrayEffects:
    """What the kernel does to one array argument (or struct field, by dotted name)."""

    name: str
    ndim: int
    reads: tuple[Site, ...] = ()
    stores: tuple[Site, ...] = ()
    atomics: tuple[tuple[str, Site], ...] = ()
    """Atomic updates as (builtin's name, place); tile atomics included."""
    escapes: tuple[Site, ...] = ()
    """Places behind which the analysis cannot see: native snippets, pointers, calls it does not know."""
    axes: tuple[AxisUse, ...] = ()
    reads_before_write: Site | None = None
    """A read that surely happens before the kernel wrote that array at all."""
    reads_back: bool = True
    """The kernel may read this array's data (min/max atomics and used atomic results included)."""
    stored_once: bool = False
    """Every element is provably stored at most once, never through a view or a tile, and never read back."""
    filled: bool = False
    """Every element is provably written when the launch covers the axes its coordinates index."""
    filled_by: tuple[int | None, ...] = ()
    """The coordinates that run through each axis where it is filled (None: a loop does)."""
    filled_why: str = ""
    """The reason for ``filled`` being what it is."""
    filled_if: tuple[Premise, ...] = ()
    """Where ``filled`` is False: the array is filled all the same if each of these sizes agrees (empty: it isn't)."""
    view_stored: bool = False
    """Stored through a view (``row = y[i]``), a slice or a tile."""
    null_adjoint_safe: bool = True
    """A null adjoint is safe: no custom gradient or native adjoint writes to it unconditionally."""
    before: Site | None = None
    """A place whose adjoint needs what the array held before the launch: the kernel writes it afterwards."""
    after: Site | None = None
    """A place whose adjoint needs what the launch leaves in the array: the kernel may have written it by then."""
    reads_own: bool = False
    """It is read or updated, each time an element that its thread surely stored before."""
    tested: bool = False
    """The kernel asks whether the array is there, so that it may be None."""
    unasked: tuple[tuple[Site, frozenset[str]], ...] = ()
    """The places that take it for granted that the array is there, each where none of these int and bool arguments is 0."""
    measured: bool = False
    """Its shape (or another part of its descriptor) is read. The reverse of that assigns 0 to the same part of the array's
    explicit adjoint."""
    wraps: bool = False
    """An index may be negative, for all that is known. Asked where a null adjoint isn't safe."""
    replayed: bool = False
    """Written in a function that the kernel calls. Warp's adjoint calls it again, stores and all, where it leaves out the
    stores of the kernel itself."""

    @property
    def adjoint_state(self) -> Literal["before", "after"] | None:
        """The state of the array that the adjoint needs: before the launch or after it; None where either will do.

        Both are needed only where a hazard says so. Functions repeat what they wrote, from the state before.
        """
        if self.before is not None or self.replayed:
            return "before"
        return "after" if self.after is not None else None

    @property
    def touched(self) -> bool:
        return bool(self.reads or self.stores or self.atomics or self.escapes)

    @property
    def attached_alone(self) -> bool:
        """The adjoint gets its gradient buffer attached to the array, and not as an argument besides: reading the shape would
        leave the argument without one, so that a negative index no longer wraps. A custom gradient knows the argument alone."""
        return self.measured and self.null_adjoint_safe

    @property
    def misled(self) -> str | None:
        """Why Warp's adjoint would write outside of the array; None where it doesn't."""
        if not self.measured or self.null_adjoint_safe or not self.wraps:
            return None
        return (
            f"the kernel reads the shape of '{self.name}', indexes it where an index may be negative, and hands it to a "
            f"function with a custom gradient or to native code, so that Warp's adjoint would write outside of it; take the "
            f"shape from another array"
        )

    @property
    def read(self) -> bool:
        return bool(self.reads)

    @property
    def is_extreme(self) -> bool:
        """Threads do nothing but give values to its maximum or minimum."""
        extremes = all(kind in ("atomic_max", "atomic_min") for kind, _ in self.atomics)
        others = self.reads or self.stores or self.escapes or self.replayed or self.tested
        return bool(self.atomics) and extremes and not others

    @property
    def written(self) -> bool:
        return bool(self.stores or self.atomics)


_STORES = (
    "index it in the kernel itself, as an argument of its own, in full and by the coordinates, one store a statement"
)
_WAYS_OUT = {
    "restored": _STORES,
    "overwritten": _STORES,
    "shared": "give each thread elements of its own, read one array and write another, or add by wp.atomic_add",
    "no-adjoint": "write it by what Warp differentiates",
    "mesh": "read the vertices from an array argument",
    "local-array": "keep such values in scratch=",
}
"""What to do about a hazard, by its kind."""


@frozen
class Hazard:
    """A place where Warp's adjoint may be wrong.

    ``kind`` is one of

    - ``"counter"``: slots from a consumed atomic counter without a replay,
    - ``"index"``: an index that a run-time loop carries; the adjoint may write outside of an array,
    - ``"loop-product"``: a variable of a run-time loop is needed by value, in the loop or after it,
    - ``"loop-exit"``: ``break`` or ``return`` out of a run-time loop, and what runs after it; a query's turns that depend
      on one another,
    - ``"while"``: what runs in a ``while`` loop,
    - ``"component"``: an overwritten component of a local,
    - ``"overwritten"``: a value that the adjoint needs is overwritten,
    - ``"restored"``: an element that is read back is stored to again,
    - ``"local-array"``: an array that lives in the thread is read,
    - ``"replayed"``: one that is, by a function that the adjoint calls again,
    - ``"shared"``: an array written and read by different threads,
    - ``"no-adjoint"``: what Warp doesn't differentiate,
    - ``"remainder"``: the same, of what can be written so that it does (``frac``, ``mod``),
    - ``"mesh"``: a mesh's own arrays,
    - ``"view"``: a view given to a function with a gradient of the user's, which writes to a null array,
    - ``"stored-again"``: a component of an element, by Warp before 1.18.

    ``arrays`` are the arrays whose gradients it concerns (empty: all).
    """

    kind: str
    site: Site
    message: str
    arrays: tuple[str, ...] = ()
    unless: Premise | None = None
    """Sizes under which there is none."""
    late: bool = False
    """They are those of nearly every launch: it is told of the launches that aren't so."""

    @property
    def advised(self) -> str:
        """The message, and a way out where there is one."""
        way = _WAYS_OUT.get(self.kind) if self.arrays or self.kind != "overwritten" else None
        return self.message if way is None else f"{self.message}; {way}, or give backward="

    @property
    def refused(self) -> bool:
        """No gradient can be had, where others are warned of."""
        return self.kind in ("counter", "index", "view", "stored-again")


@frozen
class LoopNeeds:
    """A loop that Warp doesn't unroll, and what Warp's adjoint of it would need and doesn't have."""

    function: Any
    """The Python function that it is in."""
    line: int
    """In the function's source, from 1; with ``column``, where the loop begins."""
    column: int
    site: Site
    active: bool = False
    """Gradients flow through it."""
    left: bool = False
    """It is a ``while``, a ``break`` or ``return`` leaves it, a ``continue`` ends a turn that has done something, or it is a
    query's and its turns depend on one another."""
    inside: frozenset[str] = frozenset()
    """Variables whose value at a turn is needed."""
    after: frozenset[str] = frozenset()
    """Variables whose value after the loop is needed, or whose gradient the loop's first turn back would clear."""
    before: frozenset[str] = frozenset()
    """Variables whose value from before the loop is needed."""
    fixed: frozenset[str] = frozenset()
    """Variables that it assigns and that can't be kept: arrays, tiles, functions."""

    @property
    def wrong(self) -> bool:
        return bool(self.inside or self.after or self.before or (self.left and self.active))


@frozen
class Effects:
    """What one kernel does to its arrays and where ``wp.tid()`` goes."""

    file: str
    line: int
    tid_rank: int | None
    """The number of coordinates unpacked from ``wp.tid()``; 0 without a call, None where calls can't be seen."""
    arrays: dict[str, ArrayEffects] = field(default_factory=dict)
    hazards: tuple[Hazard, ...] = ()
    loops: tuple[LoopNeeds, ...] = ()
    """All loops that Warp doesn't unroll, in the functions that the kernel calls too."""
    remainders: frozenset[tuple[str, int, int]] = frozenset()
    """The places of hazards of that kind: file, line and column."""
    array_stores: frozenset[tuple[Any, int, int]] = frozenset()
    """The statements that store to an array, or add to one: function, line and column in its source."""
    opaque: tuple[Site, ...] = ()
    """Places behind which the analysis cannot see at all."""
    tiled: bool = False
    """The body uses tile builtins."""
    handles: dict[str, frozenset[str]] = field(default_factory=dict)
    """Arguments that are ids of Warp's objects: the names of the classes. One that the body compares isn't among them:
    it may have a value that stands for no object."""
