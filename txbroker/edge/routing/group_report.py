"""The report of an edge on its members of a group, to the group's coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import attrs

from txbroker.model.log_position import LogPosition
from txbroker.model.log_positions import PlaceSet


def _as_set(places: Iterable[LogPosition]) -> PlaceSet:
    return places if isinstance(places, PlaceSet) else PlaceSet(places)


_NONE: Final[Mapping[LogPosition, bool]] = MappingProxyType({})


@attrs.frozen(kw_only=True)
class GroupReport:
    """
    A report on the members of one group at one edge.

    - `members`: the number of connected members.
    - `limit`: the messages that the coordinator may lend in all, since the first report.
    - `is_durable`: True if the session of a member outlives its connection.
    - `request`: the number of the report, which the coordinator returns when it is durable; 0: no
      answer is wanted.
    - `is_first`: True for the first report on a connection. Then `held` has all messages that
      members have not answered.
    - `done`: the messages that members have answered.
    - `returned`: the messages that no member can get, each with whether one had it before.
    - `is_over`: True if the edge has no member; if `is_durable` too, the last one is on its way to
      another edge. `is_moved`: True if the members stay, and another node coordinates the group.
    """

    members: int = 0
    limit: int = 0
    is_durable: bool = False
    request: int = 0
    is_first: bool = False
    held: PlaceSet = attrs.field(factory=PlaceSet, converter=_as_set)
    done: PlaceSet = attrs.field(factory=PlaceSet, converter=_as_set)
    returned: Mapping[LogPosition, bool] = _NONE
    is_over: bool = False
    is_moved: bool = False
