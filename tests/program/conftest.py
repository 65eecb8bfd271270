"""What the tests of programs are run on."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def x():
    return torch.rand(6)
