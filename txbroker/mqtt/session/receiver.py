"""
A session as the receiver of what its client publishes (MQTT 3.1.1, section 4.3).

The receiver knows which packet ids are open [MQTT-4.3.3-2], and which answer is due. A publish is
acknowledged when its owner has it, or this node's outbox. Its packet id is free only when that is
durable.

A packet id is free, or in a run (`plain`), or has a flow of its own. A flow is open, then taken,
then answered; one of QoS 2 is then released. A flow that leaves its run never goes back into one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from txbroker.core import Flows, Run
from txbroker.model.invariant import holds, ordered
from txbroker.mqtt.session.ack_order import AckOrder
from txbroker.mqtt.session.base_sender import BaseSender
from txbroker.mqtt.session.inbound_publish import InboundPublish, checksum_of
from txbroker.mqtt.session.session_ports import Sink
from txbroker.mqtt.wire.encoder import encode
from txbroker.mqtt.wire.packets import Puback, Pubcomp, Publish, Pubrec
from txbroker.mqtt.wire.reason_codes import ReasonCode

_NONE: Final[set[int]] = set()  # of all sessions without such flows; nothing is added to it


class ReceivingSession(Protocol):
    """The session, as the receiver of what its client publishes sees it."""

    may_gather: bool
    """True if publishes of QoS 1 and 2 may arrive in runs now; written by the receiver."""

    @property
    def clean(self) -> bool:
        """True if the session ends with its connection."""

    @property
    def is_over(self) -> bool:
        """True if the session has ended."""

    @property
    def sender(self) -> BaseSender:
        """Return the sender, which has the client's connection."""

    def save(self) -> None:
        """Schedule a save of a durable session's present state."""

    def save_then(self, action: Callable[[], None]) -> None:
        """Run `action` when the present state of the session is durable."""

    def zone_of(self, topic: str) -> str:
        """Return the zone of a publish with this topic."""


class SessionReceiver:
    """
    The publishes of one session's client that are under way.

    Publishes that came in runs, and of which nothing more is known, are in `plain`.
    `_is_resumed`: True if the session had an earlier connection. The client may send PUBREL again
    for a flow that has ended. An error in PUBCOMP would make the client publish again.

    Invariant: a packet id is in one of `plain` and the flows; a flow owes 0 answers or more.
    """

    __slots__ = ("_changed", "_earlier", "_flows", "_is_resumed", "_session", "_turns", "plain")

    def __init__(self, session: ReceivingSession) -> None:
        self._session = session
        self.plain = Flows()
        self._flows: dict[int, InboundPublish] = {}
        self._changed: dict[int, None] = {}
        self._earlier = _NONE
        self._is_resumed = False
        self._turns: AckOrder | None = None
        session.may_gather = True

    # from the session

    def restore(self, flows: Iterable[InboundPublish]) -> None:
        """Load the stored flows."""
        for flow in flows:
            self._persist(flow)
        self._begin()

    def merge_flows(self, flows: Iterable[InboundPublish]) -> None:
        """
        Merge the open flows of another session of the same client.

        The node does not know which of the two sessions the client knows. The client may have been
        answered that no session was present, and have begun anew. Or the client may know nothing of
        the session that began meanwhile. So a packet with an open packet id is a repeat only if its
        message is the same.
        """
        merged = []
        for flow in flows:
            self._adopt(flow.packet_id)
            if flow.packet_id not in self._flows:
                self._persist(flow)
                merged.append(flow.packet_id)
        self._earlier = self._earlier.union(merged)
        for flow in self.open():
            flow.must_match = True
            self.mark_changed(flow)
        if self._turns is None:
            self._start_ack_order()
        else:
            self._turns.expect(self._flows)

    def detach(self) -> None:
        """Release the closed connection; resent publishes are acknowledged on the next one."""
        if self._session.clean:
            return  # the session ends with its connection
        for packet_id in self.plain.packet_ids():
            self._adopt(packet_id)
        for flow in self._flows.values():
            flow.owed = 0
        self._begin()

    # from the connection and the edge

    def adopt(self, run: Run) -> list[InboundPublish]:
        """Split a run; return the flow of each of its publishes."""
        flows = []
        for index, packet_id in enumerate(run.packet_ids):
            known = self.plain.get(packet_id)
            if known is not None and known.serial == run.serial:
                self._adopt(packet_id)
            flow = self._flows.get(packet_id)
            # The client has given up the earlier flow.
            if flow is None or flow.serial != run.serial:
                flow = InboundPublish(packet_id, run.message(index).qos, owed=0, serial=run.serial)
            flows.append(flow)
        return flows

    def on_others_taken(self, run: Run, packet_ids: Iterable[int]) -> None:
        """Acknowledge the single flows of a run that its owner has accepted whole."""
        for packet_id in packet_ids:
            flow = self._flows.get(packet_id)
            if flow is not None and flow.serial == run.serial:
                self.on_accepted(flow)

    def accept(self, packet: Publish) -> InboundPublish | None:
        """
        Register a QoS 1 or 2 publish; return the flow to forward, or None for a repeat.

        A repeat of an accepted flow is acknowledged at once, other repeats when the owner accepts
        the flow. The first repeat of a flow in doubt is forwarded, under the flow's own origin id.
        """
        packet_id = packet.packet_id
        assert packet_id is not None
        self._earlier.discard(packet_id)
        self._adopt(packet_id)
        known = self._flows.get(packet_id)
        if known is not None and _is_repeat(packet, known):
            if not known.owed:
                self._enter(known, packet.topic, is_repeat=True)
            known.owed += 1
            if known.taken:
                self._acknowledge(known)  # [MQTT-4.3.3-2]
            was_in_doubt, known.is_in_doubt = known.is_in_doubt, False
            return known if was_in_doubt else None
        flow = self._persist(InboundPublish(packet_id, packet.qos))
        if packet.qos == 2 and not self._session.clean:
            flow.checksum = checksum_of(packet.topic, packet.payload)
        self._enter(flow, packet.topic, is_repeat=False)
        if known is not None:
            self._give_up(known)
        return flow

    def on_accepted(self, flow: InboundPublish) -> None:
        """
        Acknowledge a publish that its owner has accepted, if the client still has that flow open.
        """
        flow.taken = True
        self.mark_changed(flow)
        if self._flows.get(flow.packet_id) is flow:
            self._acknowledge(flow)
            if flow.qos == 2:
                self._session.save()

    def on_pubrel(self, packet_id: int) -> None:
        """
        End a QoS 2 flow, and answer PUBCOMP for any packet id; level 5 is told of an unknown one.
        """
        self._adopt(packet_id)
        flow, reason = self._flows.get(packet_id), ReasonCode.SUCCESS
        if flow is not None and flow.qos == 2:
            self._release(packet_id)
            self._give_up(flow)
        elif not self._is_resumed:
            reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        session = self._session
        sink, pubcomp = session.sender.sink, Pubcomp(packet_id, reason)
        if session.clean or session.is_over:
            self._answer_on(sink, pubcomp)
        else:
            # With PUBCOMP the client may reuse the packet id. A crash before the save would take
            # the new message for a repeat.
            session.save_then(lambda: self._answer_on(sink, pubcomp))

    def open(self) -> Iterable[InboundPublish]:
        """Return the QoS 2 publishes that the client has not released."""
        return (flow for flow in self._flows.values() if flow.qos == 2)

    def forget(self, flow: InboundPublish) -> None:
        """Forget a flow that was sent to no owner: a resend of the client is a new publish."""
        if self._flows.get(flow.packet_id) is flow:
            self._release(flow.packet_id)

    def is_open(self, packet_id: int) -> bool:
        """True if a publish with this packet id is open: a repeat of it may be stored already."""
        return packet_id in self._flows or self.plain.get(packet_id) is not None

    def refuse(self, flow: InboundPublish, answer: Callable[[], object]) -> None:
        """End the exchange of a publish that was sent to no owner: `answer` each of its packets."""
        if self._flows.get(flow.packet_id) is flow:
            for _ in range(flow.owed):
                answer()
            self._release(flow.packet_id)
            self._give_up(flow)

    # from the session store

    def mark_changed(self, flow: InboundPublish) -> None:
        """Mark a flow's stored state as changed."""
        if flow.qos == 2 and not self._session.clean:
            self._changed[flow.packet_id] = None

    @property
    def count(self) -> int:
        """Return how many flows came singly, or left their run."""
        return len(self._flows)

    @property
    def sent(self) -> int:
        """
        Return how many open publishes came on the present connection.

        A client that has lost its state sends no others again, and they must not count against it.
        """
        return len(self.plain) + len(self._flows) - len(self._earlier)

    def change_all(self) -> None:
        """Mark all flows as unsaved."""
        for flow in self._flows.values():
            self.mark_changed(flow)

    def dequeue_changed(self) -> list[int]:
        """Return the packet ids whose stored state changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def stored_flow(self, packet_id: int) -> InboundPublish | None:
        """Return the flow to store under the packet id; None: delete it."""
        flow = self._flows.get(packet_id)
        return flow if flow is not None and flow.is_kept else None

    def check(self) -> None:
        """State that each packet id names one publish."""
        for packet_id, flow in self._flows.items():
            holds(self, 16, "a flow has its packet id", flow.packet_id == packet_id, packet_id)
            is_alone = self.plain.get(packet_id) is None
            holds(self, 16, "a packet id names one publish", is_alone, packet_id)
            ordered(self, 16, "0 <= answers that are due", 0, flow.owed)
        is_known = self._earlier <= self._flows.keys()
        holds(self, 16, "flows of earlier connections are open", is_known, self._earlier)

    # internal

    def _persist(self, flow: InboundPublish) -> InboundPublish:
        known = self._flows.get(flow.packet_id)
        if known is not None:
            self.mark_changed(known)
        self._flows[flow.packet_id] = flow
        self.mark_changed(flow)
        self.plain.hold(flow.packet_id)
        return flow

    def _release(self, packet_id: int) -> None:
        self._earlier.discard(packet_id)
        self.mark_changed(self._flows.pop(packet_id))
        self.plain.free(packet_id)

    def _adopt(self, packet_id: int) -> None:
        """Turn a flow of a run with this packet id, if any, into a single flow."""
        plain = self.plain.get(packet_id)
        if plain is not None:
            owed = 0 if plain.is_taken else 1
            self._persist(
                InboundPublish(packet_id, plain.qos, plain.is_taken, owed, serial=plain.serial)
            )

    def _answer_on(self, sink: Sink | None, answer: Pubcomp) -> None:
        """Send the answer, unless the client has another connection by now."""
        if sink is not None and self._session.sender.sink is sink:
            sink.packet_writer.send(encode(answer, sink.packet_writer.level))

    def _acknowledge(self, flow: InboundPublish) -> None:
        if not flow.owed:
            return  # the client has not resent the publish yet
        turns = self._turns
        if turns is not None and turns.must_wait(flow):
            return
        self._answer(flow)
        if turns is not None:
            self._end_turn(flow)

    def _answer(self, flow: InboundPublish) -> None:
        kind = Puback if flow.qos == 1 else Pubrec
        sink = self._session.sender.sink
        if sink is not None:
            sink.packet_writer.send(encode(kind(packet_id=flow.packet_id)) * flow.owed)
        flow.owed = 0
        if flow.qos == 1:
            self._release(flow.packet_id)

    def _begin(self) -> None:
        """Note which flows are of an earlier connection than the next."""
        self._is_resumed = True
        self._earlier = set(self._flows) if self._flows else _NONE
        self._start_ack_order()

    def _start_ack_order(self) -> None:
        """Begin an order of acknowledgements for the flows that the next connection may resend."""
        self._order(AckOrder(self._flows) if self._flows else None)

    def _order(self, turns: AckOrder | None) -> None:
        """Acknowledge in this order; None: each publish by itself, and runs as a whole."""
        self._turns = turns
        self._session.may_gather = turns is None

    def _enter(self, flow: InboundPublish, topic: str, *, is_repeat: bool) -> None:
        """Enter a publish into the order of acknowledgements."""
        if self._turns is not None:
            zone = self._session.zone_of(topic)
            self._turns.enter(flow, topic, zone, is_repeat=is_repeat)

    def _give_up(self, flow: InboundPublish) -> None:
        """End a flow that the client has given up: no answer is due any more."""
        flow.owed = 0
        self._end_turn(flow)

    def _end_turn(self, flow: InboundPublish) -> None:
        """Acknowledge the flows that waited for this one."""
        turns = self._turns
        if turns is None:
            return
        after = turns.end(flow)
        while after is not None and (after.taken or not after.owed):
            if after.owed:
                self._answer(after)
            after = turns.end(after)
        if turns.is_over:
            self._order(None)


def _is_repeat(packet: Publish, flow: InboundPublish) -> bool:
    """True if the packet repeats the open publish with its packet id [MQTT-4.3.3-2]."""
    if packet.qos != flow.qos:
        return False
    if flow.must_match:  # a client marks a repeat by DUP [MQTT-3.3.1-1]
        return packet.dup and flow.checksum == checksum_of(packet.topic, packet.payload)
    return packet.dup or flow.qos == 2
