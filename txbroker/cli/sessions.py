"""`txbroker sessions`: lists the sessions of a node, or ends one of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs
import click

from txbroker.cli.options import as_json, node_address
from txbroker.cli.output import show_json, show_table
from txbroker.config import Address

if TYPE_CHECKING:
    from txbroker.cli.node_calls import Channels

COLUMNS = (
    "CLIENT",
    "MQTT",
    "STATE",
    "SINCE",
    "SUBSCRIPTIONS",
    "WAITING",
    "DROPPED",
    "HELD BYTES",
    "HELD FOR",
    "EXPIRY",
)

LEVELS = {3: "3.1", 4: "3.1.1", 5: "5.0"}
"""Names of the protocol levels."""


@attrs.frozen(kw_only=True)
class SessionRow:
    """
    A session of a node; its fields are the keys in JSON.

    `away_since` is None while the client is connected. `held` is the size in bytes of the journals
    that are kept for the session. The oldest of them are kept for `held_for` seconds. `held_known`
    is False if there may be more. `mqtt` is the version that the client spoke last. The session
    outlives its connection by `expiry` seconds. A node of an earlier version tells neither.
    """

    client_id: str
    clean: bool
    connected: bool
    away_since: datetime | None
    subscriptions: int
    waiting: int
    dropped: int
    held: int
    held_for: float
    held_known: bool
    mqtt: str
    expiry: float | None


@click.command(
    epilog="""
    Examples:

    \b
      $ txbroker sessions 127.0.0.1:7001
      $ txbroker sessions 127.0.0.1:7001 --delete panel
    """
)
@node_address
@click.option("--delete", "client_id", metavar="ID", help="End the session of this client id.")
@as_json
def sessions(address: Address, client_id: str | None, as_json: bool) -> None:
    """
    List the sessions that a node holds, or end one of them.

    HOST:PORT is the node's gRPC address. WAITING is the maximum number of messages behind those in
    flight to the client. All new messages of the session's zones count, matching or not. DROPPED
    counts messages beyond a limit, as far as known: the count grows when the client returns. HELD
    BYTES is the approximate size of all zones' journals kept for the session, and HELD FOR their
    age. EXPIRY is how long the session stays without its client, the node's limit included.
    Sessions that hold most come first. A + means that a zone's owner did not answer. A deleted
    session loses its subscriptions and waiting messages. Its client is disconnected, and may begin
    a new session.
    """
    # `node_calls` says why the import is not at the top.
    from txbroker.cli.node_calls import ask

    if client_id is not None:
        _delete(address, client_id, as_json)
        return
    found = ask(lambda channels: _fetch(channels, str(address)))
    if as_json:
        show_json([_as_dict(session) for session in found])
    else:
        show_table(COLUMNS, [_cells(session) for session in found])


def _delete(address: Address, client_id: str, as_json: bool) -> None:
    from txbroker.cli.node_calls import CALL_TIMEOUT, answer, ask
    from txbroker.v1.control_pb2 import DeleteSessionReply, DeleteSessionRequest

    async def delete(channels: Channels) -> DeleteSessionReply:
        request = DeleteSessionRequest(client_id=client_id)
        call = channels.stub(str(address)).DeleteSession(request, timeout=CALL_TIMEOUT)
        return await answer(str(address), call)

    if not ask(delete).found:
        raise click.ClickException(f"{address}: no session of client {client_id!r} at this node")
    if as_json:
        show_json({"deleted": client_id})
    else:
        click.echo(f"the session of client {client_id!r} is deleted")


async def _fetch(channels: Channels, address: str) -> list[SessionRow]:
    from txbroker.cli.node_calls import answer_all
    from txbroker.v1.control_pb2 import SessionsRequest

    replies = await answer_all(address, channels.stub(address).Sessions(SessionsRequest()))
    now = datetime.now(UTC)
    return [
        SessionRow(
            client_id=info.client_id,
            clean=info.clean,
            connected=info.connected,
            away_since=None if info.connected else now - timedelta(seconds=info.away),
            subscriptions=info.subscriptions,
            waiting=info.waiting,
            dropped=info.dropped,
            held=info.held_size,
            held_for=round(info.held_age, 1),
            held_known=not info.held_unknown,
            mqtt=LEVELS.get(info.level, ""),
            expiry=info.expiry if info.HasField("expiry") else None,
        )
        for reply in replies
        for info in reply.sessions
    ]


def _as_dict(session: SessionRow) -> dict[str, object]:
    values = attrs.asdict(session)
    since = session.away_since
    return values | {"away_since": None if since is None else since.isoformat(timespec="seconds")}


def _cells(session: SessionRow) -> list[str]:
    since = session.away_since
    return [
        session.client_id,
        session.mqtt,
        "connected" if session.connected else "away",
        "" if since is None else f"{since:%Y-%m-%dT%H:%M:%SZ}",
        str(session.subscriptions),
        str(session.waiting),
        str(session.dropped),
        str(session.held) + ("" if session.held_known else "+"),
        str(timedelta(seconds=round(session.held_for))) if session.held else "",
        _expiry(session),
    ]


def _expiry(session: SessionRow) -> str:
    if session.expiry is None:
        return ""
    if session.expiry:
        return str(timedelta(seconds=round(session.expiry)))
    # Many clients of MQTT 5.0 leave out the expiry, and lose a session that they meant to keep.
    return "ends at disconnect" + (": expiry 0" if session.mqtt == LEVELS[5] else "")
