"""`txbroker divergent`: shows, replays or drops a node's divergent branch after a reclaim."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from txbroker.cli.options import Apex, as_json, node_address
from txbroker.cli.output import show_json, show_table, zone_name
from txbroker.config import Address

if TYPE_CHECKING:
    from txbroker.v1.control_pb2 import DivergentReply

TIMEOUT = 1800.0
"""Seconds; the node may have to read its whole journal, and write it once."""

zone_argument = click.argument("zone", metavar="ZONE", type=Apex())


@click.group(
    epilog="""
    Example:

    \b
      $ txbroker divergent list 127.0.0.1:7002 home/kitchen
    """
)
def divergent() -> None:
    """
    Show, replay or drop what a node had alone when its zone was reclaimed.

    HOST:PORT is the gRPC address of the node that came back, ZONE the zone that it had. The node
    keeps its divergent branch until `replay` or `drop`. After either, the node asks its parent for
    its zone again. A warning tells what else keeps it from the zone.

    Example:

    \b
      $ txbroker divergent list 127.0.0.1:7002 home/kitchen
    """


@divergent.command(
    "list",
    epilog="""
    Example:

    \b
      $ txbroker divergent list 127.0.0.1:7002 home/kitchen
    """,
)
@node_address
@zone_argument
@as_json
def list_(address: Address, zone: str, as_json: bool) -> None:
    """
    Show the messages of the branch that other nodes may lack.

    The list has messages of QoS 1 and 2. Messages are left out if this node knows that every node
    had accepted them for its sessions.
    """
    reply = _ask(address, zone, "LIST")
    if as_json:
        show_json(_as_dict(zone, reply))
        return
    click.echo(
        f"zone {zone_name(zone)}, epoch {reply.epoch}: {reply.messages} messages,"
        f" {reply.size} bytes"
    )
    if reply.messages:
        click.echo(f"taken from {_time(reply.first)} to {_time(reply.last)}")
        show_table(("TOPIC", "MESSAGES"), [(t.topic, str(t.messages)) for t in reply.topics])


@divergent.command(
    epilog="""
    Example:

    \b
      $ txbroker divergent replay 127.0.0.1:7002 home/kitchen
    """
)
@node_address
@zone_argument
def replay(address: Address, zone: str) -> None:
    """
    Deliver the branch once to every session that lacks its messages.

    Sessions that were subscribed when the zone was reclaimed, at any node, receive the messages
    that they had not received. The messages arrive late, behind the zone's newer ones.
    """
    reply = _ask(address, zone, "REPLAY")
    click.echo(f"the branch of zone {zone_name(zone)}, epoch {reply.epoch}, is being replayed")
    _warn(address, reply)


@divergent.command(
    epilog="""
    Example:

    \b
      $ txbroker divergent drop 127.0.0.1:7002 home/kitchen
    """
)
@node_address
@zone_argument
def drop(address: Address, zone: str) -> None:
    """Discard the branch for good."""
    reply = _ask(address, zone, "DROP")
    click.echo(f"the branch of zone {zone_name(zone)}, epoch {reply.epoch}, is dropped")
    _warn(address, reply)


def _warn(address: Address, reply: DivergentReply) -> None:
    """Say so if the node does not get its zone even so."""
    if reply.reason:
        reason = " ".join(reply.reason.split())
        click.echo(f"warning: {address}: the zone is not granted yet: {reason}", err=True)


def _ask(address: Address, zone: str, action: str) -> DivergentReply:
    # `node_calls` says why the import is not at the top.
    from txbroker.cli.node_calls import Channels, answer, ask
    from txbroker.v1.control_pb2 import DivergentRequest

    async def call(channels: Channels) -> DivergentReply:
        value = DivergentRequest.Action.Value(action)
        request = DivergentRequest(action=value, zone=zone)
        return await answer(
            str(address), channels.stub(str(address)).Divergent(request, timeout=TIMEOUT)
        )

    reply = ask(call)
    if not reply.done:
        raise click.ClickException(f"{address}: {' '.join(reply.reason.split())}")
    return reply


def _as_dict(zone: str, reply: DivergentReply) -> dict[str, Any]:
    return {
        "zone": zone,
        "epoch": reply.epoch,
        "messages": reply.messages,
        "bytes": reply.size,
        "first": _time(reply.first) if reply.messages else None,
        "last": _time(reply.last) if reply.messages else None,
        "topics": {topic.topic: topic.messages for topic in reply.topics},
    }


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="seconds")
