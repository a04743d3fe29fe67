"""What operators do to a node, beside starting it, stopping it and its retirement. All blocks."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Protocol

from . import damage as damages
from .faulty import FaultyNode

QUIET = 1.5
"""Seconds after which a node that is alone has stored all that it has answered."""

TRIAL = 40.0
"""Seconds in which a node says that it is ready, or why it is not; else nobody knows."""


class Command(Protocol):
    """Runs a command of txbroker at the place of a node: exit status and output."""

    def __call__(self, *arguments: str, at: FaultyNode | None = None) -> tuple[int, str]: ...


def damage(node: FaultyNode, command: Command, choice: float) -> tuple[str, bool]:
    """
    Damage the files of the dead node, start it, and undo that; what happened, and whether the
    damage was believed.
    """
    if node.is_full or not node.disk.data.exists():
        return "nothing was damaged", False
    harm = damages.draw(node.disk.data, Random(choice))
    if harm is None:
        return "nothing to damage", False
    aside = node.disk.folder / "aside"
    harm.do(aside)
    try:
        is_named = _is_named_by_repair(node, harm.path, command)
        is_believed = _is_believed(node, harm.path)
    finally:
        harm.undo(aside)
    what = f"{harm}; {'' if is_named else 'not '}named, {'' if is_believed else 'not '}believed"
    return what, not is_named or is_believed and harm.is_seen_at_start


def _is_named_by_repair(node: FaultyNode, path: Path, command: Command) -> bool:
    """True if `repair` of a copy names the file."""
    copy = node.disk.control / "damaged"
    shutil.copytree(node.disk.data, copy)
    try:
        _, said = command("repair", str(copy))
    finally:
        shutil.rmtree(copy)
    return path.name in said


def _is_believed(node: FaultyNode, path: Path) -> bool:
    """True if the node starts, or ends without a line that names the file."""
    mark = node.mark()
    node.start(ready=False)
    deadline = time.monotonic() + TRIAL
    while node.running and not node.has_event("node.ready") and time.monotonic() < deadline:
        time.sleep(0.05)
    if node.running:
        node.kill()
        return node.has_event("node.ready")
    node.wait()
    lines = [str(event.get("reason", "")) for event in node.events[mark:]]
    return not any(path.name in line for line in lines)


def give_up(
    node: FaultyNode, parent: str, others: Iterable[str], command: Command
) -> tuple[bool, str]:
    """
    At its parent's address, take a lost node's zone and forget the node, which `others` know by
    then; whether all is done, and what happened.
    """
    is_done, said = True, ""
    if node.zone is not None:
        status, text = command("reclaim", parent, node.zone)
        # An answer may have been lost; it is the parent's then.
        is_done = not status or "is not delegated from here" in text
        said = f"reclaim: status {status}: {text}; "
    status, text = command("forget", parent, node.name)
    is_done = is_done and (not status or _is_forgotten(text, others))
    return is_done, f"{said}forget: status {status}: {text}"


def _is_forgotten(text: str, others: Iterable[str]) -> bool:
    """
    True if the answer says that there is no such member, at a node that has all others.

    A parent with an empty disk has none before they join, and cannot have heard of the lost one.
    """
    said, _, names = text.partition("; there are ")
    return "no member is called" in said and set(others) <= set(names.split(", "))


def back_up(node: FaultyNode, command: Command) -> str:
    """Why there is no backup of the running node; "" where there is one."""
    target = _backup_of(node)
    shutil.rmtree(target, ignore_errors=True)
    status, said = command("backup", node.place.grpc, str(target), at=node)
    return f"status {status}: {said}" if status else ""


def restore(node: FaultyNode) -> None:
    """The dead node's data are the backup's."""
    node.disk.replace(_backup_of(node))


def _backup_of(node: FaultyNode) -> Path:
    return node.disk.control / "backup"
