"""
A tree of two nodes in memory: the delegation's procedures, under a clock and streams of the test.

Each step of a procedure takes a random time, so a seed is a history. Between any two steps, and
before or after any save, a fault may strike: a node is killed, the streams break, a disk is full.

What lives here: grants and received zones that outlive a process, a zone whose retained values are
durable a while after their publish, streams that lose what was under way. What does not: what is
expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from tests.delegation.simulated_runs import Clock, Killed, Lock, Run, StreamEnd
from tests.delegation.simulated_zone import Disk, Journal, Zone, outside
from txbroker.delegation.hand_back_child import HandBackChild
from txbroker.delegation.hand_back_messages import HandBackOffer, HandBackOutcome
from txbroker.delegation.hand_back_parent import HandBackParent
from txbroker.delegation.join_child import JoinChild, Joined, Moved
from txbroker.delegation.join_messages import Announcement, AnsweringNode, ParentAnswer
from txbroker.delegation.join_parent import AskAgain, JoinParent, grant_for
from txbroker.delegation.join_rules import JoinRefused, ZoneElsewhere
from txbroker.delegation.node_grant import NodeGrant
from txbroker.delegation.procedure import (
    Procedure,
    ReceiveMessage,
    SendMessage,
    locked,
)
from txbroker.delegation.zone_snapshot import MarkKey, StagedZone
from txbroker.model.errors import NoRoom, PeerError, StoreError
from txbroker.model.log_position import JournalId
from txbroker.model.zone_cut import ZoneCut

WHILE_PUBLISHING = 5.0
"""Seconds in which publishes go on."""

PAUSE = 0.5
"""Seconds between two attempts to join, and between a death and the next start."""


@attrs.define
class Fault:
    """What happens at the `at`-th moment at which something may happen."""

    kind: str
    node: str
    at: int
    place: str = ""


class Node:
    """A node, through all its lives."""

    def __init__(self, tree: Tree, name: str, zone: str, parent: str | None) -> None:
        self.tree, self.name, self.zone_name, self.parent = tree, name, zone, parent
        self.disk = Disk(self)
        self.life = 0
        self.is_up = self.is_full = self.is_retiring = self.is_crowded = False
        self.log: list[tuple[str, dict[str, object]]] = []
        self.ends: list[StreamEnd] = []
        self.collected: list[Any] = []

    # its life

    def start(self) -> None:
        self.life += 1
        self.is_up = True
        self.lock, self.requests = Lock(), Lock()
        self.zone = Zone(self)
        parent = None if self.parent is None else f"{self.parent}:1"
        self.node_grant = NodeGrant(
            self.disk,
            self.disk.state,
            f"{self.name}:1",
            parent,
            draw=self.tree.clock.random.randrange,
        )
        for cut in self.node_grant.table.cuts():
            self.zone.discard_retained(cut.apex)
        self.serve_grant()
        self.parent_half = JoinParent(
            node_grant=self.node_grant,
            zone=self.zone,
            strays=self,
            node=self,
            ownership=self.lock,
        )
        self.child_half = JoinChild(self.node_grant, self)
        self.taking = HandBackParent(
            node_grant=self.node_grant,
            zone=self.zone,
            node=self,
            ownership=self.lock,
        )
        if parent is not None:
            self.after(self.tree.clock.delay(), self.join)

    def kill(self) -> None:
        self.stop()
        self.tree.clock.after(PAUSE, self._start_again)

    def stop(self) -> None:
        """The process ends."""
        self.is_up = self.is_retiring = False
        for end in self.ends:
            end.break_off()
        self.ends.clear()

    def _start_again(self) -> None:
        try:
            self.start()
        except StoreError:
            self.kill()
        except Killed:
            pass

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Act in this life of the process; a turn of its loop."""
        life = self.life

        def turn() -> None:
            if self.is_up and self.life == life:
                try:
                    action()
                except Killed:
                    return
                if self.is_up and self.life == life:
                    self.node_grant.check()

        self.tree.clock.after(seconds, turn)

    def check_space(self) -> None:
        if self.is_full:
            self.is_full = False
            raise StoreError(f"{self.name}: no space")

    def check_room(self, staged_zone: StagedZone) -> None:
        if self.is_crowded:
            self.is_crowded = False
            raise NoRoom(f"{self.name}: too many zones")

    # as a parent

    def meet(self, end: StreamEnd) -> None:
        """Accept a stream, unless this process is down."""
        if self.is_up:
            self.ends.append(end)
            self.after(0.0, lambda: self.accept(end))
        else:
            end.break_off()

    def accept(self, end: StreamEnd) -> None:
        """Serve a join stream, as the shell does."""

        def opening() -> Procedure[Any]:
            announcement = yield ReceiveMessage(seconds=10.0)
            if isinstance(announcement, HandBackOffer):
                return (yield from self._take_back(announcement))
            assert isinstance(announcement, Announcement)
            outcome = yield from self.parent_half.answer(announcement)
            match outcome:
                case AskAgain():
                    raise ConnectionError(outcome.reason)
                case JoinRefused() | ZoneElsewhere():
                    answer: Any = outcome
                case _:
                    answer = grant_for(self.node_grant, announcement, outcome.cut.epoch)
            who = AnsweringNode(
                node=self.name,
                zone=self.zone_name,
                identity=self.node_grant.identity,
                life=self.node_grant.life,
            )
            yield SendMessage(message=ParentAnswer(answer=answer, who=who), seconds=10.0)
            return answer

        def ended(_: Any, error: BaseException | None) -> None:
            assert not isinstance(error, PeerError), error
            if error is not None:
                end.break_off()

        Run(self, opening(), end, ended)

    def _take_back(self, offer: HandBackOffer) -> Procedure[None]:
        refusal = self.taking.refusal(offer)
        if refusal is None:
            try:
                return (yield from self.taking.take_back(offer, Journal()))
            except NoRoom as error:
                refusal = str(error)
        yield SendMessage(message=JoinRefused(reason=refusal), seconds=10.0)

    def parts_within(self, apex: str) -> frozenset[JournalId]:
        return frozenset()

    def remove_member(self, node: str) -> None:
        pass

    def absorb_zone(self) -> None:
        staged_zone = self.node_grant.absorbing
        assert staged_zone is not None
        name = f"{staged_zone.epoch} {staged_zone.apex}"
        if self.disk.absorbed != name:
            new = {t: m.payload for t, m in staged_zone.incoming.retained.items()}
            self.zone.retained.now = {**outside(staged_zone.apex, self.zone.retained.now), **new}
            # One batch holds the state and the mark, and lies before all later publishes.
            self.disk.absorbed, self.disk.values = name, dict(self.zone.retained.now)
        self.after(self.tree.clock.delay() * 3, self._absorbed)

    def serve_again(self, apex: str, epoch: int) -> None:
        pass

    def end_turn(self) -> None:
        pass

    def refer_child(self, node: str, parent: ZoneCut) -> None:
        pass

    def earlier(self, granted_by: JournalId) -> dict[int, int]:
        return {}

    def collect(self, some: Any, retained: Any = ()) -> None:
        self.collected += some

    # as a child

    def join(self) -> None:
        """Ask the parent until it has granted, and again when the stream is lost."""
        end = self._open_stream()

        def ended(how: Any, error: BaseException | None) -> None:
            assert error is None or isinstance(error, OSError | StoreError | NoRoom), error
            if isinstance(how, Joined) and not end.is_broken:
                end.awake = lambda: self.after(PAUSE, self.join)
                return
            end.break_off()
            self.after(0.0 if isinstance(how, Moved) else PAUSE, self.join)

        asking = self.child_half.ask(f"{self.parent}:1")
        Run(self, locked(self.requests, asking), end, ended)

    def retire(self) -> None:
        """Give the zone back, as by a command; the process ends when the parent has it."""
        self.is_retiring = True
        end = self._open_stream()
        giving = HandBackChild(
            node_grant=self.node_grant,
            zone=self.zone,
            node=self,
            ownership=self.lock,
            requests=self.requests,
        )

        def ended(_: None, error: BaseException | None) -> None:
            self.is_retiring = False
            assert not isinstance(error, PeerError), error
            if error is None:
                self.stop()
            else:
                end.break_off()

        Run(self, giving.give_back(), end, ended)

    def ask_outcome(
        self, offer: HandBackOffer, answered: Callable[[HandBackOutcome], object]
    ) -> None:
        """Ask the parent, which may be down."""
        assert self.parent is not None
        parent = self.tree.nodes[self.parent]

        def told(outcome: HandBackOutcome, error: BaseException | None) -> None:
            assert error is None, error
            answered(outcome)

        parent.after(
            self.tree.clock.delay(),
            lambda: Run(parent, parent.taking.outcome(offer), None, told),
        )

    def _open_stream(self) -> StreamEnd:
        assert self.parent is not None
        parent = self.tree.nodes[self.parent]
        end, other = StreamEnd(self), StreamEnd(parent)
        end.peer, other.peer = other, end
        self.ends.append(end)
        self.tree.clock.after(self.tree.clock.delay(), lambda: parent.meet(other))
        return end

    @property
    def journal_size(self) -> int:
        return 0

    def needs(self) -> dict[str, Any]:
        return {}

    def resign(self) -> None:
        pass

    def stay(self) -> None:
        pass

    def serve_grant(self) -> None:
        """Open the zone, with the state that a handover brought for it."""
        node_grant, zone = self.node_grant, self.zone
        if not node_grant.serving or (zone.serving and zone.epoch == node_grant.epoch):
            return
        staged_zone = node_grant.absorbing
        if staged_zone is not None:
            self.absorb_zone()
        zone.open(node_grant.epoch)

    def accept_marks(self, marks: Mapping[MarkKey, int]) -> bool:
        assert not marks, "no publish stream of this tree has a mark"
        return True

    def _absorbed(self) -> None:
        try:
            self.node_grant.absorbed()
        except StoreError:
            self.after(PAUSE, self._absorbed)


class Tree:
    """A root, a child that has zone `z`, and a publisher to the zone."""

    def __init__(self, seed: int, *faults: Fault) -> None:
        self.clock = Clock(seed)
        self.moments = 0
        self.faults: dict[int, Fault] = {}
        self.arm(faults)
        self.struck: list[Fault] = []
        self.was_delegated: bool | None = None  # when the root lost its zone, if it did
        self.nodes: dict[str, Node] = {}
        self.nodes["root"] = Node(self, "root", "", None)
        self.nodes["child"] = Node(self, "child", "z", "root")
        self.root, self.child = self.nodes["root"], self.nodes["child"]
        self.served: dict[tuple[str, int], str] = {}
        self.published = 0
        self.acknowledged: set[int] = set()

    def start(self) -> None:
        """Start the root, then the child; publishes go on all the time."""
        self.root._start_again()
        self.clock.after(0.1, self.child._start_again)
        self._publish()

    def arm(self, faults: Iterable[Fault]) -> None:
        """Let faults strike, counted from this moment on."""
        self.faults = {self.moments + fault.at: fault for fault in faults}

    def strike(self, place: str) -> None:
        """Let the fault of this moment happen; raises `Killed` if the process here is dead."""
        self.moments += 1
        fault = self.faults.pop(self.moments, None)
        self.look()
        if fault is None:
            return
        fault.place = place
        self.struck.append(fault)
        node = self.nodes[fault.node]
        match fault.kind:
            case "kill":
                if node.is_up:
                    node.kill()
                    if place.startswith(node.name):
                        raise Killed
            case "break":
                for end in node.ends:
                    end.break_off()
                node.ends.clear()
            case "full":
                node.is_full = True
            case "crowd":
                node.is_crowded = True
            case "lose" if node.is_up and node.zone.serving:
                node.zone.serving = False
                self.was_delegated = node.node_grant.table.get("z") is not None

    def look(self) -> None:
        """One node serves a topic, and each epoch has one owner."""
        taking = [n.name for n in self.nodes.values() if n.is_up and n.zone.accepts("z/x")]
        assert len(taking) <= 1, taking
        for node in self.nodes.values():
            if node.is_up and node.zone.serving:
                owner = self.served.setdefault((node.zone_name, node.zone.epoch), node.name)
                assert owner == node.name, (owner, node.name)

    def retire_child(self) -> None:
        """Repeat the operator's command until the child has given its zone back."""
        child = self.child
        if child.is_up and child.zone.serving and not child.is_retiring:
            child.retire()
        if child.is_up or child.log[-1][0] != "zone.retired":
            self.clock.after(PAUSE, self.retire_child)

    def _publish(self) -> None:
        for node in self.nodes.values():
            if node.is_up and node.zone.accepts("z/x"):
                self.published += 1
                topic = f"z/x/{self.published}"  # a later publish must not hide a lost one
                node.zone.publish(topic, self.published, self.acknowledged.add)
                break
        if self.clock.now < WHILE_PUBLISHING:
            self.clock.after(0.02, self._publish)

    def lost(self) -> set[int]:
        """Return the acknowledged publishes that are not where their topics are served."""
        (node,) = [n for n in self.nodes.values() if n.zone.accepts("z/x")]
        return self.acknowledged - {int(value) for value in node.zone.retained.now.values()}
