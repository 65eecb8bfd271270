"""Struct arguments: what may be given for one, nested fields, gradients, outputs by dotted names, messages."""

from __future__ import annotations

import dataclasses
import types
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
import warp as wp

from support import as_dynamo_says, check_against, close, compiled, graph_count
from warpops import ArgumentError, SignatureError, warp_op


@wp.struct
class Spring:
    stiffness: float
    axis: wp.vec3


@wp.struct
class Body:
    pos: wp.array[wp.vec3]
    mass: wp.array[float]
    spring: Spring
    count: int
    ids: wp.array[wp.int64]
    out: wp.array[float]


@wp.kernel
def pull(s: Body, bias: wp.array[float]):
    i = wp.tid()
    k = int(s.ids[i])
    s.out[i] = wp.dot(s.pos[k], s.spring.axis) * s.mass[i] * s.spring.stiffness * float(s.count) + bias[i]


@wp.struct
class Body64:
    pos: wp.array[wp.vec3d]
    mass: wp.array[wp.float64]


@wp.kernel
def moment(s: Body64, y: wp.array[wp.float64]):
    i = wp.tid()
    y[i] = wp.dot(s.pos[i], s.pos[i]) * s.mass[i]


pull_op = warp_op(pull, "s.pos[n], s.mass[n], s.ids[n] -> s.out[n]")

AXIS = (1.0, 2.0, 3.0)


@dataclasses.dataclass
class SpringData:
    stiffness: float
    axis: Any


@dataclasses.dataclass
class BodyData:
    pos: torch.Tensor
    mass: torch.Tensor
    spring: Any
    count: int
    ids: torch.Tensor


class BodyTuple(NamedTuple):
    pos: torch.Tensor
    mass: torch.Tensor
    spring: Any
    count: int
    ids: torch.Tensor


def as_namespace(pos, mass, spring, count, ids):
    return types.SimpleNamespace(pos=pos, mass=mass, spring=spring, count=count, ids=ids)


def as_dict(pos, mass, spring, count, ids):
    inner = {"stiffness": spring.stiffness, "axis": spring.axis}
    return {"pos": pos, "mass": mass, "spring": inner, "count": count, "ids": ids}


def as_ordered(pos, mass, spring, count, ids):
    return OrderedDict(ids=ids, count=count, spring=spring, mass=mass, pos=pos)


IDS = torch.tensor([2, 0, 1, 3])


def pull_reference(pos, mass, bias):
    return (pos[IDS] * torch.tensor(AXIS)).sum(-1) * mass * 2.0 * 3 + bias


def inputs():
    return [torch.randn(4, 3), torch.randn(4), torch.randn(4)]


def wrap(op, make):
    """The op as a function of tensors; the struct is made outside of traced code."""

    def call(pos, mass, bias):
        body = make(pos, mass, SpringData(2.0, AXIS), 3, IDS)
        return op(body, bias)

    return call


@pytest.mark.parametrize("make", [as_dict, BodyData, BodyTuple, as_namespace, as_ordered])
def test_struct_is_given_as_any_object_with_its_fields(make):
    check_against(wrap(pull_op, make), pull_reference, inputs())


@pytest.mark.parametrize("make", [as_dict, BodyData, BodyTuple, as_namespace])
def test_struct_in_compiled_code(make):
    check_against(wrap(compiled(pull_op), make), pull_reference, inputs())


def test_struct_made_inside_compiled_code():
    def call(pos, mass, bias):
        body = {"pos": pos * 1.0, "mass": mass, "spring": SpringData(2.0, AXIS), "count": 3, "ids": IDS}
        return pull_op(body, bias) * 1.0

    check_against(compiled(call), pull_reference, inputs())


def test_struct_fields_of_other_sizes_do_not_recompile():
    call = compiled(pull_op)
    for n in (3, 5, 7, 9):
        body = as_dict(torch.randn(n, 3), torch.randn(n), SpringData(2.0, AXIS), 3, torch.arange(n))
        close(call(body, torch.zeros(n)), pull_op(body, torch.zeros(n)))
    assert graph_count() <= 2


def test_struct_float_field_does_not_go_stale_in_compiled_code():
    call = compiled(pull_op)
    pos, mass, bias = inputs()
    for stiffness in (2.0, 3.0, 5.0):
        body = as_dict(pos, mass, SpringData(stiffness, AXIS), 3, IDS)
        close(call(body, bias), (pos[IDS] * torch.tensor(AXIS)).sum(-1) * mass * stiffness * 3 + bias)


def test_warp_struct_instance_shares_its_arrays():
    pos, mass, bias = inputs()
    body = Body()
    body.pos = wp.from_torch(pos, dtype=wp.vec3)
    body.mass, body.ids = wp.from_torch(mass), wp.from_torch(IDS)
    body.spring.stiffness, body.spring.axis, body.count = 2.0, wp.vec3(*AXIS), 3
    close(pull_op(body, bias), pull_reference(pos, mass, bias))
    mass.mul_(2.0)
    close(pull_op(body, bias), pull_reference(pos, mass, bias))


def test_a_warp_vector_as_a_field(mode):
    pos, mass, bias = inputs()
    body = as_dict(pos, mass, SpringData(2.0, wp.vec3(*AXIS)), 3, IDS)
    close(mode(lambda bias: pull_op(body, bias))(bias), pull_reference(pos, mass, bias))


def test_module_with_parameters_is_a_struct():
    class Scene(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.pos = torch.nn.Parameter(torch.randn(4, 3))
            self.mass = torch.nn.Parameter(torch.randn(4))
            self.spring, self.count = SpringData(2.0, AXIS), 3
            self.register_buffer("ids", IDS)

        def forward(self, bias):
            return pull_op(self, bias)

    scene = Scene()
    bias = torch.zeros(4)
    want = torch.autograd.grad(pull_reference(scene.pos, scene.mass, bias).sum(), list(scene.parameters()))
    close(torch.autograd.grad(scene(bias).sum(), list(scene.parameters())), want)
    close(torch.autograd.grad(compiled(scene)(bias).sum(), list(scene.parameters())), want)


def test_schema_names_fields_readably():
    flat = "Tensor s_pos, Tensor s_mass, float s_spring_stiffness, float[] s_spring_axis, SymInt s_count"
    assert flat in pull_op.schema
    assert list(pull_op.__signature__.parameters) == ["s", "bias"]
    assert "s.pos: input [n]" in pull_op.explain()


def test_struct_opcheck_and_gradcheck():
    pos, mass, bias = (t.requires_grad_() for t in inputs())
    torch.library.opcheck(pull_op.overload, (pos, mass, 2.0, list(AXIS), 3, IDS, bias))
    op = warp_op(moment, "-> y[n]")
    pos, mass = torch.randn(3, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    given = (pos.requires_grad_(), mass.requires_grad_())
    assert torch.autograd.gradcheck(lambda pos, mass: op({"pos": pos, "mass": mass}), given)


# --- outputs, in-out, scratch, mutates


@wp.struct
class State:
    x: wp.array[wp.vec3]
    v: wp.array[wp.vec3]
    m: wp.array[float]
    tmp: wp.array[float]
    dt: float


@wp.kernel
def advance(s: State, energy: wp.array[float]):
    i = wp.tid()
    v = s.v[i] * (1.0 - 0.1 * s.m[i])
    s.v[i] = v
    s.x[i] = s.x[i] + v * s.dt
    energy[i] = 0.5 * s.m[i] * wp.dot(v, v)


@wp.kernel
def norms(s: State):
    i = wp.tid()
    s.tmp[i] = wp.dot(s.x[i], s.x[i])
    s.m[i] = s.tmp[i] * s.dt


@wp.kernel
def drift(s: State):
    i = wp.tid()
    s.x[i] = s.x[i] + s.v[i] * s.dt


def advance_reference(x, v, m):
    v = v * (1.0 - 0.1 * m[:, None])
    return x + v * 0.5, v, 0.5 * m * (v * v).sum(-1)


def test_struct_fields_in_out_by_dotted_names(mode):
    op = warp_op(advance, "s.x[n], s.v[n], s.m[n] -> s.x[n], s.v[n], energy[n]", optional="s.tmp")
    call = mode(op)
    given = [torch.randn(4, 3), torch.randn(4, 3), torch.rand(4)]
    check_against(lambda x, v, m: call({"x": x, "v": v, "m": m, "dt": 0.5}), advance_reference, given)
    x = given[0].clone()
    op({"x": x, "v": given[1], "m": given[2], "dt": 0.5})
    assert torch.equal(x, given[0])


def test_struct_with_output_and_scratch_fields(mode):
    call = mode(warp_op(norms, "s.x[n] -> s.m[n]", scratch="s.tmp[n]", optional="s.v"))
    check_against(lambda x: call({"x": x, "dt": 2.0}), lambda x: 2.0 * (x * x).sum(-1), [torch.randn(4, 3)])


def test_an_optional_field_that_is_misspelt_is_not_missing(mode):
    call = mode(warp_op(advance, "s.x[n], s.v[n], s.m[n] -> s.x[n], s.v[n], energy[n]", optional="s.tmp"))
    body = {"x": torch.randn(4, 3), "v": torch.randn(4, 3), "m": torch.rand(4), "dt": 0.5}
    call(body | {"name": "more than the fields", 3: None})
    said = r"'s\.tmp': expected a dict with the key 'tmp'.*did you mean 'tmp' by 'temp'\?"
    with pytest.raises(Exception, match=as_dynamo_says(said)):
        call(body | {"temp": torch.zeros(4)})


def test_struct_of_outputs_alone_is_no_argument(mode):
    op = warp_op(fill, "n_[n] -> o.a[n], o.b[n, 2]")
    assert list(op.__signature__.parameters) == ["n_"]
    a, b = mode(op)(torch.tensor([1.0, 2.0]))
    close(a, torch.tensor([1.0, 4.0]))
    close(b, torch.tensor([[[1.0, 1.0], [2.0, 2.0]], [[2.0, 2.0], [4.0, 4.0]]]))


@wp.struct
class Pair:
    a: wp.array[float]
    b: wp.array2d[wp.vec2]


@wp.kernel
def fill(n_: wp.array[float], o: Pair):
    i = wp.tid()
    o.a[i] = n_[i] * n_[i]
    o.b[i, 0] = wp.vec2(n_[i], n_[i])
    o.b[i, 1] = 2.0 * wp.vec2(n_[i], n_[i])


def test_struct_field_changed_in_place():
    op = warp_op(drift, "s.v[n], s.x[n]", mutates="s.x", optional="s.m, s.tmp")
    x = torch.zeros(3, 3)
    assert op({"x": x, "v": torch.ones(3, 3), "dt": 0.5}) is None
    close(x, torch.full((3, 3), 0.5))
    assert "Tensor(a!) s_x" in op.schema


def test_struct_fields_of_every_kind(mode):
    op = warp_op(configured, "x[n] -> y[n]")
    config = {"scale": (2.0, 3.0), "m": [[1.0, 2.0], [3.0, 4.0]], "q": (0.0, 0.0, 0.0, 1.0), "n": 3, "flag": True}
    config |= {"half": 0.5, "small": 3, "big": 7}

    def reference(x):
        y = (x * torch.tensor([2.0, 3.0])) @ torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T
        return y[:, 0] * 3.0 + y[:, 1] + 7.0

    call = mode(op)
    check_against(lambda x: call(x, config), reference, [torch.randn(4, 2)])


@wp.struct
class Config:
    scale: wp.vec2
    m: wp.mat22
    q: wp.quat
    n: int
    flag: bool
    half: wp.float16
    small: wp.uint8
    big: wp.uint64


@wp.kernel
def configured(x: wp.array[wp.vec2], c: Config, y: wp.array[float]):
    i = wp.tid()
    v = c.m * wp.cw_mul(x[i], c.scale)
    f = 1.0
    if c.flag:
        f = 2.0
    y[i] = v[0] * f * float(c.half) * float(c.small) + c.q[3] * v[1] + float(c.big)


# --- messages


def body(**changed):
    pos, mass, _ = inputs()
    return {**as_dict(pos, mass, SpringData(2.0, AXIS), 3, IDS), **changed}


def without(name):
    return {key: value for key, value in body().items() if key != name}


WRONG = [
    (lambda: without("pos"), r"'s\.pos': expected a dict with the key 'pos'.*got dict without"),
    (lambda: None, r"'s\.pos': .* got None without"),
    (lambda: torch.zeros(3), r"'s\.pos': .* got a tensor without"),
    (lambda: body(pos=None), r"'s\.pos': expected a tensor .*got None"),
    (lambda: body(pos=torch.zeros(4, 3).double()), r"'s\.pos': expected dtype torch\.float32 .*got torch\.float64"),
    (lambda: body(mass=torch.zeros(3)), r"'s\.mass': expected size 4 on axis 0 .*got 3"),
    (lambda: body(spring={"stiffness": 1.0}), r"'s\.spring\.axis': expected a dict with the key 'axis'"),
    (lambda: body(spring={"stiffness": 1.0, "axis": (1.0, 2.0)}), r"'s\.spring\.axis': expected 3 numbers"),
    (lambda: body(count=2**40), r"'s\.count': expected an int in .*1099511627776"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_struct_names_the_field(make, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        pull_op(make(), torch.zeros(4))
    assert str(caught.value).startswith(pull_op.name)


@pytest.mark.parametrize(("make", "message"), WRONG[:4])
def test_wrong_struct_names_the_field_in_compiled_code(make, message):
    with pytest.raises(Exception, match=as_dynamo_says(message)):
        compiled(pull_op)(make(), torch.zeros(4))


def test_signature_that_names_a_whole_struct():
    with pytest.raises(SignatureError, match=r"names the struct 's'; name its fields: s\.pos, s\.mass"):
        warp_op(pull, "bias[n] -> s")


def test_array_of_structs_is_refused():
    def kernel(s: wp.array[Spring], y: wp.array[float]):
        y[0] = s[0].stiffness

    with pytest.raises(SignatureError, match="'s' has the type .*one array per field"):
        warp_op(kernel, "-> y[1]")
