"""
How topics went from one part of the journals to another, when a zone changed hands.

Whoever reads journals and was away meanwhile follows the passages: one alone it could guess from
where it stood and from who serves the zone now, but not the parts that lie between two of them.
"""

from __future__ import annotations

import attrs

from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.topics import is_within

FOREVER = (1 << 62) - 1
"""An offset beyond all that a part may have: its end is not known, as its node is dead."""


END = FOREVER - 1
"""The end of a part that is over, wherever that is."""


@attrs.frozen(kw_only=True)
class EpochTransition:
    """
    What came for topics within `apex` up to the place `left` went on behind the place `entered`.

    The zone `apex` was delegated, and a part of its own begins, or it came back (`is_return`); or
    it was restored, and goes on at its node in another part.
    """

    apex: str
    left: LogPosition
    entered: LogPosition

    @property
    def is_return(self) -> bool:
        """Whether the zone around takes the topics from here on, and the part that it had ends."""
        return self.left.part.zone == self.apex != self.entered.part.zone

    @property
    def is_renewal(self) -> bool:
        """True if the zone stays with its node, which was restored."""
        return self.left.part.zone == self.entered.part.zone

    def is_met(self, part: JournalId, after: int, through: int) -> bool:
        """Whether who reads the part from `after` on up to `through` comes by."""
        return any(
            place.part == part and after <= place.offset <= through
            for place in (self.left, self.entered)
        )

    def concerns(self, apex: str) -> bool:
        """Whether it moved topics of this zone, or of one around it."""
        return is_within(self.apex, apex) or is_within(apex, self.apex)
