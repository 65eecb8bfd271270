"""How much of Warp's own kernels the analysis infers, and how fast.

Imports the modules of ``warp.tests``, ``warp.examples``, ``warp.fem`` and ``warp.optim`` (those that import without
optional packages), decorates every kernel in them, and prints how long that takes (of the process's own time), and how
many are fully inferred, partly, and refused; and how many have a tangent kernel (none is compiled), with the ten commonest
reasons why not. A kernel of 16 branches in one, two and three loops shows what nesting costs. With ``--flags`` it also lets
Warp generate each kernel's code (nothing is compiled) and checks that where Warp's own flags say that an array argument is
written, the analysis says so too. With ``--packages`` it reads the kernels of other packages instead.

    python benchmarks/inference.py [--flags] [--limit N] [--packages newton nvalchemiops gswarp]
    python benchmarks/inference.py --bars          # exit status 1 if a bound is missed
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import io
import pkgutil
import re
import statistics
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import warp as wp

from common import Bar, judge, table
from warpops import WarpOpError, warp_op
from warpops.effects import ArrayEffects, Effects, analyse
from warpops.effects.names import array_arguments
from warpops.private.warp_code import module_options
from warpops.rewrite.tangent import tangent_kernel
from warpops.rewrite.tangent_scope import TangentError, has_tangent
from warpops.rewrite.typed import UntypedError, typed

PACKAGES = ("warp.tests", "warp.examples", "warp.fem", "warp.optim", "warp.sparse", "warp.utils")


NESTED = 20
"""Kernels for each depth of nesting."""


def module_names(packages: Sequence[str]) -> Iterator[str]:
    """The modules of packages, by name."""
    for package_name in packages:
        yield package_name
        try:
            package = importlib.import_module(package_name)
        except Exception:
            continue
        for found in pkgutil.walk_packages(
            getattr(package, "__path__", []), package_name + ".", onerror=lambda _: None
        ):
            if "__main__" not in found.name and ".assets" not in found.name:
                yield found.name


def import_all(names: Iterator[str]) -> tuple[int, int]:
    """Import modules, quietly; returns how many could and could not be."""
    done = failed = 0
    for name in names:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            try:
                importlib.import_module(name)
                done += 1
            except (Exception, SystemExit):  # an optional package is missing, or an example wants a device
                failed += 1
    return done, failed


def kernels() -> list[Any]:
    """Every kernel that is registered with a Warp module."""
    found: dict[int, Any] = {}
    for module in list(wp._src.context.user_modules.values()):
        for kernel in [*module.kernels.values(), *module._get_live_kernels()]:
            found.setdefault(id(kernel), kernel)
    return list(found.values())


def decorated(kernel: Any) -> float:
    """Milliseconds that a bare decoration takes, be it refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin = time.process_time()
        with contextlib.suppress(WarpOpError):
            warp_op(kernel)
        return (time.process_time() - begin) * 1e3


def nested(depth: int, number: int) -> str:
    """A kernel of 16 branches in so many loops."""
    lines = [
        f"@wp.kernel\ndef nested_{depth}_{number}(x: wp.array[float], n: int, y: wp.array[float]):",
        "    i = wp.tid()",
    ]
    lines += ["    s = float(0.0)"]
    lines += [f"{'    ' * (level + 1)}for k{level} in range(n):" for level in range(depth)]
    pad = "    " * (depth + 1)
    for branch in range(16):
        lines += [f"{pad}if x[i] > {branch}.0:", f"{pad}    s += x[i] * float(k{depth - 1} + {branch})"]
    return "\n".join([*lines, "    y[i] = s"])


def nesting() -> list[float]:
    """Milliseconds to decorate a kernel whose body lies in one, two and three loops."""
    with tempfile.TemporaryDirectory() as folder:
        texts = [nested(depth, number) for depth in (1, 2, 3) for number in range(NESTED)]
        (Path(folder) / "nested_kernels.py").write_text("\n\n\n".join(["import warp as wp", *texts]))
        sys.path.insert(0, folder)
        module = importlib.import_module("nested_kernels")
        times = {d: [decorated(getattr(module, f"nested_{d}_{k}")) for k in range(NESTED)] for d in (1, 2, 3)}
        sys.path.remove(folder)
    return [statistics.median(times[depth]) for depth in (1, 2, 3)]


def verdict(effects: Effects) -> str:
    """``full``: no declaration is needed. ``partial``: some roles or sizes are known. ``refused``: it can't be seen."""
    if effects.opaque or effects.tid_rank is None:
        return "refused"
    roles = [role(array) for array in effects.arrays.values()]
    launch = {
        use.coordinate
        for array in effects.arrays.values()
        for use in array.axes
        if use.coordinate is not None and not use.offset and not use.guarded
    }
    outputs = [array for array in effects.arrays.values() if role(array) == "output"]
    shaped = all(use.coordinate is not None and not use.offset for array in outputs for use in array.axes)
    complete = bool(outputs) and shaped and len(launch) >= effects.tid_rank
    return "full" if complete and all(r != "unsure" for r in roles) else "partial"


def role(array: ArrayEffects) -> str:
    if array.escapes or (array.read and array.written):
        return "unsure"
    return "output" if array.written else "input"


def flag_mismatches(found: list[tuple[Any, Effects]]) -> tuple[int, list[str]]:
    """Kernels whose code Warp can generate, and arrays that its flags say are written and the analysis doesn't."""
    context = wp._src.context
    checked, wrong = 0, []
    for kernel, effects in found:
        if kernel.is_generic:
            continue
        options = {**kernel.module.options, **kernel.options, "verify_autograd_array_access": True, "output_arch": None}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                builder = _builder(context, kernel.module, options)
                kernel.adj.build(builder)
            except Exception:  # kernels that are meant to fail, or want a device
                continue
        checked += 1
        for argument in kernel.adj.args:
            known = effects.arrays.get(argument.label)
            if argument.is_write and known is not None and not (known.written or known.escapes or effects.opaque):
                wrong.append(f"{kernel.key}: '{argument.label}' is written ({effects.file}:{effects.line})")
    return checked, wrong


def tangent_reasons(found: list[Any]) -> tuple[int, int, int, collections.Counter[str]]:
    """How many kernels have a tangent, how many are asked (concrete, with a float array written and one read), how many
    of the others Warp itself can't build here, and why the rest has none, names left out."""
    have, asked, unbuilt = 0, 0, 0
    reasons = collections.Counter[str]()
    for kernel, effects in found:
        floats = [label for label, kind in array_arguments(kernel).items() if has_tangent(getattr(kind, "dtype", None))]
        known = [effects.arrays[label] for label in floats if label in effects.arrays]
        if kernel.is_generic or not any(a.written for a in known) or not any(a.read for a in known):
            continue
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                typed(kernel, module_options(kernel))
            except UntypedError:  # one that is meant to fail, or wants a device
                unbuilt += 1
                continue
            asked += 1
            try:
                if any(hazard.kind == "counter" for hazard in effects.hazards):
                    raise TangentError("slots from an atomic counter")
                tangent_kernel(kernel, {label: f"tangent_{label.replace('.', '_')}" for label in floats}, (), ())
                have += 1
            except TangentError as error:
                text = re.sub(r" \((?:[^()]*:\d+.*)\)$", "", str(error).splitlines()[0], flags=re.DOTALL)
                reasons[re.sub(r"'[^']*'(?= (has a|takes a|writes))", "a function", text)[:90]] += 1
            except Exception as error:  # a fault of ours
                reasons[f"{type(error).__name__}: {error}"[:90]] += 1
    return have, asked, unbuilt, reasons


def _builder(context: Any, module: Any, options: dict[str, Any]) -> Any:
    """A module builder without kernels: it generates code for one adjoint, and compiles nothing."""

    nothing = types.SimpleNamespace(unique_kernels={}, get_unique_kernels=list)
    return context.ModuleBuilder(module, options, hasher=nothing)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--flags", action="store_true", help="compare with the write flags of Warp's own code generator"
    )
    parser.add_argument("--limit", type=int, default=0, help="stop importing after so many modules")
    parser.add_argument("--packages", nargs="+", default=PACKAGES, help="whose kernels to read")
    parser.add_argument("--bars", action="store_true", help="compare with the bounds; exit status 1 if one is missed")
    options = parser.parse_args()
    wp.config.quiet = True
    names = module_names(options.packages)
    if options.limit:
        names = iter([name for _, name in zip(range(options.limit), names, strict=False)])
    done, failed = import_all(names)
    every = [kernel for kernel in kernels() if kernel.module.name.startswith(tuple(options.packages))]
    print(f"{done} modules imported, {failed} skipped, {len(every)} kernels")
    levels = nesting()  # with what is done once a process
    times, results, verdicts = [], [], collections.Counter[str]()
    for kernel in every:
        times.append(decorated(kernel))
        effects = analyse(kernel)
        results.append((kernel, effects))
        verdicts[verdict(effects)] += 1
    for name in ("full", "partial", "refused"):
        print(f"{name:8s} {verdicts[name]:5d}  ({100 * verdicts[name] / max(len(every), 1):.0f} %)")
    hazards = collections.Counter(kind for _, e in results for kind in {h.kind for h in e.hazards})
    print("kernels with hazards:", ", ".join(f"{kind} {count}" for kind, count in hazards.most_common()) or "none")
    ordered = sorted(times)
    rows = [
        ["a kernel, mean", f"{statistics.mean(times):.2f}"],
        ["  median", f"{statistics.median(times):.2f}"],
        ["  95 %", f"{ordered[int(len(ordered) * 0.95)]:.2f}"],
        ["  most", f"{ordered[-1]:.1f}"],
        *([f"16 branches in {depth} loops", f"{levels[depth - 1]:.2f}"] for depth in (1, 2, 3)),
    ]
    table("Decoration, ms of the process", ["", "warpops"], rows)
    bars = [
        Bar("ms to decorate a kernel, mean", statistics.mean(times), 3.0),
        Bar("ms to decorate a kernel, most", ordered[-1], 50.0),
        Bar("a second loop around 16 branches, of one", levels[1] / levels[0], 1.3),
        Bar("a third, of two", levels[2] / levels[1], 1.3),
    ]
    print()
    begin = time.perf_counter()
    have, asked, unbuilt, reasons = tangent_reasons(results)
    spent = time.perf_counter() - begin
    print(
        f"tangent: {have} of {asked} kernels with floats read and written ({100 * have / max(asked, 1):.0f} %), {spent:.0f} s; "
        f"{unbuilt} more can't be built by Warp itself here"
    )
    for reason, count in reasons.most_common(10):
        print(f"{count:8d}  {reason}")
    if options.flags:
        checked, wrong = flag_mismatches(results)
        print(f"Warp's write flags: {checked} kernels checked, {len(wrong)} arrays missed")
        for line in wrong:
            print("  ", line)
        if wrong:
            return 1
    if options.bars:
        print()
        return judge(bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
