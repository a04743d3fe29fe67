"""
System calls of a real node, in the order in which they began and returned: for calls that must not
come before another.

strace sees every call of every thread at its beginning and at its end, one after the other. The
calling thread waits meanwhile: a call that stands later in the output was later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.nodes import NodeProcess

_CALLS = "pwritev,pwritev2,pwrite64,fdatasync,fsync,write,writev,sendto,sendmsg"
_BEGIN = re.compile(r"(\d+) +(\w+)\((.*?)( <unfinished \.\.\.>)?$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_RESULT = re.compile(r"\) += (-?\d+)")
_BYTE = re.compile(rb"\\x([0-9a-f]{2})")


@dataclass(slots=True, kw_only=True)
class Call:
    """A call: its arguments as strace prints them, but with bytes and paths unescaped."""

    name: str
    arguments: bytes
    began: int  # place in the order
    ended: int = -1  # -1: it did not return
    result: int = -1

    @property
    def path(self) -> str:
        """The file for which its first argument, a descriptor, stands."""
        return self.arguments.partition(b"<")[2].partition(b">")[0].decode()


class TracedNode(NodeProcess):
    """A node under strace."""

    @property
    def trace(self) -> Path:
        """Where strace writes."""
        return self.directory / f"{self.name}.strace"

    def command(self) -> list[str]:
        """With -D the node, not strace, is the process that is started, and gets the signals."""
        options = ["-D", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={_CALLS}"]
        return ["strace", *options, "-o", str(self.trace), *super().command()]

    def is_traced(self) -> bool:
        """True if strace has written all; the node has ended before."""
        lines = self.trace.read_text().splitlines()
        return any(line.split(maxsplit=2)[:2] == [str(self.pid), "+++"] for line in lines)

    def calls(self) -> list[Call]:
        """The calls of the node, in the order of beginning."""
        return list(_parse(self.trace.read_text().splitlines()))


def _parse(lines: list[str]) -> Iterator[Call]:
    pending: dict[str, Call] = {}
    for place, line in enumerate(lines):
        resumed = _RESUMED.match(line)
        if resumed is not None:
            call = pending.pop(resumed[1])
            assert call.name == resumed[2]
            _finish(call, place, resumed[3])
            continue
        begun = _BEGIN.match(line)
        if begun is None:
            continue  # a signal, or the end of a thread
        call = Call(name=begun[2], arguments=_unescape(begun[3]), began=place)
        if begun[4]:
            pending[begun[1]] = call
        else:
            _finish(call, place, begun[3])
        yield call


def _finish(call: Call, place: int, text: str) -> None:
    result = _RESULT.search(text)
    assert result is not None, text
    call.ended, call.result = place, int(result[1])


def _unescape(text: str) -> bytes:
    return _BYTE.sub(lambda found: bytes([int(found[1], 16)]), text.encode())
