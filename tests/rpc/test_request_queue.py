"""Few requests are read at once, and one that does not come keeps nobody waiting."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.cluster import on_loop
from txbroker.rpc.request_queue import AT_ONCE, RequestQueue


async def never() -> None:
    """A request that does not come."""
    await asyncio.Event().wait()


async def at_once() -> str:
    """One that is there."""
    return "request"


@on_loop
async def test_requests_that_do_not_come_make_way() -> None:
    """The oldest end, as many as are needed, and the place of each is free again."""
    requests = RequestQueue()
    idle = [asyncio.ensure_future(requests.read("liar", never)) for _ in range(3 * AT_ONCE)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(requests.read("other", at_once), 5) == "request"
    with pytest.raises(TimeoutError):
        await idle[0]
    for one in idle:
        one.cancel()
    await asyncio.gather(*idle, return_exceptions=True)
    assert requests._free == AT_ONCE and not requests._reading


@on_loop
async def test_no_more_are_read_at_once() -> None:
    """However many there are; all come to their end."""
    requests, reading, most = RequestQueue(), 0, 0

    async def read() -> None:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0.001)
        reading -= 1

    await asyncio.gather(*(requests.read(f"peer{n % 7}", read) for n in range(500)))
    assert (most, requests._free) == (AT_ONCE, AT_ONCE)
