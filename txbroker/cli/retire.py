"""`txbroker retire`: hands a node's zone back to its parent, and stops the node."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click

from txbroker.cli.options import node_address
from txbroker.cli.output import zone_name
from txbroker.config import Address

if TYPE_CHECKING:
    from txbroker.cli.node_calls import Channels

HANDOVER_TIMEOUT = 1800.0
"""Seconds for the hand-back of the zone with its whole journal."""
STOP_TIMEOUT = 10.0
"""Seconds after the hand-back in which the node must stop."""


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker retire 127.0.0.1:7002
    """
)
@node_address
def retire(address: Address) -> None:
    """
    Give a node's zone back to its parent, and stop the node.

    A node without a zone hands its sessions to its parent, and stops.

    HOST:PORT is the node's gRPC address. The parent then serves the zone, with its retained
    messages, its journal, the zones below it and the node's sessions. Clients are disconnected.
    Afterwards the node's data may be deleted. A node that is started again gets its zone back. If
    the parent cannot be reached, or refuses a part, the status is 1 and the node continues.
    """
    # `node_calls` says why the import is not at the top.
    from txbroker.cli.node_calls import ask

    ask(lambda channels: _retire(channels, address))


async def _retire(channels: Channels, address: Address) -> None:
    from txbroker.cli.node_calls import answer, status_of
    from txbroker.v1.control_pb2 import RetireRequest

    where = str(address)
    status = await status_of(channels, where)
    request = RetireRequest(zone=status.zone.apex, epoch=status.zone.epoch)
    reply = await answer(
        where,
        channels.stub(where).Retire(request, timeout=HANDOVER_TIMEOUT),
        late="`txbroker tree` of its parent shows who serves the zone now",
    )
    if not reply.done:
        raise click.ClickException(f"{where}: {' '.join(reply.reason.split())}")
    if status.owns_zone:
        zone = zone_name(status.zone.apex)
        click.echo(f"zone {zone} is back with its parent; the node is stopping")
    else:
        click.echo(f"the sessions of node {status.node} are at its parent; the node is stopping")
    await _wait_for_end(address)


async def _wait_for_end(address: Address) -> None:
    """Wait until no process listens at the address; raises `click.ClickException`."""
    deadline = time.monotonic() + STOP_TIMEOUT
    while await _listens(address):
        if time.monotonic() >= deadline:
            raise click.ClickException(f"{address} still answers after {STOP_TIMEOUT:.0f} s")
        await asyncio.sleep(0.1)


async def _listens(address: Address) -> bool:
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except OSError:  # TimeoutError is a subclass.
        return False
    writer.close()
    return True
