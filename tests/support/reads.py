"""
The packets that a client sends, through the core's packet reader, as its connection takes them
(`MqttProtocol`).
"""

from __future__ import annotations

from txbroker.core import Flows, PacketWriter, Router
from txbroker.edge.sessions.edge import Edge
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.wire.decoder import decode
from txbroker.mqtt.wire.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel


class Reads:
    """The input of one connection, whose client has the session; `feed` is one read."""

    def __init__(
        self, edge: Edge, router: Router, session: Session, packet_writer: PacketWriter
    ) -> None:
        self._edge = edge
        self._session = session
        self._packet_reader = router.make_packet_reader(packet_writer, 1 << 20)
        self._open(session.receiver.plain if session.has_received else None)

    def _open(self, flows: Flows | None) -> None:
        session = self._session
        self._packet_reader.open(session, session.client_id, flows, clean=session.clean)

    def feed(self, data: bytes) -> None:
        """Bytes from the client: whole packets, and maybe the beginning of another one."""
        packet_reader, session = self._packet_reader, self._session
        packet_reader.feed(data)
        while True:
            packet_reader.takes_qos12 = session.may_gather
            frame = packet_reader.step()
            if packet_reader.has_landed:
                session.sender.send_queued()
            if packet_reader.pubacks:
                session.sender.on_pubacks(packet_reader.pubacks)
            for run in (packet_reader.qos0, packet_reader.qos12):
                if run is not None:
                    self._edge.publisher.publish_run(run)
            if packet_reader.fault is not None:
                raise packet_reader.fault
            if packet_reader.wants_flows:
                self._open(session.receiver.plain)
                continue
            if frame is not None:
                self._take(decode(*frame))
            elif not packet_reader.has_more:
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
