"""A node's place in the tree: what is saved, when, and who is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.support.recorders import cut
from txbroker.errors import StoreError
from txbroker.standing import ROOT_EPOCH, Standing
from txbroker.store.state import DataFolder, NodeState

HOME = cut("", node="home")


class Disk:
    """A data folder and the lives of the node that has it."""

    def __init__(self, path: Path) -> None:
        self.folder = DataFolder(path)

    def start(
        self, zone: str | None = "garage", parent: str | None = "home:1", node: str = "garage"
    ) -> Standing:
        state = self.folder.load(node, zone)
        return Standing(self.folder, state, f"{node}:1", parent)

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
    standing = disk.start("", None, "home")

    assert (True, ROOT_EPOCH) == (standing.serving, standing.epoch)
    assert (True, ROOT_EPOCH) == (disk.load("", "home").serving, disk.load("", "home").epoch)


def test_child_serves_when_it_was_granted_and_remembers_it(disk: Disk) -> None:
    """A restart keeps the grant."""
    standing = disk.start()
    before = (standing.serving, standing.epoch)
    standing.grant(4, [HOME])
    again = disk.start()

    assert (False, 0) == before
    assert (True, 4, (HOME,)) == (again.serving, again.epoch, again.lineage)
    assert cut("garage", 4, "garage") == again.cut


def test_pure_edge_is_taken_in_without_a_zone(disk: Disk) -> None:
    """Epoch 0 is no grant."""
    standing = disk.start(None)
    standing.grant(0, [HOME])

    assert (False, 0, (HOME,)) == (standing.serving, standing.epoch, standing.lineage)
    assert (HOME,) == standing.lineage_of_children()


def test_lost_zone_keeps_its_epoch(disk: Disk) -> None:
    """The next one has to be greater."""
    standing = disk.start()
    standing.grant(4, [HOME])
    standing.lose()
    again = disk.start()

    assert (False, 4) == (again.serving, again.epoch)


def test_zone_that_was_being_given_back_is_asked_for_after_a_crash(disk: Disk) -> None:
    """Only the parent knows whether it has committed (rule 12)."""
    standing = disk.start()
    standing.grant(4, [HOME])
    standing.set_fenced(True)
    renewed_meanwhile = (standing.grant(4, [HOME]), standing.serving)[1]
    again = disk.start()
    before = again.serving
    again.grant(4, [HOME])

    assert (False, False, True) == (renewed_meanwhile, before, again.serving)


def test_fence_that_was_lifted_leaves_nothing(disk: Disk) -> None:
    """The handover came to nothing."""
    standing = disk.start()
    standing.grant(4, [HOME])
    standing.set_fenced(True)
    standing.set_fenced(False)

    assert (True, True) == (standing.serving, disk.start().serving)


def test_zone_that_was_given_back_is_not_fenced(disk: Disk) -> None:
    """It is lost; a later grant serves at once."""
    standing = disk.start()
    standing.grant(4, [HOME])
    standing.set_fenced(True)
    standing.lose()
    again = disk.start()
    again.grant(6, [HOME])

    assert (True, 6) == (again.serving, again.epoch)


def test_lineage_of_children_ends_with_the_node(disk: Disk) -> None:
    """Root first."""
    standing = disk.start()
    standing.grant(4, [HOME])

    assert (HOME, cut("garage", 4, "garage")) == standing.lineage_of_children()


# -- where to join


def test_parent_that_the_tree_told_overrides_the_file(disk: Disk) -> None:
    """Also after a restart; start order and stale `parent` values do not matter."""
    standing = disk.start()
    before = standing.parent
    standing.move("attic:1")

    assert ("home:1", "attic:1", "attic:1") == (before, standing.parent, disk.start().parent)


def test_changed_file_overrides_what_the_tree_told(disk: Disk) -> None:
    """An operator who writes another parent means it."""
    disk.start().move("attic:1")
    changed = disk.start(parent="cellar:1").parent
    back = disk.start(parent="home:1").parent

    assert ("cellar:1", "attic:1") == (changed, back)


# -- saving


def test_change_is_durable_before_anybody_is_told(disk: Disk) -> None:
    """Whoever watches finds it on disk."""
    standing = disk.start()
    seen: list[tuple[int, bool]] = []
    standing.when_changed(lambda: seen.append((disk.load().epoch, disk.load().serving)))
    standing.grant(4, [HOME])
    standing.lose()
    standing.set_lineage([])

    assert [(4, True), (4, False), (4, False)] == seen


def test_delegation_table_is_saved_with_the_rest(disk: Disk) -> None:
    """A restarted node knows what its children own (rule 11)."""
    standing = disk.start()
    standing.table.commit(cut("garage/door", 3))
    standing.save()
    again = disk.start()

    assert cut("garage/door", 3) == again.table.lookup("garage/door/x")


def test_nobody_is_told_of_what_could_not_be_saved(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error goes to whoever wanted the change, and everything is as it was saved last."""
    standing = disk.start()
    told: list[str] = []
    standing.when_changed(lambda: told.append("told"))

    def fail(state: NodeState) -> None:
        raise StoreError("disk full")

    monkeypatch.setattr(disk.folder, "save", fail)
    standing.table.commit(cut("garage/door", 3))
    with pytest.raises(StoreError):
        standing.grant(4, [HOME])

    assert [] == told
    assert (False, 0, ()) == (standing.serving, standing.epoch, standing.lineage)
    assert ((), 0) == (standing.table.cuts(), standing.table.epoch_of("garage/door"))
    assert attrs.evolve(disk.load(), incarnation=0) == NodeState(node="garage", zone="garage")
