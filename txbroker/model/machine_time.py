"""A point in time that a later process can look back at, as long as the machine has run on."""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen
class MachineTime:
    """`milliseconds` after the machine's start `boot`; "": nobody knows which start that was."""

    boot: str
    milliseconds: int

    def age(self, now: MachineTime) -> int | None:
        """Milliseconds from this moment to `now`, never too few; None: nobody can tell."""
        if not self.boot or self.boot != now.boot or self.milliseconds > now.milliseconds:
            return None
        return now.milliseconds - self.milliseconds + 1

    @property
    def fields(self) -> tuple[str, int]:
        """Of a record; `moment_from` is the mirror."""
        return self.boot, self.milliseconds


UNKNOWN = MachineTime("", 0)
"""On a machine that does not tell."""


def moment_from(fields: Iterable[object]) -> MachineTime | None:
    """None of a record that has no moment."""
    match list(fields):
        case [str(boot), int(milliseconds)]:
            return MachineTime(boot, milliseconds)
        case _:
            return None
