"""
Processes that have imported already what they are made of.

To start Python and to import a node takes most of a second of processor time. A suite of hundreds
of nodes pays that again and again. Here one process, the nursery, imports it once. Each node and
each command is a fork of the nursery, taken before anything of a node has run. A fork has an
environment, a folder, and three streams of its own, and the function that the script of twistd or
txbroker calls. Launch lines themselves are for `tests/system/test_start_stop.py` and its
neighbours, which start them as people do.

What lives here: `Forked`, with the part of `subprocess.Popen` that tests use; and the nursery,
which is this file as a program.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal, NoReturn

ROOT = Path(__file__).resolve().parents[2]

Kind = Literal["twistd", "txbroker"]

_NUMBER = struct.Struct("!i")


class Forked:
    """`words`: the command line of a node or a command, as its script gets it."""

    def __init__(
        self, kind: Kind, words: Sequence[str], *, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._words = list(words)
        self._status: int | None = None
        self._asked = threading.Lock()
        near, far = socket.socketpair()
        (out, out_end), (said, said_end) = os.pipe(), os.pipe()
        with _one_at_a_time:
            socket.send_fds(_nursery()[1], [b"x"], [far.fileno(), out_end, said_end])
        for end in (far.detach(), out_end, said_end):
            os.close(end)
        self.stdout: IO[str] | None = os.fdopen(out, errors="replace")
        self.stderr: IO[str] | None = os.fdopen(said, errors="replace")
        told = [kind, self._words, str(folder), dict(environment)]
        near.sendall(json.dumps(told).encode() + b"\n")
        self._keeper = near.detach()
        # The descriptor stays open as long as anybody may ask: a thread may be waiting when another
        # one learns of the end.
        weakref.finalize(self, os.close, self._keeper)
        self.pid = _number(self._keeper)

    @property
    def returncode(self) -> int | None:
        """The status as `Popen` has it: negative for a signal, None while it runs."""
        return self.poll()

    def poll(self) -> int | None:
        """Its exit status once it has ended."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The same; `subprocess.TimeoutExpired` if it goes on running."""
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self._words, timeout or 0.0)
        return status

    def communicate(self, timeout: float) -> tuple[str, str]:
        """All that it says, once it has ended; it is killed if that takes longer."""
        said: list[list[str]] = [[], []]
        readers = [
            threading.Thread(target=lambda end, into: into.append(end.read()), args=pair)
            for pair in zip((self.stdout, self.stderr), said, strict=True)
        ]
        for reader in readers:
            reader.start()
        try:
            self.wait(timeout)
        finally:
            self.kill()
            for reader in readers:
                reader.join()
            for stream in (self.stdout, self.stderr):
                assert stream is not None
                stream.close()
        return "".join(said[0]), "".join(said[1])

    def send_signal(self, number: signal.Signals) -> None:
        """Unless it has ended: its number may be another's then."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        # The lock is not held while it waits: `poll` of another thread does not wait.
        if self._status is None:
            self._has_said(timeout)
        with self._asked:
            if self._status is None and self._has_said(0.0):
                self._status = _number(self._keeper)
        return self._status

    def _has_said(self, timeout: float | None) -> bool:
        # Not `select`, which knows no descriptor above 1023: a test may have thousands.
        wanted = select.poll()
        wanted.register(self._keeper, select.POLLIN)
        return bool(wanted.poll(None if timeout is None else timeout * 1000))


_one_at_a_time = threading.Lock()


@functools.cache
def _nursery() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The one of this process, with which it ends, and where to ask it."""
    near, far = socket.socketpair()
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.nursery", str(far.fileno())],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[far.fileno()],
    )
    far.close()
    return process, near


def _number(end: int) -> int:
    data = b""
    while len(data) < _NUMBER.size:
        more = os.read(end, _NUMBER.size - len(data))
        assert more, "the nursery has ended"
        data += more
    number: int = _NUMBER.unpack(data)[0]
    return number


# -- the nursery


def _serve(asked: socket.socket) -> None:
    import twisted.scripts.twistd  # noqa: F401

    import txbroker.cli
    import txbroker.node
    import txbroker.tap  # noqa: F401

    assert "twisted.internet.reactor" not in sys.modules, "each node has a reactor of its own"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it ends with who started it
    while True:
        sign, ends, _, _ = socket.recv_fds(asked, 1, 3)
        if not sign:
            return
        if os.fork() == 0:
            asked.close()
            _keep(*ends)
        for end in ends:
            os.close(end)


def _keep(line_end: int, out: int, said: int) -> NoReturn:
    """Take a fork, tell its number, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    line = socket.socket(fileno=line_end)
    told = json.loads(line.makefile().readline())
    pid = os.fork()
    if pid == 0:
        line.close()
        _begin(*told, out, said)
    for end in (0, 1, 2, out, said):
        os.close(end)
    try:
        line.sendall(_NUMBER.pack(pid))
        _wait_or_kill(pid, line)
        _, status = os.waitpid(pid, 0)
        line.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
    finally:
        os._exit(0)


def _wait_or_kill(pid: int, line: socket.socket) -> None:
    """Until it ends; where nobody can ask for it any more it is an orphan, which would stay."""
    its_end = os.pidfd_open(pid)
    wanted = select.poll()
    for end in (its_end, line.fileno()):
        wanted.register(end, select.POLLIN)
    if all(end != its_end for end, _ in wanted.poll()):
        os.kill(pid, signal.SIGKILL)


def _begin(
    kind: Kind, words: list[str], folder: str, environment: dict[str, str], out: int, said: int
) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for end, number in ((out, 1), (said, 2)):
        os.dup2(end, number)
        os.close(end)
    # The streams are as Python opens them for pipes.
    encoding = environment.get("PYTHONIOENCODING")
    sys.stdout = os.fdopen(1, "w", encoding=encoding, closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = words
    # The end is as that of Python: what was registered is called, what is buffered is written.
    if kind == "twistd":
        from twisted.scripts.twistd import run

        run()
    else:
        from txbroker.cli import main

        main(words[1:], prog_name="txbroker")
    raise SystemExit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
