"""Everything public has a docstring, and the examples in them run."""

from __future__ import annotations

import doctest
import inspect
import sys
import types
import warnings

import pytest

import warpops
import warpops.testing

MODULES = (warpops, warpops.testing)
EXCEPTIONS = (BaseException,)


def public():
    """(name, object) of what users call by name, and the public methods of its classes."""
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, str):
                continue
            yield f"{module.__name__}.{name}", value
            if inspect.isclass(value) and not issubclass(value, EXCEPTIONS):
                for method, member in vars(value).items():
                    if not method.startswith("_"):
                        yield f"{module.__name__}.{name}.{method}", member


NAMES = dict(public())


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_docstrings(name):
    own = inspect.getdoc(NAMES[name])
    assert own, name
    assert own.splitlines()[0].endswith((".", ":")), name


WITH_EXAMPLE = [name for name, value in NAMES.items() if ">>>" in (inspect.getdoc(value) or "")]
SLOW = {"warpops.testing.check"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in WITH_EXAMPLE])
def test_examples_run(name, monkeypatch):
    value = NAMES[name]
    function = value.fget if isinstance(value, property) else value
    # A module of its own for each: Warp builds all kernels of a module together, and asks its loader for their source.
    module = types.ModuleType(f"example_of_{name.replace('.', '_')}")
    module.__loader__ = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    (test,) = finder.find(function, name, module=inspect.getmodule(function), globs={})
    test.globs = vars(module)
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", warpops.GradientWarning)
        runner.run(test, out=told.append, clear_globs=False)
    assert runner.failures == 0, "".join(told)


def test_what_users_call_has_an_example():
    called = [name for name, v in NAMES.items() if inspect.isfunction(v) and not name.endswith(("preload",))]
    without = [name for name in called if ">>>" not in (inspect.getdoc(NAMES[name]) or "")]
    assert not without
