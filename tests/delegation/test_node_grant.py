"""A node's place in the tree: what is saved, when, and who is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from secrets import randbelow

import attrs
import pytest

from tests.support.checking import checking
from tests.support.recorders import cut
from txbroker.data.backups import restored
from txbroker.delegation.delegation_table import Delegation, DelegationState
from txbroker.delegation.grant_state import KnownRoot, NodeState, Strays
from txbroker.delegation.node_grant import ROOT_EPOCH, NodeGrant
from txbroker.delegation.state.node_state import DataFolder
from txbroker.delegation.zone_snapshot import ReceivedZone, StagedZone, ZoneSnapshot
from txbroker.model.epoch_transition import EpochTransition
from txbroker.model.errors import PeerError, StoreError
from txbroker.model.log_position import JournalId, LogPosition
from txbroker.model.zone_cut import ZoneCut
from txbroker.mqtt.wire.message import Message

checked = checking(NodeGrant)

HOME = cut("", node="home")
ATTIC = cut("", node="attic")


def arrived(
    epoch: int, *below: ZoneCut, apex: str = "garage", payload: bytes = b"on"
) -> StagedZone:
    """What a handover brings: one retained message, and delegations below."""
    received_zone = ReceivedZone()
    received_zone.merge(ZoneSnapshot(retained=(Message(f"{apex}/lamp", payload, 1, True),)))
    delegations = tuple(Delegation(cut=known) for known in below)
    return StagedZone(
        apex=apex,
        epoch=epoch,
        incoming=received_zone,
        subtree=DelegationState(delegations=delegations, epochs={f"{apex}/seen": 8}),
    )


def hand_over(node_grant: NodeGrant, epoch: int) -> None:
    """The whole way: received, granted, absorbed."""
    node_grant.receive(arrived(epoch))
    node_grant.grant(epoch, [HOME])
    node_grant.absorbed()


class Disk:
    """A data folder and the lives of the node that has it."""

    def __init__(self, path: Path) -> None:
        self.folder = DataFolder(path)

    def start(
        self, zone: str | None = "garage", parent: str | None = "home:1", node: str = "garage"
    ) -> NodeGrant:
        state = self.folder.load(node, zone)
        return NodeGrant(self.folder, state, f"{node}:1", parent, draw=randbelow)

    def load(self, zone: str | None = "garage", node: str = "garage") -> NodeState:
        return self.folder.load(node, zone)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.folder.close()


def test_each_life_has_a_number(disk: Disk) -> None:
    """Saved before anybody hears of it, so that no two lives share one."""
    numbers = [disk.start().incarnation for _ in range(3)]

    assert ([1, 2, 3], 3) == (numbers, disk.load().incarnation)


def test_root_serves_without_asking(disk: Disk) -> None:
    """It has no parent that could grant."""
    node_grant = disk.start("", None, "home")

    assert (True, ROOT_EPOCH) == (node_grant.serving, node_grant.epoch)
    assert (True, ROOT_EPOCH) == (disk.load("", "home").serving, disk.load("", "home").epoch)


def test_child_serves_when_it_was_granted_and_remembers_it(disk: Disk) -> None:
    """A restart keeps the grant."""
    node_grant = disk.start()
    before = (node_grant.serving, node_grant.epoch)
    hand_over(node_grant, 4)
    again = disk.start()

    assert (False, 0) == before
    assert (True, 4, (HOME,)) == (again.serving, again.epoch, again.lineage)
    assert cut("garage", 4, "garage") == again.cut


def test_pure_edge_is_taken_in_without_a_zone(disk: Disk) -> None:
    """Epoch 0 is no grant."""
    node_grant = disk.start(None)
    node_grant.grant(0, [HOME])

    assert (False, 0, (HOME,)) == (node_grant.serving, node_grant.epoch, node_grant.lineage)
    assert (HOME,) == node_grant.lineage_of_children()


def test_a_node_whose_parent_is_gone_looks_above_it(disk: Disk) -> None:
    """At the nearest node that the tree told of, again and again; a restart remembers it."""
    node_grant = disk.start(None, parent="shed:1", node="box")
    first = node_grant.choose_ancestor()
    home, shed = cut("", node="home"), cut("shed", node="shed")
    node_grant.grant(0, [home, shed])
    names = [node_grant.parent_name]
    for _ in range(2):
        node_grant.choose_ancestor()
        names.append(node_grant.parent_name)

    assert "" == first
    assert [shed.node, home.node, shed.node] == names
    node_grant.choose_ancestor()
    assert home.grpc == disk.start(None, parent="shed:1", node="box").parent


def test_a_node_that_was_led_nowhere_goes_back_to_its_topology_file(disk: Disk) -> None:
    """It was sent on before it was ever granted anything."""
    node_grant = disk.start()
    node_grant.set_parent(cut("shed", node="shed"))

    assert ("shed:1", "home:1", "") == (
        node_grant.parent,
        node_grant.choose_ancestor(),
        node_grant.choose_ancestor(),
    )


def test_lost_zone_keeps_its_epoch(disk: Disk) -> None:
    """The next one has to be greater."""
    node_grant = disk.start()
    hand_over(node_grant, 4)
    node_grant.record_loss()
    again = disk.start()

    assert (False, 4) == (again.serving, again.epoch)


def test_zone_that_was_being_given_back_is_asked_for_after_a_crash(disk: Disk) -> None:
    """Only the parent knows whether it has committed (rule 12)."""
    node_grant = disk.start()
    hand_over(node_grant, 4)
    node_grant.set_fenced(True)
    renewed_meanwhile = (node_grant.grant(4, [HOME]), node_grant.serving)[1]
    again = disk.start()
    before = again.serving
    again.grant(4, [HOME])

    assert (False, False, True) == (renewed_meanwhile, before, again.serving)


def test_fence_that_was_lifted_leaves_nothing(disk: Disk) -> None:
    """The handover came to nothing."""
    node_grant = disk.start()
    hand_over(node_grant, 4)
    node_grant.set_fenced(True)
    node_grant.set_fenced(False)

    assert (True, True) == (node_grant.serving, disk.start().serving)


def test_zone_that_was_given_back_is_not_fenced(disk: Disk) -> None:
    """It is lost; a later grant serves at once."""
    node_grant = disk.start()
    hand_over(node_grant, 4)
    node_grant.set_fenced(True)
    node_grant.record_loss()
    again = disk.start()
    hand_over(again, 6)

    assert (True, 6) == (again.serving, again.epoch)


def test_lineage_of_children_ends_with_the_node(disk: Disk) -> None:
    """Root first."""
    node_grant = disk.start()
    hand_over(node_grant, 4)

    assert (HOME, cut("garage", 4, "garage")) == node_grant.lineage_of_children()


# -- a zone arrives, and the node dies in between


def test_handover_that_nobody_decided_is_asked_about(disk: Disk) -> None:
    """Confirmed and durable, so the next life can take it (rule 12)."""
    disk.start().receive(arrived(4))
    again = disk.start()
    before = (again.prepared, again.serving, again.epoch)
    again.grant(4, [HOME])

    assert before == (4, False, 0)
    assert (again.prepared, again.serving, again.epoch) == (0, True, 4)


def test_granted_zone_is_absorbed_in_the_next_life(disk: Disk) -> None:
    """It died after the grant: what arrived is still to become part of the store."""
    node_grant = disk.start()
    node_grant.receive(arrived(4, cut("garage/door", 3)))
    node_grant.grant(4, [HOME])
    again = disk.start()
    waiting = again.absorbing
    again.absorbed()

    assert waiting is not None and (waiting.apex, waiting.epoch) == ("garage", 4)
    assert [m.payload for m in waiting.incoming.retained.values()] == [b"on"]
    assert (cut("garage/door", 3), 8) == (
        again.table.lookup("garage/door"),
        again.table.epoch_of("garage/seen"),
    )
    assert again.serving
    assert (again.absorbing, disk.start().absorbing) == (None, None)


def test_zone_that_came_back_is_absorbed_in_the_next_life(disk: Disk) -> None:
    """The parent died after its commit."""
    node_grant = disk.start("", None, "home")
    node_grant.table.commit(cut("garage", 4))
    node_grant.receive(arrived(4, cut("garage/door", 3)))
    end, here = LogPosition(JournalId("garage", 4), 7), LogPosition(JournalId("", 1), 5)
    back = EpochTransition(apex="garage", left=end, entered=here)
    node_grant.commit_hand_back("garage", back)
    again = disk.start("", None, "home")
    waiting = again.absorbing

    assert waiting is not None and waiting.apex == "garage"
    assert again.table.cuts() == (cut("garage/door", 3),)
    assert again.table.epoch_of("garage") == 5
    assert again.table.passages() == (back,)


def test_zone_that_came_back_in_vain_is_forgotten(disk: Disk) -> None:
    """The parent died before its commit: the child has it all, and says so."""
    node_grant = disk.start("", None, "home")
    node_grant.table.commit(cut("garage", 4))
    node_grant.save()
    node_grant.receive(arrived(4))
    again = disk.start("", None, "home")

    assert (again.absorbing, again.prepared) == (None, 0)
    assert again.table.cuts() == (cut("garage", 4),)
    assert disk.folder.incoming.load() is None


def test_later_handover_replaces_one_that_came_to_nothing(disk: Disk) -> None:
    """The parent rolled the first one back, and served on."""
    node_grant = disk.start()
    node_grant.receive(arrived(4, payload=b"old"))
    node_grant.receive(arrived(5, payload=b"new"))
    again = disk.start()
    again.grant(5, [HOME])

    assert again.absorbing is not None
    assert [m.payload for m in again.absorbing.incoming.retained.values()] == [b"new"]


@pytest.mark.parametrize("epoch", [3, 5, 6])
def test_epoch_that_the_node_has_nothing_of_is_not_served(disk: Disk, epoch: int) -> None:
    """An older one, or a later one without its handover, would be an empty zone."""
    node_grant = disk.start()
    hand_over(node_grant, 4)
    with pytest.raises(PeerError, match=f"nothing of epoch {epoch}"):
        node_grant.grant(epoch, [HOME])

    assert (node_grant.serving, node_grant.epoch, disk.load().epoch) == (True, 4, 4)


# -- restored from a copy


def copied(disk: Disk, zone: str, parent: str | None) -> NodeGrant:
    state = restored(disk.load(zone), 0.0)
    return NodeGrant(disk.folder, state, "garage:1", parent, draw=randbelow)


@pytest.mark.parametrize("epoch", [3, 4])
def test_a_copy_is_not_served_at_the_epoch_that_it_had(disk: Disk, epoch: int) -> None:
    """An older parent grants that; the lives since have used its offsets."""
    hand_over(disk.start(), 4)
    node_grant = copied(disk, "garage", "home:1")
    with pytest.raises(PeerError, match="upgrade the parent"):
        node_grant.grant(epoch, [HOME])
    refused = node_grant.serving
    node_grant.grant(6, [HOME])

    assert (False, True, 6, False) == (
        refused,
        node_grant.serving,
        disk.load().epoch,
        disk.load().restored,
    )


def test_a_copy_with_a_zone_that_had_come_back_keeps_its_other_delegations(disk: Disk) -> None:
    """The copy was made between the commit of the hand-back and its place in the store."""
    node_grant = disk.start()
    hand_over(node_grant, 4)
    loft, door = cut("garage/loft", 3, "loft"), cut("garage/door", 2, "door")
    for known in (loft, door):
        node_grant.table.commit(known)
    node_grant.receive(arrived(2, apex="garage/door"))
    end = LogPosition(JournalId("garage/door", 2), 7)
    here = LogPosition(JournalId("garage", 4), 5)
    node_grant.commit_hand_back(
        "garage/door", EpochTransition(apex="garage/door", left=end, entered=here)
    )
    again = copied(disk, "garage", "home:1")
    again.grant(6, [HOME])

    assert (loft,) == again.table.cuts()
    assert (4,) == again.lives
    assert "garage/door" == disk.load().absorbing


def test_a_copy_of_a_handover_hears_what_was_delegated_since(disk: Disk) -> None:
    """Its later life was granted what the copy had prepared, and gave a part of it away."""
    disk.start().receive(arrived(4, cut("garage/door", 3)))
    loft = cut("garage/loft", 1, "loft")
    again = copied(disk, "garage", "home:1")
    again.grant(6, [HOME], below=[loft])
    (passage,) = again.table.passages()

    assert {cut("garage/door", 3), loft} == set(again.table.cuts())
    assert (JournalId("garage", 4), JournalId("garage", 6)) == (
        passage.left.part,
        passage.entered.part,
    )


def test_a_copy_that_served_nothing_is_handed_a_zone_as_any_node(disk: Disk) -> None:
    """No life has had the zone: no passage leads to it from an earlier epoch."""
    disk.start()
    again = copied(disk, "garage", "home:1")
    again.receive(arrived(4))
    again.grant(4, [HOME])

    assert ((), ()) == (again.lives, again.table.passages())


def test_a_copy_that_is_served_by_command_leaves_epochs_out(disk: Disk) -> None:
    """Nobody knows which ones its parent had granted."""
    hand_over(disk.start(), 4)
    node_grant = copied(disk, "garage", "home:1")
    node_grant.insist()

    assert node_grant.serving
    assert 1_000 < node_grant.epoch < 10_000_000


def test_a_copy_of_a_root_is_another_root(disk: Disk) -> None:
    """It begins its next epoch, unless somebody has heard of that, or of a later one."""
    first = disk.start("", parent=None)
    lives = [copied(disk, "", None)]
    lives[0].restore()
    disk.folder.save(attrs.evolve(disk.load(""), epoch=1))
    lives.append(copied(disk, "", None))
    lives[1].restore()

    roots = [life.root for life in (first, *lives)]
    assert [1, 2, 2] == [root and root.epoch for root in roots]
    assert [False, True, False] == [lives[1].is_reused(root) for root in roots]


def test_lives_of_an_empty_root_count_against_the_lost_one(disk: Disk) -> None:
    """It began at epoch 1 and was restored before anybody told it of the root before."""
    node_grant = disk.start("", parent=None)
    own = node_grant.root
    node_grant.renew(cut("shed"), (), 7)
    node_grant.restore()
    node_grant.restore()
    lost = KnownRoot(zone="", epoch=1, identity="lost")
    told = [node_grant.is_reused(root) for root in (own, lost)]
    node_grant.renumber(lost)

    assert [False, True] == told
    assert (6, (4, 5)) == (node_grant.epoch, node_grant.lives)
    pairs = ((1, 4), (2, 5), (3, 6))
    assert tuple((JournalId("", a), JournalId("", b)) for a, b in pairs) == node_grant.renumbering
    assert [4] == [one.epoch for one in node_grant.strays]
    transitions = node_grant.table.state().passages
    assert [(1, 4), (4, 5), (5, 6)] == [
        (one.left.part.epoch, one.entered.part.epoch) for one in transitions
    ]
    assert not node_grant.is_reused(lost)


def test_the_last_epoch_of_a_root_is_renumbered_alone(disk: Disk) -> None:
    """Whoever tells of it has heard of this data's life: the parts before are as it knows them."""
    node_grant = disk.start("", parent=None)
    node_grant.restore()
    later = KnownRoot(zone="", epoch=4, identity=f"{node_grant.identity}.copy")
    node_grant.renumber(later)

    assert (5, (1,)) == (node_grant.epoch, node_grant.lives)
    assert ((JournalId("", 2), JournalId("", 5)),) == node_grant.renumbering
    node_grant.finish_renumbering()
    assert () == node_grant.renumbering


def test_what_has_to_go_to_other_nodes_is_found_in_the_earlier_part(disk: Disk) -> None:
    """Offsets begin anew with the epoch; those of what waits do not."""
    node_grant = disk.start("", parent=None)
    node_grant.renew(cut("shed"), (), 7)
    node_grant.restore()
    node_grant.renew(cut("loft"), (), 3)

    assert (
        Strays(apex="shed", after=0, through=7, epoch=1),
        Strays(apex="loft", after=0, through=3),
    ) == node_grant.strays


def test_what_earlier_lives_took_for_a_child_goes_to_it_before_what_this_one_did(
    disk: Disk,
) -> None:
    """Where the delegation is forgotten; a copy remembers the epochs of its lives."""
    node_grant = disk.start("", parent=None)
    lives = [node_grant.lives]
    for _ in range(2):
        node_grant.restore()
        lives.append(node_grant.lives)
    found = node_grant.renew(cut("shed"), (), 7, earlier={2: 20, 1: 10})

    assert [(), (1,), (1, 2)] == lives
    assert (1, 2) == disk.load("").lives
    assert [(1, 10), (2, 20), (0, 7)] == [(one.epoch, one.through) for one in found]
    assert found == node_grant.strays
    assert () == node_grant.renew(cut("shed"), (), 9, earlier={2: 20})


# -- refused, cut off, settled


def test_refused_zone_is_not_served_until_it_is_granted(disk: Disk) -> None:
    """It stays this node's as far as it knows: a wrong `parent` must not cost it its grant."""
    node_grant = disk.start()
    hand_over(node_grant, 4)
    node_grant.refuse()
    refused = (node_grant.serving, node_grant.holds)
    node_grant.grant(4, [HOME])

    assert (False, True) == refused
    assert node_grant.serving


def test_branch_is_kept_until_it_is_settled(disk: Disk) -> None:
    """Over restarts: the zone is not served, and claimed as before."""
    node_grant = disk.start()
    hand_over(node_grant, 4)
    node_grant.table.commit(cut("garage/door", 3))
    node_grant.diverge(4)
    again = disk.start()
    before = (again.divergent, again.serving, again.holds, again.epoch)
    again.record_settled()

    assert before == (4, False, True, 4)
    assert (again.divergent, again.holds, again.epoch) == (0, False, 4)
    assert again.table.cuts() == ()  # the parent's by now


def test_unfinished_handover_that_was_cut_off_is_kept_until_it_is_settled(disk: Disk) -> None:
    """The parent has given it up, so nobody else has it."""
    node_grant = disk.start()
    node_grant.receive(arrived(4))
    node_grant.diverge(4)
    again = disk.start()
    before = again.prepared
    again.record_settled()

    assert (4, 0) == (before, disk.start().prepared)


# -- where to join


def test_parent_that_the_tree_told_overrides_the_file(disk: Disk) -> None:
    """Also after a restart; start order and stale `parent` values do not matter."""
    node_grant = disk.start()
    before = node_grant.parent
    node_grant.set_parent(ATTIC)

    assert ("home:1", "attic:1", "attic:1") == (before, node_grant.parent, disk.start().parent)


def test_changed_file_overrides_what_the_tree_told(disk: Disk) -> None:
    """An operator who writes another parent means it."""
    disk.start().set_parent(ATTIC)
    changed = disk.start(parent="cellar:1").parent
    back = disk.start(parent="home:1").parent

    assert ("cellar:1", "attic:1") == (changed, back)


def test_no_zone_above_is_of_an_earlier_epoch_than_was_known(disk: Disk) -> None:
    """Whoever says so has an old copy: what it decides was decided otherwise since."""
    node_grant = disk.start()
    node_grant.set_lineage([HOME, cut("house", 2)])
    for tell in (
        lambda: node_grant.set_lineage([HOME, cut("house", 1)]),
        lambda: node_grant.set_parent(cut("house", 1)),
    ):
        with pytest.raises(PeerError, match="'house' of the parent's lineage has ended"):
            tell()
    assert [HOME, cut("house", 2)] == list(node_grant.lineage)


def test_zone_above_that_ended_is_remembered(disk: Disk) -> None:
    """Told by the node that took it back; a parent that has not heard of it is out of date."""
    node_grant = disk.start()
    hand_over(node_grant, 4)
    node_grant.set_lineage([HOME, cut("house", 2)])
    node_grant.set_parent(HOME, ended={"house": 3})
    node_grant.set_lineage([HOME])
    again = disk.start()

    assert again.is_outdated(cut("house", 2)) and not again.is_outdated(cut("house", 4))
    assert again.ended_around("garage/door") == {"house": 3}
    with pytest.raises(PeerError, match="'house' of the parent's lineage has ended"):
        again.grant(4, [HOME, cut("house", 2)])
    again.grant(4, [HOME, cut("house", 4)])
    assert again.ended_around("garage/door") == {}


# -- saving


def test_change_is_durable_before_anybody_is_told(disk: Disk) -> None:
    """Whoever watches finds it on disk."""
    node_grant = disk.start()
    node_grant.receive(arrived(4))
    seen: list[tuple[int, bool]] = []
    node_grant.when_changed(lambda: seen.append((disk.load().epoch, disk.load().serving)))
    node_grant.grant(4, [HOME])
    node_grant.record_loss()
    node_grant.set_lineage([])

    assert [(4, True), (4, False), (4, False)] == seen


def test_delegation_table_is_saved_with_the_rest(disk: Disk) -> None:
    """A restarted node knows what its children own (rule 11)."""
    node_grant = disk.start()
    node_grant.table.commit(cut("garage/door", 3))
    node_grant.save()
    again = disk.start()

    assert cut("garage/door", 3) == again.table.lookup("garage/door/x")


def test_nobody_is_told_of_what_could_not_be_saved(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error goes to whoever wanted the change, and everything is as it was saved last."""
    node_grant = disk.start()
    node_grant.receive(arrived(4))
    told: list[str] = []
    node_grant.when_changed(lambda: told.append("told"))

    def fail(state: NodeState) -> None:
        raise StoreError("disk full")

    monkeypatch.setattr(disk.folder, "save", fail)
    node_grant.table.commit(cut("garage/door", 3))
    with pytest.raises(StoreError):
        node_grant.grant(4, [HOME])

    assert [] == told
    assert (False, 0, ()) == (node_grant.serving, node_grant.epoch, node_grant.lineage)
    assert ((), 0) == (node_grant.table.cuts(), node_grant.table.epoch_of("garage/door"))
    assert attrs.evolve(disk.load(), incarnation=0, identity="") == NodeState(
        node="garage", zone="garage"
    )


def test_only_the_last_lives_are_remembered(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zone that is restored each night must not grow its state for ever."""
    monkeypatch.setattr("txbroker.delegation.node_grant.LIVES", 3)
    node_grant = disk.start("", parent=None)
    for _ in range(6):
        node_grant.restore()

    assert 3 == len(node_grant.lives) == len(disk.load("").lives)
