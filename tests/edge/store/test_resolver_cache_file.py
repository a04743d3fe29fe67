"""What an edge knew of the tree is there at its next start, or done without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import on_loop
from tests.support.recorders import cut
from txbroker.core import Router
from txbroker.edge.routing.resolver_cache import ResolverCache
from txbroker.edge.store.resolver_cache_file import ResolverCacheFile
from txbroker.storage import atomic_file
from txbroker.v1 import store_pb2


def zones() -> ResolverCache:
    """A root with two cuts, one of them with cuts of its own, one not asked yet."""
    known = ResolverCache(Router(lambda: None))
    known.add(cut("")).learn_cuts({"a": cut("a", 3), "ü": cut("ü")})
    known.add(cut("a", 3)).learn_cuts({"a/b": cut("a/b", 2)})
    known.add(cut("ü"))
    known.add(cut("a/b", 2)).learn_cuts({})
    return known


async def save(path: Path, known: ResolverCache) -> None:
    await ResolverCacheFile(path).save(known.known())


def restored(path: Path) -> ResolverCache:
    fresh = ResolverCache(Router(lambda: None))
    fresh.restore(ResolverCacheFile(path).load())
    return fresh


@on_loop
async def test_map_is_restored_as_it_was_saved(tmp_path: Path) -> None:
    """Zones, addresses, epochs, cuts; and which cuts were not known."""
    path = tmp_path / "zones"
    await save(path, zones())
    again = restored(path)

    assert zones().known() == again.known()
    assert again.find("a/b/x").cut == cut("a/b", 2)
    found = again.get("ü")
    assert found is not None and found.cuts is None


@on_loop
async def test_own_zone_is_not_kept(tmp_path: Path) -> None:
    """The node knows about that itself."""
    known = zones()
    own = known.get("a")
    assert own is not None
    own.serve()
    await save(tmp_path / "zones", known)

    assert restored(tmp_path / "zones").get("a") is None


@on_loop
async def test_what_is_known_better_stays(tmp_path: Path) -> None:
    """The lineage on disk, say, has a later epoch."""
    await save(tmp_path / "zones", zones())
    fresh = ResolverCache(Router(lambda: None))
    fresh.add(cut("a", 5))
    fresh.restore(ResolverCacheFile(tmp_path / "zones").load())
    found = fresh.get("a")

    assert found is not None and found.epoch == 5
    assert found.cuts is None


@on_loop
async def test_it_is_written_when_it_changed(tmp_path: Path) -> None:
    """And not once a second for nothing."""
    file = ResolverCacheFile(tmp_path / "zones")
    known = zones()
    before = file.is_news(known.known())
    await file.save(known.known())
    saved = file.is_news(known.known())
    known.add(cut("b"))

    assert (before, saved, file.is_news(known.known())) == (True, False, True)
    assert not ResolverCacheFile(tmp_path / "none").load()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"".join(atomic_file.to_frames([b"\xff" * 9])),
        b"".join(atomic_file.to_frames([store_pb2.KnownZones(format=99).SerializeToString()])),
    ],
    ids=["empty", "foreign", "not-protobuf", "newer"],
)
def test_file_of_no_use_is_done_without(tmp_path: Path, data: bytes) -> None:
    """It only saves questions."""
    path = tmp_path / "zones"
    path.write_bytes(data)

    assert ResolverCacheFile(path).load() == ()
