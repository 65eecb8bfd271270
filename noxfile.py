"""The test suite over versions of Python, PyTorch, Warp and numpy, each in an environment of its own.

    nox -l                                                # what there is
    nox -t floors                                         # the oldest of everything
    nox -k "3.12 and 2.14" -- tests/calls -x              # some of it; what follows -- goes to pytest
    nox                                                   # all of it
"""

from __future__ import annotations

import itertools

import nox

PYTHON = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))
TORCH = ("2.13", "2.14", "2.15")
WARP = ("1.16", "1.19")
NUMPY = ("1.26", "newest")


def environments() -> list:
    """All that there are wheels for: numpy 1.26 has none for Python 3.13."""
    found = []
    for python, torch, warp, numpy in itertools.product(PYTHON, TORCH, WARP, NUMPY):
        if (python, numpy) != ("3.13", "1.26"):
            tags = ["floors"] if (torch, warp, numpy) == (TORCH[0], WARP[0], NUMPY[0]) else []
            name = f"python-{python}, torch-{torch}, warp-{warp}, numpy-{numpy}"
            found.append(nox.param(python, torch, warp, numpy, id=name, tags=tags))
    return found


@nox.session
@nox.parametrize(("python", "torch", "warp", "numpy"), environments())
def tests(session: nox.Session, torch: str, warp: str, numpy: str) -> None:
    """Install the project with these versions, and run pytest."""
    pins = [f"torch=={torch}.*", f"warp-lang=={warp}.*", "numpy" if numpy == "newest" else f"numpy=={numpy}.*"]
    session.install("-e", ".[test]", *pins)
    session.run("python", "-m", "pytest", *session.posargs)
