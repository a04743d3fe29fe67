"""SHELL: what both sides of a handover do when they copy a zone's state away."""

from __future__ import annotations

from txbroker.aio import wait_until
from txbroker.authority.authority import Authority
from txbroker.control.times import HANDOVER_STEP


async def settled(authority: Authority) -> None:
    """Return when everything that was taken is durable and delivered; raises `TimeoutError`."""
    if not await wait_until(lambda: authority.is_settled, HANDOVER_STEP):
        raise TimeoutError("the store does not keep up")
