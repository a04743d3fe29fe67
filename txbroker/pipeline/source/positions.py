"""
CORE: positions: how far a reader has come in each zone.

A zone's position is (epoch, offset) of the next record to read, compared as a pair; offsets start
at 1. Behind a closed part that was read to its end, the position is (epoch + 1, 1). No part need
have that epoch. The zone continues with its next part at or above it. So the position does not
depend on parts that were read.

In JSON: `{"home/kitchen": {"epoch": 3, "offset": 1200}}`; the root zone's key is "".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from txbroker.model.errors import PipelineError
from txbroker.model.topics import TopicError, validate_apex

FIRST = 1
"""The offset of the first record of a part; also the first epoch of a zone."""

_KEYS = {"epoch", "offset"}
_MOST = 2**63


class ZonePosition(NamedTuple):
    """The next record to read of a zone."""

    epoch: int
    offset: int


Positions = dict[str, ZonePosition]
"""Positions by apex."""


def parse_positions(text: str, what: str) -> Positions:
    """Parse positions in a JSON text; raises `PipelineError`, which begins with `what`."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"{what}: {text!r} is not JSON ({error})") from None
    return positions_from(value, what)


def positions_from(value: Any, what: str) -> Positions:
    """Convert a JSON value to positions; raises `PipelineError`, which begins with `what`."""
    if not isinstance(value, Mapping):
        raise PipelineError(f'{what}: positions are {{"ZONE": {{"epoch": E, "offset": N}}}}')
    return {str(zone): _position(zone, place, what) for zone, place in value.items()}


def positions_to(positions: Mapping[str, ZonePosition]) -> dict[str, dict[str, int]]:
    """Convert positions to a JSON value, in the order of the zones."""
    return {
        zone: {"epoch": place.epoch, "offset": place.offset}
        for zone, place in sorted(positions.items())
    }


def _position(zone: Any, place: Any, what: str) -> ZonePosition:
    try:
        validate_apex(zone)
    except (TopicError, TypeError, AttributeError) as error:
        raise PipelineError(f"{what}: {zone!r} is no zone: {error}") from None
    if not isinstance(place, Mapping) or place.keys() != _KEYS:
        raise PipelineError(
            f'{what}: the position of zone {zone!r} is {{"epoch": E, "offset": N}}, not {place!r}'
        )
    for key in sorted(_KEYS):
        number = place[key]
        if not isinstance(number, int) or isinstance(number, bool) or not FIRST <= number < _MOST:
            raise PipelineError(
                f"{what}: {key} of zone {zone!r} is a whole number from 1 on, not {number!r}"
            )
    return ZonePosition(place["epoch"], place["offset"])
