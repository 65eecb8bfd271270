"""The test suite over versions of Python, PyTorch, Warp and numpy, each in an environment of its own.

nox -l                                                # what there is
nox -t floors                                         # the oldest of everything
nox -t each                                           # every version once, in four environments
nox -k "py312 and torch214" -- tests/calls -x         # some of it; what follows -- goes to pytest
nox                                                   # all of it
"""

from __future__ import annotations

import itertools

import nox

PYTHON = nox.project.python_versions(nox.project.load_toml("pyproject.toml"))
TORCH = ("2.13", "2.14", "2.15")
WARP = ("1.16", "1.17", "1.18", "1.19")
NUMPY = ("1.26", "newest")
EACH = (
    ("3.10", "2.13", "1.16", "1.26"),
    ("3.11", "2.14", "1.19", "newest"),
    ("3.12", "2.14", "1.17", "newest"),
    ("3.13", "2.15", "1.18", "newest"),
)
"""Every version once."""


def environments() -> list:
    """All that there are wheels for: numpy 1.26 has none for Python 3.13."""
    found = []
    for python, torch, warp, numpy in itertools.product(PYTHON, TORCH, WARP, NUMPY):
        if (python, numpy) != ("3.13", "1.26"):
            tags = ["floors"] if (torch, warp, numpy) == (TORCH[0], WARP[0], NUMPY[0]) else []
            tags += ["each"] if (python, torch, warp, numpy) in EACH else []
            name = f"py{python}, torch{torch}, warp{warp}, numpy{numpy}".replace(".", "")
            found.append(nox.param(python, torch, warp, numpy, id=name, tags=tags))
    return found


@nox.session
@nox.parametrize(("python", "torch", "warp", "numpy"), environments())
def tests(session: nox.Session, torch: str, warp: str, numpy: str) -> None:
    """Install the project with these versions, and run pytest."""
    pins = [f"torch=={torch}.*", f"warp-lang=={warp}.*", "numpy" if numpy == "newest" else f"numpy=={numpy}.*"]
    session.install("-e", ".[test]", *pins)
    session.run("python", "-m", "pytest", *session.posargs)
