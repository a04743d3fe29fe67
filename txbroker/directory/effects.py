"""
The effects that a procedure of the directory requests from the shell that runs it.

A procedure is a generator: it yields effects, and resumes when they are done. So pure code decides
the order of calls, waits and syncs. A test can run a whole tree of nodes, and cut and kill between
any two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

import attrs

from txbroker.directory.requests import Reply, Request

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class SendRequest:
    """
    Send these requests at once, each to a node; this node itself answers its own.

    No request leaves before all changes here are durable: a request may rest on them. `take` gets
    each reply; None: no reply came in time, or the nodes do not see the same members. The procedure
    resumes when `take` returns True, or when all replies are in.
    """

    calls: tuple[tuple[str, Request], ...]
    take: Callable[[str, Reply | None], bool]


@attrs.frozen(kw_only=True)
class Pause:
    """Wait `seconds`, or until a keeper has answered this node and `until` returns True."""

    seconds: float
    until: Callable[[], bool] = lambda: False


@attrs.frozen(kw_only=True)
class AwaitDurable:
    """Wait until all changes so far are durable in this node's store."""


Step = SendRequest | Pause | AwaitDurable
Procedure = Generator[Step, None, T]


def ask(node: str, request: Request) -> Procedure[Reply | None]:
    """Send one request, and return its reply."""
    replies: list[Reply | None] = []

    def take(_: str, reply: Reply | None) -> bool:
        replies.append(reply)
        return True

    yield SendRequest(calls=((node, request),), take=take)
    return replies[0]


def notify(calls: tuple[tuple[str, Request], ...]) -> Procedure[None]:
    """Send these requests at once; the replies do not matter."""
    yield SendRequest(calls=calls, take=lambda _name, _reply: False)
