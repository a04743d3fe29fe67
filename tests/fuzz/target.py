"""Steps on both cores: everything that can be seen is the same, and nothing is left afterwards."""

from __future__ import annotations

import gc
from typing import Any

from tests.core.cores import COMPILED, REFERENCE
from tests.fuzz.steps import Step, steps_of
from tests.fuzz.worlds import World

SHOWN = 400


class Disagreement(Exception):
    """The cores differ; the message tells where."""


class LeftOver(Exception):
    """Objects of the core are still there when nobody knows them any more."""


def compare(cache_limit: int, steps: list[Step], *, each: int = 1) -> None:
    """Raises `Disagreement` if the cores are not the same after each step, or some of them."""
    expected, actual = World(REFERENCE, cache_limit), World(COMPILED, cache_limit)
    for number, step in enumerate(steps):
        _alike(expected.do(*step), actual.do(*step), f"step {number} returned", step)
        if number % each == 0 or step is steps[-1]:
            _alike(expected.look(), actual.look(), f"after step {number}", step)
    for client in range(3):
        end: Step = ("take", client)
        _alike(expected.do(*end), actual.do(*end), "at the end", end)


def check(data: bytes) -> None:
    """The same for any bytes, as a fuzzer makes them, which has more to try than to look at."""
    compare(*steps_of(data), each=5)


def objects_left() -> list[Any]:
    """What there is of the compiled core, once the garbage is gone."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one).__module__ == COMPILED.__name__]


def _alike(expected: Any, actual: Any, where: str, step: Step) -> None:
    if expected == actual:
        return
    raise Disagreement(f"{where}: {shown(step)}\n{_difference(expected, actual, 'all')}")


def _difference(expected: Any, actual: Any, where: str) -> str:
    """The first part in which two values differ."""
    both = isinstance(expected, tuple | list) and isinstance(actual, tuple | list)
    if both and len(expected) == len(actual):
        for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
            if one != other:
                return _difference(one, other, f"{where}[{index}]")
    return f"{where}: reference: {shown(expected)}\n{where}: compiled:  {shown(actual)}"


def shown(value: Any) -> str:
    """A value as it is printed, which may be long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)})"
