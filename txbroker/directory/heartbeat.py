"""
How often a node shows the keepers of its clients' entries that it lives, and what follows for them.
"""

from __future__ import annotations

SHORTEST = 0.9
LONGEST = 4.9
"""
Seconds between an answer and the next sign of life. That goes with the next beat of the node's
heart: one each second, or each five, as that beat comes just before the answer is so old.
"""


def pulse(after: float) -> float:
    """
    Seconds between an answer and the next sign of life, where `after` of silence make a death.

    As few signs as will do: each costs two nodes five milliseconds, in which messages wait.
    """
    return min(max(after / 4, SHORTEST), LONGEST)


def patience(after: float) -> float:
    """
    Seconds since a node was heard, from which on it has been silent for `after`, or a second less.

    Who dies was last heard a second before, or at the last pulse, where that is longer ago.
    """
    return after + pulse(after) - SHORTEST
