"""The unused tokens of edges; each token opens one link."""

from __future__ import annotations

import secrets
from collections import OrderedDict

import attrs

from txbroker.link.hello import HelloHead
from txbroker.model.epoch_transition import EpochTransition

TOKEN_LIFE = 10.0
"""Seconds within which a token must be used."""


@attrs.frozen(kw_only=True)
class EdgeLife:
    """
    The process and data folder of an edge, and its address.

    "" in a field: an older node does not report it.
    """

    identity: str
    life: str
    grpc: str


@attrs.frozen(kw_only=True)
class Token:
    """
    A token's edge, its expiry, and the epoch transitions that the edge got with it.

    A later token has a greater `number`.
    """

    edge: str
    incarnation: int
    until: float
    passages: tuple[EpochTransition, ...]
    life: EdgeLife
    number: int


class Tokens:
    """
    The unused tokens, shared fairly.

    A new token replaces the edge's own unused one; a full table evicts the oldest. So no edge gets
    all of them by asking often.
    """

    def __init__(self) -> None:
        self._given: OrderedDict[bytes, Token] = OrderedDict()
        self._of: dict[tuple[str, int, EdgeLife], bytes] = {}

    def __len__(self) -> int:
        return len(self._given)

    def issue(self, given: Token, most: int) -> tuple[bytes, bool]:
        """
        Issue a token, of at most `most`; return it, and True if another edge's token was evicted.
        """
        self.redeem(self._of.get(_owner(given), b""))
        is_full = len(self._given) >= most
        if is_full:
            self.redeem(next(iter(self._given)))
        token = secrets.token_bytes(16)
        self._given[token] = given
        self._of[_owner(given)] = token
        return token, is_full

    def find(self, head: HelloHead) -> Token | None:
        """Return the record of the Hello's token, if the token was issued to this edge."""
        known = self._given.get(head.token)
        is_its = known is not None and (known.edge, known.incarnation) == (
            head.edge,
            head.incarnation,
        )
        return known if is_its else None

    def redeem(self, token: bytes) -> Token | None:
        """Use up a token; return its record."""
        known = self._given.pop(token, None)
        if known is not None and self._of.get(_owner(known)) == token:
            del self._of[_owner(known)]
        return known

    def expire(self, now: float) -> None:
        """Expire tokens that were not used in time."""
        while self._given:
            token, given = next(iter(self._given.items()))
            if given.until >= now:
                return
            self.redeem(token)


def _owner(given: Token) -> tuple[str, int, EdgeLife]:
    # The key has the process, not the name alone. A caller that forges an edge's name knows no life
    # of the edge, and so evicts no token of it.
    return given.edge, given.incarnation, given.life
