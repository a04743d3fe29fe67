"""The interval of a node's signs of life to keepers, and the silence that keepers infer from it."""

from __future__ import annotations

SHORTEST = 0.9
LONGEST = 4.9
"""
Seconds between an answer and the next sign of life.

A sign of life leaves with a periodic task, each second or each five. The task runs just before the
answer reaches that age.
"""


def pulse(after: float) -> float:
    """
    Return the seconds between an answer and the next sign of life; `after` of silence make a death.

    Signs of life are as few as possible: each costs two nodes five milliseconds, while messages
    wait.
    """
    return min(max(after / 4, SHORTEST), LONGEST)


def patience(after: float) -> float:
    """
    Return the seconds without a message after which a node was silent for `after`, or a second
    less.

    The last message of a node that dies came a second before, or at an earlier last pulse.
    """
    return after + pulse(after) - SHORTEST
