"""The twistd plugin's options and service: `twistd ... txbroker --topology FILE [--node NAME]`."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.application.service import Service
from twisted.internet import asyncioreactor
from twisted.internet.defer import Deferred
from twisted.python import usage

from txbroker.config import NodeConfig, load_file, select
from txbroker.model.errors import TxbrokerError
from txbroker.node import log_options
from txbroker.runtime import hooks
from txbroker.runtime.aio import as_deferred
from txbroker.runtime.descriptors import LEAST, are_too_few, ceiling, reserve_files
from txbroker.runtime.machine_check import missing
from txbroker.runtime.structured_log import (
    TWISTED_OBSERVER,
    configure,
    get_logger,
    twisted_observer,
)

log = get_logger()


OTHERS = 0o077
"""Mode bits that a node's files must not have: only its own user has rights."""


class Options(usage.Options):
    """
    Run one node of a topology file.

    Example: twistd --pidfile= --reactor=asyncio -n txbroker --topology kitchen.yaml
    """

    longdesc = __doc__
    synopsis = "[options]"
    optParameters = [
        ["topology", "t", None, "The topology file (YAML)."],
        ["node", "n", None, "Which node of the file, where it has several."],
    ]

    def postOptions(self) -> None:
        """Check the command line and the topology file; an error is one line and an exit status."""
        if self["topology"] is None:
            raise usage.UsageError("--topology FILE is missing")
        _install_reactor()
        if self.parent is not None:
            _lead_log(self.parent)
        configure(self["node"] or "")
        lack = missing()
        if lack is not None:
            _fail(lack)
        try:
            self.config = select(load_file(self["topology"]), self["node"])
            stream = None if self.parent is None else log_options.chosen(self.parent)
        except TxbrokerError as error:
            _fail(str(error))
        configure(self.config.node, stream=stream)


class NodeService(Service):
    """The life of a node under twistd."""

    def __init__(self, config: NodeConfig) -> None:
        self.setName(config.node)
        self._config = config
        self._node: Any = None
        self._is_ending = False

    def startService(self) -> None:
        super().startService()
        from twisted.internet import reactor

        if not _is_asyncio(reactor):
            _fail("txbroker needs the asyncio reactor: start twistd with --reactor=asyncio")
        if are_too_few():
            _fail(f"the process may open fewer than {LEAST} files; raise its limit (ulimit -n)")
        os.umask(OTHERS)  # Otherwise other users of the machine could read clients' messages.
        _open_files(self._config.limits.connections)
        reserve_files()
        # A signal handler may interrupt any step, so it only schedules the reload, as for SIGTERM.
        signal.signal(signal.SIGHUP, lambda *_: reactor.callFromThread(self._reload))
        reactor.callWhenRunning(self._take_signals)  # behind the reactor, which sets its handlers
        hooks.when_failed(lambda: _end(None))
        as_deferred(self._start(reactor)).addErrback(self._on_failure)

    def stopService(self) -> Deferred[None] | None:
        super().stopService()
        self._is_ending = True
        return None if self._node is None else as_deferred(self._node.stop())

    async def _start(self, reactor: Any) -> None:
        # With the plugin, this import of grpc would slow `twistd --help`, which lists all plugins.
        from txbroker.node import Node

        self._node = Node(
            self._config,
            reactor,
            on_fatal=_end,
            on_retired=lambda: self._end_well(reactor),
            on_restart=lambda: reactor.callLater(0, self._restart, reactor),
        )
        await self._node.start(_spare_collector)
        self._log_few_files()

    def _take_signals(self) -> None:
        """Stop at the first signal. At the next one a stopping reactor would raise an error."""
        for number in (signal.SIGTERM, signal.SIGINT):
            stop = signal.getsignal(number)
            if callable(stop):
                signal.signal(number, partial(self._on_signal, stop))

    def _on_signal(self, stop: Callable[[int, Any], Any], number: int, frame: Any) -> None:
        if not self._is_ending:
            self._is_ending = True
            stop(number, frame)

    def _end_well(self, reactor: Any) -> None:
        if not self._is_ending:
            self._is_ending = True
            reactor.stop()

    def _restart(self, reactor: Any) -> None:
        """End the node in order, and start another node on its data."""
        if self.running:
            as_deferred(self._run(reactor)).addErrback(self._on_failure)

    async def _run(self, reactor: Any) -> None:
        node, self._node = self._node, None
        await node.stop()
        gc.unfreeze()
        if self.running:
            await self._start(reactor)

    def _log_few_files(self) -> None:
        most, wanted = ceiling(), self._config.limits.connections
        if most < wanted:
            log.info("descriptors.low", limit="limits.connections", value=wanted, connections=most)

    def _reload(self) -> None:
        if self._node is not None:
            self._node.reload()

    def _on_failure(self, failure: Any) -> None:
        if isinstance(failure.value, TxbrokerError):
            _end(str(failure.value))
        else:
            log.critical("node.failed", error=repr(failure.value), traceback=failure.getTraceback())
            _end(None)


def makeService(options: Options) -> NodeService:
    """Make the service for twistd."""
    return NodeService(options.config)


def _fail(line: str) -> None:
    """Log the reason and exit, before the reactor runs."""
    log.error("node.refused", reason=line)
    raise SystemExit(1)


def _end(line: str | None) -> None:
    """Log the reason and exit, while the reactor runs; nothing open needs an orderly close."""
    if line is not None:
        log.error("node.refused", reason=line)
    sys.stderr.flush()
    os._exit(1)


def _spare_collector() -> None:
    """
    Exempt the objects of a started node from garbage collection: they are never garbage.

    A full collection with 8,000 clients blocks the node for 0.1 s. Clients make no lasting cycles,
    so such a collection may be rare.

    A connection is some ten objects. With a small first threshold, clients that come and go start
    collections all the time, and each finds nothing. The second threshold skips the middle
    generation: with 0 each second collection looks at twice as many objects, half of them again.
    With a large one, a collection of that generation blocks the node for 20 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, -1, 100)


def _install_reactor() -> None:
    """
    Install the asyncio reactor, which gRPC needs, unless the command line has chosen a reactor.

    Twisted installs its default reactor at the first import, which comes after this call.
    """
    if "twisted.internet.reactor" not in sys.modules:
        asyncioreactor.install()


def _lead_log(parent: Any) -> None:
    """Redirect Twisted's log: by an option of twistd, or by a factory of `python -m twisted`."""
    if "fileLogObserverFactory" in parent:
        parent["fileLogObserverFactory"] = lambda _file: twisted_observer()
    elif parent.get("logger") is None:
        parent["logger"] = TWISTED_OBSERVER


def _is_asyncio(reactor: Any) -> bool:
    return isinstance(getattr(reactor, "_asyncioEventloop", None), asyncio.AbstractEventLoop)


def _open_files(connections: int) -> None:
    """
    Raise the limit of open files to the maximum, and preallocate the table for `connections` files.

    The kernel doubles a process's file table when it is full. Each time it waits for all CPUs if
    the process has threads: 60 ms in all during the first 10,000 clients.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    last = (connections if hard == resource.RLIM_INFINITY else min(connections, hard)) - 1
    with open(os.devnull, "rb") as some:
        os.close(fcntl.fcntl(some, fcntl.F_DUPFD_CLOEXEC, last))
