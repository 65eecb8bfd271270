"""Dynamo's private side: a function that it runs while it traces, on a value that it can't look into.

``tests/test_torch_private.py`` fails first when a new torch changes any of it; ``tests/test_taken_away.py`` does without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import locks
from .short import found

_lock = locks.plain()


def teach(function: Callable[[Any], Any], applies: Callable[[Any], bool]) -> bool:
    """Have Dynamo know ``function``, which gives the numbers of a value that ``applies``, and any other as it is.

    The numbers become constants of the graph, which is made anew when the value's bytes change. Where this torch has no
    way to say that, Dynamo doesn't know the function, and False is returned.
    """

    def short() -> bool:
        from torch._dynamo.guards import install_guard
        from torch._dynamo.variables import ConstantVariable, TupleVariable, UserDefinedObjectVariable
        from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

        def constant(numbers: Any) -> Any:
            return TupleVariable([constant(n) if isinstance(n, tuple) else ConstantVariable.create(n) for n in numbers])

        def traced(handler: Any, tx: Any, argument: Any) -> Any:
            argument = argument.realize()
            if not isinstance(argument, UserDefinedObjectVariable) or argument.source is None:
                return argument
            value: Any = argument.value
            if not applies(value):
                return argument
            kind, found = type(value), bytes(value)

            def unchanged(now: Any) -> bool:
                return type(now) is kind and bytes(now) == found

            def guard_numbers(builder: Any, guard: Any) -> None:
                text = f"numbers of {guard.name} == {function(value)}"
                builder.get_guard_manager(guard).add_lambda_guard(unchanged, [text], guard.user_stack)

            install_guard(argument.source.make_guard(guard_numbers))
            return constant(function(value))

        with _lock:
            handlers = TorchInGraphFunctionVariable._get_handlers()
            if function not in handlers:
                torch.compiler.allow_in_graph(function)
                handlers[function] = traced
        return True

    return bool(found(short))
