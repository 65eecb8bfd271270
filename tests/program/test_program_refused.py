"""Programs that can't be right are refused, with what was found and where; and launches inside that leave an array."""

from __future__ import annotations

import pytest
import torch
import warp as wp

import kernels
from programs import append, blur_twice, no_backward, ping_pong, scale, square_in_place
from support import check_against, close, leaf
from warpops import ArgumentError, GradientError, SignatureError, warp_program


def test_arguments_are_checked(x):
    with pytest.raises(ArgumentError, match=r"'x': expected dtype torch.float32 .* got torch.float64"):
        blur_twice(x.double())
    with pytest.raises(ArgumentError, match=r"'x': expected 1 dimension .* got shape torch.Size\(\[2, 3\]\)"):
        blur_twice(torch.rand(2, 3))
    with pytest.raises(ArgumentError, match=r"'steps': expected an int in .* got 2147483648"):
        ping_pong(x, 2**31)


def test_written_inputs_are_refused(x):
    @warp_program("x[n] -> y[n]", name="prog_test::writes_x")
    def writes_x(x: wp.array[float], y: wp.array[float], by_copy: bool):
        if by_copy:
            wp.copy(x, y)
        wp.launch(square_in_place, dim=x.shape, inputs=[x])

    before = x.clone()
    with pytest.raises(SignatureError, match=r"'x' is an input, .* writes it at .*programs.py:\d+: `y\[i\] ="):
        writes_x(x, False)
    with pytest.raises(SignatureError, match=r"'x' is an input, and the program writes it, in wp\.copy"):
        writes_x(x, True)
    assert torch.equal(x, before)


def test_counters_have_no_gradient(x):
    @warp_program("x[n] -> y[n]", scratch="count[1]")
    def appended(x: wp.array[float], y: wp.array[float], count: wp.array[int]):
        wp.launch(append, dim=x.shape, inputs=[x, count], outputs=[y])

    close(appended(x), x)
    with pytest.raises(GradientError, match="passes through the kernel append"):
        appended(leaf(x)).sum().backward()


def test_kernels_without_backward(x):
    @warp_program("x[n] -> y[n]")
    def doubled(x: wp.array[float], y: wp.array[float]):
        wp.launch(no_backward, dim=x.shape, inputs=[x], outputs=[y])

    close(doubled(x), 2.0 * x)
    with pytest.raises(GradientError, match="no_backward, which is compiled without its backward"):
        doubled(leaf(x)).sum().backward()


launch_by_name = wp.launch


def test_calls_that_can_not_be_followed(x):
    def tape(x, y):
        with wp.Tape():
            pass

    def by_name(x, y):
        launch_by_name(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y])

    def recorded(x, y):
        wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y], record_cmd=True)

    def returns(x, y):
        return y

    for number, (body, message) in enumerate(
        [
            (tape, "leave the tape out"),
            (by_name, "write wp.launch"),
            (recorded, "record_cmd"),
            (returns, "the program returns a array"),
        ]
    ):
        body.__annotations__ = {"x": wp.array[float], "y": wp.array[float]}
        op = warp_program("x[n] -> y[n]", name=f"prog_test::wrong{number}")(body)
        with pytest.raises(SignatureError, match=message):
            op(x)


def test_wrong_declarations():
    def program(x: wp.array[float], y: wp.array[float]):
        wp.launch(scale, dim=x.shape, inputs=[x, 2.0], outputs=[y])

    def bare(x, y: wp.array[float]):
        pass

    def starred(x: wp.array[float], *y):
        pass

    with pytest.raises(SignatureError, match=r"'y' can't be read from the program.*give it in brackets") as raised:
        warp_program("x[n] -> y")(program)
    assert '@warp_program("x[n] -> y[y_size]", sizes="y_size")' in str(raised.value)
    with pytest.raises(SignatureError, match="'z', which is no argument of the program"):
        warp_program("x[n] -> z[n]")(program)
    with pytest.raises(SignatureError, match="no output and mutates nothing"):
        warp_program("x[n]")(program)
    with pytest.raises(SignatureError, match="give the signature first"):
        warp_program(program)
    with pytest.raises(SignatureError, match="'x' has no annotation"):
        warp_program("x[n] -> y[n]")(bare)
    with pytest.raises(SignatureError, match="no \\*args"):
        warp_program("x[n] -> x[n]")(starred)
    with pytest.raises(SignatureError, match="for one kernel use warp_op"):
        warp_program("x[n] -> y[n]")(scale)
    with pytest.raises(TypeError, match="dim"):
        warp_program("x[n] -> y[n]", dim="n")


# --- sizes of the launches inside --------------------------------------------------------------------------------------


@wp.kernel
def filling(x: wp.array[float], n: int, t: wp.array[float]):
    i = wp.tid()
    if i >= n:
        return
    t[i] = x[i] * x[i]


@wp.kernel
def differences(x: wp.array[float], t: wp.array[float]):
    i = wp.tid()
    t[i] = x[i + 1] - x[i]


@wp.kernel
def by_the_third(x: wp.array[float], t: wp.array[float]):
    i = wp.tid()
    t[i] = x[i] * x[2]


@wp.kernel
def plane(x: wp.array[float], t: wp.array[float]):
    i, j = wp.tid()
    wp.atomic_add(t, i, x[j])


def launching(kernel, dim, *numbers):
    """A program of one launch."""

    @warp_program("x[n] -> y[n]", name="test_program::launching")
    def run(x: wp.array[float], y: wp.array[float]):
        wp.launch(kernel, dim(x), inputs=[x, *numbers], outputs=[y])

    return run


def count(x):
    return x.shape[0]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("kernel", "dim", "numbers", "text"),
    [
        (kernels.square, lambda x: count(x) + 3, (), "over 7: 'x' is indexed up to 6 on axis 0, and has size 4"),
        (kernels.square, lambda x: count(x) + 10**8, (), "has size 4"),
        (filling, lambda x: 100, (5,), "'x' is indexed up to 4 on axis 0, and has size 4"),
        (differences, count, (), "'x' is indexed up to 4 on axis 0, and has size 4"),
        (plane, count, (), "which is 1 size, and it takes 2 coordinates"),
        (kernels.square, lambda x: (count(x), 2), (), "which is 2 sizes, and it takes 1 coordinate from"),
    ],
    ids=["longer", "much longer", "guard", "neighbour", "too few", "too many"],
)
def test_a_launch_that_leaves_an_array(mode, grad, kernel, dim, numbers, text):
    x = torch.ones(4, requires_grad=grad)
    with pytest.raises(Exception, match=text.replace("(", "\\(")):
        mode(launching(kernel, dim, *numbers))(x)


def test_a_constant_index_of_a_launch():
    run = launching(by_the_third, count)
    assert run(torch.ones(3)).tolist() == [1.0] * 3
    with pytest.raises(ArgumentError, match="'x' is indexed at 2 on axis 0, and has size 2"):
        run(torch.ones(2))


def test_launches_that_fit(mode):
    x = torch.tensor([1.0, 2.0, 4.0])
    check_against(mode(launching(filling, lambda x: 100, 3)), lambda x: x * x, (x,))
    check_against(mode(launching(plane, lambda x: (count(x), count(x)))), lambda x: x.sum().expand(3), (x,))
    check_against(
        mode(launching(differences, lambda x: count(x) - 1)),
        lambda x: torch.cat([x[1:] - x[:-1], torch.zeros(1)]),
        (x,),
    )
    close(launching(differences, lambda x: 0)(x), torch.zeros(3))
