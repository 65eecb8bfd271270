"""What warpops costs at the start: its import, the decoration of 500 kernels, an op's first call and first backward.

    python benchmarks/startup.py
    python benchmarks/startup.py --bars          # exit status 1 if a bound is missed

Each measurement is made in a process of its own that has imported PyTorch and Warp, the median of several. Kernels are drawn
from several forms with constants of their own, so that no two are the same; Warp's cache is an empty folder, which must
still be empty afterwards: nothing was compiled. A first call and backward build, or load, one kernel; the same is timed with
Warp alone. The bounds are on the process's own time, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import warp as wp

from common import Bar, environment, judge, table, write_json

FORMS = [
    # elementwise
    """
@wp.kernel
def kernel_{k}(a: wp.array[float], b: wp.array[float], out: wp.array[float]):
    i = wp.tid()
    out[i] = a[i] * {k}.0 + wp.sin(b[i])
""",
    # bounds check, vectors, a number
    """
@wp.kernel
def kernel_{k}(x: wp.array[wp.vec3], rest: float, n: int, out: wp.array[float]):
    i = wp.tid()
    if i >= n:
        return
    d = wp.length(x[i]) - rest
    out[i] = {k}.0 * d * d
""",
    # two axes, an inner loop
    """
@wp.kernel
def kernel_{k}(a: wp.array2d[float], b: wp.array2d[float], out: wp.array2d[float]):
    i, j = wp.tid()
    s = float(0.0)
    for m in range(a.shape[1]):
        s += a[i, m] * b[m, j]
    out[i, j] = s + {k}.0
""",
    # gather through a helper function, two outputs
    """
@wp.func
def helper_{k}(a: wp.vec3, b: wp.vec3):
    return wp.dot(a, b) * {k}.0

@wp.kernel
def kernel_{k}(x: wp.array[wp.vec3], index: wp.array[int], near: wp.array[float], far: wp.array[wp.vec3]):
    i = wp.tid()
    j = index[i]
    near[i] = helper_{k}(x[j], x[j])
    far[i] = x[j] * {k}.0
""",
]

WAYS = {"op": "warpops", "warp": "Warp alone", "function": "Function by hand", "custom_op": "custom_op by hand"}
"""Of a first call. The third is the least that goes through PyTorch's autograd: a ``torch.autograd.Function`` of one launch."""
FIRST = FORMS[0].format(k="first").replace("kernel_first", "first").replace("first.0", "0.5")


def importing() -> tuple[list[float], list[str]]:
    """Seconds that have passed and those of the process, and which modules of others come with the import."""
    before = set(sys.modules)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    import warpops  # noqa: F401

    seconds = [time.perf_counter() - begin, time.process_time() - begin_cpu]
    return seconds, sorted(name for name in set(sys.modules) - before if not name.startswith("warpops"))


def decorating() -> list[float]:
    """Seconds that have passed, and those of the process."""
    import many_kernels
    from first_kernel import first

    import warpops

    warpops.warp_op(first)  # what is done once a process
    begin, begin_cpu = time.perf_counter(), time.process_time()
    ops = [warpops.warp_op(kernel) for kernel in many_kernels.kernels]
    seconds = [time.perf_counter() - begin, time.process_time() - begin_cpu]
    assert len(ops) == len(many_kernels.kernels)
    return seconds


def first_of(who: str) -> list[float]:
    """Seconds of the process to the end of the first call, and to that of the first backward: by one of the
    ``WAYS``."""
    from first_kernel import first

    count = 64
    a, b = (torch.rand(count, requires_grad=True) for _ in range(2))
    cotangent = torch.ones(count)
    (torch.mul(a, b) + 1.0).backward(cotangent)  # PyTorch's own first times
    a.grad = b.grad = None
    wp.init()

    def op() -> Iterator[float]:
        import warpops

        made = warpops.warp_op(first)
        yield time.process_time()
        result = made(a, b)
        yield time.process_time()
        result.backward(cotangent)

    def warp() -> Iterator[float]:
        arrays = [wp.array([0.5] * count, dtype=float, requires_grad=True) for _ in range(3)]
        given = {"dim": count, "inputs": arrays[:2], "outputs": arrays[2:]}
        yield time.process_time()
        wp.launch(first, **given)
        yield time.process_time()
        adjoints = {"adj_inputs": [x.grad for x in arrays[:2]], "adj_outputs": [arrays[2].grad]}
        wp.launch(first, **given, **adjoints, adjoint=True)

    def launch(*tensors: torch.Tensor, **adjoint: Any) -> None:
        arrays = [wp.from_torch(tensor.detach(), requires_grad=False) for tensor in tensors]
        wp.launch(first, dim=count, inputs=arrays[:2], outputs=arrays[2:], **adjoint)

    def forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(a)
        launch(a, b, out)
        return out

    def backward(a: torch.Tensor, b: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        found = [torch.zeros_like(a), torch.zeros_like(b)]
        adjoints = [wp.from_torch(tensor, requires_grad=False) for tensor in (*found, grad)]
        launch(a, b, torch.empty_like(a), adj_inputs=adjoints[:2], adj_outputs=adjoints[2:], adjoint=True)
        return found

    def function() -> Iterator[float]:
        class ByHand(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(a, b)
                return forward(a, b)

            @staticmethod
            def backward(ctx: Any, grad: torch.Tensor) -> Any:
                return tuple(backward(*ctx.saved_tensors, grad))

        yield time.process_time()
        result = ByHand.apply(a, b)
        yield time.process_time()
        result.backward(cotangent)

    def custom_op() -> Iterator[float]:
        made = torch.library.custom_op("by_hand::first", forward, mutates_args=())
        gradients = torch.library.custom_op("by_hand::first_backward", backward, mutates_args=())
        made.register_autograd(
            lambda ctx, grad: tuple(gradients(*ctx.saved_tensors, grad)),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        )
        yield time.process_time()
        result = made(a, b)
        yield time.process_time()
        result.backward(cotangent)

    times = [*{"op": op, "warp": warp, "function": function, "custom_op": custom_op}[who](), time.process_time()]
    return [times[1] - times[0], times[2] - times[0]]


def write_kernels(folder: Path, count: int) -> None:
    text = ["import warp as wp\n"]
    text += [FORMS[k % len(FORMS)].format(k=k) for k in range(count)]
    text.append(f"\nkernels = [{', '.join(f'kernel_{k}' for k in range(count))}]\n")
    (folder / "many_kernels.py").write_text("".join(text))
    (folder / "first_kernel.py").write_text(f"import warp as wp\n{FIRST}")


def apart(function: Callable[..., Any], cache: Path, *arguments: Any) -> Any:
    """What a function returns in a process of its own, a copy of this one: it has PyTorch and Warp, not yet started."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.environ["WARP_CACHE_PATH"] = str(cache)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Warp says what it builds and loads
        with os.fdopen(write, "w") as out:
            try:
                json.dump(function(*arguments), out)
            except BaseException:
                traceback.print_exc()
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as found:
        text = found.read()
    os.waitpid(child, 0)
    if not text:
        raise RuntimeError(f"{function.__name__} failed")
    return json.loads(text)


def measure(count: int, repeats: int) -> dict[str, Any]:
    gc.collect()
    gc.freeze()  # no process goes through what PyTorch and Warp hold
    decorate, imports, modules = [], [], []
    first: dict[str, list[list[float]]] = {f"{who} {how}": [] for who in WAYS for how in ("builds", "loads")}
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name), Path(name) / "cache"
        write_kernels(folder, count)
        sys.path.insert(0, str(folder))
        apart(decorating, cache)  # writes the byte code
        for _ in range(repeats):
            decorate.append(apart(decorating, cache))
            seconds, modules = apart(importing, cache)
            imports.append(seconds)
        compiled = sum(file.is_file() for file in cache.rglob("*"))
        for turn in range(repeats):
            for who in WAYS:
                for how in ("builds", "loads"):
                    first[f"{who} {how}"].append(apart(first_of, folder / f"{who}{turn}", who))
    return {
        "first": first,
        "kernels": count,
        "decorate_s": [wall for wall, _ in decorate],
        "decorate_cpu_s": [cpu for _, cpu in decorate],
        "import_s": [wall for wall, _ in imports],
        "import_cpu_s": [cpu for _, cpu in imports],
        "modules": modules,
        "compiled_files": compiled,
    }


def milliseconds(*seconds: float) -> list[str]:
    return [f"{value * 1e3:,.2f}" if value < 0.1 else f"{value * 1e3:,.0f}" for value in seconds]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bars", action="store_true", help="compare with the bounds; exit status 1 if one is missed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    found = measure(options.kernels, options.repeats)
    middle = {key: statistics.median(value) for key, value in found.items() if key.endswith("_s")}
    decorate, imported = middle["decorate_cpu_s"], middle["import_cpu_s"]
    about = environment()
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    rows = [
        [f"decorating {options.kernels} kernels", *milliseconds(middle["decorate_s"], decorate)],
        ["  each", *milliseconds(middle["decorate_s"] / options.kernels, decorate / options.kernels)],
        ["importing warpops after torch and warp", *milliseconds(middle["import_s"], imported)],
        ["files that Warp compiled meanwhile", str(found["compiled_files"]), ""],
    ]
    table(f"Start-up, medians of {options.repeats} processes, ms", ["", "elapsed", "of the process"], rows)
    ratios = {}
    rows = []
    for how in ("builds", "loads"):
        for k, what in enumerate(("first call", "first call and backward")):
            times = {who: [seconds[k] for seconds in found["first"][f"{who} {how}"]] for who in WAYS}
            of_warp = {
                who: statistics.median(a / b for a, b in zip(seconds, times["warp"], strict=True))
                for who, seconds in times.items()
            }
            ratios[how, what] = of_warp["op"]
            rows.append([f"{what}, which {how} the kernel", *milliseconds(*map(statistics.median, times.values()))])
            rows.append(["  of Warp alone", *(f"{ratio:.2f}" for ratio in of_warp.values())])
    table("The first of an op, ms of the process", ["", *WAYS.values()], rows)
    if found["modules"]:
        print(f"\n  other modules that the import loads: {', '.join(found['modules'])}")
    bars = [
        Bar(f"seconds to decorate {options.kernels} kernels", decorate, 2.0),
        Bar("files compiled at decoration", found["compiled_files"], 0),
        Bar("seconds to import warpops after torch and warp", imported, 0.05),
        *(Bar(f"{what}, which {how} the kernel, of Warp's own", ratio, 1.1) for (how, what), ratio in ratios.items()),
    ]
    write_json(options.json, {"benchmark": "startup", "environment": about, **found})
    if options.bars:
        print()
        return judge(bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
