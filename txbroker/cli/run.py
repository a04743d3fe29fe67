"""
`txbroker run`: one twistd process for each node of the given files, stopped together.

Signals and children are all it knows: what a node says passes through unchanged, and the wrapper
itself writes nothing but the mistakes of the files.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from txbroker.config import NodeConfig, inspect_files

GRACE = 4.5
"""Seconds from a stop signal to a kill; the contract's 5 seconds less our own."""

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_WATCHED = (*_STOP_SIGNALS, signal.SIGCHLD)
_PR_SET_PDEATHSIG = 1


@click.command(
    epilog="""
    Example:

    \b
      $ txbroker run house.yaml kitchen.yaml
    """
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path())
def run(files: tuple[str, ...]) -> None:
    """
    Run every node of the topology files, one process each.

    SIGTERM or Ctrl-C stops all of them, with status 0; SIGHUP makes them read their limits again,
    unless the command was started on a terminal, whose end it is there. When one fails the others
    are stopped, and its status is the command's; one that retires leaves the others running.
    """
    configs, errors = inspect_files(files)
    for error in errors:
        click.echo(error, err=True)
    if errors:
        sys.exit(1)
    sys.exit(_Nodes(configs).run())


def command(config: NodeConfig) -> list[str]:
    """The documented command line of one node, with the twistd that belongs to this Python."""
    twistd = str(Path(sys.executable).with_name("twistd"))
    flags = ["--pidfile=", "--reactor=asyncio", "-n"]
    return [twistd, *flags, "txbroker", "--topology", str(config.source), "--node", config.node]


class _Nodes:
    """
    The processes from start to end.

    Signals come as bytes through a pipe (`set_wakeup_fd`), so that none is missed between a look at
    the children and the wait for the next, whichever thread of the process it hits.
    """

    def __init__(self, configs: Sequence[NodeConfig]) -> None:
        self._configs = configs
        self._running: list[subprocess.Popen[bytes]] = []
        self._signals, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._asked = False
        self._status = 0

    def run(self) -> int:
        """Start all, wait for the end of all; gives the exit status."""
        # A handler of ours, also where whoever started us (nohup, a shell's &) had it ignored.
        for number in _WATCHED if os.isatty(0) else (*_WATCHED, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        prepare = _prepare_child()
        try:
            for config in self._configs:
                self._running.append(
                    subprocess.Popen(command(config), stdin=subprocess.DEVNULL, preexec_fn=prepare)
                )
            self._supervise()
        except OSError as error:
            raise click.ClickException(f"cannot start twistd: {error}") from error
        finally:
            for process in self._running:
                process.kill()
        return self._status

    def _supervise(self) -> None:
        kill_at: float | None = None
        while self._running:
            if kill_at is None and (self._asked or self._status):
                kill_at = time.monotonic() + GRACE
                for process in self._running:
                    process.terminate()
            if kill_at is not None and time.monotonic() >= kill_at:
                self._status = self._status or 1
                for process in self._running:
                    process.kill()
            self._wait(None if kill_at is None else 0.2)
            self._reap(stopping=kill_at is not None)

    def _reap(self, *, stopping: bool) -> None:
        """Take away those that ended; the first that failed by itself decides the status."""
        for process in list(self._running):
            code = process.poll()
            if code is None:
                continue
            self._running.remove(process)
            if not stopping and not self._asked and not self._status:
                self._status = code if code >= 0 else 128 - code

    def _wait(self, timeout: float | None) -> None:
        """Until the next signal, or the time is over."""
        ready, _, _ = select.select([self._signals], [], [], timeout)
        numbers = set(os.read(self._signals, 4096)) if ready else set()
        if numbers & set(_STOP_SIGNALS):
            self._asked = True
        if signal.SIGHUP in numbers:
            for process in self._running:
                process.send_signal(signal.SIGHUP)


def _prepare_child() -> Callable[[], None]:
    """
    What a child does before it becomes twistd: die when the wrapper does, whatever way (Linux),
    and leave a terminal's Ctrl-C to the wrapper, so that the nodes get one signal, not two. A
    SIGHUP that comes before the node listens to it is no reason to die.
    """
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    wrapper = os.getpid()

    def prepare() -> None:
        os.setpgid(0, 0)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != wrapper:
                os._exit(1)
        for number in _WATCHED:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    return prepare
