"""The tokens that edges were given, each for one link, and none has used yet."""

from __future__ import annotations

import secrets
from collections import OrderedDict

import attrs

from txbroker.link.hello import HelloHead
from txbroker.model.epoch_transition import EpochTransition

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


@attrs.frozen(kw_only=True)
class Token:
    """
    To whom a token was given, until when it holds, and which passages that edge was told; a later
    token has a greater `number`.
    """

    edge: str
    incarnation: int
    until: float
    passages: tuple[EpochTransition, ...]
    life: EdgeLife
    number: int


class Tokens:
    """
    Nobody gets all of them by asking often: the oldest unused one makes room for the next, and an
    edge's own makes room for its next.
    """

    def __init__(self) -> None:
        self._given: OrderedDict[bytes, Token] = OrderedDict()
        self._of: dict[tuple[str, int, EdgeLife], bytes] = {}

    def __len__(self) -> int:
        return len(self._given)

    def give(self, given: Token, most: int) -> tuple[bytes, bool]:
        """A token, of which there are so many at the most; True if another edge's was dropped."""
        self.take(self._of.get(_owner(given), b""))
        is_full = len(self._given) >= most
        if is_full:
            self.take(next(iter(self._given)))
        token = secrets.token_bytes(16)
        self._given[token] = given
        self._of[_owner(given)] = token
        return token, is_full

    def find(self, head: HelloHead) -> Token | None:
        """What the Hello's token stands for, if it was given to this edge."""
        known = self._given.get(head.token)
        is_its = known is not None and (known.edge, known.incarnation) == (
            head.edge,
            head.incarnation,
        )
        return known if is_its else None

    def take(self, token: bytes) -> Token | None:
        """What it stands for; it is used now."""
        known = self._given.pop(token, None)
        if known is not None and self._of.get(_owner(known)) == token:
            del self._of[_owner(known)]
        return known

    def expire(self, now: float) -> None:
        """Those not used in time are worth nothing."""
        while self._given:
            token, given = next(iter(self._given.items()))
            if given.until >= now:
                return
            self.take(token)


def _owner(given: Token) -> tuple[str, int, EdgeLife]:
    # The process, not its name: whoever invents calls in an edge's name knows no life of it.
    return given.edge, given.incarnation, given.life
