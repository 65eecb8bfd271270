"""FSDP2 and DistributedDataParallel, in two processes of one gloo group. DTensor: ``test_dtensor.py``."""

from __future__ import annotations

import pytest
import torch

import kernels
from ranks import Ranks, mesh_of
from support import close, eager

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks():
    pair = Ranks()
    yield pair
    pair.stop()


class Bumps(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.linspace(-1, 1, 5))
        self.scale = torch.nn.Linear(5, 2, bias=False)
        torch.nn.init.constant_(self.scale.weight, 0.3)
        self.unused = torch.nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return self.scale(kernels.gauss_op(x, self.w))


def batch(rank):
    return torch.linspace(-1, 1, 8) + 0.3 * rank


def train(model, own, steps=3):
    """Train on one rank's batch, or on both ranks' (their mean) in one process."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = sum(model(batch(rank)).square().mean() for rank in own) / len(own)
        loss.backward()
        optimiser.step()


def check_ddp(rank, mode):
    net = torch.nn.parallel.DistributedDataParallel(Bumps(), find_unused_parameters=True, gradient_as_bucket_view=True)
    train(mode(net), [rank])
    return [p.detach().clone() for p in (net.module.w, net.module.scale.weight)]


def check_fsdp(rank, mode):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    net = Bumps()
    del net.unused
    fully_shard(net.scale, mesh=mesh_of())
    fully_shard(net, mesh=mesh_of())
    assert isinstance(net.w, DTensor) and net.w.to_local().shape[0] < 5
    train(mode(net), [rank])
    return [p.detach().full_tensor() for p in (net.w, net.scale.weight)]


def check_training(ranks, function, mode):
    found = ranks.run(function, mode)
    alone = Bumps()
    train(alone, [0, 1])
    want = [p.detach() for p in (alone.w, alone.scale.weight)]
    for rank in range(2):
        close(found[rank], want)
    assert not torch.allclose(want[0], torch.linspace(-1, 1, 5), atol=1e-3), "it trained"


def without_fullgraph(function):
    """FSDP2's own hooks break the graph around the module."""
    return torch.compile(function, backend="aot_eager")


@pytest.mark.parametrize("mode", [eager, without_fullgraph], ids=["eager", "compiled"])
def test_distributed_data_parallel(ranks, mode):
    check_training(ranks, check_ddp, mode)


@pytest.mark.parametrize("mode", [eager, without_fullgraph], ids=["eager", "compiled"])
def test_fully_sharded_data_parallel(ranks, mode):
    check_training(ranks, check_fsdp, mode)
