"""Who keeps the entries of a node's sessions, while members come and go."""

from __future__ import annotations

from tests.directory.test_members import member, members
from txbroker.directory.entry_placement import EntryPlacement, Keepers

IDS = [f"client-{number}" for number in range(200)]


def test_only_ids_whose_keepers_changed_move() -> None:
    """Otherwise each change of members would send each node's whole list."""
    node = members("a", *(member(name) for name in "bcdefgh"))
    moved: dict[str, tuple[Keepers, Keepers]] = {}

    def move(client_id: str, before: Keepers, now: Keepers) -> None:
        moved[client_id] = before, now

    placement = EntryPlacement(node, lambda: IDS, move)
    for client_id in IDS:
        placement.add(client_id)
    for change in (lambda: node.merge([member("new")]), lambda: node.remove("c")):
        before = {client_id: placement.keepers(client_id) for client_id in IDS}
        change()
        placement.on_members()
        placement.advance(len(IDS))
        after = {client_id: node.keepers(client_id) for client_id in IDS}
        changed = {one for one in IDS if before[one] != after[one]}

        assert moved == {one: (before[one], after[one]) for one in changed}
        assert 0 < len(changed) < len(IDS) // 2
        moved.clear()
