"""Each kind of op, called: values and gradients are PyTorch's; and the table of kinds itself."""

from __future__ import annotations

import pytest

from kinds import KINDS, WORDS, rows


@pytest.mark.parametrize("name", KINDS)
def test_values_and_gradients(name):
    kind = KINDS[name]
    kind.agree(kind.call, kind.draw())


@pytest.mark.parametrize("name", KINDS)
def test_a_row_says_what_it_is_left_out_for(name):
    assert set(KINDS[name].without) <= set(WORDS)
    assert all(KINDS[name].without.values())


@pytest.mark.parametrize("word", WORDS)
def test_most_kinds_run_through_everything(word):
    assert sum(not row.marks for row in rows(word)) > 0.75 * len(KINDS)
