"""A build that takes long says so, once, on the standard error stream."""

from __future__ import annotations

import time

import pytest
import warp as wp

from warpops import warp_op
from warpops.private import told


@pytest.fixture
def slow(monkeypatch, tmp_path):
    """Warp's loading, slower than anybody waits, with nothing in its cache."""
    load = wp.Module.load

    def loading(self, *args):
        time.sleep(0.2)
        return load(self, *args)

    wp.init()
    monkeypatch.setattr(wp.config, "kernel_cache_dir", str(tmp_path))
    monkeypatch.setattr(wp.config, "log_level", wp.LOG_INFO)
    monkeypatch.setattr(told, "PATIENCE", 0.02)
    monkeypatch.setattr(wp.Module, "load", loading)


def make(divisor=3.0):
    def divided(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i] / divisor

    return warp_op(wp.kernel(divided, module="unique"))


def test_a_long_build_is_told_of(slow, capfd):
    op = make()
    op.preload()
    assert capfd.readouterr().err.count("warpops: Warp is building the module") == 1


@pytest.mark.skipif(
    not hasattr(wp.Module, "get_module_identifier"), reason="this Warp doesn't tell where a module goes"
)
def test_nothing_is_said_of_a_module_that_is_built(slow, capfd):
    make(7.0).preload()
    assert "is building" in capfd.readouterr().err
    make(7.0).preload()
    assert "is building" not in capfd.readouterr().err


def test_nothing_is_said_of_a_short_one(capfd, monkeypatch):
    monkeypatch.setattr(wp.config, "log_level", wp.LOG_INFO)
    monkeypatch.setattr(told, "PATIENCE", 600.0)
    make().preload()
    assert "is building" not in capfd.readouterr().err


def test_nothing_is_said_where_warp_is_told_to_be_quiet(slow, capfd, monkeypatch):
    monkeypatch.setattr(wp.config, "log_level", wp.LOG_WARNING)
    make().preload()
    assert "is building" not in capfd.readouterr().err
