"""The column of warpops in the table of ``benchmarks/features.py``: every cell is a yes."""

from __future__ import annotations

import pytest

import feature_probes
import features


@pytest.mark.parametrize("row", features.ROWS_OF_TABLE, ids=lambda row: row.label)
def test_every_cell_is_a_yes(row, monkeypatch):
    monkeypatch.setattr(feature_probes, "BACKEND", "aot_eager")
    cell = features.look("warpops", row)
    assert cell.outcome == "yes", cell.details


def test_it_takes_one_line():
    assert features.lines_of(*features.SOURCES["warpops"]) == 1


def test_a_wrong_gradient_is_seen(monkeypatch):
    """The probes can tell: of a way that forgets a factor, no gradient is right."""
    by_warpops = features.MAKERS["warpops"]
    monkeypatch.setitem(features.MAKERS, "warpops", lambda case: lambda *given: 2.0 * by_warpops(case)(*given))
    rows = [row for row in features.ROWS_OF_TABLE if "radient" in row.label]
    assert rows
    for row in rows:
        assert features.look("warpops", row).outcome == "wrong", row.label
