"""PyTorch's caches on disk know an op by its name. A script that was edited must not get the graph of its old self."""

from __future__ import annotations

import pytest

from support import run_script

pytestmark = pytest.mark.slow

SCRIPT = """
import torch, warp as wp
from torch._dynamo.utils import counters
from warpops import warp_op

wp.config.log_level = wp.LOG_ERROR

@wp.kernel
def layer(x: wp.array[float], w: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i{offset}] = {body}

HELPER = {helper}

def size(x):
    return x.shape[0] + HELPER

op = warp_op(layer, "x[n], w[n] -> y", dim="n", shapes={{"y": size}}, init="zeros"{options})
x, w = (torch.tensor(v, requires_grad=True) for v in ([1.0, 2.0], [3.0, 4.0]))

for call in (op, op.overload, torch.ops.warpops.layer):
    try:
        y = torch.compile(lambda x, w: call(x, w), fullgraph=True)(x, w)
        gx, gw = torch.autograd.grad(y.sum(), (x, w), allow_unused=True)
        print(y.tolist(), gx.tolist(), None if gw is None else gw.tolist())
    except Exception as error:
        print(type(error).__name__, str(error).replace("\\n", " ")[:200])
hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
print("hits", hits > 0)
"""
FIRST = {"body": "x[i] * w[i]", "offset": "", "helper": 0, "options": ""}
RUNS = [
    ("as it was", {}, "[3.0, 8.0] [3.0, 4.0] [1.0, 2.0]"),
    ("again, from the cache", {}, "[3.0, 8.0] [3.0, 4.0] [1.0, 2.0]"),
    ("another body", {"body": "5.0 * x[i] * w[i]"}, "[15.0, 40.0] [15.0, 20.0] [5.0, 10.0]"),
    ("a global that a shape uses", {"helper": 1}, "[3.0, 8.0, 0.0] [3.0, 4.0] [1.0, 2.0]"),
    ("an input that gets no gradient", {"options": ", nondiff='w'"}, "[3.0, 8.0] [3.0, 4.0] None"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What each run printed, in order. They share their caches on disk."""
    folder = tmp_path_factory.mktemp("runs")
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    printed = {}
    for what, change, _ in RUNS:
        out = run_script(SCRIPT.format(**{**FIRST, **change}), folder / "script.py", **caches)
        printed[what] = out.strip().splitlines()[-4:]
    return printed


def test_the_cache_is_in_use(runs):
    assert runs["again, from the cache"][3] == "hits True"


@pytest.mark.parametrize("position", [0, 1], ids=["op(...)", "op.overload"])
@pytest.mark.parametrize(("what", "want"), [(what, want) for what, _, want in RUNS])
def test_an_edit_is_seen(runs, what, want, position):
    assert runs[what][position] == want


@pytest.mark.parametrize(("what", "want"), [(what, want) for what, _, want in RUNS])
def test_an_edit_is_seen_through_torch_ops(runs, what, want):
    """PyTorch keys this one by the bare name: only a tag that holds every contract can tell two of them apart."""
    assert runs[what][2] == want
