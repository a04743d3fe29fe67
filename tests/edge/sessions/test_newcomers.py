"""Whose session is looked for first, where many connect."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.edge.sessions.test_connect_throttle import Runner
from tests.support.clock import Clock
from tests.support.connects import Patient
from txbroker.edge.sessions.connect_runner import ConnectRunner
from txbroker.edge.sessions.connect_throttle import AT_ONCE
from txbroker.edge.sessions.session_connect import SessionConnect
from txbroker.mqtt.wire.packets import Connect


class Bench:
    """The connecting clients of a node that has others to ask; procedures are client ids."""

    def __init__(self) -> None:
        directory: Any = SimpleNamespace(
            clearings=SimpleNamespace(
                is_needed=lambda client_id: True, clear=lambda client_id, is_open: client_id
            ),
            is_here=lambda client_id: False,
            take_over=lambda client_id, is_open: client_id,
            members=SimpleNamespace(is_only=False),
        )
        clients: Any = SimpleNamespace(
            why_full=lambda packet: "",
            make_way=lambda client_id: None,
            open=lambda packet, client: SimpleNamespace(is_durable=False),
        )
        self.runner = Runner()
        runner = ConnectRunner(self.runner, lambda action: None, Clock())
        self.roaming = SessionConnect(clients, directory, runner)

    def come(self, client_id: str, host: str, *, clean: bool) -> None:
        """A CONNECT."""
        packet = Connect(client_id=client_id, clean_session=clean)
        client = Patient()
        client.host = lambda: host  # type: ignore[method-assign]
        procedure = self.roaming.connect(packet, client)
        self.roaming.runner.run(cast(Any, procedure))


@pytest.mark.parametrize(("host", "clean"), [("there", True), ("here", False)])
def test_others_come_before_the_rest_of_a_crowd(host: str, clean: bool) -> None:
    """Those of another host, and those whose session is of another kind."""
    bench = Bench()
    for number in range(AT_ONCE + 10):
        bench.come(f"crowd {number}", "here", clean=True)
    bench.come("other", host, clean=clean)
    bench.runner.end(2)
    assert [f"crowd {AT_ONCE}", "other"] == bench.runner.names[-2:]
