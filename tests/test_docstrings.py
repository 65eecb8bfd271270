"""Everything public has a docstring, and the examples in them run."""

from __future__ import annotations

import doctest
import inspect
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


@pytest.mark.parametrize("name", [name for name, value in NAMES.items() if ">>>" in (inspect.getdoc(value) or "")])
def test_examples_run(name):
    value = NAMES[name]
    function = value.fget if isinstance(value, property) else value
    module = inspect.getmodule(function)
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    (test,) = finder.find(function, name, module=module, globs={"__name__": "__main__"})
    told: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", warpops.GradientWarning)
        runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)


def test_what_users_call_has_an_example():
    called = [name for name, v in NAMES.items() if inspect.isfunction(v) and not name.endswith(("preload",))]
    without = [name for name in called if ">>>" not in (inspect.getdoc(NAMES[name]) or "")]
    assert not without
