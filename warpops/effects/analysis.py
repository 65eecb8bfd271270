"""One kernel's analysis, from its source to ``Effects``."""

from __future__ import annotations

import ast
import dataclasses
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from ..private import warp_source
from ..private.warp_source import max_unroll, overwrites_are_copies
from ..private.warp_types import argument_types
from .chains import dotted
from .conclude import conclude_array
from .expressions import evaluate
from .hazards import find_hazards
from .joins import meet
from .model import ArrayEffects, AxisUse, Effects, LoopNeeds, Site
from .names import Code, array_arguments, code_of, of_type, with_body
from .outside import standing_of
from .record import Frame, OutOfBudgetError, Record, RunTimeLoop
from .state import State
from .statements import execute
from .wholes import parameters_as_wholes

_results: weakref.WeakKeyDictionary[Any, Effects] = weakref.WeakKeyDictionary()
_launched: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The state of the module that a kernel was last launched in."""


def analyse(kernel: Any) -> Effects:
    """What a kernel's body does to its arrays, and where ``wp.tid()`` goes.

    Args:
        kernel: a ``wp.Kernel``; a generic one is analysed as far as its annotations go, an overload with its types.

    Returns:
        The effects. Whatever isn't certain has the safe value; nothing is raised for a kernel that can't be followed.
    """
    key = warp_source.definition(kernel)
    found = _results.get(key)
    if found is None:
        standing_of(kernel)
        found = _results[key] = _analyse(kernel, code_of(kernel))
    return found


def before_build(kernel: Any) -> None:
    """A kernel is about to be built, or loaded.

    Raises:
        ArgumentError: names have come to stand for something else, with which it does something else than was found.
        ChangedError: it is written of another one, of which names have come to stand for something else.
    """
    compare, standing = getattr(kernel, "compare", None), standing_of(kernel)
    if compare is not None:
        compare()
        return
    read = standing.analysed() or kernel
    standing.build(lambda: _alike(analyse(read), _analyse(read, code_of(read))))


def before_launch(kernel: Any) -> None:
    """A kernel is about to be launched by Warp itself, which builds it again where its module has changed.

    Raises:
        ArgumentError, ChangedError: as ``before_build``.
    """
    key, module = warp_source.definition(kernel), standing_of(kernel).module()
    code = warp_source.build_state(module)
    if code is None or _launched.get(key) is not code:
        before_build(kernel)
        _launched[key] = code


def _alike(one: Any, other: Any) -> bool:
    """Whether two kernels do the same, at whatever lines."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Site):
        return True
    if dataclasses.is_dataclass(one):
        return all(_alike(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(value, other[name]) for name, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def analyse_as(kernel: Any, code: Code, body: Sequence[ast.stmt]) -> Effects:
    """What a kernel of that code would do whose body were another one, with the user's lines."""
    return _analyse(kernel, with_body(code, body))


def _analyse(kernel: Any, code: Code) -> Effects:
    arrays = array_arguments(kernel)
    record = Record(kernel, arrays, max_unroll(kernel), overwrites_are_copies(kernel), execute, evaluate)
    env = {label: of_type(label, warp_type) for label, warp_type in argument_types(kernel)}
    frame = Frame(code, record.fresh(), env, kernel=True)
    parameters_as_wholes(record, frame, env)
    try:
        execute(record, frame, code.body)
    except (OutOfBudgetError, RecursionError):
        return _unseen(kernel, arrays)
    end = meet(State(), record.ends(frame))
    rank = None if record.lost_rank else max(record.ranks, default=0)
    compared = _compared(code.body) if record.handles else set()
    hazards = find_hazards(record, rank)
    return Effects(
        file=code.file,
        line=code.first_line,
        tid_rank=rank,
        arrays={name: conclude_array(record, name, t, rank, end) for name, t in arrays.items()},
        hazards=hazards,
        loops=tuple(_loop_needs(loop) for loop in record.run_time.values()),
        remainders=frozenset(record.remainders),
        array_stores=frozenset(record.array_stores),
        opaque=tuple(record.opaque),
        tiled=record.tiled,
        handles={
            name: frozenset(kind for other, kind in record.handles if other == name)
            for name, _ in record.handles
            if name not in compared
        },
    )


def _loop_needs(loop: RunTimeLoop) -> LoopNeeds:
    return LoopNeeds(
        function=loop.code.func,
        line=loop.node.lineno,
        column=loop.node.col_offset,
        site=loop.code.site(loop.node),
        active=loop.active or bool(loop.inside),
        left=loop.left,
        inside=frozenset(loop.inside),
        after=frozenset(loop.after),
        before=frozenset(loop.before),
        fixed=frozenset(loop.fixed),
    )


def _compared(body: Iterable[ast.AST]) -> set[str]:
    """The variables that the kernel compares or asks for their truth, struct fields by dotted name."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    tests: list[ast.AST] = [node.test for node in nodes if isinstance(node, (ast.If, ast.IfExp, ast.While))]
    tests += [node for node in nodes if isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp))]
    return {path for test in tests for node in ast.walk(test) if (path := dotted(node)) is not None}


def _unseen(kernel: Any, arrays: dict[str, Any]) -> Effects:
    """The effects of a kernel too large to be followed: anything may happen to each array."""
    code = code_of(kernel)
    site = Site(code.file, code.first_line, code.lines[0].strip() if code.lines else "")
    effects = {}
    for name, warp_type in arrays.items():
        ndim = int(getattr(warp_type, "ndim", 0) or 0)
        effects[name] = ArrayEffects(
            name,
            ndim,
            escapes=(site,),
            axes=(AxisUse(uncovered=("the kernel is too large to be followed",)),) * ndim,
            filled_why="the kernel is too large to be followed",
            null_adjoint_safe=False,
        )
    return Effects(code.file, code.first_line, None, effects, opaque=(site,))
