"""Warp's builtins, one by one: where its adjoint isn't the derivative, the analysis says so, and nowhere else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import warp as wp

from walked import HEADER, Case, cases
from warpops.effects import analyse

SIZE = 40
CASES = {f"{number}_{case.builtin}": case for number, case in enumerate(cases())}
"""At a point where all are smooth."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    lines = [HEADER, "", ""]
    for number, case in enumerate(CASES.values()):
        lines += ["@wp.kernel", f"def k{number}(x: wp.array[wp.float64], y: wp.array[wp.float64]):", case.body, "", ""]
    path = tmp_path_factory.mktemp("walk") / "walked_kernels.py"
    path.write_text("\n".join(lines))
    return load(path)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def value(kernel: wp.Kernel, x: np.ndarray) -> float:
    y = wp.zeros(1, dtype=wp.float64, device="cpu")
    wp.launch(kernel, dim=1, inputs=[wp.array(x, dtype=wp.float64, device="cpu"), y], device="cpu")
    return float(y.numpy()[0])


def gradients(kernel: wp.Kernel, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Warp's adjoint, and finite differences."""
    point = 0.31 + 0.6 * np.modf(np.arange(1, SIZE + 1) * 0.6180339887)[0]
    single = "float32" in case.body or "float(" in case.body
    step = 2e-3 if single else 1e-6
    measured = np.zeros(SIZE)
    for n in range(case.numbers):
        e = np.eye(SIZE)[n] * step
        measured[n] = (value(kernel, point + e) - value(kernel, point - e)) / (2 * step)
    x = wp.array(point, dtype=wp.float64, device="cpu", requires_grad=True)
    y = wp.zeros(1, dtype=wp.float64, device="cpu", requires_grad=True)
    with wp.Tape() as tape:
        wp.launch(kernel, dim=1, inputs=[x, y], device="cpu")
    y.grad.fill_(1.0)
    tape.backward()
    return x.grad.numpy(), measured


@pytest.mark.parametrize("name", CASES)
def test_a_builtin_is_differentiated_or_warned_of(name: str, kernels: ModuleType) -> None:
    case = CASES[name]
    kernel = getattr(kernels, f"k{list(CASES).index(name)}")
    kinds = {hazard.kind for hazard in analyse(kernel).hazards}
    adjoint, measured = gradients(kernel, case)
    single = "float32" in case.body or "float(" in case.body
    right = np.allclose(adjoint, measured, rtol=2e-2 if single else 1e-4, atol=2e-2 if single else 1e-6)
    assert kinds <= {"no-adjoint", "remainder"}
    assert right == (not kinds), (adjoint[: case.numbers], measured[: case.numbers])
