"""`txbroker reclaim`: makes a parent reclaim the zone of a dead node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from txbroker.cli.options import Apex, node_address
from txbroker.cli.output import zone_name
from txbroker.config import Address

if TYPE_CHECKING:
    from txbroker.cli.node_calls import Channels

TIMEOUT = 30.0
"""Seconds; the parent first waits for a running handover."""


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker reclaim 127.0.0.1:7001 home/kitchen
    """
)
@node_address
@click.argument("zone", metavar="ZONE", type=Apex())
@click.option("--forget", "is_lost", is_flag=True, help="The node is lost for good.")
def reclaim(address: Address, zone: str, is_lost: bool) -> None:
    """
    Take the zone of a dead node back, at its parent.

    HOST:PORT is the parent's gRPC address. The parent then serves the zone at a higher epoch,
    without the messages that only the dead node had. Delegations below the zone stand. The command
    is refused while the node is alive. If the node returns, its own messages stay as a divergent
    branch (`txbroker divergent`). A node that returns with an empty `data` can get the zone again.

    HOST:PORT may also be the zone's own node, restored from a copy, whose parent is gone. The node
    then serves the copy.
    """
    # `node_calls` says why the import is not at the top.
    from txbroker.cli.node_calls import ask

    ask(lambda channels: _reclaim(channels, address, zone, is_lost))


async def _reclaim(channels: Channels, address: Address, zone: str, is_lost: bool) -> None:
    from txbroker.cli.forget import forget_at
    from txbroker.cli.node_calls import answer, status_of
    from txbroker.v1.control_pb2 import ReclaimRequest

    where = str(address)
    status = await status_of(channels, where)
    known = {child.zone.apex: child.zone for child in status.children if child.owns_zone}
    request = ReclaimRequest(zone=zone, epoch=known[zone].epoch if zone in known else 0)
    reply = await answer(
        where,
        channels.stub(where).Reclaim(request, timeout=TIMEOUT),
        late="`txbroker tree` shows who serves the zone now",
    )
    if not reply.done:
        raise click.ClickException(f"{where}: {' '.join(reply.reason.split())}")
    click.echo(f"zone {zone_name(zone)} is served by node {status.node} now")
    if zone not in known:
        return
    lost = known[zone].node
    if is_lost:
        await forget_at(channels, address, lost)
    else:
        remedy = f"if it is lost for good: txbroker forget {where} {lost}"
        click.echo(f"node {lost} is a member still; {remedy}", err=True)
