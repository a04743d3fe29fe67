"""Channels to other nodes, whose addresses come from outside."""

from __future__ import annotations

import pytest

from tests.support.cluster import on_loop
from txbroker.rpc import channels
from txbroker.rpc.channels import Channels


@on_loop
async def test_beyond_the_limit_the_one_not_used_for_longest_goes() -> None:
    """With what was made for a node there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "LIMIT", 2)
        made = Channels()
        first, second = (made.stub(f"127.0.0.1:{port}", "node") for port in (1, 2))
        assert made.stub("127.0.0.1:1", "node") is first

        made.stub("127.0.0.1:3")

        assert 2 == len(made)
        assert made.stub("127.0.0.1:1", "node") is first
        assert made.stub("127.0.0.1:2", "node") is not second
        assert 2 == len(made)
        await made.close()


@on_loop
async def test_what_was_made_for_nodes_at_one_address_is_bounded() -> None:
    """Whatever their names: they come from outside, as the addresses do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channels, "LIMIT", 2)
        made = Channels()
        first, second, third = (made.stub("127.0.0.1:1", name) for name in "abc")

        assert made.stub("127.0.0.1:1", "c") is third
        assert made.stub("127.0.0.1:1", "b") is second
        assert made.stub("127.0.0.1:1", "a") is not first
        await made.close()
