"""
What a procedure of the directory wants from the shell that runs it.

A procedure is a generator: it yields steps and goes on when they are done. So the order of calls,
waits and syncs is decided in pure code, and a test can run a whole tree of nodes, cut and kill
between any two steps.
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
    Send these at once, each a node and a request; those to this node itself are answered here.

    Nothing leaves before all that was changed here is safe: what is asked may rest on it. Each
    reply goes to `take` (None: none came in time, or the nodes do not see the same members); when
    that returns True, or all are in, the procedure goes on.
    """

    calls: tuple[tuple[str, Request], ...]
    take: Callable[[str, Reply | None], bool]


@attrs.frozen(kw_only=True)
class Pause:
    """
    Wait so many seconds, or until a keeper has answered this node and `until` says that it is so.
    """

    seconds: float
    until: Callable[[], bool] = lambda: False


@attrs.frozen(kw_only=True)
class AwaitDurable:
    """Wait until all that was changed so far is safe in this node's store."""


Step = SendRequest | Pause | AwaitDurable
Procedure = Generator[Step, None, T]


def ask(node: str, request: Request) -> Procedure[Reply | None]:
    """One call and its reply."""
    replies: list[Reply | None] = []

    def take(_: str, reply: Reply | None) -> bool:
        replies.append(reply)
        return True

    yield SendRequest(calls=((node, request),), take=take)
    return replies[0]
