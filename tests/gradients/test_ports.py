"""Five wrappers of real projects' kernels, written anew: what a user writes, against a pure PyTorch reference.

Between ``# user`` and ``# end`` is all that a user writes; ``test_lines_a_user_writes`` counts it.
"""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
import torch
import warp as wp

from support import check_against, close, compiled
from warpops import warp_op


@pytest.fixture(autouse=True, scope="module")
def warp_ready():
    """Warp's own objects need a started Warp; ops start it themselves."""
    wp.init()


# user: skinning
@warp_op("rest[n], joints[m], indices[n, k], weights[n, k] -> posed[n]")
@wp.kernel
def skin(
    joints: wp.array[wp.types.matrix(shape=(4, 4), dtype=wp.Float)],
    rest: wp.array[wp.types.vector(length=3, dtype=wp.Float)],
    indices: wp.array2d[wp.int32],
    weights: wp.array2d[wp.Float],
    posed: wp.array[wp.types.vector(length=3, dtype=wp.Float)],
):
    i = wp.tid()
    total = rest[i] * weights.dtype(0.0)
    for k in range(indices.shape[1]):
        total += weights[i, k] * wp.transform_point(joints[indices[i, k]], rest[i])
    posed[i] = total


# end


def skin_reference(joints, rest, indices, weights):
    ones = torch.ones_like(rest[:, :1])
    moved = torch.einsum("nkij,nj->nki", joints[indices.long()], torch.cat([rest, ones], 1))
    return (weights[..., None] * moved[..., :3]).sum(1)


def skin_inputs(dtype):
    weights = torch.rand(6, 3)
    return [
        torch.randn(4, 4, 4).to(dtype),
        torch.randn(6, 3).to(dtype),
        torch.randint(0, 4, (6, 3), dtype=torch.int32),
        (weights / weights.sum(1, keepdim=True)).to(dtype),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_skinning(dtype, mode):
    tolerance = {"rtol": 3e-2, "atol": 3e-2} if dtype == torch.float16 else {}
    check_against(mode(skin), skin_reference, skin_inputs(dtype), **tolerance)


def test_skinning_checks():
    joints, rest, indices, weights = skin_inputs(torch.float64)
    leaves = [t.requires_grad_() for t in (joints, rest, weights)]
    assert torch.autograd.gradcheck(lambda j, r, w: skin(j, r, indices, w), leaves)
    torch.library.opcheck(skin.overload, (leaves[0], leaves[1], indices, leaves[2]))


# user: hash-grid encoding
@wp.func
def grid_hash(x: int, y: int, size: int):
    h = wp.uint32(x) ^ (wp.uint32(y) * wp.uint32(2654435761))
    return int(h % wp.uint32(size))


@warp_op("p[n], table[levels, size] -> features[n, levels]")
@wp.kernel
def encode(p: wp.array[wp.vec2], table: wp.array2d[wp.vec2], base: float, growth: float, features: wp.array2d[wp.vec2]):
    i, level = wp.tid()
    scaled = p[i] * (base * wp.pow(growth, float(level)))
    x, y = int(wp.floor(scaled[0])), int(wp.floor(scaled[1]))
    u, v = scaled[0] - float(x), scaled[1] - float(y)
    size = table.shape[1]
    features[i, level] = (
        (1.0 - u) * (1.0 - v) * table[level, grid_hash(x, y, size)]
        + u * (1.0 - v) * table[level, grid_hash(x + 1, y, size)]
        + (1.0 - u) * v * table[level, grid_hash(x, y + 1, size)]
        + u * v * table[level, grid_hash(x + 1, y + 1, size)]
    )


# end


def encode_reference(p, table, base, growth):
    features = []
    for level in range(table.shape[0]):
        scaled = p * (base * growth**level)
        cell = scaled.detach().floor()
        (u, v), (x, y) = (scaled - cell).unbind(1), cell.long().unbind(1)
        total = 0.0
        for dx, wx in ((0, 1.0 - u), (1, u)):
            for dy, wy in ((0, 1.0 - v), (1, v)):
                slot = ((x + dx) ^ ((y + dy) * 2654435761 % 2**32)) % table.shape[1]
                total = total + (wx * wy)[:, None] * table[level, slot]
        features.append(total)
    return torch.stack(features, 1)


def test_hash_grid_encoding(mode):
    call = mode(encode)
    given = [torch.rand(20, 2), torch.randn(3, 16, 2)]
    check_against(
        lambda p, t: call(p, t, 4.0, 1.5), lambda p, t: encode_reference(p, t, 4.0, 1.5), given, rtol=1e-3, atol=1e-3
    )


def test_hash_grid_encoding_trains():
    """A network reads the features: gradients reach the table through threads that share its entries."""
    table = torch.zeros(3, 64, 2, requires_grad=True)
    layer = torch.nn.Linear(6, 1)
    points = torch.rand(64, 2)
    target = torch.sin(6.0 * points[:, :1])
    optimizer = torch.optim.Adam([table, *layer.parameters()], lr=0.05)
    model = compiled(lambda points: layer(encode(points, table, 4.0, 1.5).flatten(1)))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(points) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


# user: signed distance to a mesh, with the unit vector as its gradient
@wp.kernel
def distance_gradient(
    p: wp.array[wp.vec3], normal: wp.array[wp.vec3], grad_d: wp.array[float], grad_p: wp.array[wp.vec3]
):
    i = wp.tid()
    grad_p[i] = grad_d[i] * normal[i]


@warp_op("p[n] -> d[n], normal[n]", nondiff="normal", backward=distance_gradient)
@wp.kernel
def signed_distance(mesh: wp.uint64, p: wp.array[wp.vec3], d: wp.array[float], normal: wp.array[wp.vec3]):
    i = wp.tid()
    query = wp.mesh_query_point_sign_normal(mesh, p[i], 1.0e6)
    offset = p[i] - wp.mesh_eval_position(mesh, query.face, query.u, query.v)
    d[i] = query.sign * wp.length(offset)
    normal[i] = query.sign * wp.normalize(offset)


# end


def cube():
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float32)
    faces = [0, 1, 3, 0, 3, 2, 4, 6, 7, 4, 7, 5, 0, 4, 5, 0, 5, 1, 2, 3, 7, 2, 7, 6, 0, 2, 6, 0, 6, 4, 1, 5, 7, 1, 7, 3]
    return wp.Mesh(points=wp.array(corners, dtype=wp.vec3), indices=wp.array(faces, dtype=int))


def cube_distance(p):
    q = p.abs() - 1.0
    return q.clamp(min=0.0).norm(dim=-1) + q.amax(-1).clamp(max=0.0)


def test_signed_distance(mode):
    mesh, call = cube(), mode(signed_distance)
    outside = torch.rand(10, 3) * 2.0 + torch.tensor([1.1, -1.0, 1.1])
    inside = torch.tensor([[0.5, 0.1, 0.2], [0.1, -0.7, 0.3], [0.0, 0.1, 0.9]])
    points = torch.cat([outside, inside])
    check_against(lambda p: call(mesh, p)[0], cube_distance, [points], rtol=1e-3, atol=1e-3)
    p = points.clone().requires_grad_()
    grad = torch.autograd.grad(call(mesh, p)[0].sum(), p)[0]
    close(grad.norm(dim=1), torch.ones(len(points)))


# user: gradient of a function on a point cloud, neighbours in compressed rows
@warp_op("x[n], f[n], rows[n + 1], columns[e], weights[e] -> grad[n]", dim="n")
@wp.kernel
def cloud_gradient(
    x: wp.array[wp.vec3d],
    f: wp.array[wp.float64],
    rows: wp.array[wp.int32],
    columns: wp.array[wp.int32],
    weights: wp.array[wp.float64],
    grad: wp.array[wp.vec3d],
):
    i = wp.tid()
    total = wp.vec3d()
    for e in range(rows[i], rows[i + 1]):
        j = columns[e]
        total += (x[j] - x[i]) * (weights[e] * (f[j] - f[i]))
    grad[i] = total


# end


def cloud():
    counts = torch.tensor([2, 0, 3, 1, 2])
    rows = torch.cat([torch.zeros(1), counts.cumsum(0)]).int()
    columns = torch.tensor([1, 2, 0, 3, 4, 2, 0, 3], dtype=torch.int32)
    source = torch.repeat_interleave(torch.arange(5), counts)
    return rows, columns, source


def test_gradient_on_a_point_cloud(mode):
    rows, columns, source = cloud()
    target = columns.long()

    def reference(x, f, w):
        terms = (x[target] - x[source]) * (w * (f[target] - f[source]))[:, None]
        return torch.zeros_like(x).index_add(0, source, terms)

    call = mode(cloud_gradient)
    double = {"dtype": torch.float64}
    given = [torch.randn(5, 3, **double), torch.randn(5, **double), torch.rand(8, **double)]
    check_against(lambda x, f, w: call(x, f, rows, columns, w), reference, given)
    leaves = [t.requires_grad_() for t in given]
    assert torch.autograd.gradcheck(lambda x, f, w: cloud_gradient(x, f, rows, columns, w), leaves)


# user: cubic B-spline interpolation on a 3-D grid
@wp.func
def basis(t: float):
    s = 1.0 - t
    return wp.vec4(
        s * s * s / 6.0,
        (3.0 * t * t * t - 6.0 * t * t + 4.0) / 6.0,
        (3.0 * s * s * s - 6.0 * s * s + 4.0) / 6.0,
        t * t * t / 6.0,
    )


@warp_op("grid[nx, ny, nz], p[n] -> value[n]")
@wp.kernel
def spline(grid: wp.array3d[float], p: wp.array[wp.vec3], value: wp.array[float]):
    i = wp.tid()
    x, y, z = int(wp.floor(p[i][0])), int(wp.floor(p[i][1])), int(wp.floor(p[i][2]))
    bx, by, bz = basis(p[i][0] - float(x)), basis(p[i][1] - float(y)), basis(p[i][2] - float(z))
    for a in range(4):
        for b in range(4):
            for c in range(4):
                ia = wp.clamp(x + a - 1, 0, grid.shape[0] - 1)
                ib = wp.clamp(y + b - 1, 0, grid.shape[1] - 1)
                ic = wp.clamp(z + c - 1, 0, grid.shape[2] - 1)
                value[i] += bx[a] * by[b] * bz[c] * grid[ia, ib, ic]


# end


def spline_reference(grid, p):
    cell = p.detach().floor()
    t = p - cell
    s = 1.0 - t
    weights = torch.stack(
        [s**3 / 6.0, (3.0 * t**3 - 6.0 * t**2 + 4.0) / 6.0, (3.0 * s**3 - 6.0 * s**2 + 4.0) / 6.0, t**3 / 6.0], -1
    )
    index = cell.long()[..., None] + torch.arange(-1, 3)
    ia, ib, ic = (index[:, axis].clamp(0, grid.shape[axis] - 1) for axis in range(3))
    picked = grid[ia[:, :, None, None], ib[:, None, :, None], ic[:, None, None, :]]
    return torch.einsum("nabc,na,nb,nc->n", picked, *weights.unbind(1))


def test_cubic_spline(mode):
    given = [torch.randn(5, 6, 7), torch.rand(12, 3) * torch.tensor([4.0, 5.0, 6.0])]
    check_against(mode(spline), spline_reference, given, rtol=1e-3, atol=1e-4)


def test_lines_a_user_writes():
    """The wrapper itself is one line for each; the rest is the kernel."""
    text = pathlib.Path(__file__).read_text()
    blocks = re.findall(r"^# user: (.*?)\n(.*?)^# end$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 5
    for name, body in blocks:
        lines = [line for line in body.splitlines() if line.strip()]
        around = [line for line in lines if line.startswith("@warp_op")]
        assert len(around) == 1, name
        assert len(lines) <= 25, f"{name}: {len(lines)}"
