"""Arrays that threads share; and the analysis against runs, on Warp's own kernels, and without a started Warp."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import warp as wp

from support import HERE
from test_coordinates import elementwise, renamed, stencil, stencil_by_conditions
from test_filled import (
    both_stored,
    guarded_by_other,
    half_stored,
    returned_before_store,
    rows_by_broken_loop,
    rows_by_loop,
    rows_by_other_loop,
    rows_by_skipping_loop,
    scaled_in_place,
    stored_before_return,
    through_function_that_may_not_store,
    through_returning_function,
    through_view,
)
from test_followed import function_argument, local_struct
from warpops.effects import analyse


@wp.kernel
def compacted(x: wp.array[float], counter: wp.array[int], z: wp.array[float]):
    i = wp.tid()
    slot = wp.atomic_add(counter, 0, 1)
    z[slot] = x[i]


@wp.func
def take(counter: wp.array[int], slots: wp.array[int], i: int):
    slot = wp.atomic_add(counter, 0, 1)
    slots[i] = slot
    return slot


@wp.func_replay(take)
def replay_take(counter: wp.array[int], slots: wp.array[int], i: int):
    return slots[i]


@wp.kernel
def compacted_with_replay(x: wp.array[float], counter: wp.array[int], slots: wp.array[int], z: wp.array[float]):
    i = wp.tid()
    slot = take(counter, slots, i)
    z[slot] = x[i]


@wp.kernel
def gauss_seidel(y: wp.array[float]):
    i = wp.tid()
    y[i] = 0.5 * (y[wp.max(i - 1, 0)] + y[i])


@wp.kernel
def private_rows(x: wp.array[float], tmp: wp.array2d[float], y: wp.array[float]):
    i = wp.tid()
    row = tmp[i]
    for k in range(row.shape[0]):
        row[k] = x[i]
    y[i] = row[0]


def test_counters_are_hazards_without_a_replay() -> None:
    assert [h.kind for h in analyse(compacted).hazards] == ["counter"]
    assert analyse(compacted_with_replay).hazards == ()


def test_arrays_shared_by_threads_are_hazards() -> None:
    assert "shared" in [h.kind for h in analyse(gauss_seidel).hazards]
    assert analyse(private_rows).hazards == ()
    assert analyse(scaled_in_place).hazards == ()


# --- against runs, and against Warp's own flags -----------------------------------------------------------------------

RUN_1D = [
    elementwise,
    stencil,
    stencil_by_conditions,
    guarded_by_other,
    half_stored,
    both_stored,
    stored_before_return,
    returned_before_store,
    through_returning_function,
    through_function_that_may_not_store,
    local_struct,
    function_argument,
    renamed,
]
RUN_2D = [rows_by_loop, rows_by_other_loop, rows_by_broken_loop, rows_by_skipping_loop, through_view]


@pytest.mark.parametrize("kernel", [*RUN_1D, *RUN_2D])
def test_what_is_filled_leaves_no_poison(kernel: wp.Kernel) -> None:
    shape = (5,) if kernel in RUN_1D else (5, 3)
    values = np.linspace(-1.0, 1.0, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    x = wp.array(values, dtype=float, device="cpu")
    y = wp.array(np.full(shape, np.nan, dtype=np.float32), dtype=float, device="cpu")
    effects = analyse(kernel)
    wp.launch(kernel, dim=shape[: effects.tid_rank], inputs=[x, y], device="cpu")
    if effects.arrays["y"].filled:
        assert not np.isnan(y.numpy()).any()
    assert effects.arrays["y"].written
    assert not effects.arrays["x"].written
    np.testing.assert_array_equal(x.numpy(), values)


@pytest.mark.slow  # a process of its own; that decorating starts nothing is in test_wp_state.py
def test_the_analysis_neither_initialises_nor_builds() -> None:
    script = (
        "import warp as wp\n"
        "import warp.optim\n"
        "import warp._src.context as context\n"
        "from warpops.effects import analyse\n"
        "kernels = [k for m in context.user_modules.values() for k in m.kernels.values()]\n"
        "assert kernels\n"
        "for kernel in kernels:\n"
        "    analyse(kernel)\n"
        "assert context.runtime is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=HERE.parent)


def test_kernels_of_warp_itself() -> None:
    """A sample of the installed package's kernels; ``benchmarks/inference.py`` takes all of them."""
    import warp.optim
    import warp.sparse  # noqa: F401

    modules = [m for name, m in wp._src.context.user_modules.items() if name.startswith("warp.")]
    kernels = [kernel for module in modules for kernel in module.kernels.values()]
    assert len(kernels) > 10
    for kernel in kernels:
        effects = analyse(kernel)
        assert effects.tid_rank is not None, kernel.key
        writes = any(found.written or found.escapes for found in effects.arrays.values())
        assert writes or kernel.key.startswith("copy_dense_volume"), kernel.key
