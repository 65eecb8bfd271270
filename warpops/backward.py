"""The option ``backward``: a kernel or an op in place of the adjoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from .arguments.call import measure
from .arguments.callbacks import callback_arguments
from .calls.ways import Asked, OwnBackward, many
from .errors import ArgumentError, SignatureError
from .frozen import frozen
from .kernel.signature import Leaf, inspect_kernel
from .op import WarpOp
from .plan.declaration import Declaration, declare
from .plan.model import OpPlan
from .private import warp_types


@frozen
class Meanings:
    """What the backward's own arguments and results stand for."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Those that stand for something of another name."""
    constants: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str) -> str:
        return self.names.get(name, name)


def declared(op: WarpOp, made_here: bool, meanings: Meanings) -> OwnBackward:
    """The option ``backward``: an op whose arguments and results are known by what they stand for.

    It takes the forward's inputs and outputs and ``grad_<output>``, and gives ``grad_<input>``. An in-out ``y`` is the
    value before the launch, and ``grad_y`` the cotangent on entry and the gradient on exit. What was null in the forward is
    null, and so are its cotangent and its gradient.
    """

    def run(asked: Asked) -> tuple[Any, ...]:
        ways, plan = asked.ways, asked.ways.plan
        values = ways.values(asked.arguments)
        given: dict[str, Any] = {slot.label: values[slot.name] for slot in plan.inputs}
        given |= callback_arguments(plan, values)
        null: set[str] = set()
        for slot, result, grad in zip(plan.result_slots, asked.results, asked.grads, strict=True):
            if slot.role == "output":
                given[slot.label] = result
            if slot.differentiable:
                given[f"grad_{slot.label}"] = grad
            if slot.nullable and any(size == 0 for size in result.shape):
                null |= {slot.label, f"grad_{slot.label}"}
        if made_here:
            concrete = ways.instances.select(asked.arguments).plan
            found = measure(ways.name, concrete, values, ways.device(asked.arguments))
            for axis, size in enumerate(found.launch):
                given[f"dim_{axis}"] = size
            for slot in plan.gradients:
                for axis in range(slot.leaf.ndim):
                    value = values[slot.name]
                    given[f"{slot.name}_size_{axis}"] = 0 if value is None else value.shape[axis]
        given |= {name: given[meaning] for name, meaning in meanings.names.items() if meaning in given}
        given |= meanings.constants
        taken = {parameter.name: given[parameter.name] for parameter in op._plan.parameters}
        taken |= {s.label: None for s in op._plan.inputs if s.optional and meanings.of(s.label) in null}
        if op._plan.device_argument:
            taken["device"] = asked.results[0].device
        try:
            made = many(op(**taken))
        except ArgumentError as error:
            text = str(error).removeprefix(f"{op._registration.ways.name}: ")
            raise ArgumentError(f"{ways.name}: backward {op.__name__ if made_here else op.name}: {text}") from error
        by_meaning = {meanings.of(slot.label): grad for slot, grad in zip(op._plan.result_slots, made, strict=True)}
        present = [slot for slot in plan.gradients if values[slot.name] is not None]
        by_slot = {slot.name: by_meaning.get(f"grad_{slot.label}") for slot in present}
        return tuple(by_slot.get(name) for name in plan.arguments)

    return OwnBackward(run, [op.schema, op.source, *sorted(map(repr, (meanings.names, meanings.constants)))])


def declared_backward(plan: OpPlan, value: Any, build: Callable[[Any, Declaration, OpPlan], WarpOp]) -> OwnBackward:
    """Make the option ``backward`` an op and check that its names fit the forward's.

    Raises:
        SignatureError: an argument's name stands for nothing of the forward, or nothing is given.
    """
    value, renamed = _parted(plan, value)
    known = {p.name for p in plan.parameters} | {s.label for s in plan.inputs}
    known |= {s.label for s in plan.result_slots if s.role == "output"}
    known |= {f"grad_{s.label}" for s in plan.result_slots if s.differentiable}
    inout = {f"grad_{s.label}" for s in plan.result_slots if s.role == "inout" and s.differentiable}
    gradients = {f"grad_{s.label}": s for s in plan.gradient_buffers}
    scalars = {s.label for s in plan.inputs if s.role == "tensor_scalar"}
    leaves: Sequence[Leaf]
    if isinstance(value, WarpOp):
        own, title = value._plan, value.name
        names, results = [p.name for p in own.parameters], [slot.label for slot in own.result_slots]
        leaves = [slot.leaf for slot in (*own.inputs, *own.result_slots)]
    else:
        kernel = inspect_kernel(_as_kernel(plan, value))
        title, leaves = kernel.name, kernel.leaves
        names = results = [argument.name for argument in kernel.arguments]
        known |= gradients.keys()
    meanings = _meanings(plan, title, renamed, [*names, *results], leaves)
    _check_known(plan, title, meanings, names, known)
    _check_given(plan, title, meanings, results, {*gradients, *inout})
    _check_types(plan, meanings, leaves, title)
    if isinstance(value, WarpOp):
        for slot in value._plan.inputs:
            constant = slot.role == "tensor_scalar" or slot.label in meanings.constants
            if not constant and meanings.of(slot.label) in scalars:
                raise SignatureError(
                    f"{plan.name}: backward: {title}: argument '{slot.label}': expected a 0-d tensor, as the forward's "
                    f"'{meanings.of(slot.label)}' is one, got {slot.leaf.type_name}; make the backward an op with "
                    f"tensor_scalars='{slot.label}'"
                )
        return declared(value, False, meanings)
    launch = plan.extents.launch
    rank = plan.extents.rank if callable(launch) else len(launch)
    dim = tuple(f"dim_{axis}" for axis in range(1 if rank is None else rank))
    left = [name for name in names if meanings.of(name) in inout]
    right = [name for name in names if meanings.of(name) in gradients or meanings.of(name) in inout]
    shapes = {}
    for name in right:
        if name not in left:
            slot = gradients[meanings.of(name)]
            shapes[name] = tuple(f"{slot.name}_size_{axis}" for axis in range(slot.leaf.ndim))
    absent = [s.label for s in (*plan.inputs, *plan.result_slots) if s.optional or s.nullable]
    by_meaning = {meanings.of(name): name for name in names}
    twins = {label: f"grad_{label}" for label in absent} | {f"grad_{label}": label for label in absent}
    declaration = declare(
        title,
        f"{', '.join(left)} -> {', '.join(right)}",
        dim=dim,
        shapes=shapes,
        sizes=[*dim, *(size for shape in shapes.values() for size in shape)],
        optional=[name for name in names if meanings.of(name) in twins],
        null_with={n: by_meaning[twin] for n in names if (twin := twins.get(meanings.of(n))) in by_meaning},
        tensor_scalars=[name for name in names if meanings.of(name) in scalars and name not in meanings.constants],
        block_dim=plan.declaration.block_dim,
        tiled=plan.declaration.tiled,
    )
    return declared(build(kernel.kernel, declaration, plan), True, meanings)


def _as_kernel(plan: OpPlan, value: Any) -> Any:
    is_lambda = getattr(value, "__name__", "") == "<lambda>"
    if callable(value) and not warp_types.is_kernel(value) and hasattr(value, "__code__") and not is_lambda:
        import warp as wp

        value = wp.kernel(value)
    if not warp_types.is_kernel(value):
        got = "a lambda" if is_lambda else type(value).__name__
        raise SignatureError(
            f"{plan.name}: backward takes a kernel or a WarpOp, and got {got}; a function goes to op.register_backward"
        )
    return value


def _parted(plan: OpPlan, value: Any) -> tuple[Any, Mapping[str, Any]]:
    """The kernel or op, and the names that go with it."""
    if not isinstance(value, tuple):
        return value, {}
    if len(value) != 2 or not isinstance(value[1], Mapping):
        raise SignatureError(
            f"{plan.name}: backward takes a kernel or a WarpOp, or a pair of one and a dict by its arguments, as in "
            f"(kernel, {{'its_argument': 'grad_y', 'flag': 1}}), and got {value!r}"
        )
    return value


def _meanings(
    plan: OpPlan, title: str, renamed: Mapping[str, Any], names: Iterable[str], leaves: Iterable[Leaf]
) -> Meanings:
    """The dict that came with a backward, checked for itself."""
    names = list(dict.fromkeys(names))
    by_label = {leaf.label: leaf for leaf in leaves}
    constants: dict[str, float] = {}
    for key, meaning in renamed.items():
        if key not in names:
            raise SignatureError(
                f"{plan.name}: backward: {key!r} is no argument of {title}; those are {', '.join(names)}"
            )
        if isinstance(meaning, str):
            continue
        leaf = by_label.get(key)
        scalar = leaf.scalar if leaf is not None and leaf.is_number else None
        if not isinstance(meaning, (bool, int, float)) or leaf is None or not leaf.is_number:
            kind = leaf.type_name if leaf is not None else "a struct"
            raise SignatureError(
                f"{plan.name}: backward: {title}: '{key}' ({kind}) stands for {meaning!r}; expected the name of an input, "
                f"output or gradient, or, for an argument that is a number, a number"
            )
        whole = not isinstance(meaning, float) or scalar is None or scalar.kind == "float"
        if not whole or (scalar is not None and not scalar.holds(meaning)):
            raise SignatureError(f"{plan.name}: backward: {title}: '{key}' ({leaf.type_name}) can't be {meaning!r}")
        constants[key] = meaning
    return Meanings({k: v for k, v in renamed.items() if isinstance(v, str)}, constants)


def _check_types(plan: OpPlan, meanings: Meanings, leaves: Iterable[Leaf], title: str) -> None:
    """An array and its gradient are of one type: PyTorch would sum a gradient of more axes into the right shape."""
    forward = {slot.label: slot.leaf for slot in plan.slots}
    for leaf in leaves:
        meaning = meanings.of(leaf.label)
        own = forward.get(meaning, forward.get(meaning.removeprefix("grad_")))
        if own is None or leaf.label in meanings.constants:
            continue
        different = (leaf.scalar, leaf.component, leaf.ndim) != (own.scalar, own.component, own.ndim)
        if leaf.is_array != own.is_array or (leaf.is_array and different and not (leaf.generic or own.generic)):
            raise SignatureError(
                f"{plan.name}: backward: {title}: argument '{leaf.label}': expected {own.type_name}, the type of "
                f"'{own.label}' in the forward, got {leaf.type_name}"
            )


def _check_known(plan: OpPlan, title: str, meanings: Meanings, names: Iterable[str], known: set[str]) -> None:
    for name in names:
        meaning = meanings.of(name)
        if meaning in known or name in meanings.constants:
            continue
        takes = f"'{name}'" if meaning == name else f"'{name}' for '{meaning}'"
        raise SignatureError(
            f"{plan.name}: backward {title} takes {takes}, which is no input, output or gradient of the op; its "
            f"arguments are named after the forward's inputs and outputs, 'grad_<output>' for a cotangent and "
            f"'grad_<input>' for a gradient, or a dict says what they stand for: ({title}, {{'{name}': ...}})"
        )


def _check_given(plan: OpPlan, title: str, meanings: Meanings, names: Iterable[str], wanted: set[str]) -> None:
    """Each gradient is given once, and one is."""
    given: dict[str, str] = {}
    for name in names:
        meaning = meanings.of(name)
        if name in meanings.constants or meaning not in wanted:
            continue
        if meaning in given:
            raise SignatureError(
                f"{plan.name}: backward {title} gives '{meaning}' twice, by '{given[meaning]}' and by '{name}'"
            )
        given[meaning] = name
    if not given:
        raise SignatureError(
            f"{plan.name}: backward {title} gives no gradient; name at least one of {', '.join(sorted(wanted))}"
        )
