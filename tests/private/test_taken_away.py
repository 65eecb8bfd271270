"""PyTorch's private names, taken away from warpops one at a time: slower is fine, dying is not.

One process imports PyTorch and Warp, and forks a child for each name. A child hides the name from warpops alone (PyTorch
goes on using it), imports the package, decorates, and runs forward and backward, eager and compiled.
"""

from __future__ import annotations

import json
import os
import re

import pytest
import torch

from support import HERE, WARP, run_script

NAMES = (
    "",
    "torch._C._dynamo.guards",
    "torch._C._dynamo.guards.TensorGuards",
    "torch._C._dynamo.guards.TensorGuards(dynamic_dims_sizes)",
    "torch._C._dynamo.guards._empty_strided_cpu",
    "torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr",
    "torch._C._functorch.peek_interpreter_stack",
    "torch._C._functorch.is_batchedtensor",
    "torch._C._functorch.is_functorch_wrapped_tensor",
    "torch._C._functorch.get_unwrapped",
    "torch._C._functorch.maybe_get_level",
    "torch._C._is_any_autocast_enabled",
    "torch._C._is_alias_of",
    "torch._C._increment_version",
    "torch._C.parse_schema",
    "torch._C._dispatch_find_schema_or_throw",
    "torch._C._dispatch_has_kernel",
    "torch._check_with",
    "torch._library.simple_registry",
    "torch.library._defs",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._is_torch_function_mode_enabled",
    "torch._C._get_tracing_state",
    "torch._C._autograd._profiler_enabled",
    "torch._C._dispatch_keys",
    "torch._C._AutoDispatchBelowAutograd",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._C.DispatchKeySet",
    "torch._C.DispatchKey",
    "torch._C._dynamo.eval_frame._debug_get_cache_entry_list",
    "torch._C._cuda_getCurrentRawStream",
    "torch._foreach_zero_",
    "torch._library.utils.Kernel",
    "torch._library.autograd.make_autograd_impl",
    "torch._library.simple_registry.singleton",
    "torch._functorch.autograd_function.custom_function_call_vmap_helper",
    "torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter",
    "torch.autograd.forward_ad._current_level",
    "torch._inductor.lowering.user_lowerings",
    "torch._inductor.ir.FallbackKernel",
    "torch._inductor.utils.convert_shape_to_inductor",
    "torch._inductor.virtualized.V",
    "torch._dynamo.guards.install_guard",
    "torch._dynamo.variables.torch.TorchInGraphFunctionVariable",
    "warp._src.context.GradWrapper",
    "warp._src.context._resolve_launch_block_dim",
    "warp._src.codegen._codegen_lock",
)
"""By their place in PyTorch or Warp; with brackets, there and without that keyword."""

ABSENT = {
    "torch._C._cuda_getCurrentRawStream": (not torch.backends.cuda.is_built(), "this PyTorch is built without CUDA"),
    "warp._src.context._resolve_launch_block_dim": (WARP < (1, 18), "Warp before 1.18 has none"),
}
"""Those that there isn't everywhere: whether it isn't here, and why."""

AT_A_TIME = 14

SCRIPT = """
import importlib, json, os, sys, types, warnings

import torch, warp as wp
import torch.autograd.forward_ad as forward_ad
import torch._inductor.compile_fx
import torch._dynamo, torch._functorch.aot_autograd, torch._subclasses.fake_tensor, torch.fx.experimental.symbolic_shapes

wp.config.log_level = wp.LOG_ERROR

# What PyTorch imports late is imported once, here.
# But no gradient is taken: a PyTorch that is built for CUDA then takes none in forked children.
torch.compile(lambda x: x.sin() * x, fullgraph=True, backend="aot_eager")(torch.ones(2))
torch.func.vmap(torch.sin)(torch.ones(2, 3))
torch._dynamo.reset()


def asked_by_warpops():
    return sys._getframe(2).f_globals.get("__name__", "").split(".")[0] == "warpops"


def hide(name):
    path, _, keyword = name.rstrip(")").partition("(")
    owner, _, last = path.rpartition(".")
    parts = owner.split(".")
    module = importlib.import_module(parts[0])
    for part in parts[1:]:
        module = getattr(module, part)
    original = getattr(module, last)

    def other_keywords(*args, **kwargs):
        if keyword in kwargs:
            raise TypeError(f"an unexpected keyword argument {keyword!r}")
        return original(*args, **kwargs)

    class Hiding(types.ModuleType):
        def __getattribute__(self, asked):
            if asked == last and asked_by_warpops():
                if keyword:
                    return other_keywords
                raise AttributeError(f"module has no attribute {asked!r}")
            return super().__getattribute__(asked)

    module.__class__ = Hiding


def work(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from warpops import warp_op

    @warp_op
    @wp.kernel
    def cube(x: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i] * x[i] * x[i]

    @warp_op("y[n], x[n] -> y[n]", dim="n", init="empty")
    @wp.kernel
    def add(x: wp.array[float], s: float, y: wp.array[float]):
        i = wp.tid()
        y[i] = y[i] + s * x[i]

    def both(x):
        return cube(x), add(x, 2.0, x * x)

    # Four calls: the third and those after it may be remembered launches.
    backend = "inductor" if "_inductor" in name else "aot_eager"
    for function in (both, torch.compile(both, fullgraph=True, backend=backend)):
        for _ in range(4):
            x = torch.linspace(-1.0, 2.0, 5, requires_grad=True)
            y, z = function(x)
            torch.testing.assert_close(y, x**3)
            torch.testing.assert_close(z, x * x + 2.0 * x)
            (y.sum() + z.sum()).backward()
            torch.testing.assert_close(x.grad, 3.0 * x.detach() ** 2 + 2.0 * x.detach() + 2.0)

    @warp_op
    @wp.kernel
    def scale(x: wp.array[float], v: wp.vec2, y: wp.array[float]):
        i = wp.tid()
        y[i] = x[i] * v[1]

    def scaled(x, v):
        return scale(x, v)

    v = wp.vec2(1.0, 2.0)
    assert scaled(torch.ones(1), v).item() == 2.0
    try:  # nothing public tells Dynamo of the numbers in a Warp vector: a clear error
        assert torch.compile(scaled, backend="aot_eager")(torch.ones(1), v).item() == 2.0
    except Exception as error:
        assert "_dynamo" in name and "argument 'v': expected" in str(error), error

    @warp_op
    @wp.kernel
    def product(a: wp.array[float], b: wp.array[float], c: wp.array[float], y: wp.array[float]):
        i = wp.tid()
        y[i] = a[i] * b[i] * c[i]

    for _ in range(4):
        given = [torch.full((3,), n, requires_grad=True) for n in (2.0, 3.0, 5.0)]
        product(*given).sum().backward()
        assert [t.grad.tolist() for t in given] == [[15.0] * 3, [10.0] * 3, [6.0] * 3]
    with torch.autocast("cpu"), torch.no_grad():
        for function in (cube, cube.overload):
            assert function(torch.ones(2, dtype=torch.bfloat16)).dtype is torch.float32
    torch.testing.assert_close(torch.func.vmap(cube.overload)(torch.ones(2, 3)), torch.ones(2, 3))
    mapped = torch.func.vmap(torch.func.grad(lambda t: cube(t).sum()))(torch.ones(2, 3))
    torch.testing.assert_close(mapped, torch.full((2, 3), 3.0))
    with forward_ad.dual_level():
        dual = cube(forward_ad.make_dual(torch.ones(2), torch.full((2,), 2.0)))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, torch.full((2,), 6.0))


def outcome(name):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if name:
                hide(name)
            work(name)
            said = "right"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"[:600]
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said or "crashed"


print(json.dumps([outcome(name) for name in json.loads(os.environ["TAKEN_AWAY"])]))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What became of a child without the name; as many at a time as one process gives an answer for in good time."""
    found = {}

    def ask(name):
        if name not in found:
            start = NAMES.index(name) // AT_A_TIME * AT_A_TIME
            some = [name for name in NAMES[start : start + AT_A_TIME] if not ABSENT.get(name, (False,))[0]]
            printed = run_script(SCRIPT, tmp_path_factory.mktemp("taken") / "script.py", TAKEN_AWAY=json.dumps(some))
            found.update(zip(some, json.loads(printed.strip().splitlines()[-1]), strict=True))
        return found[name]

    return ask


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", NAMES, ids=[name or "nothing" for name in NAMES])
def test_a_name_is_taken_away(outcome, name):
    absent, why = ABSENT.get(name, (False, ""))
    if absent:
        pytest.skip(why)
    assert outcome(name) == "right"


def test_every_private_name_of_pytorch_is_tried():
    """A name that the package starts to use is taken away here too."""
    used = set()
    for path in (HERE.parent / "warpops" / "private").glob("torch_*.py"):
        text = re.sub(r'getattr\(([\w.]+), "(\w+)"\)', r"\1.\2", path.read_text())
        used |= set(re.findall(r"\btorch(?:\.\w+)*?\.(_\w+(?:\.\w+)*)", text))
    tried = {name.partition("(")[0].removeprefix("torch.") for name in NAMES}
    packages = {"_C", "_C._dynamo", "_ops", "_library", "_ops.OpOverload"}

    def is_tried(name):
        return any(one == name or one.startswith(f"{name}.") or name.startswith(f"{one}.") for one in tried)

    missing = {name for name in used - packages if not is_tried(name) and not is_tried(f"library.{name}")}
    assert not missing
