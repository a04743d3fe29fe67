"""What a client sends, through the core's inlet, as its connection takes it (`MqttProtocol`)."""

from __future__ import annotations

from txbroker.core import Exchange, Flows, Outlet
from txbroker.edge.sessions.edge import Edge
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.decoder import decode
from txbroker.mqtt.wire.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel


class Reads:
    """The input of one connection, whose client has the session; `feed` is one read."""

    def __init__(self, edge: Edge, exchange: Exchange, session: Session, outlet: Outlet) -> None:
        self._edge = edge
        self._session = session
        self._inlet = exchange.make_inlet(outlet, 1 << 20)
        self._open(session.receiver.plain if session.has_received else None)

    def _open(self, flows: Flows | None) -> None:
        session = self._session
        self._inlet.open(session, session.client_id, flows, clean=session.clean)

    def feed(self, data: bytes) -> None:
        """Bytes from the client: whole packets, and maybe the beginning of another one."""
        inlet, session = self._inlet, self._session
        inlet.feed(data)
        while True:
            inlet.takes_qos12 = session.may_gather
            frame = inlet.step()
            if inlet.has_landed:
                session.sender.send_queued()
            if inlet.pubacks:
                session.sender.on_pubacks(inlet.pubacks)
            for run in (inlet.qos0, inlet.qos12):
                if run is not None:
                    self._edge.clients.publish_run(run)
            if inlet.fault is not None:
                raise inlet.fault
            if inlet.wants_flows:
                self._open(session.receiver.plain)
                continue
            if frame is not None:
                self._take(decode(*frame))
            elif not inlet.has_more:
                return

    def _take(self, packet: Packet) -> None:
        session = self._session
        match packet:
            case Publish():
                self._edge.clients.publish(session, packet)
            case Puback():
                session.sender.on_pubacks((packet.packet_id,))
            case Pubrec():
                session.sender.on_pubrec(packet.packet_id)
            case Pubrel():
                session.receiver.on_pubrel(packet.packet_id)
            case Pubcomp():
                session.sender.on_pubcomp(packet.packet_id)
            case _:
                raise AssertionError(packet)
