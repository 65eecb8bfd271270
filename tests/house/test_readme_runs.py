"""The README's own code: every block of Python runs, in order, and every signature of the ten lines is one."""

from __future__ import annotations

import re

import pytest

from support import HERE, run_main
from warpops.plan.declaration import declare

BLOCKS = re.findall(r"```python\n(.*?)```", (HERE.parent / "README.md").read_text(), re.S)
(TEN,) = [block for block in BLOCKS if block.startswith("@warp_op   ")]
LINES = [line for line in TEN.splitlines() if "(" in line.split("#")[0]]

AFTER = """
x = torch.rand(5, requires_grad=True)
(before,) = torch.autograd.grad(scale_forward(x, 3.0).square().sum(), x)
(after,) = torch.autograd.grad(scale(x, 3.0).square().sum(), x)
assert torch.equal(before, after)
"""


def test_the_blocks_run(tmp_path):
    run_main("\n".join(block for block in BLOCKS if block is not TEN) + AFTER, tmp_path / "readme.py")


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_ten_is_a_declaration(line):
    eval(line.split("#")[0].strip()[1:], {"warp_op": lambda *given, **options: declare("op", *given, **options)})


def test_they_are_ten():
    assert len(TEN.splitlines()) == 10
