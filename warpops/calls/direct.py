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
    """Whether nobody watches, and tensors are memory that a launch may be given; one that is None may be there."""
    return not watched() and all(t is None or (torch_guards.is_ordinary(t) and not t.is_meta) for t in tensors)
