"""
SHELL: CONNECT: the checks of the packet, the session, and CONNACK.

`_on_connect` checks, and runs `_connect`: the session (`SessionConnect`), then CONNACK. The
procedure may have to wait; meanwhile the connection is not read. Each way out is one CONNACK.
"""

from __future__ import annotations

from typing import Final

import attrs

from txbroker.core import Flows
from txbroker.edge.sessions.connect_procedure import ConnectProcedure, OpenedSession
from txbroker.model.network import network_of
from txbroker.model.share_name import GROUP_PREFIX
from txbroker.mqtt.session.session import Session
from txbroker.mqtt.transport.connack import MOST_RECEIVED, accepted, keep_alive_of, refused
from txbroker.mqtt.transport.connection_output import ConnectionOutput
from txbroker.mqtt.transport.publish_answers import (
    NO_TEXT,
    has_illegal_payload,
)
from txbroker.mqtt.wire.connect_decoder import refusal_level, refusal_limit
from txbroker.mqtt.wire.decoder import CONNECT
from txbroker.mqtt.wire.encoder import encode, encode_answer
from txbroker.mqtt.wire.packets import (
    LEVEL_4,
    LEVEL_5,
    Connack,
    Connect,
)
from txbroker.mqtt.wire.properties import Properties
from txbroker.mqtt.wire.reason_codes import ReasonCode
from txbroker.mqtt.wire.return_codes import ConnackCode, ProtocolViolation
from txbroker.runtime.structured_log import get_logger, log_limited

log = get_logger()

_ACCEPTED: Final = [encode(Connack(present, ConnackCode.ACCEPTED)) for present in (False, True)]


class ConnectAdmission(ConnectionOutput):
    """A connection up to its CONNACK."""

    __slots__ = ()

    # from the procedure (ConnectingClient)

    def drop_if_gone(self) -> bool:
        """
        Drop the connection if its client has closed it; return True if so.

        A client that waits for no CONNACK was never here, and its will is not published.
        """
        has_left = getattr(self.transport, "has_left", None)
        if has_left is None or not has_left():
            return False
        self._service.counters.add("clients.gone")
        self._leave(will=False)
        self._abort()
        return True

    def host(self) -> str:
        """Return the client's network, which takes its turns with other ones."""
        return network_of(getattr(self.transport.getPeer(), "host", ""))

    # internal: the walk of a CONNECT

    def _on_connect(self, packet: Connect) -> None:
        self._level = self.packet_writer.level = packet.protocol_level
        if self._level >= LEVEL_5:
            self._on_connect_properties(packet.properties)
        if (
            self._service.limits.checks_utf8
            and packet.will is not None
            and has_illegal_payload(packet.will)
        ):
            raise ProtocolViolation(
                "check_utf8", NO_TEXT, reason_code=ReasonCode.PAYLOAD_FORMAT_INVALID
            )
        client_id = packet.client_id or self._service.new_client_id()  # [MQTT-3.1.3-6]
        is_assigned = not packet.client_id
        if is_assigned:
            packet = attrs.evolve(packet, client_id=client_id)
        if len(client_id) > self._service.limits.client_id // 4 or client_id[0] == "$":
            self._check_client_id(client_id)
        self._client_id = client_id
        if self._service.is_leaving:
            self._turn_away()
            return
        if self._service.surplus and not self._has_place():
            self._refuse_surplus()
            return
        procedure = self._connect(packet, is_assigned)
        if not self._service.connects.runner.run(procedure) and self._is_open:
            self._is_arriving = True
            self._regulate()

    def _connect(self, packet: Connect, is_assigned: bool) -> ConnectProcedure[None]:
        """From the checked packet to CONNACK."""
        found = yield from self._service.connects.connect(packet, self)
        if isinstance(found, OpenedSession):
            self._accept(packet, is_assigned, found.session, found.present)
        elif found is not None:
            self._refuse(found.reason, found.code)

    def _check_client_id(self, client_id: str) -> None:
        most = self._service.limits.client_id
        code = ConnackCode.IDENTIFIER_REJECTED
        invalid = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        if len(client_id.encode()) > most:
            reason = f"A client id is longer than {most} bytes."
            raise ProtocolViolation("limits.client_id", reason, code, reason_code=invalid)
        if client_id.startswith(GROUP_PREFIX):
            # The client would take over the session of a group.
            reason = f"A client id does not begin with {GROUP_PREFIX}, as groups have such ids."
            raise ProtocolViolation("[MQTT-3.1.3-8]", reason, code, reason_code=invalid)

    def _on_connect_properties(self, asked: Properties) -> None:
        """Note what the client can receive, before the first packet goes to it."""
        self._is_brief = asked.request_problem_information is False
        self.packet_writer.max_packet = asked.maximum_packet_size or 0
        most = self._service.limits.topic_aliases
        self.packet_writer.alias_maximum = min(asked.topic_alias_maximum or 0, most)
        self.receive_maximum = asked.receive_maximum or MOST_RECEIVED
        if asked.authentication_method is not None:
            raise ProtocolViolation(
                "MQTT-4.12.0-1",
                "No authentication method is known here.",
                reason_code=ReasonCode.BAD_AUTHENTICATION_METHOD,
            )

    def _accept(self, packet: Connect, is_assigned: bool, session: Session, present: bool) -> None:
        """Answer CONNACK and attach the session, which is durable if it must be."""
        connack = self._accepted(packet, is_assigned, session, present)
        if not connack:
            self._service.edge.clients.miss(session)
            self._refuse_small()
            return
        self._session = session
        self._set_keep_alive(keep_alive_of(self._service, packet) or 0)
        if session.clean and session.will is None and not self._packet_reader.has_more:
            # No store and no other packet is involved: CONNACK need not wait for all other CONNECTs
            # of this turn.
            send = self.packet_writer.send_soon
        else:
            send = self.packet_writer.send
        send(connack)
        if not self._service.edge.clients.attach(session, self):
            self._session = None  # another connection may have the session by now
            self._leave(will=False)
            self._abort()
            return
        self._open_packet_reader(session, session.receiver.plain if session.has_received else None)
        if not packet.clean_session and packet.expiry == 0:
            # A client that leaves out the expiry loses a session that it seems to mean to keep.
            reason = "ends at disconnect: expiry 0"
            log_limited(log.info, "session.not_kept", client_id=self._client_id, reason=reason)
        if self._is_arriving:
            self._is_arriving = False
            self._regulate()
            self.on_input()

    def _accepted(
        self, packet: Connect, is_assigned: bool, session: Session, present: bool
    ) -> bytes:
        """Return the CONNACK of an accepted client; no bytes: it accepts no packet so large."""
        if self._level < LEVEL_5:
            # MQTT 3.1 has no session present flag: its byte is reserved.
            return _ACCEPTED[present and self._level >= LEVEL_4]  # [MQTT-3.2.2-1..4]
        connack = accepted(self._service, packet, session, present=present, is_assigned=is_assigned)
        return encode_answer(connack, self.packet_writer.max_packet)

    def _open_packet_reader(self, session: Session, flows: Flows | None) -> None:
        self._packet_reader.max_packet = self._service.limits.packet
        self._packet_reader.leaves_text = self._service.limits.checks_utf8
        self._packet_reader.open(
            session, session.client_id, flows, clean=session.clean, level=self._level
        )

    def _has_place(self) -> bool:
        """
        True if the connection is one of `limits.connections`, maybe since a place is free by now.

        The client's earlier connection gives its place to this one. Otherwise a client whose
        connection broke unheard would be refused until its keep-alive ends.
        """
        service = self._service
        if self not in service.surplus:
            return True
        if not service.admit(self):
            service.edge.clients.close(self._client_id)  # [MQTT-3.1.4-2]
            if not service.admit(self):
                return False
        del service.surplus[self]
        return True

    # internal: refusals

    def _refuse_surplus(self) -> None:
        """
        Refuse the CONNECT of a connection beyond `limits.connections`.

        The connection stays in `surplus` until it is lost: a client may not read its CONNACK.
        """
        self._service.note_refusal(self)
        most = self._service.limits.connections
        reason = f"limits.connections: all {most} connections of the node are in use; try later"
        self._end_refused(self._refusal(ReasonCode.QUOTA_EXCEEDED, reason))

    def _refuse_illegal(self, violation: ProtocolViolation) -> None:
        """Send the CONNACK that tells of a violation, if the client's level has one."""
        first_byte, body = violation.frame
        if first_byte >> 4 == CONNECT >> 4:
            # The packet was not decoded; the client's limit counts even so.
            is_whole = violation.rule != "limits.packet"
            self._level = refusal_level(body)
            self.packet_writer.max_packet = refusal_limit(body, is_whole=is_whole)
        if self._level >= LEVEL_5:
            self._send_answer(refused(violation.reason_code, violation.reason))
        elif violation.connack is not None:
            self.packet_writer.send(encode(Connack(False, violation.connack)))

    def _turn_away(self) -> None:
        """Refuse CONNECT: the node retires."""
        reason, elsewhere = "the node is retired", self._service.server_reference
        if self._level < LEVEL_5:
            self._refuse(reason)
            return
        self._end_refused(refused(ReasonCode.USE_ANOTHER_SERVER, reason, elsewhere))

    def _refuse(self, reason: str, code: int = ReasonCode.SERVER_UNAVAILABLE) -> None:
        """Refuse CONNECT: no session can be had."""
        log_limited(
            log.warning,
            "session.unreachable",
            kind=reason,
            client_id=self._client_id,
            reason=reason,
        )
        self._service.counters.add("clients.session_unreachable")
        self._end_refused(self._refusal(code, reason))

    def _refusal(self, code: int, reason: str) -> Connack:
        """Return the CONNACK of a refusal; below level 5 its code is 3."""
        if self._level >= LEVEL_5:
            return refused(code, reason)
        return Connack(False, ConnackCode.SERVER_UNAVAILABLE)

    def _refuse_small(self) -> None:
        """Refuse a client whose maximum packet size has no room for its CONNACK."""
        reason = "The maximum packet size has no room for CONNACK."
        most = self.packet_writer.max_packet
        log_limited(
            log.warning,
            "client.refused",
            kind="maximum packet size",
            client_id=self._client_id,
            reason=reason,
            value=most,
        )
        self._end_refused(refused(ReasonCode.PACKET_TOO_LARGE, reason))

    def _end_refused(self, connack: Connack) -> None:
        self._send_answer(connack)
        self.flush()
        self._leave(will=False)
        self._close_politely()
