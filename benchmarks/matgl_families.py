"""Matgl's message-passing kernels: first gradients of its forward kernels alone, against its hand-written backward ones.

    pip install --no-deps matgl==4.1.2   # its `kernels` and `ops` need PyTorch and Warp only
    python benchmarks/matgl_families.py

Float64. A GradientWarning is an error; a difference too.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
import warp as wp

import warpops
from warpops import warp_op

EDGES, NODES, HIDDEN = 40, 7, 5


def import_parts() -> tuple[Any, Any]:
    """``matgl.kernels`` and ``matgl.ops``, without the rest of the package and what that needs."""
    found = importlib.util.find_spec("matgl")
    if found is None or found.submodule_search_locations is None:
        raise SystemExit("matgl isn't installed: pip install --no-deps matgl==4.1.2")
    package = types.ModuleType("matgl")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["matgl"] = package
    return importlib.import_module("matgl.kernels"), importlib.import_module("matgl.ops")


def numbers(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def as_tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def results(function: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> tuple[list[Any], list[Any]]:
    """Values, and the gradients of a weighted sum of them."""
    outputs = as_tuple(function(*inputs))
    total = sum((o * torch.linspace(-1, 2, o.numel(), dtype=o.dtype).reshape(o.shape)).sum() for o in outputs)
    return [o.detach() for o in outputs], list(torch.autograd.grad(total, inputs))


def main() -> None:
    wp.config.quiet = True
    warnings.simplefilter("error", warpops.GradientWarning)
    kernels, ops = import_parts()

    def op(name: str, signature: str) -> warpops.WarpOp:
        kernel = kernels.get_module(f"{name}_fwd", ["float64"])
        return warp_op(kernel, signature, name=f"matgl_families::{name}", dim="b, h")

    edges = torch.stack([torch.randint(NODES, (EDGES,), generator=torch.Generator().manual_seed(k)) for k in (1, 2)])
    row_data, row_indices, row_indptr, *columns = ops.graph_transform(edges.int(), NODES)
    x = [numbers(NODES, 3, 3, HIDDEN, seed=k) for k in range(2)]
    i, a, s = (numbers(NODES, n, HIDDEN, seed=n) for n in (1, 3, 5))
    attributes, vectors = numbers(EDGES, 3, HIDDEN, seed=8), numbers(EDGES, 3, seed=9)

    compose = op("compose_tensor", "I[b, 1, h], A[b, 3, h], S[b, 5, h] -> X[b, 3, 3, h]")
    decompose = op("decompose_tensor", "X[b, 3, 3, h] -> I[b, 1, h], A[b, 3, h], S[b, 5, h]")
    norm = op("tensor_norm3", "X[b, 3, 3, h] -> output[b, 3 * h]")
    so3 = op("tensor_matmul_so3_3x3", "A[b, 3, 3, h], B[b, 3, 3, h] -> C[b, 3, 3, h]")
    o3 = op("tensor_matmul_o3_3x3", "A[b, 3, 3, h], B[b, 3, 3, h] -> C[b, 3, 3, h]")
    passing = op(
        "message_passing",
        "I[b, 1, h], A[b, 3, h], S[b, 5, h], edge_attr[e, 3, h], row_data[e], row_indices[e], row_indptr[p] "
        "-> output_I[b, 1, h], output_A[b, 3, h], output_S[b, 5, h]",
    )
    radial = warp_op(
        kernels.get_module("radial_message_passing_fwd", ["float64"]),
        "edge_vec_norm[e, 3], edge_attr[e, 3, h], row_data[e], row_indptr[p] "
        "-> output_I[p - 1, 1, h], output_A[p - 1, 3, h], output_S[p - 1, 5, h]",
        name="matgl_families::radial_message_passing",
        dim="p - 1, h",
    )
    graph = (row_data, row_indices, row_indptr)
    families: list[tuple[str, Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...]]] = [
        ("compose_tensor", compose, ops.fn_compose_tensor, (i, a, s)),
        ("decompose_tensor", decompose, ops.fn_decompose_tensor, (x[0],)),
        ("tensor_norm3", norm, ops.fn_tensor_norm3, (x[0],)),
        ("equivariant_so3_matmul", so3, ops.fn_tensor_matmul_so3_3x3, (x[0], x[1])),
        ("equivariant_o3_matmul", o3, ops.fn_tensor_matmul_o3_3x3, (x[0], x[1])),
        (
            "tensornet_mp",
            lambda *t: passing(*t, *graph),
            lambda *t: ops.fn_message_passing(*t, *graph, *columns),
            (i, a, s, attributes),
        ),
        (
            "tensornet_radial_mp",
            lambda *t: radial(*t, row_data, row_indptr),
            lambda *t: ops.fn_radial_message_passing(*t, row_data, row_indptr),
            (vectors, attributes),
        ),
    ]
    for name, ours, theirs, inputs in families:
        for got, want in zip(results(ours, inputs), results(theirs, inputs), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
        print(f"{name}: values and gradients agree")
    counted = warp_op(
        kernels.count_row_col,
        "edge_index[2, e] -> row_count[n + 1], col_count[n + 1]",
        dim="e",
        sizes="n",
        name="matgl_families::count_row_col",
    )
    rows, cols = counted(edges.int(), n=NODES)
    torch.testing.assert_close((rows.cumsum(0).int(), cols.cumsum(0).int()), (row_indptr, columns[2]))
    print("graph_transform: counts agree (ints: no gradient)")


if __name__ == "__main__":
    main()
