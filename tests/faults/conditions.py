"""
What the world is like for a whole run, as a value drawn from the seed. Pure.

Faults begin and end; conditions stay: a slow disk, a history of a few MiB, a journal without QoS 0,
large payloads. Each seed has its own, so that no promise holds in the laboratory alone.
"""

from __future__ import annotations

from random import Random
from typing import Any

import attrs

SMALL = (0, 0, 60, 200, 200, 1_000, 5_000, 40_000)
SMALL_WEIGHTS = (20, 20, 20, 20, 10, 6, 3, 1)
LARGE_WEIGHTS = (20, 20, 20, 10, 5, 5, 5, 15)

FEW_FILES = 160
"""Open files with which a node of these trees can still do all, with little room."""


@attrs.frozen(kw_only=True)
class Conditions:
    """
    `delay` is what each sync takes longer, in seconds; `retention` what a zone keeps, in MiB, None
    for the default; `journal` the topology's key; `sizes` and `weights` are those of payloads;
    `files` how many a node may have open, None: as many as the machine says. `is_checked`: nodes
    check themselves, so a broken rule shows where it is broken, but they are slower than without.
    """

    delay: float = 0.0
    retention: int | None = None
    journal: str = "all"
    sizes: tuple[int, ...] = SMALL
    weights: tuple[int, ...] = SMALL_WEIGHTS
    files: int | None = None
    is_checked: bool = True

    @property
    def keys(self) -> dict[str, Any]:
        """What the topology file of each node says of them."""
        keys: dict[str, Any] = {"journal": self.journal}
        if self.retention is not None:
            keys["retention"] = {"size": f"{self.retention}MiB"}
        return keys

    def __str__(self) -> str:
        kept = "" if self.retention is None else f", retention {self.retention} MiB"
        files = "" if self.files is None else f", {self.files} files"
        text = f"sync +{self.delay * 1000:g} ms, journal {self.journal}{kept}{files}"
        checked = "" if self.is_checked else ", not checked"
        return f"{text}, up to {max(self.sizes) // 1024} KiB{checked}"


LABORATORY = Conditions()


def draw(seed: int) -> Conditions:
    """The conditions of this seed."""
    rng = Random(f"{seed}/conditions")
    is_large = rng.random() < 0.4
    return Conditions(
        delay=rng.choice((0.0, 0.0, 0.02)),
        retention=rng.choice((None, 1, 4)),
        journal=rng.choice(("all", "all", "none", "qos12")),
        sizes=(*SMALL[:-1], 64 * 1024) if is_large else SMALL,
        weights=LARGE_WEIGHTS if is_large else SMALL_WEIGHTS,
        files=rng.choice((None, None, FEW_FILES)),
        is_checked=rng.random() < 0.5,
    )
