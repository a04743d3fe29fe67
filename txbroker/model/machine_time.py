"""A time that a later process can compare with its own, while the machine has not restarted."""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen
class MachineTime:
    """
    `milliseconds` after the machine's start, which `boot` identifies; "": the start is unknown.
    """

    boot: str
    milliseconds: int

    def age(self, now: MachineTime) -> int | None:
        """
        Return the milliseconds from this time to `now`, rounded up; None: the two are not
        comparable.
        """
        if not self.boot or self.boot != now.boot or self.milliseconds > now.milliseconds:
            return None
        return now.milliseconds - self.milliseconds + 1

    @property
    def fields(self) -> tuple[str, int]:
        """Return the fields of a record; `moment_from` is the inverse."""
        return self.boot, self.milliseconds


UNKNOWN = MachineTime("", 0)
"""The time on a machine that does not identify its start."""


def moment_from(fields: Iterable[object]) -> MachineTime | None:
    """Decode the fields of a record; None: the record has no time."""
    match list(fields):
        case [str(boot), int(milliseconds)]:
            return MachineTime(boot, milliseconds)
        case _:
            return None
