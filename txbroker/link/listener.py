"""
SHELL: the answering side of links: issues tokens and accepts connections that show one.

The call `OpenLink` issues a token for one link. An accepted connection then passes three states:

- silent: less than the head of a Hello has come, and only the head is buffered.
- greeting: the head has shown an unused token, which belongs to this connection from now on.
- open: the complete Hello has redeemed the token (`redeem`), and a `LinkServer` runs the link.

A connection whose Hello is not accepted within `SILENCE` seconds is dropped. Too many silent or
greeting connections drop the oldest one of the fullest address.
"""

from __future__ import annotations

from itertools import count

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory

from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import OpenedLink
from txbroker.edge.groups.group_coordinators import GroupCoordinators
from txbroker.link.formats import LinkFormats
from txbroker.link.frames import LinkError
from txbroker.link.hello import HelloHead, head_of
from txbroker.link.link_protocol import HEARTBEAT, SILENCE, LinkProtocol
from txbroker.link.link_server import LinkServer
from txbroker.link.silent_connections import SilentConnection, SilentConnections
from txbroker.link.tokens import TOKEN_LIFE, EdgeLife, Token, Tokens
from txbroker.model.publish_run import Octets
from txbroker.runtime.connection_parts import ConnectionParts
from txbroker.runtime.fair_shares import ShareWorker
from txbroker.runtime.net import DelayedCall
from txbroker.runtime.structured_log import get_logger, log_limited
from txbroker.storage.disk_watermark import DiskWatermark

log = get_logger()

SIGN_OF_LIFE = 2.5 * HEARTBEAT
"""Seconds within which a living edge has sent a frame."""


class LinkListener(Factory):
    """Accepts the links of a node's authority (its `LinkHost`)."""

    noisy = False

    def __init__(
        self,
        parts: ConnectionParts,
        *,
        authority: Authority,
        groups: GroupCoordinators,
        watermark: DiskWatermark,
        max_links: int,
    ) -> None:
        self.authority = authority
        self.groups = groups
        self.backpressure = parts.backpressure
        self.counters = parts.counters
        self.max_links = max_links
        self.formats = LinkFormats()
        self._watermark = watermark
        self.is_disk_short = watermark.is_short
        self._parts = parts
        self._flush_queue = flush_queue = parts.flush_queue
        # Links call the queue itself, without a function in between.
        self.mark_dirty, self.mark_next = flush_queue.mark_dirty, flush_queue.mark_next
        self._clock = parts.clock
        self._was_full = False
        self._tokens = Tokens()
        self._shares = parts.shares
        self._silent, self._greeting = SilentConnections(), SilentConnections()
        self._shown: dict[bytes, tuple[SilentConnection, Token]] = {}
        self._open: set[_Accepted] = set()
        self._lives: dict[str, EdgeLife] = {}
        self._numbers = count(1)  # of tokens
        self.backpressure.when_relieved(self._grant_credit)
        watermark.when_changed(self._on_disk_changed)

    def namesake(self, edge: str, life: EdgeLife) -> str | None:
        """
        Return the address of another living process with the edge's name, whose link is up; or
        None.

        Two such edges would replace each other's links for ever, and lose the publishes that the
        other one had received.
        """
        known = self._lives.get(edge)
        # A caller at the known address has replaced a dead process there.
        if known is None or not life.life or known == life or known.grpc == life.grpc:
            return None
        return known.grpc if any(p.is_alive_as(edge) for p in self._open) else None

    def issue(self, edge: str, incarnation: int, life: EdgeLife) -> bytes | None:
        """
        Issue a token for one link of this edge; None if the node has as many links as allowed.
        """
        now = self._clock.seconds()
        self._tokens.expire(now)
        if self._is_full(edge):
            self._refuse(edge)
            return None
        given = Token(
            edge=edge,
            incarnation=incarnation,
            until=now + TOKEN_LIFE,
            passages=self.authority.transitions,
            life=life,
            number=next(self._numbers),
        )
        token, is_pushed_out = self._tokens.issue(given, self.max_links)
        if is_pushed_out:
            self._push_out("unused token", edge)
        return token

    def show(self, connection: SilentConnection, host: str, head: HelloHead) -> None:
        """
        Bind the token of a Hello's head to its connection.

        Raises `LinkError` unless the token was issued to this edge and is unused.
        """
        self._tokens.expire(self._clock.seconds())
        if self._tokens.find(head) is None:
            raise LinkError("the token is not valid; OpenLink gives one for each link")
        given = self._tokens.redeem(head.token)
        assert given is not None
        self._shown[head.token] = connection, given
        self._silent.remove(connection)
        self._make_room(self._greeting.add(connection, host))

    def redeem(self, token: bytes, edge: str, incarnation: int) -> OpenedLink | None:
        """
        Return the origin of the link; None if the Hello is not of the edge that showed the token.

        The edge got the epoch transitions together with its token. Later transitions would never
        reach the edge, which had no stream yet. So an outdated token gets None too, and the edge
        asks again.
        """
        connection, known = self._shown.pop(token, (None, None))
        if connection is None or known is None or known.passages != self.authority.transitions:
            return None
        if (known.edge, known.incarnation) != (edge, incarnation):
            return None
        if self._is_full(edge):
            self._refuse(edge)
            return None
        self._was_full = False
        self._greeting.remove(connection)
        self._lives[edge] = known.life
        return OpenedLink(known.life.life, known.number)

    def serve(self, worker: ShareWorker) -> None:
        """Queue a worker for its share of time."""
        self._shares.serve(worker)

    def is_over(self) -> bool:
        """True if the present worker has used its share."""
        return self._shares.is_over

    def buildProtocol(self, addr: IAddress | None) -> LinkProtocol | None:
        protocol = _Accepted(
            self._parts, self, peer=str(addr), host=str(getattr(addr, "host", addr))
        )
        self._open.add(protocol)
        protocol.expect_hello()
        self._make_room(self._silent.add(protocol, protocol.host))
        return protocol

    def forget(self, protocol: _Accepted) -> None:
        """Forget a closed connection."""
        self._open.discard(protocol)
        self._silent.remove(protocol)
        self._greeting.remove(protocol)
        self._shown.pop(protocol.token, None)
        edge = protocol.edge
        if edge is not None and not any(p.edge == edge for p in self._open):
            self._lives.pop(edge, None)

    # internal

    def _is_full(self, edge: str) -> bool:
        """True if no link may be added; an edge's next link replaces its last one."""
        links = len(self._open) - len(self._silent) - len(self._greeting)
        return links >= self.max_links and edge not in self._lives

    def _refuse(self, peer: str) -> None:
        self.counters.add("link.over_limit")
        if not self._was_full:  # a refused edge retries each second
            self._was_full = True
            log.warning("link.over_limit", limit="limits.links", value=self.max_links, peer=peer)

    def _make_room(self, oldest: SilentConnection | None) -> None:
        """Drop the oldest connection without Hello, as too many others came."""
        if oldest is not None:
            self._push_out("connection without Hello", oldest.peer)
            oldest.drop("it has said no Hello, and others came")

    def _push_out(self, what: str, peer: str) -> None:
        self.counters.add("link.pushed_out")
        log_limited(log.warning, "link.pushed_out", kind=what, what=what, peer=peer)

    def _on_disk_changed(self) -> None:
        self.is_disk_short = self._watermark.is_short
        self._grant_credit()

    def _grant_credit(self) -> None:
        for protocol in self._open:
            if protocol.end is not None:
                self._flush_queue.mark_dirty(protocol.end)


class _Accepted(LinkProtocol):
    """A link from its first byte on; before a valid token it buffers no more than the head."""

    def __init__(
        self,
        parts: ConnectionParts,
        links: LinkListener,
        *,
        peer: str,
        host: str,
    ) -> None:
        super().__init__(
            flush_queue=parts.flush_queue, clock=parts.clock, counters=parts.counters, peer=peer
        )
        self.host = host
        self.token = b""
        self._links = links
        self._unauthenticated = parts.unauthenticated
        self._head = b""
        self._alarm: DelayedCall | None = None

    @property
    def edge(self) -> str | None:
        """Return the edge that has sent its Hello; None before."""
        peer = self.end.peer if isinstance(self.end, LinkServer) else None
        return None if peer is None else peer.edge

    def is_alive_as(self, edge: str) -> bool:
        """True if this is the edge's link, and the edge has sent a frame recently."""
        return self.edge == edge and self.silence < SIGN_OF_LIFE

    def expect_hello(self) -> None:
        """
        Drop a connection that sends no Hello in time: links are few, and a slow sender would hold
        one.
        """

        def look() -> None:
            if self.edge is None:
                self._counters.add("link.refused")
                self.drop(f"no Hello in {SILENCE:.0f} s")

        self._alarm = self._clock.callLater(SILENCE, look)

    @property
    def awaited(self) -> int:
        """Return the bytes of the Hello that is not complete yet."""
        return len(self._head)

    def push_out(self) -> str:
        """Drop this connection to free bytes, as `Unauthenticated` asks; return its peer."""
        self._counters.add("link.refused")
        self.drop("the oldest of too many bytes without Hello")
        return self.peer

    def dataReceived(self, data: Octets) -> None:
        if self.token:
            super().dataReceived(data)
            return
        self._head += bytes(data)
        try:
            head = head_of(self._head)
            if head is None:
                self._unauthenticated.hold(self, len(self._head))
                return
            self._links.show(self, self.host, head)
        except LinkError as error:
            self._counters.add("link.refused")
            self.drop(str(error))
            return
        self._unauthenticated.forget(self)
        self.token, begun, self._head = head.token, self._head, b""
        self.attach(LinkServer(self._links, write=self.write, close=self.drop))
        super().dataReceived(begun)

    @property
    def _kind(self) -> str:
        return ""  # any peer

    def drop(self, reason: str) -> None:
        """Close at once; the buffered head is discarded now, not at the end of the connection."""
        self._head = b""
        super().drop(reason)

    def connectionLost(self, reason: object = None) -> None:
        if self._alarm is not None and self._alarm.active():
            self._alarm.cancel()
        self._unauthenticated.forget(self)
        self._links.forget(self)
        super().connectionLost()
