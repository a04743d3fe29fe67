"""
Random schedules over the coordinator of one group and the members at three edges: messages, links
that break, members that come, answer and leave, edges and a coordinator that crash, a session that
is elsewhere for a while.

What has to hold: in the end each message was processed and none is held; at QoS 2 it was processed
once, but for what was not reported durably by an edge that crashed.
"""

from __future__ import annotations

import pytest

from tests.edge.groups.site import World


@pytest.mark.parametrize("seed", range(60))
def test_each_message_is_processed(seed: int) -> None:
    world = World(seed, is_late=seed % 2 == 1)
    world.run(600)
    world.settle()
    assert world.is_done(), "a message is held for ever"
    missing = {m.payload for m in world.journal if not world.processed[m.payload]}
    assert not missing - world.excused
    twice = [p for p, count in world.processed.items() if count > 1 and p[:1] == b"2"]
    assert not set(twice) - world.excused
