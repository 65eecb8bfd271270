"""A graph of second derivatives, or with a vmapped op, from the cache on disk: the process that reads it never traced it."""

from __future__ import annotations

import json

import pytest
import torch

from support import run_script

pytestmark = pytest.mark.slow

SCRIPT = """
import json, torch, warp as wp
from torch._dynamo.utils import counters
from warpops import warp_op

wp.config.log_level = wp.LOG_ERROR

@warp_op(name="cached::cubic")
@wp.kernel
def cubic(x: wp.array[wp.float64], w: wp.array[wp.float64], y: wp.array[wp.float64]):
    i = wp.tid()
    y[i] = x[i] * x[i] * x[i] * w[i]

def loss(x, w):
    (g,) = torch.autograd.grad(cubic(x, w).sum(), x, create_graph=True)
    return g.square().sum()

x = torch.tensor([1.0, 2.0], dtype=torch.float64).requires_grad_()
w = torch.tensor([1.0, 0.5], dtype=torch.float64).requires_grad_()
with torch._dynamo.config.patch(trace_autograd_ops=True):
    torch.compile(loss, fullgraph=True)(x, w).backward()
tangent = torch.compile(lambda x, w: cubic.tangent(x, w, tangent_w=w)[1], fullgraph=True)(x, w)
hits = [counters["aot_autograd"]["autograd_cache_hit"]]
counters.clear()
batch = torch.stack([x.detach(), 2.0 * x.detach()]).requires_grad_()
vmapped = torch.compile(lambda x, w: torch.func.vmap(cubic, (0, None))(x, w), fullgraph=True)
vmapped(batch, w.detach()).sum().backward()
hits.append(counters["aot_autograd"]["autograd_cache_hit"])
print(json.dumps([x.grad.tolist(), w.grad.tolist(), tangent.tolist(), batch.grad.tolist(), hits]))
"""


@pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"), reason="this torch can't trace autograd.grad"
)
def test_a_second_process_reads_the_graph(tmp_path):
    folder = str(tmp_path / "inductor")
    first, second = (
        json.loads(run_script(SCRIPT, tmp_path / f"run{k}.py", TORCHINDUCTOR_CACHE_DIR=folder)) for k in range(2)
    )
    want = [[36.0, 72.0], [18.0, 144.0], [1.0, 4.0], [[3.0, 6.0], [12.0, 24.0]]]
    assert first[:4] == want
    assert second[:4] == want
    assert first[4] == [0, 0]
    assert all(second[4])
