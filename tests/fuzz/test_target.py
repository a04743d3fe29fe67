"""The fuzzer's target by itself, with the core as it is used."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.cores import REFERENCE, needs_compiled
from tests.fuzz import target
from tests.fuzz.seeds import SEEDS
from tests.fuzz.steps import STEPS, steps_of
from tests.fuzz.worlds import World
from txbroker.core.reference import packet_reader

pytestmark = needs_compiled


@pytest.mark.parametrize("name", SEEDS)
def test_the_cores_agree_on_each_seed(name: str) -> None:
    target.check(SEEDS[name])


def test_seeds_have_every_step_and_runs() -> None:
    steps = [step for data in SEEDS.values() for step in steps_of(data)[1]]
    assert {name for name, _ in STEPS} <= {step[0] for step in steps}
    world = World(REFERENCE, 100)
    for step in steps_of(SEEDS["conversation"])[1]:
        world.do(*step)
    assert sum(run.count for run in world.runs) == 5
    assert world.router.delivered > 5


def test_a_seed_has_stored_batches() -> None:
    world, counts = World(REFERENCE, 100), []
    for step in steps_of(SEEDS["stored"])[1]:
        found = world.do(*step)
        counts.append(found[1] if step[0] == "stored" else len(found[-2]))
    assert [1, 4, 6, 6, 6, 2, 0] == counts


def test_a_disagreement_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is planted: the reference takes topics with a wildcard."""

    plain_publish = packet_reader.plain_publish

    def taken(first_byte: int, body: bytes, at: int, **form: Any) -> Any:
        return plain_publish(first_byte, body.replace(b"+", b"-"), at, **form)

    monkeypatch.setattr(packet_reader, "plain_publish", taken)
    with pytest.raises(target.Disagreement, match="step 8 returned"):
        target.check(SEEDS["conversation"])


def test_worlds_that_are_over_leave_nothing() -> None:
    before = len(target.objects_left())
    for data in SEEDS.values():
        target.check(data)
    assert len(target.objects_left()) == before
