"""Programs exported here and loaded in a fresh process, which imports the modules of the ops and nothing else."""

from __future__ import annotations

import pytest
import torch

import kernels
import test_generic
from support import close, run_script

pytestmark = pytest.mark.slow

B, N, K = 4, 5, 3


class Run(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.scale = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, *tensors):
        return self.function(*(t * self.scale for t in tensors))


def plain(x, w):
    return kernels.gauss_op(x, w).sum(0)


def plain_(x, w):
    return kernels.gauss_(x, w).sum(0)


def mapped(x, w):
    return torch.vmap(kernels.product_op, in_dims=(0, None))(x, w)


def mapped_twice(x, w):
    return torch.vmap(lambda w: torch.vmap(lambda x: kernels.product_op(x, w))(x))(w)


def mapped_with_numbers(x):
    return torch.vmap(lambda x: kernels.mixed_op(x, 2.0, 3, True))(x)


def mapped_generic(x, y):
    return torch.vmap(test_generic.multiply_op)(x, y)


def two(x, w):
    return plain(x[0], w), mapped(x, x[0]) + mapped_with_numbers(x)


def two_(x, w):
    return plain_(x[0], w), kernels.product_(x, x[0]) + kernels.mixed_(x, 2.0, 3, True)


DYNAMIC = {0: torch.export.Dim("n", min=2)}
PROGRAMS = {
    # what: function, reference, shapes to export with, dynamic axes, options, decomposed, shapes to run with
    "strict": (plain, plain_, ((N,), (K,)), None, {"strict": True}, False, ((N,), (K,))),
    "not strict": (plain, plain_, ((N,), (K,)), None, {"strict": False}, False, ((N,), (K,))),
    "dynamic": (plain, plain_, ((N,), (K,)), (DYNAMIC, {}), {}, False, ((9,), (K,))),
    "decomposed": (plain, plain_, ((N,), (K,)), (DYNAMIC, {}), {}, True, ((9,), (K,))),
    "two outputs, decomposed": (kernels.spring_op, kernels.spring_, ((N, 3), (N,)), None, {}, True, ((N, 3), (N,))),
    "in-out, decomposed": (kernels.multiply_op, lambda x, y: x * y, ((N,), (N,)), None, {}, True, ((N,), (N,))),
    "vmap": (mapped, kernels.product_, ((B, N), (N,)), None, {}, False, ((B, N), (N,))),
    "vmap, decomposed": (mapped, kernels.product_, ((B, N), (N,)), None, {}, True, ((B, N), (N,))),
    "vmap, dynamic, decomposed": (
        mapped,
        kernels.product_,
        ((B, N), (N,)),
        ({1: torch.export.Dim("m", min=2)}, {0: torch.export.Dim("m", min=2)}),
        {},
        True,
        ((B, 9), (9,)),
    ),
    "nested vmap, decomposed": (
        mapped_twice,
        lambda x, w: kernels.product_(x, w[:, None]),
        ((B, N), (2, N)),
        None,
        {},
        True,
        ((B, N), (2, N)),
    ),
    "vmap with numbers, decomposed": (
        mapped_with_numbers,
        lambda x: kernels.mixed_(x, 2.0, 3, True),
        ((B, N),),
        None,
        {},
        True,
        ((B, N),),
    ),
    "generic vmap, decomposed": (
        mapped_generic,
        lambda x, y: x * y,
        ((B, N), (B, N)),
        None,
        {},
        True,
        ((B, N), (B, N)),
    ),
}

LOADER = """
import sys, traceback
import torch, warp as wp
wp.config.log_level = wp.LOG_ERROR
import kernels, test_generic

folder, package = sys.argv[1:]
jobs, packaged = torch.load(folder + "/jobs.pt")
found = {}
for index, (what, inputs) in enumerate(jobs.items()):
    try:
        module = torch.export.load(f"{folder}/{index}.pt2").module()
        inputs = [t.requires_grad_() for t in inputs]
        results = module(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        grads = torch.autograd.grad([r.square().sum() for r in results], inputs)
        found[what] = ([r.detach() for r in results], grads)
    except Exception:
        found[what] = traceback.format_exc()
try:
    found["package"] = torch._inductor.aoti_load_package(package)(*packaged)
except Exception:
    found["package"] = traceback.format_exc()
torch.save(found, folder + "/found.pt")
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What a fresh process made of each program, and what it should have: results, and gradients of the inputs."""
    folder = tmp_path_factory.mktemp("programs")
    torch.manual_seed(1)
    jobs, want = {}, {}
    for index, (what, row) in enumerate(PROGRAMS.items()):
        function, reference, shapes, dynamic, options, decomposed, later = row
        program = torch.export.export(
            Run(function),
            tuple(torch.randn(shape) for shape in shapes),
            dynamic_shapes=None if dynamic is None else (dynamic,),
            **options,
        )
        torch.export.save(program.run_decompositions() if decomposed else program, folder / f"{index}.pt2")
        jobs[what] = [torch.randn(shape) for shape in later]
        inputs = [t.clone().requires_grad_() for t in jobs[what]]
        results = reference(*(t * 1.5 for t in inputs))
        results = results if isinstance(results, tuple) else (results,)
        grads = torch.autograd.grad([r.square().sum() for r in results], inputs)
        want[what] = ([r.detach() for r in results], grads)
    n = torch.export.Dim("n", min=2)
    program = torch.export.export(Run(two), (torch.randn(B, N), torch.randn(K)), dynamic_shapes=(({1: n}, {}),))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "package.pt2"))
    packaged = [torch.randn(B, 9), torch.randn(K)]
    want["package"] = two_(*(t * 1.5 for t in packaged))
    torch.save((jobs, packaged), folder / "jobs.pt")
    script = LOADER.replace("sys.argv[1:]", repr((str(folder), package)))
    run_script(script, folder / "loader.py")
    return torch.load(folder / "found.pt"), want


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_is_loaded_and_differentiated(loaded, what):
    found, want = loaded
    assert not isinstance(found[what], str), found[what]
    close(tuple(found[what][0]), tuple(want[what][0]))
    close(tuple(found[what][1]), tuple(want[what][1]))


def test_a_package_of_aotinductor(loaded):
    """With an op called once, and two under vmap."""
    found, want = loaded
    assert not isinstance(found["package"], str), found["package"]
    close(tuple(found["package"]), want["package"])
