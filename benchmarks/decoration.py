"""What decorating costs: the kernels of libraries that are installed, and kernels whose loops are nested more and more.

    pip install --no-deps newton==1.8.0 nvalchemi-toolkit-ops==0.5.0 gswarp==1.1.0
    python benchmarks/decoration.py
    python benchmarks/decoration.py --bars          # exit status 1 if a bound is missed

Each kernel of a library (not of its tests and examples) is decorated bare, so that many are refused: what is read of them
is the same. What a library imports besides is replaced by empty modules where it isn't installed. Times are the
process's own, the garbage collector's not among them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.machinery
import importlib.util
import io
import pkgutil
import statistics
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import warp as wp

from common import Bar, environment, judge, table, write_json

LIBRARIES = {"newton": "newton", "nvalchemiops": "nvalchemi-toolkit-ops", "gswarp": "gswarp"}
"""By the package's name: what pip calls it."""
LEFT_OUT = {"tests", "test", "examples", "benchmarks", "__main__"}
DEPTHS = (1, 2, 3)
BRANCHES = 16
COPIES = 5
"""Kernels of each depth."""


class Anything:
    """What an empty module holds: a base class, a decorator, a name in an annotation."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and callable(given[0]) and not named else self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return ()

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__


class Empty(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Missing:
    """Finds an empty module for each that a library imports and that isn't installed."""

    def __init__(self) -> None:
        self.roots: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        caller = sys._getframe(1)
        while caller is not None and caller.f_code.co_filename.startswith("<frozen importlib"):
            caller = caller.f_back  # type: ignore[assignment]
        root, asks = name.split(".")[0], caller.f_globals.get("__name__", "").split(".")[0]
        if root in self.roots or (asks in LIBRARIES and "." not in name):
            self.roots.add(root)
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: Any) -> Any:
        return Empty(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


@contextlib.contextmanager
def kernels_made() -> Iterator[list[Any]]:
    """The kernels that are made meanwhile."""
    made: list[Any] = []
    own = wp.Kernel.__init__

    def noted(self: Any, *given: Any, **named: Any) -> None:
        own(self, *given, **named)
        made.append(self)

    wp.Kernel.__init__ = noted
    try:
        yield made
    finally:
        wp.Kernel.__init__ = own


def kernels_of(package: str) -> list[Any]:
    """The kernels that a package's modules make, one for each function."""
    with kernels_made() as made, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        top = importlib.import_module(package)
        for module in pkgutil.walk_packages(top.__path__, f"{package}.", onerror=lambda name: None):
            if not LEFT_OUT & set(module.name.split(".")):
                with contextlib.suppress(Exception):  # what needs more than empty modules
                    importlib.import_module(module.name)
    by_function: dict[Any, Any] = {}
    for kernel in made:
        if kernel.func.__module__.split(".")[0] == package:
            by_function.setdefault(kernel.func, kernel)
    return list(by_function.values())


def nested(depth: int, copy: int) -> str:
    """A kernel with branches in loops, one in the other."""
    lines = [
        "@wp.kernel",
        f"def nested_{depth}_{copy}(x: wp.array[float], n: int, y: wp.array[float]):",
        "    i = wp.tid()",
        "    s = float(0.0)",
    ]
    lines += [f"{'    ' * (level + 1)}for k{level} in range(n):" for level in range(depth)]
    indent = "    " * (depth + 1)
    for branch in range(BRANCHES):
        lines += [f"{indent}if x[i] > {branch}.0:", f"{indent}    s += {copy + branch}.0 * x[i]"]
    return "\n".join([*lines, "    y[i] = s"])


def decorate(kernels: list[Any]) -> tuple[list[float], int]:
    """Seconds of the process for each, and how many are refused."""
    from warpops import WarpOpError, warp_op

    seconds, refused, ops = [], 0, []
    gc.disable()
    for place, kernel in enumerate(kernels):
        if place % 100 == 0:
            gc.collect()
        begin = time.process_time()
        try:
            ops.append(warp_op(kernel))
        except WarpOpError:
            refused += 1
        seconds.append(time.process_time() - begin)
    gc.enable()
    return seconds, refused


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bars", "--strict", action="store_true", help="compare with the bounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    about = environment()
    print(", ".join(f"{key} {value}" for key, value in about.items()))

    with tempfile.TemporaryDirectory() as folder:
        text = "\n\n\n".join(nested(depth, copy) for copy in range(COPIES + 1) for depth in DEPTHS)
        Path(folder, "nested_kernels.py").write_text(f"import warp as wp\n\n\n{text}\n")
        sys.path.insert(0, folder)
        with kernels_made() as made:
            importlib.import_module("nested_kernels")
        seconds, _ = decorate(made)
    depths = {
        depth: statistics.median(seconds[place + len(DEPTHS) :: len(DEPTHS)]) for place, depth in enumerate(DEPTHS)
    }
    bars = [
        Bar(f"{BRANCHES} branches in {depth} loops, of those in one", depths[depth] / depths[1], 1.5)
        for depth in DEPTHS[1:]
    ]
    rows = [[f"{BRANCHES} branches in {depth} loops", f"{depths[depth] * 1e3:.2f}"] for depth in DEPTHS]
    table(f"Nested loops, ms, medians of {COPIES} kernels", ["", "each"], rows)

    sys.meta_path.append(Missing())  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for package, name in LIBRARIES.items():
        if importlib.util.find_spec(package) is None:
            print(f"\n  {package} isn't installed: pip install --no-deps {name}")
            continue
        seconds, refused = decorate(kernels_of(package))
        found[package] = {"seconds": seconds, "refused": refused}
    if found:
        rows, everything = [], [second for one in found.values() for second in one["seconds"]]
        found["all"] = {"seconds": everything, "refused": sum(one["refused"] for one in found.values())}
        for package, one in found.items():
            times = sorted(second * 1e3 for second in one["seconds"])
            numbers = statistics.mean(times), statistics.median(times), times[int(len(times) * 0.95)], times[-1]
            rows.append([package, str(len(times)), str(one["refused"]), *(f"{number:.2f}" for number in numbers)])
        table("Libraries, ms", ["", "kernels", "refused", "mean", "median", "95 %", "worst"], rows)
        bars.append(Bar("ms for a kernel of libraries, mean", statistics.mean(everything) * 1e3, 3.0))
        bars.append(Bar("ms for a kernel of libraries, the worst", max(everything) * 1e3, 50.0))
    write_json(options.json, {"benchmark": "decoration", "environment": about, "nested": depths, "libraries": found})
    if options.bars:
        print()
        return judge(bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
