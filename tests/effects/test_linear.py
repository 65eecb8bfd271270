"""What the analysis costs: linear in a kernel's text, whatever its loops and calls. Counted in steps, not in time."""

from __future__ import annotations

import pytest
import warp as wp

from warpops.effects import analyse, analysis
from warpops.effects.record import Record


@wp.func
def bent(a: wp.vec3, b: wp.vec3):
    c = wp.cross(a, b)
    s = wp.dot(a, b) * wp.length(c)
    if s > 0.0:
        s = s * s + wp.length(a) * wp.length(b)
    return s * wp.dot(c, c) + wp.dot(a, c) * wp.dot(b, c)


@wp.kernel
def called_once(x: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    y[i] = bent(x[i], x[i])


@wp.kernel
def called_often(x: wp.array[wp.vec3], w: wp.array[wp.vec3], y: wp.array[float]):
    i = wp.tid()
    s = bent(x[i], x[i])
    s += bent(w[i], x[i])
    s += bent(x[i], w[i])
    s += bent(w[i], w[i])
    y[i] = s


@wp.kernel
def stored_over(x: wp.array[wp.vec3], y: wp.array[wp.vec3], z: wp.array[float]):
    i = wp.tid()
    s = bent(x[i], x[i])
    y[i] = x[i] * s
    z[i] = bent(y[i], x[i])
    y[i] = wp.vec3(0.0)


@wp.kernel
def one_loop(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    s = float(0.0)
    for a in range(n):
        if x[i] > 1.0:
            s += x[i] * float(a)
        if x[i] > 2.0:
            s += x[i] * x[i]
        if x[i] > 3.0:
            s = s * x[i] + 1.0
        if x[i] > 4.0:
            s += wp.sin(x[i])
    y[i] = s


@wp.kernel
def four_loops(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    s = float(0.0)
    for _b in range(n):
        for _c in range(n):
            for _d in range(n):
                for a in range(n):
                    if x[i] > 1.0:
                        s += x[i] * float(a)
                    if x[i] > 2.0:
                        s += x[i] * x[i]
                    if x[i] > 3.0:
                        s = s * x[i] + 1.0
                    if x[i] > 4.0:
                        s += wp.sin(x[i])
    y[i] = s


@wp.func
def with_loop(v: float, n: int):
    s = v
    for _ in range(n):
        s = s * v
    return s


@wp.kernel
def loop_in_a_function(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    s = float(0.0)
    for k in range(n):
        s += with_loop(x[i], k)
    y[i] = s


@wp.func
def component(v: wp.vec3, k: int):
    return v[k]


@wp.kernel
def stray_in_a_function(x: wp.array[wp.vec3], n: int, y: wp.array[float]):
    i = wp.tid()
    k = int(0)
    s = component(x[i], 2)
    for _ in range(n):
        k = (k * 2 + 1) % 3
        s += component(x[i], k)
    y[i] = s


@wp.struct
class Pair:
    a: wp.vec3
    b: wp.vec3


@wp.struct
class Cloud:
    points: wp.array[wp.vec3]
    scale: float


@wp.func
def pair_of(points: wp.array[wp.vec3], i: int, j: int):
    found = Pair()
    found.a = points[i]
    found.b = points[j]
    if wp.length(found.a) > 1.0:
        found.a = found.a * wp.dot(found.b, found.b)
    return found


@wp.func
def of_pair(pair: Pair, cloud: Cloud):
    s = wp.dot(pair.a, pair.b) * cloud.scale + wp.length(cloud.points[0])
    if s > 0.0:
        s = s * s + wp.length(pair.a) * wp.length(pair.b)
    return s * wp.dot(pair.a, pair.a)


@wp.kernel
def pair_once(x: wp.array[wp.vec3], cloud: Cloud, y: wp.array[float]):
    i = wp.tid()
    y[i] = of_pair(pair_of(x, i, 0), cloud)


@wp.kernel
def pair_often(x: wp.array[wp.vec3], w: wp.array[wp.vec3], cloud: Cloud, y: wp.array[float]):
    i = wp.tid()
    s = of_pair(pair_of(x, i, 0), cloud)
    if s > 1.0:
        s += of_pair(pair_of(x, i, 0), cloud)
    s += of_pair(pair_of(x, i, 0), cloud)
    s += of_pair(pair_of(x, i, 0), cloud)
    y[i] = s


@wp.kernel
def pair_read_again(x: wp.array[wp.vec3], cloud: Cloud, y: wp.array[float]):
    i = wp.tid()
    s = of_pair(pair_of(x, i, i), cloud)
    x[i] = wp.vec3(s)
    y[i] = of_pair(pair_of(x, i, i), cloud)


@wp.func
def of_two(a: float, b: float):
    return wp.frac(a), b * b


@wp.kernel
def one_of_two(x: wp.array[float], y: wp.array[float], z: wp.array[float]):
    i = wp.tid()
    _, kept = of_two(x[i], x[i])
    y[i] = kept


@wp.kernel
def two_ways(x: wp.array[float], n: int, y: wp.array[float]):
    i = wp.tid()
    if n > 1:
        s = wp.frac(x[i])
    else:
        s = wp.frac(x[i])
    y[i] = s


@pytest.fixture
def steps(monkeypatch):
    """How many nodes the analysis of a kernel visits."""
    records: list[Record] = []

    def kept(*given):
        records.append(Record(*given))
        return records[-1]

    monkeypatch.setattr(analysis, "Record", kept)

    def count(kernel):
        analysis._results.pop(kernel.adj, None)
        analyse(kernel)
        return records[-1].visited

    return count


def test_a_body_is_interpreted_as_often_however_deep_it_lies(steps):
    assert steps(four_loops) < 1.4 * steps(one_loop)


def test_a_function_of_numbers_is_interpreted_once_for_arguments_of_one_kind(steps):
    assert steps(called_often) < 1.8 * steps(called_once)


def test_a_summary_has_the_arguments_of_each_call():
    loops = analyse(loop_in_a_function)
    assert {"loop-product"} == {h.kind for h in loops.hazards}
    assert any(need.inside == {"s"} for need in loops.loops)
    effects = analyse(called_often)
    assert not effects.hazards
    assert effects.arrays["y"].filled
    reads = {name: len(effects.arrays[name].reads) for name in ("x", "w")}
    assert reads == {"x": 3, "w": 3}
    lines = {h.site.line for h in analyse(stored_over).hazards if h.kind == "restored"}
    assert len(lines) == 1


def test_an_index_that_a_loop_carries_is_refused_in_a_function_that_others_call_too():
    assert any(h.kind == "index" and "'k'" in h.message for h in analyse(stray_in_a_function).hazards)


def test_a_function_of_structs_and_arrays_is_interpreted_once_for_arguments_of_one_kind(steps):
    assert steps(pair_often) < 1.8 * steps(pair_once)


def test_what_a_summary_reads_is_read_at_each_call():
    effects = analyse(pair_often)
    once = analyse(pair_once)
    assert not effects.hazards
    for name in ("x", "cloud.points"):
        assert effects.arrays[name].reads == once.arrays[name].reads
        assert effects.arrays[name].axes == once.arrays[name].axes
    again = analyse(pair_read_again).arrays["x"]
    assert again.before is not None
    assert again.after is not None


def test_a_number_that_a_function_returns_has_no_part_in_the_others():
    assert not analyse(one_of_two).hazards


def test_values_that_are_equal_may_have_come_about_in_different_ways():
    assert len({h.site.line for h in analyse(two_ways).hazards}) == 2
