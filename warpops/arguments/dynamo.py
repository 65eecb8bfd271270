"""Dynamo's private side: it is taught to read a Warp vector, matrix, quaternion or transform given by value.

Such a value is a ctypes array, which Dynamo can't look into. Its numbers become constants of the graph, and a guard on
its bytes has the graph made anew when they change, as for a tuple of floats. ``tests/test_torch_private.py`` fails first
when a new PyTorch changes any of it.
"""

from __future__ import annotations

from typing import Any

from ..private import locks
from .number import plain_number
from .vector import flatten

_lock = locks.plain()


def is_warp_value(value: object) -> bool:
    return hasattr(type(value), "_wp_scalar_type_")


def numbers_of(value: Any) -> Any:
    """The numbers of a Warp value, a matrix's by rows; anything else as it is. Dynamo calls ``_traced`` for it."""
    if not is_warp_value(value):
        return value
    numbers = tuple(plain_number(item) for item in flatten(value) or ())
    shape = type(value)._shape_
    return numbers if len(shape) == 1 else tuple(zip(*[iter(numbers)] * shape[1], strict=True))


def teach() -> bool:
    """Have Dynamo know ``numbers_of``. Run while a graph is traced, before ``numbers_of`` is named."""
    import torch._dynamo
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    with _lock:
        handlers = TorchInGraphFunctionVariable._get_handlers()
        if numbers_of not in handlers:
            torch._dynamo.allow_in_graph(numbers_of)
            handlers[numbers_of] = _traced
    return True


# What torch.compiler.assume_constant_result sets; that function imports Dynamo, which takes seconds.
teach._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _constant(numbers: Any) -> Any:
    from torch._dynamo.variables import ConstantVariable, TupleVariable

    return TupleVariable([_constant(n) if isinstance(n, tuple) else ConstantVariable.create(n) for n in numbers])


def _traced(function: Any, tx: Any, argument: Any) -> Any:
    from torch._dynamo.guards import install_guard
    from torch._dynamo.variables import UserDefinedObjectVariable

    argument = argument.realize()
    if not isinstance(argument, UserDefinedObjectVariable) or argument.source is None:
        return argument
    value: Any = argument.value
    if not is_warp_value(value):
        return argument
    kind, found = type(value), bytes(value)

    def unchanged(now: Any) -> bool:
        return type(now) is kind and bytes(now) == found

    def guard_numbers(builder: Any, guard: Any) -> None:
        text = f"numbers of {guard.name} == {numbers_of(value)}"
        builder.get_guard_manager(guard).add_lambda_guard(unchanged, [text], guard.user_stack)

    install_guard(argument.source.make_guard(guard_numbers))
    return _constant(numbers_of(value))


def traced_value(value: Any) -> Any:
    """A vector argument as a sequence of numbers, in traced code, where it is one or a Warp value; else itself."""
    if isinstance(value, (list, tuple)):
        return value
    teach()
    return numbers_of(value)
