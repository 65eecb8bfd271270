"""What the user declares: the signature string and the options, parsed, checked for themselves and frozen.

Whether the declaration fits the kernel is the plan's question.
"""

from __future__ import annotations

import keyword
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import SignatureError
from ..frozen import frozen
from .sizes import Expr, SizeError, integer, parse_sizes

Dims = tuple[Expr | None, ...]
Callback = Callable[..., Any]

_TERM = re.compile(r"\s*([^\W\d]\w*(?:\.[^\W\d]\w*)*)\s*(\[([^\[\]]*)\])?\s*")


@frozen
class Term:
    """``name`` or ``name[dims]`` of a signature."""

    name: str
    dims: Dims | None = None

    def __str__(self) -> str:
        if self.dims is None:
            return self.name
        return f"{self.name}[{', '.join('_' if d is None else str(d) for d in self.dims)}]"


@frozen
class Declaration:
    """Everything that was said about one op, apart from the kernel itself."""

    signature: str | None = None
    left: tuple[Term, ...] = ()
    right: tuple[Term, ...] | None = None
    """None where the outputs are left to be read from the kernel."""
    name: str | None = None
    dim: tuple[Expr, ...] | Callback | None = None
    shapes: tuple[tuple[str, Dims | Callback], ...] = ()
    init: str | float | None = None
    """For every output not named in ``inits``; None is ``auto``."""
    inits: tuple[tuple[str, str | float], ...] = ()
    mutates: tuple[str, ...] = ()
    scratch: tuple[Term, ...] = ()
    sizes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    nondiff: tuple[str, ...] = ()
    tensor_scalars: tuple[str, ...] = ()
    null_with: tuple[tuple[str, str], ...] = ()
    """Arrays that are null where others are, so that the kernel may ask for either: a backward's gradients of what may be."""
    backward: Any = None
    block_dim: int | None = None
    tiled: bool = False
    derived: bool = False
    """Of a kernel made of another: it may leave an in-out array as it is, which nobody would declare so."""

    def derive(self, signature: str, **changes: Any) -> Declaration:
        """That of an op whose kernel is made of this one's."""
        return replace(self, signature=signature, name=None, init=None, backward=None, derived=True, **changes)


def parse_terms(text: str, op: str, whole: str) -> tuple[Term, ...]:
    """Parse a comma-separated list of ``name`` or ``name[dims]``."""
    terms: list[Term] = []
    position = 0
    while position < len(text) or (terms and text.strip()):
        match = _TERM.match(text, position)
        if match is None:
            rest = text[position:].strip()
            if not rest and not terms:
                return ()
            raise SignatureError(_advise(op, whole, rest))
        name, brackets, inner = match.group(1), match.group(2), match.group(3)
        try:
            dims = parse_sizes(inner) if brackets is not None else None
        except SizeError as error:
            raise SignatureError(f"{op}: in the signature {whole!r}, at '{name}': {error}") from None
        if name in [term.name for term in terms]:
            raise SignatureError(f"{op}: '{name}' stands twice on one side of the signature {whole!r}")
        terms.append(Term(name, dims))
        position = match.end()
        if position == len(text):
            break
        if text[position] != ",":
            raise SignatureError(_advise(op, whole, text[position:].strip()))
        position += 1
    return tuple(terms)


def _advise(op: str, whole: str, rest: str) -> str:
    message = f"{op}: the signature {whole!r} can't be read at {rest!r}"
    if rest.startswith("("):
        return f"{message}: write sizes in square brackets, as in 'x[n, k]'"
    if rest and (rest[0].isalpha() or rest[0] == "_"):
        return f"{message}: separate arrays with commas, as in 'x[n], w[k] -> y[n, k]'"
    if not rest:
        return f"{message}: an array's name is missing after a comma"
    return f"{message}: write 'inputs -> outputs', each a list of 'name' or 'name[sizes]'"


def names_of(value: object, option: str, op: str) -> tuple[str, ...]:
    """An option that takes one name or several."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, Iterable):
        raise SignatureError(f"{op}: {option} takes a name or names, and got {value!r}")
    names = tuple(value)
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise SignatureError(f"{op}: {option} takes names of arguments, and got {name!r}")
    if len(set(names)) < len(names):
        raise SignatureError(f"{op}: {option} names an argument twice: {', '.join(names)}")
    return names


def _dims(value: object, what: str, op: str) -> Dims | Callback:
    if callable(value):
        return value
    if isinstance(value, str):
        value = value.strip()
        if value.startswith("[") and value.endswith("]"):
            value = value[1:-1]
        try:
            return parse_sizes(str(value))
        except SizeError as error:
            raise SignatureError(f"{op}: {what}: {error}") from None
    items = (value,) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(items, (tuple, list)):
        raise SignatureError(f"{op}: {what} takes a string of sizes, an int, a tuple or a callable, and got {value!r}")
    dims: list[Expr | None] = []
    for item in items:
        if isinstance(item, str):
            one = _dims(item, what, op)
            assert not callable(one)
            dims.extend(one)
        elif isinstance(item, int) and not isinstance(item, bool):
            if item < 0:
                raise SignatureError(f"{op}: {what} has the negative size {item}")
            dims.append(integer(item))
        else:
            raise SignatureError(f"{op}: {what} holds {item!r}, which is no size")
    return tuple(dims)


def _init(value: object, what: str, op: str) -> str | float:
    if isinstance(value, str) and value in ("auto", "zeros", "empty"):
        return value
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**1023):
        return value
    raise SignatureError(f"{op}: {what} is 'auto', 'zeros', 'empty' or a number, and got {value!r}")


PYTORCH_S = frozenset({"aten", "prim", "prims", "inductor", "quantized", "profiler", "c10d", "c10d_functional"})
"""Namespaces of PyTorch's own operators."""

NO_NAMESPACE = frozenset((*dir(object), *dir(types.ModuleType("ops")))) | {
    *("_", "_dir", "higher_order", "import_module", "load_library", "loaded_libraries", "name"),
    *("__all__", "__dict__", "__file__", "__getattr__", "__iter__", "__path__"),
}
"""What ``torch.ops`` has of its own, or takes for all namespaces."""

NO_OPERATOR = frozenset({"_dir", "name"})
"""What each namespace of ``torch.ops`` has of its own."""


def check_name(op: str, name: Any) -> str:
    """The name of an operator, unless it can't be one.

    Raises:
        SignatureError: it isn't ``namespace::op`` of ASCII identifiers, or would replace one of PyTorch's operators, or
            what ``torch.ops`` needs itself.
    """
    parts = name.split("::") if isinstance(name, str) else []
    if len(parts) != 2 or any(not p.isascii() or not p.isidentifier() or keyword.iskeyword(p) for p in parts):
        raise SignatureError(f"{op}: name is 'namespace::op', of two ASCII identifiers, and got {name!r}")
    if parts[0] in PYTORCH_S:
        raise SignatureError(f"{op}: the namespace of {name!r} is PyTorch's own; choose another")
    if parts[0] in NO_NAMESPACE or parts[1] in NO_OPERATOR or parts[1].startswith("__"):
        taken = "torch.ops" if parts[0] in NO_NAMESPACE else f"torch.ops.{parts[0]}"
        raise SignatureError(
            f"{op}: the name {name!r} would replace what {taken} has of its own; give another with name='namespace::op'"
        )
    return str(name)


def _launch(value: object, option: str, op: str) -> tuple[Expr, ...] | Callback:
    dims = _dims(value, option, op)
    if callable(dims):
        return dims
    if None in dims:
        raise SignatureError(f"{op}: dim can't hold '_': a launch needs every size")
    return tuple(size for size in dims if size is not None)


def _shapes(value: object, option: str, op: str) -> tuple[tuple[str, Dims | Callback], ...]:
    if not isinstance(value, Mapping):
        raise SignatureError(f"{op}: shapes is a dict by output, and got {value!r}")
    return tuple((output, _dims(shape, f"the shape of '{output}'", op)) for output, shape in value.items())


def _scratch(value: object, option: str, op: str) -> tuple[Term, ...]:
    several = isinstance(value, Iterable) and not isinstance(value, (str, Mapping))
    texts: tuple[Any, ...] = tuple(value) if several else (value,)  # type: ignore[arg-type]
    if not all(isinstance(text, str) for text in texts):
        raise SignatureError(f"{op}: scratch takes names with sizes, as in 'tmp[n, 3]', and got {value!r}")
    whole = ", ".join(texts)
    terms = parse_terms(whole, op, whole)
    for term in terms:
        if term.dims is None or None in term.dims:
            raise SignatureError(f"{op}: scratch needs every size, as in 'tmp[n, 3]', and got {str(term)!r}")
    return terms


def _sizes(value: object, option: str, op: str) -> tuple[str, ...]:
    names = names_of(value, option, op)
    for name in names:
        if "." in name or keyword.iskeyword(name) or not name.isascii():
            raise SignatureError(f"{op}: sizes takes plain names, and got {name!r}")
    return names


def _block_dim(value: object, option: str, op: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SignatureError(f"{op}: block_dim is a positive int, and got {value!r}")
    return value


def _tiled(value: object, option: str, op: str) -> bool:
    if not isinstance(value, bool):
        raise SignatureError(f"{op}: tiled is True or False, and got {value!r}")
    return value


_READERS: dict[str, Callable[[Any, str, str], Any]] = {
    "name": lambda value, option, op: check_name(op, value),
    "dim": _launch,
    "shapes": _shapes,
    "init": _init,
    "inits": lambda value, option, op: tuple(
        (name, _init(one, f"init of '{name}'", op)) for name, one in value.items()
    ),
    **dict.fromkeys(("mutates", "optional", "nondiff", "tensor_scalars"), names_of),
    "scratch": _scratch,
    "sizes": _sizes,
    "null_with": lambda value, option, op: tuple(value.items()),
    "backward": lambda value, option, op: value,
    "block_dim": _block_dim,
    "tiled": _tiled,
}
"""What reads each option, by its value, its name and the op's name for messages."""


def declare(op: str, signature: str | None = None, **options: Any) -> Declaration:
    """Parse and freeze what the user wrote. ``op`` is the name for messages.

    Raises:
        SignatureError: the signature or an option can't be read.
    """
    left: tuple[Term, ...] = ()
    right: tuple[Term, ...] | None = None
    if signature is not None:
        if not isinstance(signature, str):
            raise SignatureError(f"{op}: the signature is a string like 'x[n] -> y[n]', and got {signature!r}")
        if signature.count("->") > 1:
            raise SignatureError(f"{op}: the signature {signature!r} has more than one '->'")
        before, arrow, after = signature.partition("->")
        left, right = parse_terms(before, op, signature), parse_terms(after, op, signature) if arrow else None
    if isinstance(options.get("init"), Mapping):
        options["inits"] = options.pop("init")
    given = {option: _READERS[option](value, option, op) for option, value in options.items() if value is not None}
    return Declaration(signature, left, right, **given)
