"""The beginning of a link: what an edge's Hello must say, and what the owner answers."""

from __future__ import annotations

from collections.abc import Iterable

from txbroker.authority.authority import Authority
from txbroker.authority.edge_peer import (
    EdgeGreeting,
    OpenedLink,
    ReturnedZone,
)
from txbroker.delegation.peer_checks import check_filters
from txbroker.link.delivery_sender import WINDOW
from txbroker.link.frames import (
    LINK_VERSION,
    LinkError,
)
from txbroker.model.errors import PeerError
from txbroker.model.topics import is_within
from txbroker.rpc.link_convert import (
    claims_from_wire,
    cut_to_wire,
    key_from_mark,
)
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame


def greeting_of(hello: link_pb2.Hello, authority: Authority, opened: OpenedLink) -> EdgeGreeting:
    """Return the greeting of an edge whose token is valid; raises `LinkError`."""
    if not authority.serving:
        raise LinkError("the zone went after the token was given; OpenLink says where to")
    if hello.zone != authority.apex:
        raise LinkError(f"zone {hello.zone!r} is not served here")
    check_interest(hello.filters)
    check_claims(hello.claims, authority.apex)
    return EdgeGreeting(
        edge=hello.edge,
        incarnation=hello.incarnation,
        filters=tuple(hello.filters),
        stream=hello.stream,
        claims=claims_from_wire(hello.claims, authority.epoch),
        position=_resume_at(hello, authority.epoch),
        in_doubt=tuple(key_from_mark(mark) for mark in hello.in_doubt),
        opened=opened,
        wants_publishers=hello.publishers,
    )


def welcome(authority: Authority, marks: Iterable[types_pb2.Mark]) -> LinkFrame:
    """Return the answer to a Hello; the marks acknowledge publishes of earlier links."""
    frame = link_pb2.Welcome(
        version=LINK_VERSION,
        zone=authority.apex,
        epoch=authority.epoch,
        credit=WINDOW,
        marks=marks,
        answers_low_water=True,
        reads_properties=True,
    )
    return LinkFrame(welcome=frame)


def gone(one: ReturnedZone) -> LinkFrame:
    """Return the news of an apex that came back while the edge was away."""
    return LinkFrame(
        gone=types_pb2.Gone(
            apex=one.apex, epoch=one.epoch, offset=one.offset, reclaimed=not one.is_inherited
        )
    )


def online(authority: Authority, *, missed: int) -> LinkFrame:
    """Return the end of the beginning: live deliveries follow."""
    cuts = [cut_to_wire(cut) for cut in authority.cuts()]
    return LinkFrame(online=link_pb2.Online(cuts=cuts, offset=authority.delivered, missed=missed))


def check_claims(claims: Iterable[link_pb2.Claim], apex: str) -> None:
    """Check that each claim is within the zone; raises `LinkError`."""
    for claim in claims:
        if not is_within(claim.apex, apex):
            raise LinkError(f"zone {apex!r} has no {claim.apex[:100]!r}")


def check_interest(filters: Iterable[str]) -> None:
    """Check the filters of an edge's interest; raises `LinkError`."""
    try:
        check_filters(filters)
    except PeerError as error:
        raise LinkError(f"not a topic filter: {error}") from error


def _resume_at(hello: link_pb2.Hello, epoch: int) -> int | None:
    if not hello.epoch:
        return None  # the edge was never here
    if hello.epoch == epoch:
        return hello.position
    # The edge knows an earlier epoch, so all records of the present one are new.
    return 0
