"""The complete check of a call, with its messages.

Generated code compares the expected case inline and comes here when a comparison fails; fake kernels and traced code
come here always, where sizes may be symbolic. Everything that a call can be told about its arguments is in this file.
"""

from __future__ import annotations

import inspect
import math
import operator
import struct
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy
import torch
import warp as wp

from . import _torch
from .errors import ArgumentError
from .kernel import MISSING, SCALARS, Scalar
from .plan import OpPlan, Slot
from .sizes import Expr, SizeError, smallest

SIZE = SCALARS[wp.int64]
"""What an extra size may be."""

__all__ = ["MISSING", "SIZE", "Measure", "measure", "refuse"]


@dataclass(frozen=True)
class Measure:
    """The sizes of one call: Warp shapes of everything fresh, the launch size, and where it runs."""

    shapes: dict[str, tuple[Any, ...]]
    launch: tuple[Any, ...]
    device: torch.device


def measure(op: str, plan: OpPlan, values: Mapping[str, Any], device: Any = None) -> Measure:
    """Check every argument of a call and compute its sizes.

    Args:
        op: the op's name, for messages.
        plan: the op's plan, concrete in every type.
        values: tensors and numbers by schema name.
        device: what was given for ``device``, for an op without a required array.

    Raises:
        ArgumentError: an argument doesn't fit.
    """
    for slot in plan.inputs:
        check_slot(op, slot, values[slot.name])
    where = device_of(op, plan, values, device)
    _check_overlaps(op, plan, values)
    sizes = _bind(op, plan, values)
    shapes: dict[str, tuple[Any, ...]] = {}
    for slot in plan.slots:
        if slot.role in ("output", "scratch"):
            shapes[slot.name] = _shape(op, plan, slot, sizes, values)
    launch = _launch(op, plan, sizes, values)
    warp_shapes = dict(shapes)
    for slot in plan.arrays:
        value = values.get(slot.name)
        if slot.is_input and value is not None:
            warp_shapes[slot.name] = tuple(value.shape[: slot.leaf.ndim])
    _check_reach(op, plan, warp_shapes, launch, sizes)
    return Measure(shapes, launch, where)


def refuse(op: str, plan: OpPlan, values: Mapping[str, Any], device: Any = None) -> None:
    """Raise what is wrong with a call that the generated comparisons turned down."""
    measure(op, plan, values, device)


# --- one argument -----------------------------------------------------------------------------------------------------


def expected_shape(slot: Slot) -> str:
    """The torch shape that a slot takes, as text."""
    dims = slot.dims or (None,) * slot.leaf.ndim
    axes = ["*" if d is None else str(d) for d in dims] + [str(n) for n in slot.leaf.component or ()]
    return f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"


def _fail(op: str, slot: Slot, text: str) -> NoReturn:
    raise ArgumentError(f"{op}: argument '{slot.label}': {text}")


def check_slot(op: str, slot: Slot, value: Any) -> None:
    """Check one value by itself."""
    if slot.is_array:
        _check_array(op, slot, value)
    elif slot.role == "tensor_scalar":
        _check_tensor_scalar(op, slot, value)
    elif slot.leaf.kind == "vector":
        _check_vector(op, slot, value)
    else:
        check_number(op, slot, SIZE if slot.role == "size" else slot.leaf.scalar, value)


def _check_array(op: str, slot: Slot, value: Any) -> None:
    leaf = slot.leaf
    if value is None:
        if slot.optional:
            return
        _fail(op, slot, f"expected a tensor ({leaf.type_name}), got None; only arrays declared optional may be None")
    if not isinstance(value, torch.Tensor):
        hint = "; convert it with torch.as_tensor" if hasattr(value, "__array__") or isinstance(value, list) else ""
        _fail(op, slot, f"expected a tensor ({leaf.type_name}), got {type(value).__name__}{hint}")
    scalar = leaf.scalar
    assert scalar is not None and leaf.component is not None
    if value.layout is not torch.strided:
        _fail(op, slot, f"expected a strided tensor, got layout {value.layout}")
    if value.dtype not in scalar.dtypes:
        accepted = " or ".join(map(str, scalar.dtypes))
        _fail(op, slot, f"expected dtype {accepted} ({leaf.type_name}), got {value.dtype}; convert it with .to(...)")
    rank = leaf.ndim + len(leaf.component)
    if value.ndim != rank:
        hint = ""
        if value.ndim > rank:
            hint = f"; for {value.ndim - rank} leading batch dimension{'s' if value.ndim - rank > 1 else ''} use torch.vmap"
        elif value.ndim == rank - 1 and leaf.component and value.ndim:
            hint = f"; for a single element pass {slot.name}.unsqueeze(0)"
        elif value.ndim == 0:
            hint = "; a 0-d tensor is no array, pass a tensor of one element with .reshape(1)"
        _fail(
            op,
            slot,
            f"expected {rank} dimension{'s' if rank != 1 else ''} {expected_shape(slot)} ({leaf.type_name}), got shape "
            f"{value.shape}{hint}",
        )
    for axis, size in enumerate(leaf.component, start=leaf.ndim):
        got = value.shape[axis]
        _require(
            got == size,
            lambda: (
                f"{op}: argument '{slot.label}': expected shape {expected_shape(slot)} ({leaf.type_name}), got "
                f"{value.shape}"
            ),
        )


def _check_tensor_scalar(op: str, slot: Slot, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        check_number(op, slot, slot.leaf.scalar, value)
        return
    if value.ndim != 0:
        _fail(op, slot, f"expected a 0-d tensor (tensor_scalars), got shape {value.shape}")
    if value.device.type not in ("cpu", "meta"):
        _fail(
            op, slot, f"expected a 0-d tensor on cpu (tensor_scalars), got one on {value.device}; move it with .cpu()"
        )
    if value.dtype.is_complex:
        _fail(op, slot, f"expected a real 0-d tensor, got {value.dtype}")
    scalar = slot.leaf.scalar
    if scalar is not None and scalar.kind != "float" and value.dtype.is_floating_point:
        _fail(op, slot, f"expected an int, got a 0-d tensor of {value.dtype}")
    if value.requires_grad and torch.is_grad_enabled():
        _fail(
            op,
            slot,
            "it requires grad, and a number of the kernel gets no gradient; pass .detach(), or make it an array of one "
            "element in the kernel",
        )


def check_number(op: str, slot: Slot, scalar: Scalar | None, value: Any) -> None:
    """Check a number for one scalar type. Symbolic numbers are checked again when the op runs."""
    kind = scalar.kind if scalar is not None else "float"
    name = scalar.name if scalar is not None else "number"
    if isinstance(value, torch.Tensor):
        _fail(
            op,
            slot,
            f"expected a number ({name}), got a tensor of shape {value.shape}; pass a Python number with .item(), or "
            f"declare tensor_scalars='{slot.label}' to give it as a 0-d tensor (its gradient would be lost)",
        )
    if isinstance(value, (torch.SymInt, torch.SymBool)) or (isinstance(value, torch.SymFloat) and kind == "float"):
        return
    plain = plain_number(value)
    if plain is None:
        _fail(op, slot, f"expected a number ({name}), got {type(value).__name__}")
    if kind == "bool":
        if not isinstance(plain, bool) and plain not in (0, 1):
            _fail(op, slot, f"expected a bool, got {value!r}")
        return
    if kind == "int":
        if isinstance(plain, float):
            _fail(op, slot, f"expected an int ({name}), got the float {value!r}")
        assert scalar is not None or isinstance(plain, int)
        low, high = (scalar.low, scalar.high) if scalar is not None else (-(2**63), 2**63 - 1)
        if slot.leaf.kind == "handle":
            low = -(2**63)  # a schema's int is signed: the upper half arrives as negative numbers
        if not low <= plain <= high:
            _fail(op, slot, f"expected an int in [{low}, {high}] ({name}), got {value!r}")
        return
    if scalar is not None and not float_fits(scalar, float(plain)):
        _fail(op, slot, f"expected a float that {name} can hold, got {value!r}; inf and nan are allowed")


def float_fits(scalar: Scalar, value: float) -> bool:
    """Whether a float type holds a value without overflow; inf and nan pass."""
    if not math.isfinite(value) or scalar.code == "d":
        return True
    try:
        struct.pack("<f" if scalar.name == "bfloat16" else f"<{scalar.code}", value)
    except OverflowError:
        return False
    return True


def plain_number(value: Any) -> int | float | bool | None:
    """A Python number of anything that is one (numpy's and Warp's included); None for the rest."""
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, numpy.bool_):
        return bool(value)
    if isinstance(value, numpy.generic):
        return value.item() if isinstance(value, (numpy.integer, numpy.floating)) else None
    if hasattr(value, "__index__"):
        return operator.index(value)
    inner = getattr(value, "value", None)
    if type(value).__module__.startswith("warp") and isinstance(inner, (bool, int, float)):
        return inner
    return None


def _check_vector(op: str, slot: Slot, value: Any) -> None:
    leaf = slot.leaf
    assert leaf.component is not None and leaf.scalar is not None
    if isinstance(value, torch.Tensor):
        _fail(
            op,
            slot,
            f"expected {math.prod(leaf.component)} numbers ({leaf.type_name}), got a tensor of shape {value.shape}; pass "
            f"numbers with .tolist() (its gradient would be lost), or take an array in the kernel",
        )
    items = flatten(value)
    if items is None:
        _fail(op, slot, f"expected {math.prod(leaf.component)} numbers ({leaf.type_name}), got {type(value).__name__}")
    if len(items) != math.prod(leaf.component):
        _fail(op, slot, f"expected {math.prod(leaf.component)} numbers ({leaf.type_name}), got {len(items)}")
    for item in items:
        check_number(op, slot, leaf.scalar, item)


def flatten(value: Any) -> list[Any] | None:
    """The numbers of a flat or nested sequence, in row-major order; None for what is no sequence."""
    if isinstance(value, (str, bytes, Mapping)):
        return None
    if isinstance(value, numpy.ndarray):
        return list(value.ravel().tolist())
    if not isinstance(value, Sequence) and not hasattr(value, "_wp_scalar_type_"):
        return None
    items: list[Any] = []
    for item in value:
        if isinstance(item, (str, bytes)):
            items.append(item)
        elif isinstance(item, (Sequence, numpy.ndarray)) or hasattr(item, "_wp_scalar_type_"):
            inner = flatten(item)
            if inner is None:
                return None
            items += inner
        else:
            items.append(item)
    return items


# --- arguments together -----------------------------------------------------------------------------------------------


def _require(condition: Any, message: Callable[[], str]) -> None:
    if isinstance(condition, bool):
        if not condition:
            raise ArgumentError(message())
        return
    torch._check_with(ArgumentError, condition, message)


def device_of(op: str, plan: OpPlan, values: Mapping[str, Any], given: Any) -> torch.device:
    first: tuple[Slot, torch.device] | None = None
    for slot in plan.inputs:
        value = values[slot.name]
        if not slot.is_array or value is None:
            continue
        if first is None:
            first = (slot, value.device)
            if value.device.type not in ("cpu", "cuda", "meta"):
                _fail(op, slot, f"expected a tensor on cpu or cuda, got one on {value.device}; Warp runs on these only")
        elif value.device != first[1]:
            _fail(op, slot, f"expected device {first[1]}, that of '{first[0].label}', got {value.device}")
    if given is not None:
        wanted = torch.device(given)
        if first is not None and first[1] != wanted and (wanted.index is not None or wanted.type != first[1].type):
            raise ArgumentError(
                f"{op}: argument 'device': expected {first[1]}, that of '{first[0].label}', got {wanted}"
            )
        if wanted.type not in ("cpu", "cuda", "meta"):
            raise ArgumentError(f"{op}: argument 'device': expected cpu or cuda, got {wanted}")
        if first is None:
            return wanted
    return first[1] if first is not None else torch.get_default_device()


def _check_overlaps(op: str, plan: OpPlan, values: Mapping[str, Any]) -> None:
    for slot in plan.mutated:
        value = values[slot.name]
        if value is None:
            continue
        if torch._debug_has_internal_overlap(value) == 1:
            _fail(
                op, slot, f"is changed in place, and its elements overlap (strides {value.stride()}); pass a .clone()"
            )
        for other in plan.inputs:
            rest = values[other.name]
            if other.name == slot.name or not isinstance(rest, torch.Tensor) or not other.is_array:
                continue
            if share_memory(value, rest):
                _fail(op, slot, f"is changed in place, and shares memory with '{other.label}'; pass a .clone() of one")


def share_memory(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors have a byte in common (True where that is too hard to tell).

    Fake tensors are compared by their place in a storage that they share, as far as their sizes are known.
    """
    if left is right:
        return left.numel() != 0
    real = all(type(t) in _torch.PLAIN and not t.is_meta for t in (left, right))
    if left.device != right.device or not (real or _torch.is_alias(left, right)):
        return False
    places = [(t.storage_offset(), *t.shape, *t.stride()) for t in (left, right)]
    if not all(isinstance(n, int) for place in places for n in place) or left.numel() == 0 or right.numel() == 0:
        return False

    def view(tensor: torch.Tensor) -> Any:
        size = tensor.element_size()
        interface = {
            "version": 3,
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr() if real else 4096 + tensor.storage_offset() * size, True),
            "shape": tuple(tensor.shape),
            "strides": tuple(step * size for step in tensor.stride()),
        }
        return numpy.asarray(types.SimpleNamespace(__array_interface__=interface))

    try:
        return bool(numpy.shares_memory(view(left), view(right), max_work=10_000))  # type: ignore[arg-type]
    except numpy.exceptions.TooHardError:
        return True


def _bind(op: str, plan: OpPlan, values: Mapping[str, Any]) -> dict[str, Any]:
    """Bind bare names, then compare everything else."""
    sizes: dict[str, Any] = {}
    for slot in plan.inputs:
        leaf = slot.leaf
        if slot.role == "size" or (slot.role == "number" and leaf.scalar is not None and leaf.scalar.kind == "int"):
            sizes[leaf.label] = values[slot.name]
    fixed = set(sizes)
    given = [slot for slot in plan.inputs if slot.is_array and values[slot.name] is not None and slot.dims]
    binder: dict[str, str] = {}
    for slot in given:
        for axis, dim in enumerate(slot.dims or ()):
            if dim is not None and dim.is_name and str(dim.value) not in sizes:
                sizes[str(dim.value)] = values[slot.name].shape[axis]
                binder[str(dim.value)] = slot.label
    for slot in given:
        for axis, dim in enumerate(slot.dims or ()):
            if dim is None:
                continue
            wanted = _evaluate(op, f"the size '{dim}' of '{slot.label}'", dim, sizes)
            got = values[slot.name].shape[axis]
            if got is wanted:
                continue

            def message(
                slot: Slot = slot, axis: int = axis, dim: Expr = dim, wanted: Any = wanted, got: Any = got
            ) -> str:
                name = str(dim.value) if dim.is_name else ""
                if name in binder and name not in fixed:
                    return (
                        f"{op}: argument '{slot.label}': expected size {wanted} on axis {axis} ('{dim}', bound by "
                        f"'{binder[name]}'), got {got}: shape {values[slot.name].shape}"
                    )
                equal = "" if dim.is_int else f" ('{dim}')"
                return (
                    f"{op}: argument '{slot.label}': expected size {wanted} on axis {axis}{equal}, got {got}: shape "
                    f"{values[slot.name].shape}"
                )

            _require(got == wanted, message)
    return sizes


def _evaluate(op: str, what: str, expr: Expr, sizes: Mapping[str, Any]) -> Any:
    try:
        return expr.evaluate(sizes)
    except SizeError as error:
        raise ArgumentError(f"{op}: {what}: {error}") from None


def callback_arguments(plan: OpPlan, values: Mapping[str, Any]) -> dict[str, Any]:
    """The op's arguments by name, as a callable for ``dim`` or ``shapes`` sees them."""
    arguments: dict[str, Any] = {}
    for parameter in plan.parameters:
        if not parameter.struct:
            arguments[parameter.name] = values[parameter.slots[0].name]
            continue
        root = types.SimpleNamespace()
        for slot in parameter.slots:
            node = root
            for part in slot.leaf.path[1:-1]:
                if not hasattr(node, part):
                    setattr(node, part, types.SimpleNamespace())
                node = getattr(node, part)
            setattr(node, slot.leaf.path[-1], values[slot.name])
        arguments[parameter.name] = root
    return arguments


def call_back(op: str, what: str, plan: OpPlan, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a callable with those of the op's arguments that it names."""
    arguments = callback_arguments(plan, values)
    parameters = inspect.signature(function).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        unknown = [p.name for p in parameters if p.name not in arguments and p.default is p.empty]
        if unknown:
            raise ArgumentError(
                f"{op}: {what}: the callable asks for '{unknown[0]}', which is no argument of the op; those are "
                f"{', '.join(arguments)}"
            )
        arguments = {name: value for name, value in arguments.items() if name in named}
    return function(**arguments)


def _called_dims(op: str, what: str, result: Any, rank: int | None) -> tuple[Any, ...]:
    dims = (result,) if isinstance(result, (int, torch.SymInt, numpy.integer)) else result
    if not isinstance(dims, (tuple, list)):
        raise ArgumentError(f"{op}: {what}: expected an int or a tuple of ints from the callable, got {result!r}")
    sizes: list[Any] = []
    for item in dims:
        if isinstance(item, torch.SymInt):
            sizes.append(item)
            continue
        if isinstance(item, bool) or not isinstance(item, (int, numpy.integer)):
            kind = f"{item!r}" if not isinstance(item, torch.Tensor) else "a tensor; use .shape or int(...)"
            raise ArgumentError(f"{op}: {what}: expected ints from the callable, got {kind}")
        sizes.append(int(item))
    if rank is not None and len(sizes) != rank:
        raise ArgumentError(
            f"{op}: {what}: expected {rank} size{'s' if rank != 1 else ''}, got {len(sizes)}: {tuple(sizes)}"
        )
    return tuple(sizes)


def _nonnegative(op: str, what: str, sizes: tuple[Any, ...], texts: Sequence[str] = ()) -> None:
    for axis, size in enumerate(sizes):
        origin = f" ('{texts[axis]}')" if texts else ""
        _require(size >= 0, lambda size=size, origin=origin: f"{op}: {what}: the size {size}{origin} is negative")  # type: ignore[misc]


def _shape(op: str, plan: OpPlan, slot: Slot, sizes: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Any, ...]:
    what = f"the shape of '{slot.label}'"
    shape = slot.shape
    assert shape is not None
    if callable(shape):
        result = _called_dims(op, what, call_back(op, what, plan, shape, values), slot.leaf.ndim)
        _nonnegative(op, what, result)
        return result
    result = tuple(_evaluate(op, what, expr, sizes) for expr in shape)
    _nonnegative(op, what, result, [str(e) for e in shape])
    return result


def _launch(op: str, plan: OpPlan, sizes: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Any, ...]:
    launch = plan.extents.launch
    rank = plan.extents.rank
    if callable(launch):
        result = _called_dims(op, "dim", call_back(op, "dim", plan, launch, values), None)
        check_rank(op, plan, len(result), rank)
        _nonnegative(op, "dim", result)
    else:
        result = tuple(_evaluate(op, "dim", expr, sizes) for expr in launch)
        _nonnegative(op, "dim", result, [str(e) for e in launch])
    for axis, size in enumerate(result):
        if isinstance(size, int) and size > 2**31 - 1:
            raise ArgumentError(f"{op}: dim: {size} threads on axis {axis} are more than wp.tid() counts ({2**31 - 1})")
    return result


def check_rank(op: str, plan: OpPlan, given: int, rank: int | None) -> None:
    """The rank of a launch is part of the kernel's meaning: too few leaves elements out, too many repeats them."""
    if rank is None:
        return
    allowed = (rank, rank - 1) if plan.declaration.tiled else (rank,)
    if given not in allowed and not (rank == 0 and given == 1):
        raise ArgumentError(
            f"{op}: dim: the kernel {plan.kernel.name} takes {rank} coordinate{'s' if rank != 1 else ''} from wp.tid(), "
            f"and dim has {given}"
        )


def _check_reach(
    op: str,
    plan: OpPlan,
    shapes: Mapping[str, tuple[Any, ...]],
    launch: tuple[Any, ...],
    sizes: Mapping[str, Any],
) -> None:
    if any(isinstance(size, int) and size == 0 for size in launch):
        return
    for cover in plan.extents.covers:
        if cover.array not in shapes or cover.coordinate >= len(launch):
            continue
        size, threads = shapes[cover.array][cover.axis], launch[cover.coordinate]
        for bound in cover.bounds:
            if isinstance(bound, tuple):
                bound = shapes[bound[0]][bound[1]] if bound[0] in shapes else 0
            elif isinstance(bound, str):
                bound = sizes[bound]
            threads = smallest(threads, bound)
        if size is threads:
            continue
        slot = plan.slot(cover.array)
        _require(
            threads <= size,
            lambda slot=slot, cover=cover, size=size, threads=threads: (  # type: ignore[misc]
                f"{op}: argument '{slot.label}': its axis {cover.axis} has size {size}, and the launch has {threads} "
                f"threads on axis {cover.coordinate} of dim, which indexes it"
            ),
        )
    for reach in plan.extents.reaches:
        if reach.array not in shapes:
            continue
        size = shapes[reach.array][reach.axis]
        slot = plan.slot(reach.array)
        _require(
            size >= reach.size,
            lambda slot=slot, reach=reach, size=size: (  # type: ignore[misc]
                f"{op}: argument '{slot.label}': its axis {reach.axis} has size {size}, and the kernel indexes it with "
                f"the constant {reach.size - 1}"
            ),
        )
    for count in plan.extents.counts:
        if count.array not in shapes:
            continue
        size, number = shapes[count.array][count.axis], sizes[count.number]
        slot = plan.slot(count.array)
        _require(
            size >= number,
            lambda slot=slot, count=count, size=size, number=number: (  # type: ignore[misc]
                f"{op}: argument '{slot.label}': its axis {count.axis} has size {size}, and the kernel indexes it in a "
                f"loop up to '{count.number}', which is {number}"
            ),
        )
    for loop in plan.extents.loops:
        if loop.array not in shapes or loop.other not in shapes:
            continue
        size, other = shapes[loop.array][loop.axis], shapes[loop.other][loop.other_axis]
        slot, source = plan.slot(loop.array), plan.slot(loop.other)
        _require(
            size >= other,
            lambda slot=slot, loop=loop, size=size, other=other, source=source: (  # type: ignore[misc]
                f"{op}: argument '{slot.label}': its axis {loop.axis} has size {size}, and the kernel indexes it in a "
                f"loop over axis {loop.other_axis} of '{source.label}', which has {other}"
            ),
        )
