"""The same kernel through other libraries that join Warp to a framework.

    pip install jax nvalchemi-toolkit-ops      # either, both, or none: what is missing is skipped with a message
    python benchmarks/peers.py

- Warp's own ``jax_kernel``, on JAX's CPU backend: a jitted call, and a jitted gradient. A jitted gradient runs forward
  and adjoint kernels in one call of XLA, with no autograd engine; its nearest kin in PyTorch is the compiled row.
- ``warp_custom_op`` of nvalchemi-toolkit-ops, which records a ``wp.Tape`` in the forward.
- ``torch.library.custom_op`` by hand, as Warp's manual shows it.

matgl's ops have kernels of their own: ``matgl_families.py`` compares with those.

Results are compared before anything is timed; then all variants are timed interleaved, in one process.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import torch
import warp as wp

from common import Call, environment, interleave, microseconds, table, write_json
from overhead import and_backward, compiled, without_gradient
from rivals import himmelblau, himmelblau_op, library_recipe

FORWARD, BOTH = "forward", "forward + backward"


def here(x: torch.Tensor) -> dict[str, dict[str, Call]]:
    def model(x: torch.Tensor) -> torch.Tensor:
        return himmelblau_op(x)

    recipe = library_recipe(himmelblau, wp.vec2)

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        return recipe(x, x.shape[0])

    return {
        "warpops": {FORWARD: without_gradient(himmelblau_op, x), BOTH: and_backward(himmelblau_op, x)},
        "warpops, torch.compile": {
            FORWARD: without_gradient(compiled(model), x),
            BOTH: and_backward(compiled(model), x),
        },
        "custom_op by hand": {FORWARD: without_gradient(by_hand, x), BOTH: and_backward(by_hand, x)},
    }


def by_jax(x: torch.Tensor) -> dict[str, dict[str, Call]]:
    import jax

    function = wp.jax_kernel(himmelblau, enable_backward=True)
    value = jax.jit(lambda p: function(p)[0])
    gradient = jax.jit(jax.value_and_grad(lambda p: function(p)[0].sum()))
    points = jax.numpy.asarray(x.detach().numpy())

    _, expected = value_and_gradient(x)
    found = torch.tensor(jax.device_get(gradient(points)[1]))
    torch.testing.assert_close(found, expected)
    return {
        "jax_kernel, jax.jit": {
            FORWARD: lambda: value(points).block_until_ready(),
            BOTH: lambda: gradient(points)[1].block_until_ready(),
        }
    }


def by_nvalchemi(x: torch.Tensor) -> dict[str, dict[str, Call]]:
    from nvalchemiops.torch.autograd import (
        OutputSpec,
        WarpAutogradContextManager,
        attach_for_backward,
        needs_grad,
        warp_custom_op,
        warp_from_torch,
    )

    @warp_custom_op(
        name="peers::himmelblau",
        outputs=[OutputSpec("f", wp.float32, lambda p: (p.shape[0],))],
        grad_arrays=["f", "p"],
    )
    def op(p: torch.Tensor) -> torch.Tensor:
        recorded = needs_grad(p)
        points = warp_from_torch(p, wp.vec2, requires_grad=recorded)
        result = torch.zeros(p.shape[0], device=p.device)
        array = warp_from_torch(result, wp.float32, requires_grad=recorded)
        with WarpAutogradContextManager(recorded) as tape:
            wp.launch(himmelblau, dim=p.shape[0], inputs=[points, array], device=wp.device_from_torch(p.device))
        if recorded:
            attach_for_backward(result, tape=tape, f=array, p=points)
        return result

    value, expected = value_and_gradient(x)
    leaf = x.detach().clone().requires_grad_()
    result = op(leaf)
    result.sum().backward()
    torch.testing.assert_close(result.detach(), value)
    torch.testing.assert_close(leaf.grad, expected)
    return {"nvalchemi warp_custom_op": {FORWARD: without_gradient(op, x), BOTH: and_backward(op, x)}}


def value_and_gradient(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = x.detach().clone().requires_grad_()
    value = himmelblau_op(leaf)
    value.sum().backward()
    assert leaf.grad is not None
    return value.detach(), leaf.grad


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=64, help="elements of each array")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)

    x = torch.randn(options.size, 2, requires_grad=True)
    variants = here(x)
    for package, peer in (("jax", by_jax), ("nvalchemi-toolkit-ops", by_nvalchemi)):
        try:
            variants |= peer(x)
        except ImportError as error:
            print(f"skipped: {package} is not installed ({error})")

    calls = {f"{name} / {what}": call for name, modes in variants.items() for what, call in modes.items()}
    samples = interleave(calls, rounds=options.rounds)
    about = environment()
    print(", ".join(f"{key} {value}" for key, value in about.items()) + f"; {options.size} elements")
    rows = []
    for name in variants:
        keys = [f"{name} / {what}" for what in (FORWARD, BOTH)]
        ratios = [samples.ratio(key, f"warpops / {what}") for key, what in zip(keys, (FORWARD, BOTH), strict=True)]
        cells = [f"{microseconds(samples.median(key))} ({ratio:.2f})" for key, ratio in zip(keys, ratios, strict=True)]
        rows.append([name, *cells])
    table("µs a call (ratio to warpops in eager mode)", ["", FORWARD, BOTH], rows)
    write_json(
        options.json,
        {
            "benchmark": "peers",
            "environment": about,
            "size": options.size,
            "median_us": {key: round(samples.median(key) * 1e6, 3) for key in samples.seconds},
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
