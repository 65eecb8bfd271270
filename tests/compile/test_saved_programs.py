"""Saved programs in processes where the op is another: its body, warpops' version, then its schema."""

from __future__ import annotations

import json

import pytest

from support import run_script

pytestmark = pytest.mark.slow

OPS = """
import warp as wp
wp.config.log_level = wp.LOG_ERROR
import warpops.register.contract as contract
contract.VERSION = {version!r}
from warpops import warp_op

@warp_op("{left} -> y[n]", name="saved::op", dim="n")
@wp.kernel
def op({arguments}):
    i = wp.tid()
    y[i] = {body}
"""

SAVER = """
import torch, saved_ops

class Call(torch.nn.Module):
    def __init__(self, call, op):
        super().__init__()
        self.call, self.op = call, op

    def forward(self, x, w):
        op = self.op
        for _ in range(x.dim() - 1):
            op = torch.vmap(op, in_dims=(0, None, None))
        return op(x, w, 3.0)

n = torch.export.Dim("n", min=2)
for call, x in (("plain", torch.ones(4)), ("vmap", torch.ones(2, 4)), ("nested vmap", torch.ones(2, 3, 4))):
    module = Call(call, saved_ops.op)
    axis = x.dim() - 1
    program = torch.export.export(module, (x, torch.ones(4)), dynamic_shapes={"x": {axis: n}, "w": {0: n}})
    torch.export.save(program, call + ".pt2")
    torch.export.save(program.run_decompositions(), call + ", decomposed.pt2")
    if call == "nested vmap":
        continue
    torch._inductor.aoti_compile_and_package(program, package_path=call + ", package.pt2")
    torch.save(module, call + ".module.pt")
torch.export.save(torch.export.export(Call("plain", saved_ops.op.overload), (torch.ones(4), torch.ones(4))), "contract.pt2")
"""

LOADER = """
import json, pathlib, sys
import torch, saved_ops
sys.modules["__main__"].Call = type("Call", (torch.nn.Module,), {"forward": lambda self, x, w: self.op(x, w, 3.0)})

def load(path):
    if path.name.endswith(".module.pt"):
        return torch.load(path, weights_only=False)
    if "package" in path.name:
        return torch._inductor.aoti_load_package(str(path.resolve()))
    return torch.export.load(path).module()

found = {}
for path in sorted(pathlib.Path(".").glob("*.pt*")):
    if "vmap" in path.name and path.name.endswith("module.pt"):
        continue
    shape = (2, 3, 5) if "nested" in path.name else (2, 5) if "vmap" in path.name else (5,)
    x = torch.arange(1.0, 6.0).expand(shape)
    try:
        found[path.name] = load(path)(x, torch.full((5,), 100.0)).tolist()
    except Exception as error:
        found[path.name] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

PROGRAMS = ["nested vmap, decomposed.pt2"]
"""Loaded before the others: what they make must not help."""
PROGRAMS += [f"{call}{how}.pt2" for call in ("plain", "vmap") for how in ("", ", decomposed", ", package")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("saved")


@pytest.fixture(scope="module")
def load(folder):
    """What a process with another op makes of the programs that one with ``x * k + w`` saved."""

    def write(arguments, body, left="x[n], w[n]", version="0.1.0"):
        text = OPS.format(arguments=arguments, body=body, left=left, version=version)
        (folder / "saved_ops.py").write_text(text)

    def run(script):
        inside = f"import os, sys\nos.chdir({str(folder)!r})\nsys.path.insert(0, '')\nsys.dont_write_bytecode = True\n"
        return run_script(inside + script, folder / "script.py")

    write("x: wp.array[float], w: wp.array[float], k: float, y: wp.array[float]", "x[i] * k + w[i]")
    run(SAVER)

    def load(*given, **named):
        write(*given, **named)
        return json.loads(run(LOADER).strip().splitlines()[-1])

    return load


def test_another_body_and_another_version(load):
    arguments = "x: wp.array[float], w: wp.array[float], k: float, y: wp.array[float]"
    found = load(arguments, "10.0 * x[i] * k + w[i]", version="9.9.9")
    want = [30.0 * i + 100.0 for i in range(1, 6)]
    for name in (*PROGRAMS, "plain.module.pt"):
        mapped = [want, want] if "vmap" in name else want
        assert found[name] == ([[want] * 3] * 2 if "nested" in name else mapped), name
    assert "Error" in found["contract.pt2"]


@pytest.mark.parametrize(
    ("arguments", "left", "body"),
    [
        ("x: wp.array[float], w: wp.array[float], y: wp.array[float]", "x[n], w[n]", "x[i] + w[i]"),
        ("x: wp.array[float], w: wp.array[float], s: float, y: wp.array[float]", "x[n], w[n]", "x[i] * s + w[i]"),
        ("x: wp.array[float], w: float, k: float, y: wp.array[float]", "x[n]", "x[i] * k + w"),
        (
            "x: wp.array[float], w: wp.array[float], k: float, v: wp.array[float], y: wp.array[float]",
            "x[n], w[n], v[n]",
            "x[i] * k + w[i] + v[i]",
        ),
    ],
    ids=["without a number", "renamed", "another type", "one more"],
)
def test_another_schema(load, arguments, left, body):
    found = load(arguments, body, left)
    for name in PROGRAMS:
        assert "ArgumentError: saved::op: " in found[name], found[name]
        assert "export the program again" in found[name]
