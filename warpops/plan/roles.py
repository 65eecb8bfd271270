"""Who is input, output, in-out, mutated or scratch: from the declaration, and from the kernel where it is silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, cast

from ..effects import ArrayEffects, Effects
from ..errors import SignatureError, did_you_mean
from ..frozen import frozen
from ..kernel.signature import KernelSignature, Leaf
from .declaration import Declaration

Role = Literal["input", "output", "inout", "mutated", "scratch", "number", "vector", "handle", "tensor_scalar", "size"]
Example = Callable[[Mapping[str, Role]], str | None]


@frozen
class Roles:
    by_name: dict[str, Role]
    """By the leaf's schema name."""
    why: dict[str, str]
    results: tuple[str, ...]
    """Outputs and in-out arrays in the order of the op's result, by schema name."""


def assign_roles(kernel: KernelSignature, declaration: Declaration, effects: Effects, example: Example) -> Roles:
    """Give every leaf its role. ``example``: a decorator line that gives leaves these roles.

    Raises:
        SignatureError: a name is unknown, two declarations contradict each other or the kernel, or a role is neither
            declared nor certain.
    """
    leaves = {leaf.label: leaf for leaf in kernel.leaves}
    _check_names(kernel, declaration, leaves)
    right = [term.name for term in declaration.right] if declaration.right is not None else None
    left = [term.name for term in declaration.left]
    shaped = [name for name, _ in declaration.shapes]
    if right is None and declaration.signature is None and shaped:
        right = shaped
    scratch = [term.name for term in declaration.scratch]
    _check_combinations(kernel, declaration, left, right or [], shaped, scratch)

    roles: dict[str, Role] = {}
    why: dict[str, str] = {}
    unsure: list[str] = []
    inferred: list[str] = []
    for leaf in kernel.leaves:
        role, reason = _declared(leaf, declaration, left, right, scratch)
        if role is None:
            known = effects.arrays.get(leaf.label)
            role, reason = _from_kernel(leaf, known, effects, right is not None)
            if role is None:
                unsure.append(reason)
                role = "input"
            elif role == "output":
                inferred.append(leaf.label)
        roles[leaf.name] = role
        why[leaf.name] = reason
    if unsure:
        raise SignatureError(
            f"{kernel.name}: the roles can't be read from the kernel ({kernel.file}:{kernel.line}): "
            + "; ".join(unsure)
            + f". Say what is meant, for example\n    {_meanings(kernel, effects, roles, example)}"
        )
    results = tuple(leaves[name].name for name in (inferred if right is None else right))
    if not results and not any(role == "mutated" for role in roles.values()):
        raise SignatureError(
            f"{kernel.name}: the op has no output and mutates nothing ({kernel.file}:{kernel.line}). Name what it "
            f"gives, for example\n    {_line(kernel, effects, roles, example)}"
        )
    _check_against_kernel(kernel, declaration, effects, roles)
    return Roles(roles, why, results)


def _declared(
    leaf: Leaf, declaration: Declaration, left: list[str], right: list[str] | None, scratch: list[str]
) -> tuple[Role | None, str]:
    label = leaf.label
    if not leaf.is_array:
        if label in declaration.tensor_scalars:
            return "tensor_scalar", "declared in tensor_scalars"
        return cast(Role, leaf.kind), ""
    if label in declaration.mutates:
        return "mutated", "declared in mutates"
    if label in scratch:
        return "scratch", "declared as scratch"
    if right is not None and label in right:
        return ("inout", "declared on both sides") if label in left else ("output", "declared on the right")
    if label in left and (right is not None or declaration.mutates):
        return "input", "declared on the left"
    return None, ""


def _from_kernel(
    leaf: Leaf, known: ArrayEffects | None, effects: Effects, outputs_declared: bool
) -> tuple[Role | None, str]:
    label = leaf.label
    if outputs_declared:
        return "input", "not named on the right"
    if effects.opaque:
        return None, f"'{label}' may be touched at {effects.opaque[0]}, where the analysis can't see"
    if known is None:
        return None, f"what happens to '{label}' could not be followed"
    if known.escapes:
        return None, f"'{label}' is handed on at {known.escapes[0]}, where the analysis can't see"
    if not known.written:
        return "input", "read, never written" if known.read else "never touched"
    if known.reads_own:
        return "output", "written, and read back only where the thread surely wrote before"
    if known.atomics:
        op, site = known.atomics[0]
        return None, f"'{label}' is updated by {op} at {site}, so what it holds before the launch matters"
    if known.read or known.reads_back:
        place = f" at {known.reads[0]}" if known.reads else ""
        return None, f"'{label}' is read{place} and written at {known.stores[0]}"
    return "output", "written, never read"


RESERVED = frozenset(
    {"ctx", "needs", "self", "bool", "float", "int", "isinstance", "iter", "len", "map", "min", "next"}
)
"""Names that the generated functions use themselves."""


def _check_names(kernel: KernelSignature, declaration: Declaration, leaves: dict[str, Leaf]) -> None:
    for taken in (*(argument.name for argument in kernel.arguments), *declaration.sizes):
        if taken in RESERVED:
            raise SignatureError(
                f"{kernel.name}: an argument can't be named '{taken}', which the functions that are generated use "
                f"themselves; give it another name"
            )
    arrays = [label for label, leaf in leaves.items() if leaf.is_array]
    groups: list[tuple[str, list[str], bool]] = [
        ("the signature", [t.name for t in declaration.left], True),
        ("the signature", [t.name for t in declaration.right or ()], True),
        ("shapes", [name for name, _ in declaration.shapes], True),
        ("mutates", list(declaration.mutates), True),
        ("scratch", [t.name for t in declaration.scratch], True),
        ("optional", list(declaration.optional), True),
        ("nondiff", list(declaration.nondiff), False),
        ("tensor_scalars", list(declaration.tensor_scalars), False),
    ]
    structs = {argument.name for argument in kernel.arguments if argument.struct}
    for where, names, want_array in groups:
        for name in names:
            if name in leaves:
                if want_array and not leaves[name].is_array:
                    raise SignatureError(
                        f"{kernel.name}: {where} names '{name}', which is a {leaves[name].type_name} and no array; "
                        f"numbers need no declaration"
                    )
                continue
            if name in structs:
                fields = ", ".join(a for a in leaves if a.startswith(name + "."))
                raise SignatureError(f"{kernel.name}: {where} names the struct '{name}'; name its fields: {fields}")
            hint = did_you_mean(name, arrays if want_array else leaves, ".")
            raise SignatureError(
                f"{kernel.name}: {where} names '{name}', which is no argument of the kernel{hint} "
                f"Its arguments are {', '.join(leaves)} ({kernel.file}:{kernel.line})"
            )
    for name in declaration.tensor_scalars:
        leaf = leaves[name]
        if leaf.kind not in ("number", "handle") or len(leaf.path) > 1:
            raise SignatureError(
                f"{kernel.name}: tensor_scalars names '{name}', which is a {leaf.type_name}; it takes float and int "
                f"arguments"
            )
    for name in declaration.sizes:
        if name in leaves or name in structs:
            raise SignatureError(f"{kernel.name}: sizes names '{name}', which is an argument of the kernel already")


def _check_combinations(
    kernel: KernelSignature,
    declaration: Declaration,
    left: list[str],
    right: list[str],
    shaped: list[str],
    scratch: list[str],
) -> None:
    for name in declaration.mutates:
        if name in right:
            raise SignatureError(
                f"{kernel.name}: '{name}' is in mutates and on the right of the signature; an array is either changed "
                f"in place (mutates) or returned"
            )
        if name in scratch:
            raise SignatureError(f"{kernel.name}: '{name}' is in mutates and in scratch")
    for name in scratch:
        if name in right or name in left:
            raise SignatureError(f"{kernel.name}: '{name}' is scratch, which doesn't appear in the signature")
    for name in shaped:
        if name not in right:
            raise SignatureError(f"{kernel.name}: shapes names '{name}', which is no output")
        if name in left:
            raise SignatureError(f"{kernel.name}: shapes names '{name}', which is in-out and has its input's shape")
        if any(t.name == name and t.dims is not None for t in declaration.right or ()):
            raise SignatureError(f"{kernel.name}: '{name}' has brackets in the signature and an entry in shapes")
    for name in declaration.optional:
        if name in scratch or (name in right and name in left):
            raise SignatureError(
                f"{kernel.name}: optional names '{name}', which is neither an input nor a fresh output"
            )


def _check_against_kernel(
    kernel: KernelSignature, declaration: Declaration, effects: Effects, roles: dict[str, Role]
) -> None:
    for leaf in kernel.leaves:
        known = effects.arrays.get(leaf.label)
        if known is None:
            continue
        role = roles[leaf.name]
        if role == "input" and known.written:
            site = known.stores[0] if known.stores else known.atomics[0][1]
            raise SignatureError(
                f"{kernel.name}: '{leaf.label}' is an input, and the kernel writes it at {site}: `{site.code}`. Name it "
                f"on the right (fresh output), on both sides (in-out), or in mutates (changed in place)"
            )
        touched = known.written or known.escapes or effects.opaque
        if role in ("output", "inout", "mutated") and not touched and not declaration.derived:
            what = {"output": "an output", "inout": "in-out", "mutated": "in mutates"}[role]
            raise SignatureError(
                f"{kernel.name}: '{leaf.label}' is declared {what}, and the kernel never writes it "
                f"({kernel.file}:{kernel.line})"
            )


def _meanings(kernel: KernelSignature, effects: Effects, roles: dict[str, Role], example: Example) -> str:
    """Decorator lines to start from: one for each thing that may be meant by an array that is added to."""
    line = _line(kernel, effects, roles, example)
    known = {leaf.label: effects.arrays.get(leaf.label) for leaf in kernel.leaves if leaf.is_array}
    added = [label for label, found in known.items() if found and found.atomics and not found.stores]
    written = [label for label, found in known.items() if found is None or found.written or found.escapes]
    if not added or added != written or effects.opaque:
        return line
    lines = {
        line: "added up from zero, and returned",
        _line(kernel, effects, roles, example, given=True): "added to what is given, and returned: in-out",
        f'@warp_op(mutates="{", ".join(added)}")': "added to the caller's own, in place",
    }
    width = max(map(len, lines))
    return "\n    ".join(f"{line:{width}}  # {meaning}" for line, meaning in lines.items())


def _line(
    kernel: KernelSignature, effects: Effects, roles: dict[str, Role], example: Example, given: bool = False
) -> str:
    """A line to start from: what is written is an output; in-out where it is read too, or ``given``."""
    meant = dict(roles)
    for leaf in kernel.leaves:
        known = effects.arrays.get(leaf.label)
        written = known is None or known.written or bool(known.escapes)
        if leaf.is_array and written and roles[leaf.name] not in ("mutated", "scratch"):
            also_read = known is None or (known.read and not known.atomics)
            meant[leaf.name] = "inout" if also_read or given else "output"
    return example(meant) or '@warp_op("... -> ...")'
