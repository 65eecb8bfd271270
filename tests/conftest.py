"""Fixtures of the whole suite."""

from __future__ import annotations

import gc
import os

import pytest
import torch
import warp as wp

from support import compiled, eager
from warpops.calls.remember import forget_all
from warpops.emit import checks
from warpops.launch import native
from warpops.private import torch_guards
from warpops.private.short import FAST

wp.config.log_level = wp.LOG_WARNING
# The suite compiles many small modules: unoptimised code is made three times as fast, and computes the same.
wp.config.optimization_level = 0
# So with Inductor: in this process, without asking g++ for vector instructions, it takes half the time. Children inherit it.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

# A full collection walks all that PyTorch and Warp have made: at the usual rate, a sixth of the quick tests' time.
gc.set_threshold(*gc.get_threshold()[:2], 200)


@pytest.fixture(scope="session", autouse=True)
def native_launches():
    """Remembered launches are native from the first on, as they are in a program that has run for a while."""
    if FAST:
        native.make()
        assert native.ready()


class PoisonedTorch:
    """PyTorch for generated launches, but what is allocated empty is full of NaN (ints: of a large number).

    With it every test of the suite also shows that the elements of an output that is allocated empty are all written, and
    that gradients are filled before the adjoint adds to them.
    """

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def empty(*size, **options):
        return poisoned(torch.empty(*size, **options))

    @staticmethod
    def empty_like(*given, **options):
        return poisoned(torch.empty_like(*given, **options))


def poisoned(made):
    if type(made) is not torch.Tensor or made.is_meta:
        return made
    if made.dtype.is_floating_point:
        return made.fill_(float("nan"))
    made.view(torch.uint8).fill_(1 if made.dtype is torch.bool else 0x55) if made.numel() else None
    return made


checks.TORCH = PoisonedTorch()
checks.EMPTY_CPU = lambda *given: poisoned(torch_guards.empty_strided_cpu(*given))


@pytest.fixture(autouse=True)
def fresh_state():
    """Every test starts with the same random numbers and with nothing compiled before."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def frozen():
    """For files that collect garbage again and again: what was there before isn't walked each time.

    Not for the whole suite: ids of Warp's objects are looked for among what isn't frozen.
    """
    import torch._functorch.aot_autograd  # what the first compilation imports, with Dynamo, is half of it

    torch._dynamo.reset()
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def only_new():
    """Garbage, and objects that ids belong to, are looked for among what the test makes. ``frozen`` collects what was left
    before, and this doesn't: it is for tests that ask nothing of older objects."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(params=[eager, compiled], ids=["eager", "compiled"])
def mode(request):
    """How to run an op: as it is, or under ``torch.compile(fullgraph=True)``."""
    return request.param


# What PyTorch warns of its own code, in export and in Inductor.
TORCH_ABOUT_ITSELF = (
    "ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning",
    "ignore:`torch.jit.script(_method)?` is deprecated:FutureWarning",  # torch 2.14
    # torch 2.14 looks at gradients itself, and hides its own warning by a filter that turning warnings into errors beats.
    r"ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning:torch\._subclasses\.meta_utils",
    r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",
    r"ignore:Guards may run slower on Python 3\.13\.0:RuntimeWarning",
)


# What Warp warns of level 0 where it compiles for CUDA, and of the oldest Python that it takes.
WARP_ABOUT_ITSELF = (
    "ignore:CUDA Toolkit 13.1 and newer have an NVRTC compiler issue:UserWarning",
    r"ignore:Support for Python 3\.10 is deprecated:FutureWarning",
)


def pytest_configure(config):
    for line in TORCH_ABOUT_ITSELF + WARP_ABOUT_ITSELF:
        config.addinivalue_line("filterwarnings", line)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def launches(monkeypatch):
    """Counts launches: ``[forward, adjoint]``."""
    from warpops.launch.launcher import Launcher

    forget_all()  # a launch that another test made is made again without the launcher
    counts = [0, 0]
    forward, adjoint = Launcher.forward, Launcher.adjoint

    def count_forward(self, *arguments):
        counts[0] += 1
        return forward(self, *arguments)

    def count_adjoint(self, *arguments):
        counts[1] += 1
        return adjoint(self, *arguments)

    monkeypatch.setattr(Launcher, "forward", count_forward)
    monkeypatch.setattr(Launcher, "adjoint", count_adjoint)
    return counts
