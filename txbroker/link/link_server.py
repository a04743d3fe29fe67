"""
The owner's end of a link: takes an edge's publishes, gives it its deliveries.

Each connection has one object. Bytes come in by `reader` and `work`, and go out by `write`.
The object is the `EdgePort` of its peer. Deliveries leave through `DeliverySender`, as far as the
edge has credit. Answers to publishes leave when these are durable, and need no credit (protocol
rule 20).

A link is new, then has its Hello, then its peer, then is lost or over. Only a link with a peer
takes publishes and gives deliveries. A frame that breaks a rule closes the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import attrs

from txbroker.authority.edge_peer import EdgeGreeting, EdgePeer
from txbroker.core import Run
from txbroker.delegation.peer_checks import check, check_groups
from txbroker.delegation.zone_snapshot import MarkKey
from txbroker.link.batch_headers import CREDIT_BYTES
from txbroker.link.frames import (
    FrameReader,
    LinkError,
    Write,
    check_version,
    encode_frame,
    link_error,
)
from txbroker.link.held_answers import HeldAnswers
from txbroker.link.link_hello import (
    check_claims,
    check_interest,
    gone,
    greeting_of,
    online,
    welcome,
)
from txbroker.link.link_port import LinkHost, LinkPort
from txbroker.link.publish_receiver import MANY_MARKS
from txbroker.model.errors import PeerError
from txbroker.model.invariant import ordered
from txbroker.model.log_position import JournalId
from txbroker.model.publish_run import Octets
from txbroker.mqtt.wire.packets import Publish
from txbroker.rpc.link_convert import (
    claims_from_wire,
    group_report_from_wire,
    holders_from_wire,
    key_from_mark,
    mark_to_wire,
)
from txbroker.v1 import link_pb2, types_pb2
from txbroker.v1.link_pb2 import LinkFrame

LARGEST_HELLO = 64 * 1024 * 1024
"""
The most bytes of the first frame, once its token is valid (see `hello`). The frame has the whole
interest of an edge.
"""

MANY_EDGES = "the zone knows as many edges as it can; let lost ones go: txbroker forget"


HELD_AT_ONCE = 16
"""The most held frames and runs of publishes that one turn processes."""

_PUBLISHING = ("batch", "restart", "open_stream", "ask")
"""Kinds of frames that stay in order with publishes, and wait with them."""


class LinkServer(LinkPort):
    """See the module's text; `close` drops the connection, the reason is for the log."""

    def __init__(
        self,
        host: LinkHost,
        *,
        write: Write,
        close: Callable[[str], None],
    ) -> None:
        self.reader = FrameReader(LARGEST_HELLO)
        self._packet_reader = self.reader.packet_reader
        self._packet_reader.most = CREDIT_BYTES
        super().__init__(host, self._packet_reader, write=write, close=close)
        self._asks = HeldAnswers(host.authority.has_forgotten, self._answer)
        self._has_hello = False
        self._mark: MarkKey
        self._held: deque[LinkFrame | Publish | Run] = deque()
        self._credit_told = 0
        self._is_credit_due = False
        self._reached = 0

    # from the shell

    def work(self) -> None:
        """Process the edge's bytes in the packet reader; raises `LinkError` for a broken rule."""
        if self._is_lost:
            return
        for item in self.reader.frames():
            if self._is_publishing(item) and (self._held or self._must_hold(item)):
                # Held bytes are limited by a window: no credit returns for held publishes.
                self._packet_reader.is_open = False
                self._held.append(item)
            else:
                self._on_item(item)
        self._host.mark_dirty(self)

    def flush(self) -> None:
        """Send due acknowledgements and credit, and deliveries as far as the edge's credit goes."""
        if self._is_lost:
            return
        try:
            self._process_held()
        except LinkError as error:
            # The turn's end must not raise: the faulty edge's link is closed here.
            self._held.clear()
            self._host.counters.add("link.refused")
            self._close(str(error))
            return
        out: list[Octets] = []
        if self._intake.is_due:
            self._intake.acknowledge(out)
        self._grant_credit(out)
        if self._deliveries.queue:
            self._deliveries.write_to(out)
        if self._answers.asked:
            self._answers.resume()
        if self._has_raised:
            self._lower_if_drained()
        if out:
            self._write(*out)
        is_idle = self.peer is not None and not self._held
        self._packet_reader.is_open = is_idle and not (self._is_lost or self._is_over)

    def _process_held(self) -> None:
        for _ in range(HELD_AT_ONCE):
            if not self._held or self._must_hold(self._held[0]):
                return
            self._on_item(self._held.popleft())
        if self._held:
            self._host.mark_next(self)

    def _grant_credit(self, out: list[Octets]) -> None:
        """Append a credit frame for processed bytes, if they are many or a second has passed."""
        taken = self._intake.received + self._packet_reader.received - self._credit_told
        is_due = taken >= CREDIT_BYTES or (taken and self._is_credit_due)
        if is_due and not (self._held or self._host.backpressure.active):
            self._is_credit_due = False
            self._credit_told += taken
            self._packet_reader.most = self._packet_reader.received + CREDIT_BYTES
            credit = link_pb2.Credit(consumed=self._credit_told)
            out.append(encode_frame(LinkFrame(credit=credit)))

    def check(self) -> None:
        """State what of the link is taken, credited and delivered; after the end of a turn."""
        if self._is_lost or self._is_over or self.peer is None or self.peer.port is not self:
            return
        received = self._intake.received + self._packet_reader.received
        ordered(self, 20, "credit told <= received", 0, self._credit_told, received)
        ordered(self, 6, "reached <= delivered", self._reached, self._authority.delivered)
        self._intake.check()
        self._deliveries.check()

    @property
    def may_speak(self) -> bool:
        """True if the edge has sent its Hello."""
        return self._has_hello

    def beat(self) -> None:
        """Report credit and position of an edge with little traffic, as a second has passed."""
        self._is_credit_due = True
        self._asks.beat()
        self._host.mark_dirty(self)
        reached = self._authority.delivered
        if self.peer is not None and reached != self._reached and not self._is_over:
            self._reached = reached
            self._enqueue_frame(LinkFrame(reached=link_pb2.Reached(offset=reached)))

    def on_disconnect(self) -> None:
        """Disconnect the edge and discard held publishes, which were not accepted."""
        self._is_lost = True
        self._held.clear()
        self._answers.close()
        self._host.backpressure.forget(self)
        if self.peer is not None:
            self._authority.reception.disconnect(self.peer, self)
            self._host.groups.lose(self)

    # internal: frames from the edge

    def _must_hold(self, item: LinkFrame | Publish | Run) -> bool:
        if self.peer is None:
            return False
        if self._host.backpressure.active:
            return True
        # QoS 0 does not wait for the disk; its order behind held publishes holds all the same.
        is_kept = not isinstance(item, LinkFrame) and item.qos > 0
        return is_kept and self._host.is_disk_short

    def _is_publishing(self, item: LinkFrame | Publish | Run) -> bool:
        return not isinstance(item, LinkFrame) or item.WhichOneof("kind") in _PUBLISHING

    def _on_item(self, item: LinkFrame | Publish | Run) -> None:
        if isinstance(item, LinkFrame):
            try:
                self._on_frame(item)
            except PeerError as error:
                raise link_error(error) from error
            return
        if isinstance(item, Run):
            self._intake.on_run(item)
        else:
            self._intake.on_publish(item)

    def _on_frame(self, frame: LinkFrame) -> None:
        kind = frame.WhichOneof("kind")
        if kind not in ("batch", "heartbeat"):  # a batch's numbers are checked with the batch
            check(frame)
        if kind == "hello":
            self._on_hello(frame.hello)
            return
        peer = self.peer
        if peer is None:
            if kind == "heartbeat" and self._has_hello:
                return  # its Hello waits for the disk
            raise LinkError("the first frame of a link is Hello")
        match kind:
            case "batch":
                self._intake.on_batch(frame.batch)
            case "open_stream":
                self._intake.on_open_stream(frame.open_stream, peer.edge)
            case "ask":
                self._asks.ask(frame.ask)
            case "restart":
                self._intake.on_restart(frame.restart)
            case "interest":
                self._on_interest(peer, frame.interest)
            case "sync":
                self._on_sync(peer, frame.sync)
            case "claimed":
                self._authority.reception.on_claimed(peer, frame.claimed.apexes)
            case "position":
                self._deliveries.on_consumed(frame.position.consumed)
            case "low_water":
                kept = {JournalId(k.zone, k.epoch): k.offset for k in frame.low_water.kept}
                answer = partial(self._on_low_water_stored, frame.low_water.request)
                holders = holders_from_wire(frame.low_water)
                self._authority.reception.set_low_water(peer, kept, answer, holders)
            case "group_report":
                check_groups((frame.group_report.group,))
                report = group_report_from_wire(frame.group_report)
                self._host.groups.report(self, frame.group_report.group, report)
            case "heartbeat":
                pass
            case None:
                # A newer edge may send frames that this node does not know; refusing them would
                # break the link.
                self._host.counters.add("link.unknown_frame")
            case _:
                raise LinkError(f"an edge does not say {kind}")

    def _on_low_water_stored(self, request: int) -> None:
        if request:
            kept = link_pb2.LowWaterKept(request=request)
            self._send(encode_frame(LinkFrame(low_water_kept=kept)))

    def _on_interest(self, peer: EdgePeer, interest: link_pb2.InterestRequest) -> None:
        reception = self._authority.reception
        if interest.remove:
            reception.remove_interest(peer, interest.filter)
            return
        check_interest((interest.filter,))
        peer.wants_publishers = peer.wants_publishers or interest.publishers
        reception.add_interest(peer, interest.filter, interest.request, interest.retained)

    def _on_sync(self, peer: EdgePeer, sync: link_pb2.InterestSync) -> None:
        check_interest(sync.filters)
        check_claims(sync.claims, self._authority.apex)
        claims = claims_from_wire(sync.claims, self._authority.epoch)
        catch_up = self._authority.reception.sync(peer, sync.filters, claims)
        self._catch_up(catch_up)
        if catch_up.completes:
            claimed = link_pb2.Claimed(apexes=catch_up.completes)
            self._enqueue_frame(LinkFrame(claimed=claimed))

    def _on_hello(self, hello: link_pb2.Hello) -> None:
        if self._has_hello:
            raise LinkError("a link has one Hello")
        if not hello.stream:
            raise LinkError("a Hello names its stream")
        check_version(hello.version)
        opened = self._host.redeem(hello.token, hello.edge, hello.incarnation)
        if opened is None:
            raise LinkError("the token is not valid; OpenLink gives one for each link")
        authority = self._authority
        greeting = greeting_of(hello, authority, opened)
        self._has_hello = True
        self._deliveries.set_properties(hello.reads_properties)
        self.reader.trust()
        mark = (hello.edge, hello.incarnation, authority.apex, hello.stream)
        self._mark = mark
        self._intake.open(hello.stream, mark, has_gaps=False)
        # The marks in Welcome acknowledge publishes, so Welcome must wait until these are durable.
        authority.reception.expect(greeting)
        authority.in_order(lambda: self._accept(greeting, hello.in_doubt))

    def _accept(self, greeting: EdgeGreeting, in_doubt: Iterable[types_pb2.Mark]) -> None:
        authority = self._authority
        if self._is_lost:
            return
        # Not before: of many edges that wait for the disk, each would be the last one.
        if not authority.reception.may_come((greeting.edge,)):
            self.close(MANY_EDGES)
            return
        # The apexes that came back while the edge was away; no other owner will deliver their
        # records to the edge.
        back = authority.reception.returned(greeting)
        inherited = tuple(one.apex for one in back if one.is_inherited)
        accepted = authority.reception.connect(attrs.evolve(greeting, returned=inherited), self)
        if accepted is None:
            self._host.counters.add("link.refused")
            self._close(f"a newer link of edge {greeting.edge!r} is known")
            return
        self.peer, caught_up = accepted
        # This call follows `connect`, which has discarded marks that the edge no longer needs.
        # Otherwise an edge at the limit could not return.
        if not authority.reception.begin(self._mark):
            self.close(MANY_MARKS)
            return
        self._deliveries.peer = self.peer
        self._host.groups.on_edge(self)
        known = self._marks_of(self._asks.known(map(key_from_mark, in_doubt)))
        self._write(encode_frame(welcome(authority, known)))
        for one in back:
            self._enqueue_frame(gone(one))
        self._catch_up(caught_up)
        self._enqueue_frame(online(authority, missed=caught_up.missed))

    def _answer(self, ask: link_pb2.Ask) -> None:
        # The marks acknowledge publishes, as in a Welcome: they must be durable first.
        self._authority.in_order(lambda: self._send(self._marks(ask)))

    def _marks(self, ask: link_pb2.Ask) -> bytes:
        found = self._marks_of(map(key_from_mark, ask.in_doubt))
        return encode_frame(LinkFrame(marks=link_pb2.Marks(request=ask.request, marks=found)))

    def _marks_of(self, keys: Iterable[MarkKey]) -> list[types_pb2.Mark]:
        return [mark_to_wire(key, self._authority.marks.get(key, 0)) for key in keys]
