"""A client directory whose node is alone, for tests that are about something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.clock import Clock
from tests.support.keeping import MemoryTable
from txbroker.directory.directory import Directory, DirectorySettings, DirectoryTables, ShellPorts
from txbroker.directory.effects import Procedure, SendRequest
from txbroker.directory.members import Members
from txbroker.directory.node_lifetime import NodeLifetime
from txbroker.directory.session_ownership import OwnershipTables
from txbroker.edge.sessions.connect_runner import ConnectRunner
from txbroker.edge.sessions.edge import Edge
from txbroker.edge.sessions.session_connect import PublishBarrier, SessionConnect
from txbroker.edge.sessions.session_transfer import SessionTransfer


class Alone:
    """The roaming of an edge that has no other node; everything happens at once."""

    def __init__(self, edge: Edge, now: Callable[[], float]) -> None:
        self.members = Members(edge.name, "", MemoryTable(), is_root=True)
        self.members.announce("127.0.0.1:1")
        self.successions = PublishBarrier()
        self.directory = Directory(
            members=self.members,
            tables=DirectoryTables(
                entries=MemoryTable(),
                sessions=OwnershipTables(
                    held=MemoryTable(), gone=MemoryTable(), arriving=MemoryTable()
                ),
                wills=MemoryTable(),
                sent_wills=MemoryTable(),
                discards=MemoryTable(),
                sites=MemoryTable(),
            ),
            host=SessionTransfer(edge, self.successions, MemoryTable(), MemoryTable()),
            life=NodeLifetime(number=edge.incarnation, now=now),
            settings=DirectorySettings(),
            shell=ShellPorts(spawn=self.run, wake=lambda: None, make_token=lambda: b"token"),
        )
        edge.clients.wire(self.directory.connected)
        self.directory.start()
        runner = ConnectRunner(self, edge.session_store.when_durable, Clock())
        self.roaming = SessionConnect(edge.clients, self.directory, runner)

    def run(
        self, procedure: Procedure[Any], finished: Callable[[Any], object] = lambda _: None
    ) -> None:
        """Run a procedure that asks nobody else to its end."""
        try:
            while True:
                step = next(procedure)
                if isinstance(step, SendRequest):
                    for name, request in step.calls:
                        assert name == self.members.name, "a node that is alone asks nobody"
                        if step.take(name, self.directory.handle(name, request)):  # type: ignore[arg-type]
                            break
        except StopIteration as stop:
            finished(stop.value)
