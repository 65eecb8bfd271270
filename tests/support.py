"""What the tests share: inputs, the two ways to run an op, and one comparison of values and gradients."""

from __future__ import annotations

import os
import pathlib
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import warp as wp

WARP = tuple(int(part) for part in wp.config.version.split(".")[:2])
"""The version of Warp that the tests run on: what an older one can't do itself is skipped."""

HERE = pathlib.Path(__file__).parent

IMPORTED = [HERE.parent, HERE, *sorted(path for path in HERE.iterdir() if path.is_dir())]
"""From where tests import: what a child process is told, too."""


def eager(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``torch.compile`` in one graph. ``aot_eager`` runs the same fakes and the same traced autograd as Inductor does,
    in a tenth of the time; each kind of op meets Inductor once, in ``test_compile.py``."""
    return torch.compile(function, fullgraph=True, **{"backend": "aot_eager", **options})


def afresh(mode: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """As ``mode(function)``, with nothing compiled before: sizes are plain numbers in what it traces."""
    torch._dynamo.reset()
    return mode(function)


def inductor(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, fullgraph=True, **options)


INDUCTOR = pytest.param(inductor, id="inductor", marks=pytest.mark.slow)
"""For ``parametrize``. The first compilation of a process with cold caches takes more than ten seconds."""


def as_dynamo_says(message: str) -> str:
    """The pattern of a message whose argument is text: PyTorch 2.14 quotes the call in the error, and escapes our quotes."""
    return message.replace("'", r"\\?'")


def leaf(tensor: torch.Tensor) -> torch.Tensor:
    """A fresh leaf with the same values (and strides, where they are dense) that requires grad."""
    return tensor.detach().clone().requires_grad_()


def leaves(arguments: Sequence[Any], wanted: Sequence[int] | None = None) -> list[Any]:
    """The arguments with every floating tensor (or those at ``wanted``) made a leaf that requires grad."""
    return [
        leaf(a) if isinstance(a, torch.Tensor) and a.is_floating_point() and (wanted is None or i in wanted) else a
        for i, a in enumerate(arguments)
    ]


def as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def ramp(tensor: torch.Tensor) -> torch.Tensor:
    """A cotangent in which every element differs, so that a shuffled or summed one shows."""
    return torch.linspace(-1.0, 2.0, max(tensor.numel(), 1))[: tensor.numel()].reshape(tensor.shape).to(tensor)


def values_and_grads(
    function: Callable[..., Any], arguments: Sequence[Any], wanted: Sequence[int] | None = None
) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor | None]]:
    """Results, and the gradients of their products with ramps for every floating tensor (or those at ``wanted``)."""
    given = leaves(arguments, wanted)
    results = as_tuple(function(*given))
    sources = [a for a in given if isinstance(a, torch.Tensor) and a.requires_grad]
    outputs = [r for r in results if r.requires_grad]
    assert outputs, "no result requires grad"
    gradients = torch.autograd.grad(outputs, sources, [ramp(r) for r in outputs], allow_unused=True)
    return tuple(r.detach() for r in results), list(gradients)


def close(got: Any, want: Any, note: str = "", rtol: float = 1e-4, atol: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, msg=(lambda text: f"{note}: {text}") if note else None)


def check_against(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    arguments: Sequence[Any],
    wanted: Sequence[int] | None = None,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """Values, and gradients of the floating tensors (or those at ``wanted``), equal those of pure PyTorch."""
    want, want_grads = values_and_grads(reference, arguments, wanted)
    got, got_grads = values_and_grads(function, arguments, wanted)
    assert len(got) == len(want)
    for index, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        close(mine, theirs, f"result {index}", rtol, atol)
    sources = [a for a in leaves(arguments, wanted) if isinstance(a, torch.Tensor) and a.requires_grad]
    for index, (mine, theirs, source) in enumerate(zip(got_grads, want_grads, sources, strict=True)):
        assert mine is not None, f"gradient {index} is None"
        assert mine.shape == source.shape, f"gradient {index}"
        assert mine.dtype == source.dtype, f"gradient {index}"
        # An input that isn't read gets zeros, where PyTorch says None.
        close(mine, torch.zeros_like(mine) if theirs is None else theirs, f"gradient {index}", rtol, atol)


def dirty_allocator(value: float = float("nan")) -> None:
    """Leave bad bytes on the allocator's free lists, so that memory nobody wrote shows."""
    junk = [torch.full((n,), value) for n in range(1, 128)]
    del junk


def graph_count() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


UNOPTIMISED = "import warp; warp.config.optimization_level = 0\n"
"""How a child builds kernels, too: quicker, and it finds what the parent built."""


def run_main(text: str, path: pathlib.Path) -> dict[str, Any]:
    """Run Python text as a script, ``__main__``, in this process: its names. Starting a fresh one takes seconds."""
    path.write_text(text)
    return runpy.run_path(str(path), run_name="__main__")


def run_script(text: str, path: pathlib.Path, **environment: str) -> str:
    """Run Python text in a fresh process that can import warpops and the tests; its standard output, less Warp's own lines."""
    path.write_text(UNOPTIMISED + text)
    parts = [*map(str, IMPORTED), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in parts if p), **environment}
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=240, check=False)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
