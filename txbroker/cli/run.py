"""
`txbroker run`: runs one twistd process for each node of the given files, and stops them together.

The wrapper handles signals and child processes only. The output of a node passes through unchanged;
the wrapper itself prints only the mistakes of the files.
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
"""Seconds from a stop signal to a kill: the promised 5 seconds, less the wrapper's own time."""

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

    SIGTERM or Ctrl-C stops all nodes, with status 0. SIGHUP makes the nodes read their limits
    again. On a terminal, SIGHUP means the terminal's end, and ends the command. If a node fails,
    the other nodes are stopped, and its status becomes the command's. A node that retires leaves
    the others running.
    """
    configs, errors = inspect_files(files)
    for error in errors:
        click.echo(error, err=True)
    if errors:
        sys.exit(1)
    sys.exit(_Nodes(configs).run())


def command(config: NodeConfig) -> list[str]:
    """Return the documented command line of one node, with this Python's twistd."""
    twistd = str(Path(sys.executable).with_name("twistd"))
    flags = ["--pidfile=", "--reactor=asyncio", "-n"]
    return [twistd, *flags, "txbroker", "--topology", str(config.source), "--node", config.node]


class _Nodes:
    """
    The node processes from start to end.

    Signals arrive as bytes in a pipe (`set_wakeup_fd`), in any thread of the process. Otherwise a
    signal between a check of the children and the next wait would be missed.
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
        """Start all nodes, wait for the end of all; return the exit status."""
        # nohup, or a shell's &, may have set signals to be ignored; a handler undoes this.
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
        """Remove ended processes; the first that failed by itself decides the exit status."""
        for process in list(self._running):
            code = process.poll()
            if code is None:
                continue
            self._running.remove(process)
            if not stopping and not self._asked and not self._status:
                self._status = code if code >= 0 else 128 - code

    def _wait(self, timeout: float | None) -> None:
        """Wait for the next signal, or `timeout` seconds."""
        ready, _, _ = select.select([self._signals], [], [], timeout)
        numbers = set(os.read(self._signals, 4096)) if ready else set()
        if numbers & set(_STOP_SIGNALS):
            self._asked = True
        if signal.SIGHUP in numbers:
            for process in self._running:
                process.send_signal(signal.SIGHUP)


def _prepare_child() -> Callable[[], None]:
    """
    Return the setup that a child runs before it becomes twistd.

    The child is killed when the wrapper ends in any way (Linux). The child leaves the terminal's
    process group: otherwise Ctrl-C would reach each node twice. The child ignores SIGHUP until its
    node handles it, so that an early SIGHUP does not kill it.
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
