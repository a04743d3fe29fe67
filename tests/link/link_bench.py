"""An edge, an owner, and a link between them in memory."""

from __future__ import annotations

from tests.support.pair import Alarms, Host, Link, Recorder, make_authority, make_edge
from txbroker.edge.sessions.edge import Edge
from txbroker.model.zone_cut import ZoneCut

ROOT = ZoneCut(apex="", epoch=1, node="root", grpc="h:1")


class Bench:
    """One edge, one owner of the root zone, and links between them."""

    def __init__(self, *cuts: ZoneCut) -> None:
        self.alarms = Alarms()
        self.recorder = Recorder()
        self.edge: Edge = make_edge(self.alarms, self.recorder)
        self.route = self.edge.zones.add(ROOT)
        self.route.learn_cuts({})
        self.authority = make_authority("", 1, *cuts)
        self.host = Host(self.authority, self.alarms)
        self.link = self.connect()

    def connect(self) -> Link:
        """A link that is online."""
        self.link = Link(self.edge, self.route, self.host).open()
        return self.link

    def filters(self) -> set[str]:
        """What the owner takes the edge to want."""
        peer = self.authority.peers.get("edge")
        assert peer is not None
        return peer.filters
