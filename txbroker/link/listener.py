"""SHELL: the answering side of links; gives tokens and takes connections that carry one."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import attrs
from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import Factory

from txbroker.authority.authority import Authority
from txbroker.counters import Counters
from txbroker.delegation.passage import Passage
from txbroker.link.formats import Formats
from txbroker.link.owner_end import OwnerEnd
from txbroker.link.wire import HEARTBEAT, SILENCE, LinkProtocol
from txbroker.net import Clock, DelayedCall
from txbroker.pressure import Pressure
from txbroker.store.space import DiskSpace
from txbroker.telemetry import get_logger
from txbroker.turn import Flushable, Turn

log = get_logger()

SIGN_OF_LIFE = 2.5 * HEARTBEAT
"""Seconds in which an edge that lives has said something."""

TOKEN_LIFE = 10.0
"""Seconds in which a token has to be used."""


@attrs.frozen(kw_only=True)
class EdgeLife:
    """
    Which process of which data folder an edge is, and where; "" of an older node, which does not
    say so.
    """

    identity: str
    life: str
    grpc: str


class LinkListener(Factory):
    """Accepts the links of a node's authority (its `OwnerHost`)."""

    noisy = False

    def __init__(
        self,
        *,
        authority: Authority,
        pressure: Pressure,
        space: DiskSpace,
        counters: Counters,
        turn: Turn,
        clock: Clock,
        max_links: int,
    ) -> None:
        self.authority = authority
        self.pressure = pressure
        self.counters = counters
        self.max_links = max_links
        self.formats = Formats()
        self._space = space
        self._turn = turn
        self._clock = clock
        self._was_full = False
        self._tokens: dict[bytes, _Token] = {}
        self._open: set[_Accepted] = set()
        self._lives: dict[str, EdgeLife] = {}
        pressure.when_relieved(self._give_credit)
        space.when_changed(self._give_credit)

    @property
    def is_disk_short(self) -> bool:
        """Whether QoS 1/2 publishes have to wait for room on the disk."""
        return self._space.is_short

    def namesake(self, edge: str, life: EdgeLife) -> str | None:
        """
        Where another process of the edge's name lives, whose link is up; None: nowhere.

        Two such edges would push each other off for ever, and lose what the other one had taken.
        """
        known = self._lives.get(edge)
        # Whoever has the address now has taken it over from a process that is dead.
        if known is None or not life.life or known == life or known.grpc == life.grpc:
            return None
        return known.grpc if any(p.is_alive_as(edge) for p in self._open) else None

    def issue(self, edge: str, incarnation: int, life: EdgeLife) -> bytes | None:
        """A token for one link of this edge; None when there are as many links as allowed."""
        self._forget_old_tokens()
        if len(self._open) + len(self._tokens) >= self.max_links:
            self._refuse(edge)
            return None
        self._was_full = False
        token = secrets.token_bytes(16)
        self._tokens[token] = _Token(
            edge=edge,
            incarnation=incarnation,
            until=self._clock.seconds() + TOKEN_LIFE,
            passages=self.authority.passages,
            life=life,
        )
        return token

    def redeem(self, token: bytes, edge: str, incarnation: int) -> bool:
        """
        Whether the token was given to this edge, and not used yet.

        With it the edge was told the passages. Those made since it would never hear of, as it has
        no stream yet; so it has to ask again.
        """
        self._forget_old_tokens()
        known = self._tokens.pop(token, None)
        if known is None or known.passages != self.authority.passages:
            return False
        if (known.edge, known.incarnation) != (edge, incarnation):
            return False
        self._lives[edge] = known.life
        return True

    def mark_dirty(self, end: Flushable) -> None:
        """Call `flush` at the end of this turn."""
        self._turn.mark_dirty(end)

    def mark_next(self, end: Flushable) -> None:
        """Call `flush` in a turn of its own, soon."""
        self._turn.mark_next(end)

    def buildProtocol(self, addr: IAddress | None) -> LinkProtocol | None:
        if len(self._open) >= self.max_links:
            self._refuse(str(addr))
            return None
        protocol = _Accepted(
            turn=self._turn,
            clock=self._clock,
            counters=self.counters,
            peer=str(addr),
            on_end=self._forget,
        )
        self._open.add(protocol)
        end = OwnerEnd(self, write=protocol.write, close=protocol.drop)
        protocol.attach(end)
        protocol.expect_hello()
        return protocol

    def _refuse(self, peer: str) -> None:
        self.counters.add("link.over_limit")
        if not self._was_full:  # whoever is refused tries again each second
            self._was_full = True
            log.warning("link.over_limit", limit="limits.links", value=self.max_links, peer=peer)

    def _forget(self, protocol: _Accepted, edge: str | None) -> None:
        self._open.discard(protocol)
        if edge is not None and not any(p.edge == edge for p in self._open):
            self._lives.pop(edge, None)

    def _give_credit(self) -> None:
        for protocol in self._open:
            if protocol.end is not None:
                self._turn.mark_dirty(protocol.end)

    def _forget_old_tokens(self) -> None:
        now = self._clock.seconds()
        for token in [t for t, given in self._tokens.items() if given.until < now]:
            del self._tokens[token]


@attrs.frozen(kw_only=True)
class _Token:
    """To whom a token was given, until when it holds, and which passages that edge was told."""

    edge: str
    incarnation: int
    until: float
    passages: tuple[Passage, ...]
    life: EdgeLife


class _Accepted(LinkProtocol):
    """A link that counts against the limit until it is gone."""

    def __init__(
        self,
        *,
        turn: Turn,
        clock: Clock,
        counters: Counters,
        peer: str,
        on_end: Callable[[_Accepted, str | None], None],
    ) -> None:
        super().__init__(turn=turn, clock=clock, counters=counters, peer=peer)
        self._on_end = on_end
        self._alarm: DelayedCall | None = None

    @property
    def edge(self) -> str | None:
        """The edge that has said Hello."""
        peer = self.end.peer if isinstance(self.end, OwnerEnd) else None
        return None if peer is None else peer.edge

    def is_alive_as(self, edge: str) -> bool:
        """Whether this is the link of that edge, and the edge has just said something."""
        if self.end is None or self.edge != edge:
            return False
        return self._clock.seconds() - (self.end.inlet.heard_at or self._began) < SIGN_OF_LIFE

    def expect_hello(self) -> None:
        """Drop whoever talks, however slowly, and never says Hello: links are few."""

        def look() -> None:
            if self.edge is None:
                self._counters.add("link.refused")
                self.drop(f"no Hello in {SILENCE:.0f} s")

        self._alarm = self._clock.callLater(SILENCE, look)

    def connectionLost(self, reason: object = None) -> None:
        if self._alarm is not None and self._alarm.active():
            self._alarm.cancel()
        self._on_end(self, self.edge)
        super().connectionLost()
