"""``frozen``: a frozen dataclass, less the guard and the text that each compiles."""

from __future__ import annotations

from dataclasses import field

import pytest

from warpops.frozen import frozen, hashed, replace


@frozen
class Pair:
    left: int
    right: object = None
    note: str = field(default="", compare=False)


@frozen
class Other:
    left: int
    right: object = None


@hashed
class Counted:
    value: object


@frozen
class Nothing:
    pass


def test_what_is_compared_and_hashed():
    assert Pair(1, 2) == Pair(1, 2, "seen") != Pair(1, 3)
    assert Pair(1) != Other(1) and Pair(1) != (1, None)
    assert hash(Pair(1, 2)) == hash(Pair(1, 2, "seen")) and len({Pair(1), Pair(1), Pair(2)}) == 2
    assert Nothing() == Nothing() and hash(Nothing()) == hash(Nothing())


def test_what_can_t_be_hashed_says_so():
    with pytest.raises(TypeError, match="unhashable"):
        hash(Pair(1, []))


def test_it_is_shown_with_its_fields():
    assert repr(Pair(1, "a")) == "Pair(left=1, right='a', note='')"


def test_another_one_of_the_same():
    one = Pair(1, 2, "seen")
    assert replace(one, right=3) == Pair(1, 3) and replace(one, right=3).note == "seen" and one.right == 2


def test_a_hash_is_counted_once_and_stays_with_its_value():
    counts = []

    class Value:
        def __hash__(self) -> int:
            counts.append(self)
            return 7

    one = Counted(Value())
    assert hash(one) == hash(one) and len(counts) == 1
    assert hash(replace(one, value=8)) == hash(Counted(8)) != hash(one)


def test_its_own_ways_stay():
    @frozen
    class Odd:
        value: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "odd"

    assert Odd(1) == 5 and hash(Odd(1)) == 7 and repr(Odd(1)) == "odd"
