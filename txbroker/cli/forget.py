"""`txbroker forget`: a member that is lost for good is no member any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from txbroker.cli.options import node_address
from txbroker.cli.output import zone_name
from txbroker.config import Address

if TYPE_CHECKING:
    from txbroker.cli.node_calls import Channels

TIMEOUT = 10.0
"""Seconds; the node that is forgotten has two of them to answer."""


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker forget 127.0.0.1:7001 kitchen
    """
)
@node_address
@click.argument("node", metavar="NODE")
def forget(address: Address, node: str) -> None:
    """
    Forget a node that is lost for good.

    HOST:PORT is the gRPC address of any other node of the tree, NODE the name of the lost one. All
    nodes hear of it, those that are away when they come back. The client ids that the lost node
    kept entries of get another keeper, and the sessions that it held are gone. Refused while the
    node answers. If it comes back all the same, it joins anew, and its sessions are merged.
    """
    # See `asking` for why not at the top.
    from txbroker.cli.node_calls import ask

    ask(lambda channels: forget_at(channels, address, node))


async def forget_at(channels: Channels, address: Address, node: str) -> None:
    """Ask the node at `address` to forget that one; raises `click.ClickException`."""
    from txbroker.cli.node_calls import answer
    from txbroker.v1.control_pb2 import ForgetRequest

    where = str(address)
    request = ForgetRequest(node=node)
    reply = await answer(where, channels.stub(where).Forget(request, timeout=TIMEOUT))
    if not reply.done:
        raise click.ClickException(f"{where}: {' '.join(reply.reason.split())}")
    click.echo(f"node {node} is no member any more")
    for cut in reply.zones:
        apex = zone_name(cut.apex)
        click.echo(f"zone {apex} is delegated to it still; see `txbroker reclaim`", err=True)
