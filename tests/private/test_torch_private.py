"""Canaries: what ``warpops.private``, ``_dynamo`` and ``_inductor`` take for granted about PyTorch's private side."""

from __future__ import annotations

import warnings

import pytest
import torch
import warp as wp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from warpops.arguments.dynamo import numbers_of, teach
from warpops.private import torch_guards, torch_modes, torch_registry


class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_a_guard_accepts_tensors_that_look_the_same():
    check = torch_guards.guard([torch.zeros(3, 2), torch.zeros(4)])
    assert check(torch.ones(3, 2), torch.ones(4))


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(4, 2),
        torch.zeros(3, 2, dtype=torch.float64),
        torch.zeros(2, 3).t(),
        torch.zeros(3, 2).requires_grad_(),
        torch.nn.Parameter(torch.zeros(3, 2)),
        torch._neg_view(torch.zeros(3, 2)),
        torch.zeros(3, 2, device="meta"),
        None,
        1.0,
    ],
    ids=["size", "dtype", "strides", "requires_grad", "class", "negated", "device", "none", "number"],
)
def test_a_guard_refuses_tensors_that_differ(other):
    assert not torch_guards.guard([torch.zeros(3, 2)])(other)


def test_a_guard_refuses_under_another_dispatch_state():
    x = torch.zeros(3)
    check = torch_guards.guard([x])
    assert check(x)
    with Watch():
        assert not check(x)
        assert torch_modes.dispatch_modes() == 1
    with torch.inference_mode():
        assert not check(x)
    with torch.autocast("cpu"):
        assert not check(x)
        assert torch_modes.autocast_active()
    torch.func.grad(lambda t: (t.sum(), _assert(not check(t)))[0])(x)
    with FakeTensorMode():
        assert torch_modes.dispatch_modes() == 1
    assert torch_modes.dispatch_modes() == 0 and not torch_modes.autocast_active()


def _assert(condition):
    assert condition


def test_the_reader_of_saved_programs_asks_for_the_schema_where_it_fits_a_call_to_it():
    import inspect

    from torch._export.serde.serialize import GraphModuleDeserializer

    text = inspect.getsource(GraphModuleDeserializer.deserialize_inputs)
    assert "_get_schema_from_target(target).arguments" in text
    assert "serialized_node" in inspect.signature(GraphModuleDeserializer.deserialize_inputs).parameters


def test_a_custom_op_defines_its_operator_by_its_library():
    from torch.library import CustomOpDef

    assert callable(CustomOpDef._register_to_dispatcher)
    library = torch.library.Library("canary", "FRAGMENT")
    library.define = None  # a name of an instance's own


def test_levels_and_modes_are_seen():
    assert torch_modes.functorch_level() is None
    torch.func.vmap(lambda t: (t, _assert(torch_modes.functorch_level() is not None))[0])(torch.zeros(2))
    assert not torch_modes.function_mode()
    with torch.device("cpu"):
        assert torch_modes.function_mode()
    assert not torch_modes.profiling()
    with torch.autograd.profiler.profile():
        assert torch_modes.profiling()


def test_what_is_followed_further_out_than_forward_mode():
    def asked(x, u):
        seen = []
        torch.func.jvp(lambda t: (seen.append(torch_modes.followed_further_out((t,))), t)[1], (x,), (u,))
        return seen[0]

    plain, leaf = torch.zeros(2), torch.zeros(2, requires_grad=True)
    assert torch_modes.followed_further_out((plain,))  # nobody knows, outside of transforms
    assert not asked(plain, plain)
    assert asked(leaf, plain)
    torch.func.grad(lambda x: (_assert(asked(x, plain)), x.sum())[1])(plain)
    torch.func.jvp(lambda x: (_assert(asked(x, plain)), x)[1], (plain,), (plain,))


def test_tangents_are_seen():
    x = torch.zeros(2)
    assert not torch_modes.has_tangent(x)
    with forward_ad.dual_level():
        assert forward_ad._current_level >= 0
        assert torch_modes.has_tangent(forward_ad.make_dual(x, torch.ones(2)))
        assert not torch_modes.has_tangent(x)
    assert forward_ad._current_level < 0


def test_quick_apply_is_apply():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            assert ctx.saved_tensors[0].shape == grad.shape
            return grad * 2

    apply = torch_modes.quick_apply(Double)
    x = torch.ones(2, requires_grad=True)
    y = apply(x)
    assert y.tolist() == [2.0, 2.0] and type(y.grad_fn).__name__ == "DoubleBackward"
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_published_overload_is_what_torch_ops_finds():
    library = torch.library.Library("warpops_canary", "FRAGMENT")
    library.define("twice.cabc(Tensor x) -> Tensor")
    library.impl("twice.cabc", lambda x: x * 2, "CompositeExplicitAutograd")
    overload = torch.ops.warpops_canary.twice.cabc
    torch_registry.publish("warpops_canary", "twice", overload)
    assert torch.ops.warpops_canary.twice is overload is torch.ops.warpops_canary.twice.cabc
    assert "twice" not in list(torch.ops.warpops_canary)
    torch_registry.forget("warpops_canary", "twice", "other")
    assert torch.ops.warpops_canary.twice is overload
    torch_registry.forget("warpops_canary", "twice", "cabc")
    assert torch.ops.warpops_canary.twice is not overload
    torch_registry.destroy(library)


def test_aliases_are_seen_on_fakes_too():
    with FakeTensorMode():
        x = torch.zeros(4)
        assert torch_guards.share_storage(x, x[1:])
        assert not torch_guards.share_storage(x, torch.zeros(4))


def test_inductor_has_the_table_of_lowerings():
    from torch._inductor import lowering

    assert isinstance(lowering.user_lowerings, dict)
    assert callable(lowering.empty_strided) and callable(lowering.clone)


def test_dynamo_is_taught_to_read_a_warp_value():
    """The handler is found, its tuple is one of constants, and its guard sees a change in place."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    @torch.compile(fullgraph=True, backend=backend)
    def scale(x, v):
        teach()
        return x * numbers_of(v)[1]

    v = wp.vec3(1.0, 2.0, 3.0)
    assert scale(torch.ones(1), v).item() == 2.0
    assert scale(torch.ones(1), v).item() == 2.0
    assert len(graphs) == 1
    v[1] = 5.0
    assert scale(torch.ones(1), v).item() == 5.0
    assert len(graphs) == 2
    assert numbers_of(v) == (1.0, 5.0, 3.0)
    assert numbers_of("else") == "else"


def test_an_array_past_the_dispatcher():
    made = torch_guards.empty_strided_cpu((2, 3), (3, 1), torch.float64)
    assert (made.shape, made.stride(), made.dtype, made.device.type) == ((2, 3), (3, 1), torch.float64, "cpu")
    assert not made.requires_grad
    assert torch_guards.empty_strided_cpu((0, 4), (4, 1), torch.int8).numel() == 0


def test_an_operator_s_way_can_be_shortened():
    """What an overload calls is its attribute ``_op``."""
    with torch.library._scoped_library("canary", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2.0, "CompositeExplicitAutograd")
        overload = torch.ops.canary.twice.default
        seen = []

        def make(way):
            def shorter(*values):
                seen.append(len(values))
                return way(*values)

            return shorter

        torch_registry.shorten(overload, make)
        assert torch.ops.canary.twice.default(torch.ones(1)).item() == 2.0
        assert seen == [1]


def test_a_rule_for_a_class_is_asked_for_when_one_comes():
    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            return torch.zeros(2)

    library = torch.library.Library("warpops_canary", "FRAGMENT")
    library.define("ruled.cabc(Tensor x) -> Tensor")
    library.impl("ruled.cabc", lambda x: x * 2, "CompositeExplicitAutograd")
    overload = torch.ops.warpops_canary.ruled.cabc
    asked = []

    def classes():
        asked.append(True)
        return (Wrapped,)

    name = "warpops_canary::ruled.cabc"
    torch_registry.register_fake(library, name, lambda x: torch.empty_like(x))
    torch_registry.register_dispatch(library, name, torch_registry.Rules(lambda *_: torch.full((2,), 7.0), classes))
    wrapped = torch.Tensor._make_wrapper_subclass(Wrapped, (2,))
    assert overload(wrapped).tolist() == [7.0, 7.0]
    assert asked
    with Watch():
        assert overload(torch.ones(2)).tolist() == [2.0, 2.0]
    assert overload(torch.ones(2, device="meta")).is_meta
    with torch._subclasses.FakeTensorMode() as mode:
        assert overload(mode.from_tensor(torch.ones(2))).shape == (2,)
    table = torch._library.simple_registry.singleton._data
    assert isinstance(table[name].torch_dispatch_rules, torch_registry.Rules)
    torch_registry.destroy(library)
    assert name not in table


def test_below_autograd_nothing_is_recorded():
    x = torch.ones(2, requires_grad=True)
    with torch_modes.below_autograd():
        y = x * 2.0
    assert y.grad_fn is None and torch.is_grad_enabled()


def test_the_lowering_of_an_export_is_seen():
    seen = []

    class Net(torch.nn.Module):
        def forward(self, x):
            return torch.ops.warpops_canary.lowered(x)

    library = torch.library.Library("warpops_canary", "FRAGMENT")
    library.define("lowered(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("lowered", lambda x: x * 2, "CompositeExplicitAutograd")

    def autograd(x):
        seen.append(torch_modes.lowering_export())
        with torch_modes.below_autograd():
            return torch.ops.warpops_canary.lowered(x)

    library.impl("lowered", autograd, "Autograd")
    torch.library.register_fake("warpops_canary::lowered", lambda x: torch.empty_like(x), lib=library)
    assert not torch_modes.lowering_export()
    program = torch.export.export(Net(), (torch.ones(2),))
    assert not any(seen)
    program = program.run_decompositions()
    assert seen[-1]
    [node] = [n for n in program.graph.nodes if n.op == "call_function"]
    assert "lowered" in str(node.target)
    torch.ops.warpops_canary.lowered(torch.ones(2))
    assert not seen[-1]
    torch_registry.destroy(library)


def test_dtensor_says_whether_it_replicates_implicitly():
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import implicit_replication

    assert not torch_modes.replicates_implicitly(DTensor)
    with implicit_replication():
        assert torch_modes.replicates_implicitly(DTensor)


def test_several_tensors_are_zeroed_at_once():
    tensors = [torch.ones(2), None, torch.ones(3, 4, dtype=torch.float64), torch.ones(0), torch.ones(2, 3).t()]
    torch_guards.zero_all(*tensors)
    assert all(not tensor.any() for tensor in tensors if tensor is not None)
    torch_guards.zero_all(None)


def test_the_most_arguments_of_an_operator():
    with torch.library._scoped_library("warpops_canary", "FRAGMENT") as library:
        library.define(f"wide({', '.join(f'Tensor x{k}' for k in range(torch_registry.MOST_ARGUMENTS))}) -> Tensor")
        with pytest.raises(RuntimeError, match="only supports"):
            library.define(
                f"wider({', '.join(f'Tensor x{k}' for k in range(torch_registry.MOST_ARGUMENTS + 1))}) -> Tensor"
            )


def test_ordinary_tensors():
    x = torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        inference = torch.ones(2)
    for tensor in (
        x,
        x.detach(),
        torch.nn.Parameter(x),
        x.expand(3, 2).mT,
        x[1:],
        x.half(),
        torch.ones(2, dtype=torch.int8),
        inference,
    ):
        assert torch_guards.is_ordinary(tensor)
    negative = torch.ones(2, dtype=torch.complex64).conj().imag
    functional = torch._to_functional_tensor(torch.ones(2))
    others = [negative, functional, torch._efficientzerotensor(2), torch.ones(2).to_mkldnn(), Sub(torch.ones(2))]
    for tensor in others:
        assert not torch_guards.is_ordinary(tensor)


class Sub(torch.Tensor):
    pass


def test_the_tracer_is_seen():
    seen = []
    assert torch_modes.tracing() is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(lambda x: seen.append(torch_modes.tracing()) or x + 1, (torch.ones(1),), check_trace=False)
    assert seen[0] is not None


def test_versions_are_counted_at_once():
    x, y = torch.zeros(2), torch.zeros(2)
    with torch.inference_mode():
        z = torch.zeros(2)
    torch_modes.increment_versions((x, y, z))
    assert (x._version, y._version) == (1, 1)


def test_the_short_allocators_and_the_raw_stream():
    """Of a CUDA device there is the function at least; a PyTorch built without CUDA has no streams."""
    assert torch_guards.empty_strided_cpu((2, 3), (3, 1), torch.float64).dtype is torch.float64
    assert callable(torch_guards.empty_strided_cuda)
    assert (torch_modes.raw_stream is None) is not torch.backends.cuda.is_built()


def test_public_names_tell_of_transforms_and_levels():
    seen, x = [], torch.ones(2)

    def noting(t):
        seen.append(torch_modes._level_by_refusal() is not None)
        return (t * t).sum()

    noting(x)
    torch.func.vmap(noting)(torch.ones(2, 2))
    torch.func.grad(noting)(x)
    torch.func.jvp(noting, (x,), (x,))
    torch.func.functionalize(noting)(x)
    assert seen == [False, True, True, True, True]
    level = torch_modes._public_level()
    assert level._current_level < 0
    with forward_ad.dual_level(), torch.inference_mode():
        assert level._current_level >= 0
    assert level._current_level < 0
