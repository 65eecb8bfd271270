"""The column of warpops in the table of ``benchmarks/features.py``: every cell is a yes."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from support import HERE

FILE = HERE.parent / "benchmarks" / "features.py"


def load():
    spec = importlib.util.spec_from_file_location("benchmark_features", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and Warp look for it
    spec.loader.exec_module(module)
    return module


features = load()


@pytest.mark.parametrize("row", features.ROWS_OF_TABLE, ids=lambda row: row.label)
def test_every_cell_is_a_yes(row, monkeypatch):
    monkeypatch.setattr(features, "BACKEND", "aot_eager")
    cell = features.look("warpops", row)
    assert cell.outcome == "yes", cell.details


def test_it_takes_one_line():
    assert features.lines_of(*features.SOURCES["warpops"]) == 1


def test_a_wrong_gradient_is_seen(monkeypatch):
    """The probes can tell: of a way that forgets a factor, no gradient is right."""
    by_warpops = features.by_warpops
    monkeypatch.setitem(features.MAKERS, "warpops", lambda case: lambda *given: 2.0 * by_warpops(case)(*given))
    rows = [row for row in features.ROWS_OF_TABLE if "radient" in row.label]
    assert rows
    for row in rows:
        assert features.look("warpops", row).outcome == "wrong", row.label
