"""
The steps that a procedure of the delegation requests from the shell that runs it.

A procedure is a generator: it yields steps, and resumes with the result of each. So pure code
decides the order of messages, syncs and waits. A test can run both ends of a handover, and lose
messages and kill nodes between any two steps.

A step that fails raises its error inside the procedure: a broken stream, an expired time, a full
disk. A cancelled procedure gets the cancellation there, too, and may undo its work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

import attrs

from txbroker.delegation.hand_back_messages import HandBackOffer
from txbroker.delegation.zone_snapshot import StagedZone
from txbroker.model.errors import StoreError
from txbroker.model.zone_cut import ZoneCut

T = TypeVar("T")


class Releasable(Protocol):
    """A lock; procedures acquire it with the step `AcquireLock`."""

    def release(self) -> None:
        """Let the next procedure acquire the lock."""


@attrs.frozen(kw_only=True)
class SendMessage:
    """Send a message on the procedure's stream; its other end must accept it within `seconds`."""

    message: object
    seconds: float


@attrs.frozen(kw_only=True)
class ReceiveMessage:
    """
    Resume with the next message of the stream; None: the other end has closed the stream.

    Raises `TimeoutError` if no message comes for `seconds`.
    """

    seconds: float


@attrs.frozen(kw_only=True)
class AwaitCondition:
    """Wait until `condition` is True, at most `seconds`; resume with its last value."""

    condition: Callable[[], bool]
    seconds: float


@attrs.frozen(kw_only=True)
class AwaitSettled:
    """Wait until all accepted publishes of the zone are durable and delivered."""


@attrs.frozen(kw_only=True)
class AcquireLock:
    """
    Wait for the lock; now and then the other end of the stream gets `meanwhile` (None: nothing).
    """

    lock: Releasable
    meanwhile: object | None = None


@attrs.frozen(kw_only=True)
class SaveReceivedZone:
    """Make a zone's received state durable. The state may be large: the node works meanwhile."""

    zone: StagedZone


@attrs.frozen(kw_only=True)
class AwaitStored:
    """
    Wait until all changes so far, a staged journal's too, are durable in the node's store.

    Raises `TimeoutError` after `seconds`; None: the wait has no bound.
    """

    seconds: float | None


@attrs.frozen(kw_only=True)
class MoveRoles:
    """
    Move a retiring node's clients, outboxes and sessions away, the latter to the node `heir`.

    The stream's other end gets signs of life meanwhile. Raises `RetireError`.
    """

    heir: str


@attrs.frozen(kw_only=True)
class MoveSessions:
    """
    Move all kept sessions to the node `heir`; resume with "", or a line that names what stays.
    """

    heir: str


@attrs.frozen(kw_only=True)
class ParentStatus:
    """
    The parent's name and where its MQTT clients connect ("": nowhere without TLS).

    `is_earlier`: its version lets no node without a zone go.
    """

    node: str
    is_earlier: bool
    mqtt: str = ""


@attrs.frozen(kw_only=True)
class AskParentStatus:
    """Ask the parent who it is; resume with a `ParentStatus`, or raise `ConnectionError`."""


@attrs.frozen(kw_only=True)
class LeaveMembers:
    """
    Let the parent record durably that `node` is no member.

    Resume with "", or the parent's reason against it; raises `ConnectionError`.
    """

    node: str


@attrs.frozen(kw_only=True)
class AskOutcome:
    """Ask the node that is the parent now for a hand-back's outcome; resume with the answer."""

    offer: HandBackOffer


@attrs.frozen(kw_only=True)
class AskStatus:
    """Ask the node of this cut about itself; resume with a `NodeAnswer`, or None without answer."""

    cut: ZoneCut


@attrs.frozen(kw_only=True)
class LogEvent:
    """
    Log a change of ownership, in the same turn; `level`: info, warning or error.

    `kind`: the log has each kind at most once in a while; None: the log has each event.
    """

    name: str
    fields: dict[str, object]
    level: str = "info"
    kind: str | None = None


Step = (
    SendMessage
    | ReceiveMessage
    | AwaitCondition
    | AwaitSettled
    | AcquireLock
    | SaveReceivedZone
    | AwaitStored
    | MoveRoles
    | MoveSessions
    | AskParentStatus
    | LeaveMembers
    | AskOutcome
    | AskStatus
    | LogEvent
)
Procedure = Generator[Step, Any, T]


def report(name: str, /, **fields: object) -> Procedure[None]:
    """Log an event with these fields."""
    yield LogEvent(name=name, fields=fields)


def warn(name: str, /, **fields: object) -> Procedure[None]:
    """Log a warning with these fields."""
    yield LogEvent(name=name, fields=fields, level="warning")


def report_unsaved(error: StoreError) -> Procedure[None]:
    """Log a change that could not be made durable."""
    yield LogEvent(name="state.write_failed", fields={"reason": str(error)}, level="error")


def locked(
    lock: Releasable, procedure: Procedure[T], meanwhile: object | None = None
) -> Procedure[T]:
    """Run the procedure while it alone has the lock; `meanwhile` as in `AcquireLock`."""
    yield AcquireLock(lock=lock, meanwhile=meanwhile)
    try:
        return (yield from procedure)
    finally:
        lock.release()
