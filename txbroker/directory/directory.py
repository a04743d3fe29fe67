"""
The client directory of one node: everything that nodes tell and ask each other about client ids.

The directory decides how a request is answered, and what is done now and then. It decides what
follows when another entry counts above one of ours. Its parts decide the rest. `replica` has
entries kept here for others, `replicator` what others keep of ours. `connected` has clients that
come and go, `ownership` sessions that move, `arrival` finds a session, `wills` has wills. No I/O:
requests come in, replies go out; procedures are run by the shell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs

from txbroker.directory.client_wills import OwnWills, WillWatch
from txbroker.directory.connected_clients import ConnectedClients
from txbroker.directory.directory_parts import DirectoryParts
from txbroker.directory.directory_ports import DurableTable, PendingPublishes, SessionHost
from txbroker.directory.effects import Procedure, ask
from txbroker.directory.entry import DirectoryEntry
from txbroker.directory.entry_conflicts import EntryConflicts
from txbroker.directory.entry_replica import EntryReplica
from txbroker.directory.entry_replicator import EntryReplicator, ReplicatorPorts
from txbroker.directory.entry_table import EntryTable
from txbroker.directory.heartbeat import pulse
from txbroker.directory.lost_members import LostMembers
from txbroker.directory.member_admission import MemberAdmission
from txbroker.directory.members import Members
from txbroker.directory.move_sweep import MoveSweep
from txbroker.directory.node_lifetime import NodeLifetime
from txbroker.directory.reachability import Reachability
from txbroker.directory.requests import (
    AskPendingPublishes,
    Busy,
    Claim,
    Discard,
    Entrust,
    Left,
    Lookup,
    Noted,
    NotHeld,
    Offer,
    OtherView,
    PendingPublishesReply,
    Ping,
    Pong,
    Register,
    Release,
    Reply,
    Request,
    ShareMembers,
    Supersede,
    Take,
    WillsSent,
)
from txbroker.directory.root_merge import RootMerge
from txbroker.directory.sent_wills import SentWills
from txbroker.directory.session_discard import SessionDiscards
from txbroker.directory.session_evacuation import SessionEvacuation
from txbroker.directory.session_ownership import OwnershipTables, SessionOwnership
from txbroker.directory.session_takeover import SessionFound, SessionTakeovers, TakeoverRefused
from txbroker.directory.silent_members import SilentMembers

T = TypeVar("T")

AT_WORK = 100
"""Upper bound of concurrent procedures, not counting those of connecting clients."""


@attrs.frozen(kw_only=True)
class DirectoryTables:
    """Where the directory keeps what it must not forget."""

    entries: DurableTable
    sessions: OwnershipTables
    wills: DurableTable
    sent_wills: DurableTable
    discards: DurableTable
    sites: DurableTable


@attrs.frozen(kw_only=True)
class DirectorySettings:
    """`roaming_wait`, `will_after` and `session_age` in seconds; `is_fresh`: `roaming: fresh`."""

    roaming_wait: float = 3.0
    is_fresh: bool = False
    will_after: float = 10.0
    session_age: float = 7 * 24 * 3600.0


@attrs.frozen(kw_only=True, eq=False)
class ShellPorts:
    """
    What the shell does for the directory.

    The shell runs what `spawn` gets; after `wake` it looks for batches of the replicator.
    `make_token` returns random bytes.
    """

    spawn: Callable[[Procedure[None]], object]
    wake: Callable[[], object]
    make_token: Callable[[], bytes]


class Directory:
    """The directory of one node in the life `life` of its process."""

    def __init__(
        self,
        *,
        members: Members,
        tables: DirectoryTables,
        host: SessionHost,
        life: NodeLifetime,
        settings: DirectorySettings,
        shell: ShellPorts,
    ) -> None:
        """Wire the parts."""
        now = life.now
        self.members = members
        self.replica = EntryReplica(members, EntryTable(tables.entries), life.number)
        self.ownership = SessionOwnership(
            members.name,
            tables=tables.sessions,
            host=host,
            make_token=shell.make_token,
            lived=life.lived,
        )
        self.admission = MemberAdmission(members, now, shell.wake)
        self.silence = SilentMembers(members, settings.will_after, now)
        self.replicator = EntryReplicator(
            members,
            self.replica.entries,
            life,
            silence=self.silence,
            ports=ReplicatorPorts(
                on_known=self._forget_if_known,
                on_conflict=lambda other, ended: self.conflicts.supersede(other, has_ended=ended),
                kept=lambda: [*self.ownership.arriving, *self.takeovers.claims],
                wake=shell.wake,
            ),
            every=pulse(settings.will_after),
        )
        self.reach = Reachability(now)
        parts = DirectoryParts(
            members=members,
            replica=self.replica,
            ownership=self.ownership,
            replicator=self.replicator,
            reach=self.reach,
            host=host,
            now=now,
            spawn=shell.spawn,
        )
        self.takeovers = SessionTakeovers(
            parts,
            wait=settings.roaming_wait,
            is_fresh=settings.is_fresh,
        )
        self.conflicts = EntryConflicts(parts, takeovers=self.takeovers)
        self._departure = SessionEvacuation(members, self.ownership, host, now)
        self.own_wills = OwnWills(tables.wills, life.number)
        self.connected = ConnectedClients(
            parts,
            conflicts=self.conflicts,
            wills=self.own_wills,
            moment=life.moment,
        )
        self.clearings = SessionDiscards(
            parts,
            takeovers=self.takeovers,
            connected=self.connected,
            table=tables.discards,
            moment=life.moment,
        )
        self._sweep = MoveSweep(
            parts,
            self.takeovers,
            let_go=self._forget_move,
            is_old=lambda since: life.lived() - since > settings.session_age * 1e6,
        )
        self.root_merge = RootMerge(members, self.ownership, tables.sites)
        self.sent_wills = SentWills(tables.sent_wills)
        self._watch = WillWatch(
            parts,
            silence=self.silence,
            own=self.own_wills,
            forget=self.connected.forget_will,
            sent=self.sent_wills,
            after=settings.will_after,
        )
        self._host = host
        self._now = now
        self._spawn = shell.spawn
        self._at_work: set[tuple[str, ...]] = set()
        self._lost = LostMembers(parts, self._watch)
        self._was_alone = members.is_alone
        members.when_changed(self._on_members)

    # from the node

    def start(self) -> None:
        """Start once, after the session store has loaded the sessions of earlier processes."""
        self.ownership.start()
        for client_id in self.ownership.tombstone_ids:
            # A tombstone older than the session here would send keepers to the wrong node.
            if client_id not in self.ownership.held:
                self._register_gone(client_id)
        for client_id, owned in self.ownership.held.items():
            self.replicator.own[client_id] = DirectoryEntry(
                client_id=client_id,
                node=self.members.name,
                incarnation=owned.incarnation,
                persistent=True,
                testament=self.own_wills.get(client_id),
            )
        self.replicator.start()
        self.clearings.answers.start()

    def tick(self) -> None:
        """Do the periodic work; the shell calls this about once a second."""
        self.ownership.expire(self._now())
        self.conflicts.tick()
        self.connected.tick()
        self.replicator.recheck()
        self._lost.tick()
        self.silence.report()
        for key, procedure in self._sweep.due():
            self._start(key, procedure)
        for node in self.replica.entries.nodes_of_hearsay():
            self._start(("hearsay", node), self.conflicts.verify_hearsay(node))
        for node in self.replica.entries.losers():
            self._start(("losers", node), self.conflicts.notify_losers(node))
        for key, procedure in self._watch.due():
            self._start(key, procedure)
        for client_id in list(self.ownership.arriving):
            self._start(("finish", client_id), self.takeovers.finish_alone(client_id))
        for client_id in list(self.conflicts.offers):
            self._start(("offer", client_id), self.conflicts.offer(client_id))
        for client_id, left in self.ownership.earlier_holders():
            # By the token: a node that had the session twice is asked about both times.
            self._start(("follow", client_id, left.token.hex()), self._follow(client_id, left))
        for client_id in self.clearings.due:
            self._start(("discard", client_id), self.clearings.finish(client_id))
        self.root_merge.tick()
        for client_id in self.ownership.unasked():
            self._start(("ask", client_id), self.takeovers.merge_absent_sites(client_id))

    def check(self) -> None:
        """State who is a member, and where sessions are; after the end of a turn."""
        self.members.check()
        self.replica.check()
        self.ownership.check()

    # from the edge

    def is_here(self, client_id: str) -> bool:
        """True if this node holds the kept session of that id, and may resume it at once."""
        return client_id in self.ownership.held

    def take_over(
        self, client_id: str, is_wanted: Callable[[], bool]
    ) -> Procedure[SessionFound | TakeoverRefused]:
        """
        Bring a kept session from another node (see `SessionTakeovers.take_over`).

        Pending discards of an earlier clean session finish first.
        """
        if self.clearings.is_due(client_id):
            return self._arrive_after(client_id, is_wanted)
        return self.takeovers.take_over(client_id, is_wanted, self.takeovers.deadline)

    def evacuate(self, heir: str, is_wanted: Callable[[], bool]) -> Procedure[str]:
        """Move all kept sessions to the node `heir` (see `SessionEvacuation`)."""
        return self._departure.evacuate(heir, is_wanted)

    # from other nodes

    def greatest(self, client_id: str) -> int:
        """
        Return the greatest number that this node knows of the id's sessions; 0: none is known.
        """
        owned = self.ownership.held.get(client_id)
        tombstone = self.ownership.tombstone(client_id)
        return max(
            self.replica.entries.greatest(client_id),
            0 if owned is None else owned.incarnation,
            0 if tombstone is None else tombstone.incarnation,
        )

    def handle(self, source: str, request: Request) -> Reply | None:
        """
        Answer a request of the member `source`; None: `source` is no member, and gets no answer.

        The shell sends the answer after all changes are durable in this node's store.
        """
        if self.members.get(source) is None:
            self.admission.on_call(source)
            return None
        self.record_contact(source)
        match request:
            case Lookup():
                return self.replica.lookup(request)
            case Register():
                self.replicator.met(source, request.life)
                self.silence.store_report(source, request.silent)
                return self.replica.register(source, request)
            case Claim():
                return self.replica.claim(source, request)
            case Supersede():
                return self.conflicts.superseded(request)
            case Take():
                return self._take(source, request)
            case Release():
                return self._release(source, request)
            case Offer():
                return self.conflicts.offered(source, request)
            case Discard():
                return self._discard(source, request)
            case Entrust():
                return self._entrusted(source, request)
            case AskPendingPublishes():
                return self._answer_pending_publishes(request)
            case WillsSent():
                self._record_sent(request)
                return Noted()
            case ShareMembers():
                self.admission.store_members(source, request.members)
                return self.replica.other_view()
            case Ping():
                return Pong()

    def record_contact(self, name: str) -> None:
        """Note that a member answered or asked something."""
        self.reach.record_contact(name)
        self.silence.record_contact(name)

    def on_other_view(self, name: str, reply: OtherView) -> ShareMembers | None:
        """Learn the members that `name` sees; return the members that `name` must learn in turn."""
        self.admission.store_members(name, reply.members)
        if self.members.view == reply.view:
            return None
        return ShareMembers(members=self.members.all)

    # internal: wills

    def _record_sent(self, request: WillsSent) -> None:
        if request.node != self.members.name:
            self.replica.wills_sent(request)
            return
        for will in request.wills:
            own = self.own_wills.get(will.client_id)
            if own is not None and (own.life, own.number) == (will.life, will.number):
                self.connected.forget_will(will.client_id, own)
                self._host.forget_will(will.client_id)

    # internal: sessions that move

    def _take(self, source: str, request: Take) -> Reply:
        client_id = request.client_id
        arriving = self.ownership.arriving.get(client_id)
        if arriving is not None:
            if request.incarnation < arriving.incarnation:
                return Busy()
            # A taker that knows this incarnation proves the release: nodes learn the incarnation
            # only after it. Of a session that began beside the copy they learn before. The copy
            # does not go with that session: what waits in it would come from its holder, too.
            if not self.ownership.has_begun_beside(arriving, client_id):
                self.takeovers.adopt(client_id)
        elif client_id in self.takeovers.busy and source < self.members.name:
            # Of two nodes that search for one client's session the lesser name yields: two refusals
            # would never end.
            return Busy()
        claim = self.takeovers.claims.pop(client_id, None)
        if claim is not None:
            return NotHeld(incarnation=claim.incarnation)
        reply = self.ownership.freeze(source, request, self._now())
        own = self.replicator.own.get(client_id)
        if isinstance(reply, NotHeld) and own is not None and own.persistent:
            # The session was found, but never opened: its entry would name a node without the
            # session.
            self.replicator.drop(client_id)
        return reply

    def _entrusted(self, source: str, request: Entrust) -> Reply:
        """
        Fetch an entrusted session if there is room for it.

        The source asks again for as long as it has the session.
        """
        client_id = request.client_id
        # Of many that are asked for at once, each would be the last one.
        coming = {key[1] for key in self._at_work if key[0] == "entrusted"}
        beside = (self.ownership.arriving.keys() | coming) - {client_id}
        if not self._host.may_keep(client_id, len(beside)):
            return Noted()
        procedure = self.takeovers.fetch(client_id, source, request.incarnation)
        self._start(("entrusted", client_id), procedure)
        return Noted()

    def _arrive_after(
        self, client_id: str, is_wanted: Callable[[], bool]
    ) -> Procedure[SessionFound | TakeoverRefused]:
        deadline = self.takeovers.deadline
        yield from self.clearings.finish(client_id, deadline)
        return (yield from self.takeovers.take_over(client_id, is_wanted, deadline))

    def _discard(self, source: str, request: Discard) -> Reply:
        reply = self.clearings.answers.discard(source, request)
        if request.client_id not in self.ownership.held:
            self.conflicts.offers.pop(request.client_id, None)
        return reply

    def _release(self, source: str, request: Release) -> Reply:
        client_id = request.client_id
        was_here = client_id in self.ownership.held
        reply = self.ownership.release(source, request)
        if was_here and client_id not in self.ownership.held:
            self._register_gone(client_id)
            self.conflicts.offers.pop(client_id, None)
        return reply

    def _register_gone(self, client_id: str) -> None:
        """Send the tombstone to the keepers until a majority has acknowledged it."""
        tombstone = self.ownership.tombstone(client_id)
        assert tombstone is not None
        if self.members.is_removed(tombstone.node):
            return
        entry = DirectoryEntry(
            client_id=client_id,
            node=tombstone.node,
            incarnation=tombstone.incarnation,
            persistent=True,
        )
        self.replicator.register_move(entry)

    def _answer_pending_publishes(self, request: AskPendingPublishes) -> PendingPublishesReply:
        client_id = request.client_id
        if self.ownership.confirm(client_id, request.token):
            self._forget_if_known(client_id)
        pending_publishes = self._host.pending_publishes(client_id)
        if request.resolved:
            self._host.resolved(client_id, request.token)
        return PendingPublishesReply(remains=pending_publishes)

    def _forget_move(self, move: tuple[bytes, str]) -> None:
        """Forget a move whose session exists at no node, or at a node that was removed for good."""
        token, client_id = move
        if not self.replicator.is_known(client_id):
            # A keeper of the entry may not know the move yet, and would still name this node.
            return
        if self.ownership.confirm(client_id, token):
            self._forget_if_known(client_id)
        self._host.resolved(client_id, token)

    def _forget_if_known(self, client_id: str) -> None:
        """
        Forget a tombstone if the new holder has confirmed the move and a majority of keepers knows
        it.
        """
        tombstone = self.ownership.tombstone(client_id)
        if tombstone is None or not tombstone.confirmed:
            return
        if client_id in self.ownership.held or self.replicator.is_known(client_id):
            self.ownership.forget_gone(client_id)
            self.replicator.forget(client_id)

    def _follow(self, client_id: str, left: Left) -> Procedure[None]:
        """Ask an earlier holder for its pending publishes; a removed holder will finish none."""
        if self.members.get(left.node) is None:
            self.ownership.on_pending_publishes(
                client_id, left, PendingPublishes(), is_resolved=True
            )
            return
        # Another earlier holder may have the same publish in flight, under the origin id sent here.
        is_resolved = not self.ownership.awaits_others(client_id, left) and self._host.is_resolved(
            client_id, left.node
        )
        question = AskPendingPublishes(client_id=client_id, token=left.token, resolved=is_resolved)
        reply = yield from ask(left.node, question)
        if isinstance(reply, PendingPublishesReply):
            self.ownership.on_pending_publishes(
                client_id, left, reply.remains, is_resolved=is_resolved
            )

    # internal: now and then

    def _start(self, key: tuple[str, ...], procedure: Procedure[None]) -> None:
        """
        Run the procedure, unless the key runs already or `AT_WORK` are running; the next tick
        retries.
        """
        if key in self._at_work or len(self._at_work) >= AT_WORK:
            procedure.close()
        else:
            self._at_work.add(key)
            self._spawn(self._once(key, procedure))

    def _once(self, key: tuple[str, ...], procedure: Procedure[None]) -> Procedure[None]:
        try:
            yield from procedure
        finally:
            self._at_work.discard(key)

    def _on_members(self) -> None:
        if self._was_alone and not self.members.is_alone:
            self.connected.on_company(self._host.clean())
        self._was_alone = self.members.is_alone
        self.reach.forget_unknown(self.members.is_known)
        self._lost.on_members()
        self.clearings.on_members()
