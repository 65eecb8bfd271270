"""PyTorch's caches on disk know an op by its name. A script that was edited must not get the graph of its old self."""

from __future__ import annotations

import json

import pytest

from support import run_script

pytestmark = pytest.mark.slow

HEAD = """
import json, sys
import torch, warp as wp
from torch._dynamo.utils import counters
from warpops import warp_op

wp.config.log_level = wp.LOG_ERROR
HELPER = 0
MAKERS = {}

def size(x):
    return x.shape[0] + HELPER
"""
FORM = """
def make():
    @wp.kernel
    def layer(x: wp.array[float], w: wp.array[float], y: wp.array[float]{argument}):
        i = wp.tid()
        {body}

    globals()["HELPER"] = {helper}
    return warp_op(layer, "x[n], w[n] -> {right}", dim="n", name="cached::layer"{options})

MAKERS[{what!r}] = make
"""
TAIL = """
printed = {}
for what, make in MAKERS.items():
    op = make()
    x, w = (torch.tensor(v, requires_grad=True) for v in ([1.0, 2.0], [3.0, 4.0]))
    for route, call in {"op": op, "op.overload": op.overload, "torch.ops": torch.ops.cached.layer}.items():
        torch._dynamo.reset()
        counters.clear()
        try:
            results = torch.compile(lambda x, w: call(x, w), fullgraph=True)(x, w)
            results = results if isinstance(results, tuple) else (results,)
            grads = torch.autograd.grad([r.sum() for r in results], (x, w), allow_unused=True)
            found = [[r.tolist() for r in results], [None if g is None else g.tolist() for g in grads]]
        except Exception as error:
            found = f"{type(error).__name__} {error}"
        hits = [counters["aot_autograd"]["autograd_cache_hit"], counters["inductor"]["fxgraph_cache_hit"]]
        with torch._functorch.config.patch(enable_autograd_cache=False):
            if what == "as it was" and route == "op":
                torch._dynamo.reset()
                counters.clear()
                torch.compile(lambda x, w: call(x, w), fullgraph=True)(x, w)
                hits[1] = counters["inductor"]["fxgraph_cache_hit"]
        printed[f"{what}, {route}"] = [found, hits]
    del op
print(json.dumps(printed))
"""
FIRST = {"argument": "", "body": "y[i] = x[i] * w[i]", "helper": 0, "right": "y", "options": ", shapes={'y': size}"}
ZEROS = {"options": ", shapes={'y': size}, init='zeros'"}
EDITS = {
    "as it was": ({}, [[[3.0, 8.0]], [[3.0, 4.0], [1.0, 2.0]]]),
    "another body": ({"body": "y[i] = 5.0 * x[i] * w[i]"}, [[[15.0, 40.0]], [[15.0, 20.0], [5.0, 10.0]]]),
    "the kernel's signature": (
        {"argument": ", s: float = 2.0", "body": "y[i] = s * x[i] * w[i]"},
        [[[6.0, 16.0]], [[6.0, 8.0], [2.0, 4.0]]],
    ),
    "roles": (
        {"body": "y[i] = x[i]; w[i] = 3.0 * w[i]", "right": "y, w[n]"},
        [[[1.0, 2.0], [9.0, 12.0]], [[1.0, 1.0], [3.0, 3.0]]],
    ),
    "shapes": ({"right": "y[n + 2]", "options": ""}, [[[3.0, 8.0, 0.0, 0.0]], [[3.0, 4.0], [1.0, 2.0]]]),
    "a callable": (
        {"options": ", shapes={'y': lambda x: x.shape[0] + 3}"},
        [[[3.0, 8.0, 0.0, 0.0, 0.0]], [[3.0, 4.0], [1.0, 2.0]]],
    ),
    "a global that a callable uses": ({"helper": 1, **ZEROS}, [[[3.0, 8.0, 0.0]], [[3.0, 4.0], [1.0, 2.0]]]),
    "init": (
        {"helper": 1, "options": ", shapes={'y': size}, init=7.0"},
        [[[3.0, 8.0, 7.0]], [[3.0, 4.0], [1.0, 2.0]]],
    ),
    "nondiff": ({"options": ", shapes={'y': size}, nondiff='w'"}, [[[3.0, 8.0]], [[3.0, 4.0], None]]),
}
CHANGES = [what for what in EDITS if what not in ("as it was", "another body")]
PROCESSES = {
    "first": ["as it was"],
    "edited": ["as it was", *CHANGES],
    # Operators of one name and one hash are told apart by numbers: were hashes to say too little of two contracts, each
    # would have the number here that the other had before.
    "the other way round": CHANGES[::-1],
    # A body leaves the contract, and so the names, as they are.
    "another body": ["another body"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What each process printed. They share their caches on disk."""
    folder = tmp_path_factory.mktemp("runs")
    caches = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    printed = {}
    for process, edits in PROCESSES.items():
        text = HEAD + "".join(FORM.format(**{**FIRST, **EDITS[what][0], "what": what}) for what in edits) + TAIL
        out = run_script(text, folder / "script.py", **caches)
        printed[process] = json.loads(out.strip().splitlines()[-1])
    return printed


def printed_by(runs, what):
    return [found for found in (runs[process] for process in PROCESSES) if f"{what}, op" in found]


@pytest.mark.parametrize(("position", "cache"), [(0, "AOTAutograd's"), (1, "Inductor's")])
def test_the_caches_are_in_use(runs, position, cache):
    _, hits = runs["edited"]["as it was, op"]
    assert hits[position] > 0, cache


@pytest.mark.parametrize("what", [*CHANGES, "another body"])
def test_an_edit_that_was_seen_before_is_found_again(runs, what):
    """Or else nothing here would show that the caches are safe."""
    for route in ("op", "op.overload", "torch.ops"):
        assert printed_by(runs, what)[-1][f"{what}, {route}"][1][0] > 0


@pytest.mark.parametrize("route", ["op", "op.overload"])
@pytest.mark.parametrize("what", EDITS)
def test_an_edit_is_seen(runs, what, route):
    for printed in printed_by(runs, what):
        assert printed[f"{what}, {route}"][0] == EDITS[what][1]


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_is_seen_through_torch_ops(runs, what):
    """PyTorch would key this one by the bare name, were ``torch.ops`` not to give the overload itself."""
    for printed in printed_by(runs, what):
        assert printed[f"{what}, torch.ops"][0] == EDITS[what][1]


def test_the_first_process_finds_nothing(runs):
    assert runs["first"]["as it was, op"][1][0] == 0
