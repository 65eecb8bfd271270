"""Names that would ruin something, and signatures that are none: always a SignatureError that says why."""

from __future__ import annotations

import keyword
import random

import pytest
import torch
import warp as wp

import kernels
from warpops import SignatureError, warp_op
from warpops.kernel.signature import CPP_WORDS
from warpops.plan.declaration import NO_NAMESPACE, NO_OPERATOR, declare


@wp.struct
class Fields:
    new: wp.array[float]


def make(**options):
    return warp_op(kernels.square, "x[n] -> y[n]", dim="n", **options)


@pytest.mark.parametrize(
    "name",
    [
        "mine::name",
        "mine::_dir",
        "mine::__class__",
        "mine::__file__",
        "_::square",
        "load_library::square",
        "_dir::square",
        "__class__::square",
        "higher_order::square",
        "loaded_libraries::square",
        "import_module::square",
        "name::square",
    ],
)
def test_a_name_that_pytorch_needs(name):
    with pytest.raises(SignatureError, match="would replace what torch.ops"):
        make(name=name)


def test_the_lists_are_those_of_this_pytorch():
    space = torch.ops.aten
    own = {n for n in (*vars(type(space)), *vars(type(torch.ops))) if not n.startswith("__")}
    assert own <= NO_NAMESPACE | {"__iter__"}
    assert {"name", "_dir"} <= {n for n in vars(space) if n in NO_OPERATOR} == NO_OPERATOR
    assert {
        n for n in vars(torch.ops) if not isinstance(getattr(torch.ops, n), type(space)) and n[:2] != "__"
    } <= NO_NAMESPACE


def test_the_namespace_is_whole_afterwards():
    op = make(name="whole::square")
    for bad in ("whole::name", "whole::_dir", "whole::__class__"):
        with pytest.raises(SignatureError):
            make(name=bad)
    assert torch.ops.whole.square(torch.ones(2)).tolist() == [1.0, 1.0]
    assert torch.ops.whole.name == "whole"
    assert op.name == "whole::square"


def test_a_kernel_called_name():
    @wp.kernel
    def name(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i]

    with pytest.raises(SignatureError, match="give another with name='namespace::op'"):
        warp_op(name)
    assert warp_op(name, name="mine::called_name")(torch.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("word", ["case", "new", "int"])
def test_an_argument_that_cpp_has_a_word_for(word):
    assert word in CPP_WORDS
    text = f"def kernel({word}: wp.array[float], y: wp.array[float]):\n    i = wp.tid()\n    y[i] = {word}[i]\n"
    with pytest.raises(SignatureError, match=f"'{word}' can't be called so: C\\+\\+"):
        warp_op(from_text(text))


def from_text(text):
    import linecache

    filename = f"<{text}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(True), filename)
    scope = {"wp": wp, "__name__": __name__}
    exec(compile(text, filename, "exec"), scope)
    return scope["kernel"]


def test_a_field_that_cpp_has_a_word_for():
    @wp.kernel
    def take(s: Fields, y: wp.array[float]):
        i = wp.tid()
        y[i] = s.new[i]

    with pytest.raises(SignatureError, match="'s.new' can't be called so"):
        warp_op(take, "-> y[n]", dim="n", sizes="n")


def test_an_argument_that_isnt_ascii():
    text = "def kernel(é: wp.array[float], y: wp.array[float]):\n    i = wp.tid()\n    y[i] = é[i]\n"
    with pytest.raises(SignatureError, match="'é' can't be called so: PyTorch takes ASCII"):
        warp_op(from_text(text))
    with pytest.raises(SignatureError, match="sizes takes plain names"):
        make(sizes="é")


def test_no_word_of_python_is_among_those_of_cpp():
    assert not [word for word in CPP_WORDS if keyword.iskeyword(word)]


@pytest.mark.parametrize(
    "text",
    [
        "x[n) + (m] -> y[n]",
        "x[\ud800] -> y[n]",
        "x[n\0]",
        f"x[{'-' * 5000}n]",
        f"x[{'(' * 500}n{')' * 500}]",
        f"x[n{' + n' * 3000}]",
        f"x[{'9' * 30}]",
        f"x[{'9' * 5000}]",
        f"x[*a{'+n' * 3000}]",
        "x[n], x[n]",
        "x[n]] -> y",
    ],
    ids=range(11),
)
def test_a_signature_that_is_none(text):
    with pytest.raises(SignatureError):
        warp_op(kernels.square, text, dim="n")


ATOMS = [
    "x",
    "y",
    "n",
    "k",
    "[",
    "]",
    "(",
    ")",
    "->",
    ",",
    "+",
    "-",
    "*",
    "//",
    "%",
    "/",
    "min",
    "max",
    "_",
    "1",
    "0",
    " ",
]
ATOMS += [
    "\n",
    "\0",
    "é",
    "\ud800",
    "'",
    '"',
    "\\",
    "#",
    ":=",
    "lambda",
    "x[n]",
    "**",
    ".",
    "x.y",
    "1.5",
    "0x1f",
    "9" * 30,
]
ATOMS += [
    "-" * 3000,
    "(" * 300,
    "+n" * 200,
    "await",
    "@",
    "==",
    "0b1",
    "1j",
    "True",
    "f'{n}'",
    "x[n) + (m]",
    "\u200b",
    "𝐧",
]


@pytest.mark.parametrize("seed", range(3))
def test_junk(seed):
    """Whatever is written: a declaration, or a SignatureError."""
    rng = random.Random(seed)
    for _ in range(300):
        text = "".join(rng.choice(ATOMS) for _ in range(rng.randint(1, 8)))
        if rng.random() < 0.5:
            text = f"x[{text}] -> y[n]"
        for options in (
            {"signature": text},
            {"dim": text},
            {"sizes": text},
            {"mutates": text},
            {"scratch": text},
            {"shapes": {"y": text}},
            {"name": text},
        ):
            try:
                declare("op", **options)
            except SignatureError:
                pass
