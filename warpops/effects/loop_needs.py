"""What the adjoint of a loop that Warp doesn't unroll lacks, noted while the loop is followed."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .names import Code
from .reading import added_to
from .record import Frame, Record, RunTimeLoop
from .values import PLAIN, Abstract, Array, Doubt, Held, Struct, Through, Value, is_active, tokens_of


def leaves(body: Iterable[ast.stmt], kind: type[ast.stmt]) -> bool:
    """Whether a statement of this kind leaves this loop, nested loops excluded."""
    return any(
        isinstance(s, kind) or (isinstance(s, ast.If) and (leaves(s.body, kind) or leaves(s.orelse, kind)))
        for s in body
    )


def begin_loop(record: Record, frame: Frame, node: ast.For | ast.While, loop: int, names: set[str]) -> None:
    """Note a loop, and the variables that it overwrites."""
    found = record.run_time.setdefault(loop, RunTimeLoop(frame.code, node))
    found.order = record.fresh()
    found.left = loop in record.while_loops or is_left(frame.code, node) or _is_in_order(record, frame, node, loop)
    for name in names:
        own = [t for t in tokens_of(frame.env.get(name, PLAIN)) if isinstance(t, Held) and t.name == name]
        token = max(own, key=lambda t: t.version, default=None)
        if token is not None and token.frame == frame.id:
            found.overwrites.setdefault(token)


def end_loop(record: Record, frame: Frame, node: ast.For | ast.While, loop: int, outer: dict[str, Abstract]) -> None:
    """Note what a loop's body was found to do."""
    found = record.run_time[loop]
    for name, value in frame.env.items():
        if value is outer.get(name):
            continue
        if not isinstance(value, (Value, Struct)):
            found.fixed.add(name)
        elif name not in outer and is_active(value) and frame.code.last_reads.get(name, 0) > (node.end_lineno or 0):
            found.after.add(name)
            message = f"Warp's adjoint loses the gradient of '{name}', which the loop makes and which is used after it"
            frame.env[name] = record.doubting(value, [Doubt("loop-product", frame.code.site(node), message)])


def is_left(code: Code, node: ast.For | ast.While) -> bool:
    return leaves(node.body, ast.Break) or ast.Return in code.loops[node].exits


def doubts_of(record: Record, frame: Frame, node: ast.For | ast.While, loop: int) -> list[Doubt | Through]:
    """Of what gradients flow through in a loop that the reverse pass doesn't run as the kernel did."""
    site = frame.code.site(node)
    if loop in record.while_loops:
        message = "Warp's adjoint of a while loop doesn't run the iterations that the kernel ran"
        return [Through(loop), Doubt("while", site, message)]
    if is_left(frame.code, node):
        message = "Warp's adjoint of a loop left by break or return runs other iterations than the kernel"
        return [Through(loop), Doubt("loop-exit", site, message)]
    if _is_in_order(record, frame, node, loop):
        message = "Warp's adjoint of a loop over a query runs its turns forwards, and they depend on one another"
        return [Through(loop), Doubt("loop-exit", site, message)]
    return [Through(loop)]


def skip_of(record: Record, frame: Frame, node: ast.For | ast.While, loop: int) -> list[Doubt | Through]:
    """Of what a turn has done by the time that ``continue`` ends it."""
    message = "Warp's adjoint of a loop leaves out what a turn did before continue"
    return [Through(loop, skipped=True), Doubt("loop-exit", frame.code.site(node), message)]


def _is_in_order(record: Record, frame: Frame, node: ast.For | ast.While, loop: int) -> bool:
    """Whether the turns of a query's loop depend on one another: it does more than add to what was there before."""
    if loop not in record.queries:
        return False
    local = {n for n in frame.code.loops[node].assigned if not isinstance(frame.env.get(n), Array)}
    lasting = {n for n in local if n in frame.env or frame.code.last_reads.get(n, 0) > (node.end_lineno or 0)}
    added: set[ast.AST] = set()
    reads: set[ast.AST] = set()
    for one in (inner for statement in node.body for inner in ast.walk(statement)):
        if isinstance(one, (ast.Assign, ast.AugAssign)):
            own = added_to(one)
            while isinstance(own, (ast.Subscript, ast.Attribute)):
                own = own.value
            if own is not None:
                added.add(own)
            elif any(_is_stored(inner, lasting) for inner in ast.walk(one)):
                return True
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load) and one.id in lasting:
            reads.add(one)
    return not reads <= added


def _is_stored(node: ast.AST, names: set[str]) -> bool:
    """Whether a node is one of these variables, or a part of anything, as it is assigned."""
    if not isinstance(node, (ast.Name, ast.Subscript, ast.Attribute)) or not isinstance(node.ctx, ast.Store):
        return False
    return not isinstance(node, ast.Name) or node.id in names
