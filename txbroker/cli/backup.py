"""`txbroker backup`: copies a running node's data on the node's machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from txbroker.cli.options import node_address
from txbroker.config import Address

if TYPE_CHECKING:
    from txbroker.cli.node_calls import Channels
    from txbroker.v1.control_pb2 import BackupReply

MIB = 1024 * 1024


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker backup 127.0.0.1:7001 /backup/house
    """
)
@node_address
@click.argument("folder", metavar="DIR", type=click.Path())
def backup(address: Address, folder: str) -> None:
    """
    Copy a running node's data into DIR, a new folder on the node's machine.

    HOST:PORT is the node's gRPC address. The copy shows the data at one moment; the node continues
    meanwhile. To restore the copy, start the node with it as its `data`.
    """
    # `node_calls` says why the import is not at the top.
    from txbroker.cli.node_calls import ask

    target = os.path.abspath(folder)
    reply = ask(lambda channels: _backup(channels, str(address), target))
    if not reply.done:
        raise click.ClickException(f"{address}: {' '.join(reply.reason.split())}")
    click.echo(f"{target}: {reply.files} files, {reply.size / MIB:.1f} MiB")


async def _backup(channels: Channels, address: str, target: str) -> BackupReply:
    from txbroker.cli.node_calls import answer, status_of
    from txbroker.v1.control_pb2 import BackupRequest

    await status_of(channels, address)
    # A deadline would abort a long copy; the channel's keep-alive detects a node that is gone.
    return await answer(address, channels.stub(address).Backup(BackupRequest(folder=target)))
