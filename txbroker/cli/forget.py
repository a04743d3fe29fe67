"""`txbroker forget`: removes a member that is lost for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from txbroker.cli.options import node_address
from txbroker.cli.output import zone_name
from txbroker.config import Address

if TYPE_CHECKING:
    from txbroker.cli.node_calls import Channels

TIMEOUT = 10.0
"""Seconds; the node waits two of them for an answer of the lost node."""


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

    HOST:PORT is the gRPC address of any other node of the tree, NODE the name of the lost node. All
    nodes learn of the removal; a node that is away learns of it when it returns. Client ids whose
    entries the lost node kept get another keeper. The lost node's sessions are gone. The command is
    refused while the lost node answers. If the lost node returns nevertheless, it joins anew, and
    its sessions are merged.
    """
    # `node_calls` says why the import is not at the top.
    from txbroker.cli.node_calls import ask

    ask(lambda channels: forget_at(channels, address, node))


async def forget_at(channels: Channels, address: Address, node: str) -> None:
    """Ask the node at `address` to remove member `node`; raises `click.ClickException`."""
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
