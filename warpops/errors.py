"""What warpops raises. One class per kind of mistake, each also a subclass of the builtin a caller would expect."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WarpOpError(Exception):
    """Base class of everything that warpops raises on purpose."""

    def __repr__(self) -> str:
        """Unquoted: Dynamo from 2.14 on says the repr of an error in that of another, where quotes would be escaped."""
        return f"{type(self).__name__}: {self}"


class SignatureError(WarpOpError, ValueError):
    """A declaration is wrong, or says less than is needed: raised where the op is decorated."""


class ArgumentError(WarpOpError, ValueError):
    """A call's argument does not fit the op: raised before anything is launched."""

    of_launch = False
    """It is the op's own launch that is wrong, not the call: ``warpops.testing.check`` tells them apart."""


def wrong_launch(text: str) -> ArgumentError:
    """The error of a launch that the op itself makes wrong."""
    error = ArgumentError(text)
    error.of_launch = True
    return error


class GradientError(WarpOpError, RuntimeError):
    """A gradient was asked for that can't be had."""


class GradientWarning(UserWarning):
    """Warp's own adjoint of this kernel may be wrong: given once, where the op is decorated."""


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """What a message ends with, where a name is close to one of those that there are."""
    near = difflib.get_close_matches(name, list(names), 1)
    return f"; did you mean '{near[0]}'?" if near else otherwise
