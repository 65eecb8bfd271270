"""What a program's run came to, or a callable for ``dim`` gave, and how the backward knows it.

A backward runs the program again, or asks the callable again, and the gradient is right only where that comes to the same.
So the forward's steps go to the backward as objects of Warp do (``handle.py``): on the autograd node in eager code, in
compiled code behind the token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import GradientError
from ..private import locks

Step = tuple[str, tuple[tuple[str, Any], ...]]
"""What was launched or called, and what it was given, by label."""
Ran = tuple[Step, ...]
"""What a program did in one run, less where memory was; or what a callable for ``dim`` gave, as one step."""
ASKED = "the callable for dim"


class _Latest(threading.local):
    ran: Ran | None = None


_latest = _Latest()
_made: dict[int, Ran] = {}
"""The run that wrote a buffer, by the buffer's address, until it is asked for: graphs may order launches otherwise."""
_KEPT = 256
_lock = locks.plain()


def note_ran(ran: Ran) -> None:
    """A program has run in this thread."""
    _latest.ran = ran


def note_all(runs: Sequence[Ran | None]) -> None:
    """Runs of this thread that stand for one, each of another slice of a batch: what they came to, once where it is the
    same. A gradient may have a batch where its forward had none."""
    found = [ran for ran in runs if ran is not None]
    if found:
        note_ran(found[0] if all(ran == found[0] for ran in found) else tuple(step for ran in found for step in ran))


def latest_ran() -> Ran | None:
    """What the latest run of this thread came to."""
    return _latest.ran


def check_ran(op: str, before: Ran | None) -> None:
    """Compare the latest run of this thread, which a gradient was taken of, with that of the forward.

    Raises:
        GradientError: the program did something else.
    """
    now = _latest.ran
    if before is now or before is None or now is None or before == now:
        return
    if before and now and {title for title, _ in (*before, *now)} == {ASKED}:
        (_, gave), (_, gives) = before[0], now[0]
        again = f"asks {ASKED} again, which gave {dict(gave)} in the forward, and gives {dict(gives)} now"
    else:
        again = f"runs the program again, and it didn't do what it did in the forward: {_difference(before, now)}"
    raise GradientError(
        f"{op}: the gradient {again}. What it reads besides its arguments (globals, attributes, random numbers) must be the "
        f"same then; pass it as an argument, or change it after the backward"
    )


def _difference(before: Ran, now: Ran) -> str:
    count = next((k for k, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now)))
    if count >= min(len(before), len(now)):
        return f"it made {len(before)} launches and calls, and now {len(now)}"
    (title, given), (other, given_now) = before[count], now[count]
    if title == other and len(given) == len(given_now):
        for (label, a), (_, b) in zip(given, given_now, strict=True):
            if a != b:
                return f"its step {count + 1}, {title}, had {label} = {a}, and now {b}"
    return (
        f"its step {count + 1} was {title}, and is {other} now" if title != other else f"its step {count + 1}, {title}"
    )


def noting(run: Callable[..., None], outputs: Sequence[int]) -> Callable[..., None]:
    """The raw forward over given buffers, which notes what wrote the buffers at those places."""

    def into(*values: Any) -> None:
        run(*values)
        ran = _latest.ran
        if ran is None:
            return
        with _lock:
            for place in outputs:
                if values[place] is not None:
                    _made[values[place].data_ptr()] = ran
            while len(_made) > _KEPT:
                del _made[next(iter(_made))]

    return into


def ran_of(tensors: Sequence[torch.Tensor]) -> Ran | None:
    """The run that wrote buffers."""
    with _lock:
        found = [_made.pop(tensor.data_ptr(), None) for tensor in tensors if tensor.numel()]
    return next((ran for ran in found if ran is not None), _latest.ran)
