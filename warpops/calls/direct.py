"""Whether a call may go past PyTorch's operators, to the launch itself."""

from __future__ import annotations

import torch

from ..private import torch_guards, torch_modes
from ..private.short import FAST


def watched() -> bool:
    """Whether somebody is to be told of operators that are called."""
    modes = torch_modes
    return not FAST or bool(modes.dispatch_modes() or modes.function_mode() or modes.profiling() or modes.tracing())


def direct(*tensors: torch.Tensor | None) -> bool:
    """Whether nobody watches, and tensors, less those that are None, are memory. The first tells whether it is on meta."""
    if watched():
        return False
    given = [tensor for tensor in tensors if tensor is not None]
    return all(map(torch_guards.is_ordinary, given)) and not (given and given[0].is_meta)
