"""A shape that a callable computes, in compiled code: what it reads besides its arguments may not change unnoticed."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import close
from warpops import ArgumentError, warp_op

FACTOR = 2


@warp_op("x[n] -> y", shapes={"y": lambda x: x.shape[0] * FACTOR}, dim=lambda x: x.shape[0])
@wp.kernel
def into_more(x: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i]


def test_another_global_is_no_stale_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: into_more(x), fullgraph=True)  # by Inductor, which makes the buffers
    x = torch.tensor([1.0, 2.0, 3.0])
    for _ in range(3):
        close(compiled(x), torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 0.0]))
    close(compiled(torch.ones(4)), torch.tensor([1.0] * 4 + [0.0] * 4))
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert into_more(x).shape == (9,)
    with pytest.raises(ArgumentError, match=r"the shape of 'y': its callable gives \(9,\), and the array .* \(6,\)"):
        compiled(x)
    monkeypatch.setitem(globals(), "FACTOR", 2)
    close(compiled(x), torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 0.0]))
