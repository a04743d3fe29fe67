"""
Epoch transitions: topics go from one part of the journals to another when a zone changes hands.

A reader of journals that was away follows the transitions. A single transition can be inferred from
the reader's position and the zone's present owner. The parts between two transitions cannot.
"""

from __future__ import annotations

import attrs

from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import is_within

FOREVER = (1 << 62) - 1
"""An offset beyond all records of a part whose end is unknown, as its node is dead."""


END = FOREVER - 1
"""The end of a closed part, at an unknown offset."""


@attrs.frozen(kw_only=True)
class EpochTransition:
    """
    Topics within `apex`: records up to the position `left` continue behind the position `entered`.

    The zone `apex` was delegated, and a part of its own begins; or the zone came back
    (`is_return`). Or the zone was restored, and continues at its node in another part
    (`is_renewal`).
    """

    apex: str
    left: LogPosition
    entered: LogPosition

    @property
    def is_return(self) -> bool:
        """True if the zone around takes the topics from here on, and the earlier part ends."""
        return self.left.part.zone == self.apex != self.entered.part.zone

    @property
    def is_renewal(self) -> bool:
        """True if the zone stays with its node, which was restored."""
        return self.left.part.zone == self.entered.part.zone

    def is_met(self, part: JournalId, after: int, through: int) -> bool:
        """True if a read of the part from `after` up to `through` passes this transition."""
        return any(
            place.part == part and after <= place.offset <= through
            for place in (self.left, self.entered)
        )

    def affects(self, apex: str) -> bool:
        """True if the transition moved topics of this zone, or of a zone around it."""
        return is_within(self.apex, apex) or is_within(apex, self.apex)
