"""The command line: what warpops made of the kernels in a module.

Exit codes: 0 done, 1 the module or the op can't be had, 2 the command can't be read.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
import types
import warnings
from collections.abc import Sequence
from functools import partial

from .errors import GradientWarning, WarpOpError, did_you_mean
from .op import WarpOp
from .register.contract import VERSION

PROG = "python -m warpops"


class NotFoundError(Exception):
    """What was named can't be had; the text is for the user."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code, 0 or 1.

    Raises:
        SystemExit: the command can't be read (2), or help or the version was asked for (0).
    """
    options = _parser().parse_args(argv)
    command = {"explain": _explain, "source": _source, "list": _list}[options.command]
    try:
        print(command(options.target), end="", flush=True)
    except NotFoundError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader (a pager, head) has gone; keep Python from telling so at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROG, description="What warpops made of the Warp kernels in a module.")
    parser.add_argument("--version", action="version", version=f"warpops {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    explain = commands.add_parser("explain", help="roles, shapes, launch size and gradients, each with its reason")
    explain.add_argument("target", metavar="module[:op]", type=_target, help="such as pkg.ops:square")
    source = commands.add_parser("source", help="the Python text that was generated for an op")
    source.add_argument(
        "target", metavar="module:op", type=partial(_target, wanted=True), help="such as pkg.ops:square"
    )
    listing = commands.add_parser("list", help="the ops of a module and their schemas")
    listing.add_argument("target", metavar="module", type=partial(_target, wanted=False), help="such as pkg.ops")
    return parser


def _target(text: str, wanted: bool | None = None) -> tuple[str, str]:
    """``pkg.module`` or ``pkg.module:op``; ``wanted``: whether there has to be an op."""
    module, colon, op = text.partition(":")
    if text.endswith(".py") or "/" in module or os.sep in module:
        raise argparse.ArgumentTypeError(f"{text!r} is a file; give the module's name, as in pkg.module:op")
    if not all(part.isidentifier() for part in module.split(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is no module's name; write pkg.module:op")
    if colon and not all(part.isidentifier() for part in op.split(".")):
        raise argparse.ArgumentTypeError(f"{op!r} is no op's name; write pkg.module:op")
    if wanted is True and not op:
        raise argparse.ArgumentTypeError(f"which op of {module!r}? Write {module}:op")
    if wanted is False and op:
        raise argparse.ArgumentTypeError(f"takes a module, and got the op {op!r} too")
    return module, op


# --- commands ---------------------------------------------------------------------------------------------------------


def _explain(target: tuple[str, str]) -> str:
    module = _load(target[0])
    if target[1]:
        return _find(module, target[1]).explain()
    return f"\n{'-' * 80}\n\n".join(op.explain() for op in _ops(module).values())


def _source(target: tuple[str, str]) -> str:
    return _find(_load(target[0]), target[1]).source


def _list(target: tuple[str, str]) -> str:
    lines = []
    for name, op in _ops(_load(target[0])).items():
        lines.append(f"{name}{op.__signature__}".replace("torch.Tensor", "Tensor").replace("typing.", ""))
        doc = (op.__doc__ or "").strip().splitlines()
        lines += [f"    {doc[0]}"] if doc else []
        kernel = op._plan.kernel
        lines.append(f"    {op.name}, the {'program' if kernel.program else 'kernel'} {kernel.qualname}")
    return "\n".join(lines) + "\n"


# --- modules and ops --------------------------------------------------------------------------------------------------


def _load(name: str) -> types.ModuleType:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GradientWarning)  # explain tells them
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise NotFoundError(f"no module named {error.name!r} (looked in {os.getcwd()} and Python's path)") from None
        raise NotFoundError(f"{name} can't be imported: {error}") from None
    except WarpOpError as error:
        raise NotFoundError(f"{name} can't be imported: {type(error).__name__}: {error}") from None
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        raise NotFoundError(f"{name} can't be imported\n{told}".rstrip()) from None


def _ops(module: types.ModuleType) -> dict[str, WarpOp]:
    """The ops of a module by the names of its attributes, those of its classes included; each op once."""
    found: dict[str, WarpOp] = {}
    for name, value in vars(module).items():
        if isinstance(value, WarpOp):
            found[name] = value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            found |= {f"{name}.{inner}": op for inner, op in vars(value).items() if isinstance(op, WarpOp)}
    if not found:
        raise NotFoundError(f"the module {module.__name__} holds no ops at its top level")
    names: dict[int, str] = {}
    for name, op in found.items():
        names.setdefault(id(op), name)
    return {name: found[name] for name in names.values()}


def _find(module: types.ModuleType, name: str) -> WarpOp:
    value: object = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if isinstance(value, WarpOp):
        return value
    if value is not None:
        kind = type(value).__name__
        raise NotFoundError(f"{module.__name__}:{name} is a {kind}, not an op (make it one with warp_op)")
    ops = _ops(module)
    hint = did_you_mean(name, ops, f"; its ops are {', '.join(ops)}")
    raise NotFoundError(f"the module {module.__name__} has no op {name!r}{hint}")


if __name__ == "__main__":
    sys.exit(main())
