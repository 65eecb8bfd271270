"""What the tests of programs are run on."""

from __future__ import annotations

import pytest
import torch

from warpops.launch import launcher
from warpops.program.run import Runner


@pytest.fixture
def x():
    return torch.rand(6)


@pytest.fixture
def runs(monkeypatch):
    """How often Python of a program has run, in a list of one."""
    count, call = [0], Runner._call

    def counted(self, run, values):
        count[0] += 1
        call(self, run, values)

    monkeypatch.setattr(Runner, "_call", counted)
    return count


@pytest.fixture(params=["short", "public"])
def way(request, monkeypatch):
    monkeypatch.setattr(launcher, "FAST", request.param == "short")
