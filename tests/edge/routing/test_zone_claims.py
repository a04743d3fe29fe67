"""The claims of one route: made, read or not, complete, and withdrawn with their apex."""

from __future__ import annotations

from txbroker.edge.routing.zone_claims import StreamPosition, ZoneClaims


def test_what_is_withdrawn_is_not_awaited() -> None:
    """With all that lies within it; what is claimed elsewhere stays."""
    claims = ZoneClaims()
    for apex in ("z", "z/y", "x"):
        claims.claim(apex, is_read=True)
        claims.reclaim(apex, StreamPosition(epoch=1, offset=7))

    claims.withdraw("z")
    claims.check()

    assert {"x"} == claims.apexes == claims.read == claims.claiming.keys()
    assert not claims.covers_read("z/y/t")
    assert 0 == claims.since("z/#", 1)
    assert 7 == claims.since("x/#", 1)


def test_what_is_complete_is_claimed_and_not_awaited() -> None:
    """A later link repeats the claim; its deliveries go to the sessions at once."""
    claims = ZoneClaims()
    claims.claim("z", is_read=True)

    assert claims.complete(["z"])
    claims.check()

    assert {"z"} == claims.apexes == claims.sayable
    assert not claims.read and not claims.claiming
    assert not claims.covers_read("z/t")


def test_claim_that_was_made_anew_is_not_said_before_its_earlier_end_is_durable() -> None:
    """The owner would take it for the earlier one."""
    claims = ZoneClaims()
    claims.claim("z", is_read=True)
    claims.complete(["z"])
    claims.claim("z", is_read=False)
    assert not claims.sayable

    assert claims.finish(["z"])

    assert {"z"} == claims.sayable
