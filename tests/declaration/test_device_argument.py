"""Ops without a required array: where they run is an argument of their own."""

from __future__ import annotations

import pytest
import torch
import warp as wp

from support import close, compiled
from warpops import ArgumentError, SignatureError, warp_op


@wp.kernel
def ramp(n: int, s: float, y: wp.array[float]):
    i = wp.tid()
    y[i] = float(i) * s


@wp.kernel
def plus_bias(n: int, bias: wp.array[float], y: wp.array[float]):
    i = wp.tid()
    v = float(i)
    if bias:
        v = v + bias[i]
    y[i] = v


@wp.kernel
def needs_device(device: int, y: wp.array[float]):
    i = wp.tid()
    y[i] = float(device)


@wp.kernel
def has_device(x: wp.array[float], device: int, y: wp.array[float]):
    i = wp.tid()
    y[i] = x[i] + float(device)


ramp_op = warp_op(ramp, "-> y[n]", dim="n")
ticking_op = warp_op(ramp, "-> y[n]", dim="n", tensor_scalars="s")
bias_op = warp_op(plus_bias, "bias[n] -> y[n]", dim="n", optional="bias")


def test_it_has_a_keyword_only_device(mode):
    assert "*, Device? device=None" in ramp_op.schema
    close(mode(ramp_op)(3, 2.0), torch.tensor([0.0, 2.0, 4.0]))
    close(mode(lambda n: ramp_op(n, 2.0, device="cpu"))(3), torch.tensor([0.0, 2.0, 4.0]))
    close(ramp_op(3, 2.0, device=torch.device("cpu")), torch.tensor([0.0, 2.0, 4.0]))
    with pytest.raises(TypeError):
        ramp_op(3, 2.0, "cpu")


def test_an_op_with_an_array_has_none():
    op = warp_op(has_device, "x[n] -> y[n]", dim="n")
    assert "Device" not in op.schema
    close(op(torch.ones(2), 5), torch.full((2,), 6.0))


def test_none_is_the_default_device():
    with torch.device("meta"):
        y = ramp_op(3, 2.0)
    assert y.device.type == "meta"
    assert y.shape == (3,)
    assert ramp_op(3, 2.0).device.type == "cpu"


def test_the_device_of_a_given_array_counts():
    with torch.device("meta"):
        close(bias_op(2, torch.ones(2, device="cpu")), torch.tensor([1.0, 2.0], device="cpu"))
    assert bias_op(2, None, device="cpu").tolist() == [0.0, 1.0]


def test_a_device_that_contradicts_the_arrays():
    with pytest.raises(ArgumentError, match="argument 'device': expected cpu, that of 'bias', got meta"):
        bias_op(2, torch.ones(2), device="meta")


def test_a_tensor_scalar_does_not_say_where(mode):
    assert "device" in ticking_op.schema
    close(mode(ticking_op)(2, torch.tensor(3.0)), torch.tensor([0.0, 3.0]))


def test_a_device_that_warp_can_not_use():
    with pytest.raises(ArgumentError, match="argument 'device': expected cpu or cuda, got xpu"):
        ramp_op(3, 2.0, device="xpu")


@pytest.mark.parametrize("count", [0, 2])
def test_a_device_that_is_not_there(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    listed = ", ".join(["cpu", *(f"cuda:{k}" for k in range(count))])
    message = f": argument 'device': expected a device that there is ({listed}), got cuda:99"
    for call in (
        lambda: ramp_op(3, 2.0, device="cuda:99"),
        lambda: ramp_op.overload(3, 2.0, device="cuda:99"),
        lambda: ramp_op.preload("cuda:99"),
        lambda: bias_op(2, None, device=torch.device("cuda", 99)),
    ):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert str(caught.value).endswith(message)
    with torch.device("cuda:99"), pytest.raises(ArgumentError, match="got cuda:99"):
        ramp_op(3, 2.0)
    with pytest.raises(Exception, match="expected a device that there is"):
        compiled(lambda: ramp_op(3, 2.0, device="cuda:99"))()


def test_a_negative_size():
    with pytest.raises(ArgumentError) as caught:
        ramp_op(-3, 2.0)
    assert str(caught.value) == "test_device_argument::ramp: the shape of 'y': the size -3 ('n') is negative"


def test_the_name_can_not_be_taken():
    with pytest.raises(SignatureError, match="'device'"):
        warp_op(needs_device, "-> y[3]", dim=3)


def test_nothing_to_make(mode):
    assert mode(ramp_op)(0, 1.0).shape == (0,)


@pytest.mark.parametrize("device", ["zzz", 3.5])
def test_what_is_no_device(device):
    message = f"argument 'device': expected cpu or cuda, got {device!r}"
    for call in (
        lambda: ramp_op(3, 2.0, device=device),
        lambda: ramp_op.preload(device),
        lambda: torch.vmap(lambda x: x + ramp_op(3, 2.0, device=device))(torch.ones(2, 3)),
    ):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert str(caught.value) == f"{ramp_op.name}: {message}"
