"""PyTorch's private side: its reader of saved programs.

It fits a saved call to the schema that the operator has now: it drops an argument that isn't there any more without a
word, and has no good one for one that was added. So an operator whose schema is asked for looks who asks.
"""

from __future__ import annotations

import sys
import types
from typing import Any


def _call_being_read() -> Any:
    """What a saved program holds of the call that PyTorch reads, while it asks for the operator's schema."""
    frame: Any = sys._getframe(2)
    for _ in range(3):
        if frame is not None and frame.f_code.co_name == "deserialize_inputs":
            return frame.f_locals.get("serialized_node")
        frame = frame and frame.f_back
    return None


def schema_to_read(schema: Any, fits: bool = True) -> Any:
    """The schema; for PyTorch's reader of a call that doesn't fit it, one which leaves the call as it is.

    With ``fits`` false no call fits, and the operator refuses them itself. Otherwise:
    Such a call gets an argument too many, so that it is refused where it runs: what is raised while a program is read
    only reaches a log.
    """
    call = _call_being_read()
    if call is None:
        return schema
    saved = [argument.name for argument in call.inputs]
    more = 0
    if fits:
        known = [argument.name for argument in schema.arguments]
        required = {argument.name for argument in schema.arguments if not argument.has_default_value()}
        if required <= set(saved) <= set(known) and len(call.outputs) == len(schema.returns):
            return schema
        more = max(len(known) + 1 - len(saved), 0)
    return types.SimpleNamespace(arguments=[types.SimpleNamespace(name=name) for name in saved + saved[:1] * more])
