"""`txbroker repair`: a damaged store is refused by its node, and taken after the repair."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nodes import NodeProcess, topology
from tests.support.rawclient import RawClient

from .commands import failure, output, run


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A root with ten messages in its journal, and a session that waits for all of them."""
    node = NodeProcess(tmp_path, topology("n", zone="")).start()
    with RawClient(node.mqtt) as sub, RawClient(node.mqtt) as pub:
        sub.connect("sub", clean=False)
        sub.subscribe(("t", 1))
        sub.disconnect()
        pub.connect("pub")
        for number in range(10):
            pub.publish("t", b"message %d" % number, qos=1)
    yield node
    node.close()


def damage(node: NodeProcess) -> Path:
    """One bit of the sixth message is another; its file."""
    (journal,) = (node.data / "journal").glob("*/*/*.log")
    content = bytearray(journal.read_bytes())
    content[content.index(b"message 5")] ^= 1
    journal.write_bytes(content)
    return journal


def test_from_the_damage_to_the_repaired_node(node: NodeProcess) -> None:
    """The node ends with the command to type; what is good is served afterwards."""
    node.terminate()
    journal = damage(node)

    node.start(ready=False)
    assert 1 == node.wait()
    reason = str(node.wait_event("node.refused")["reason"])
    assert str(journal) in reason and reason.endswith(f"txbroker repair {node.data}")

    said = output("repair", node.data).splitlines()

    assert said[0].startswith(f"{journal}: cut off after entry ")
    assert all("bytes were cut off" in line for line in said[1:]) and len(said) > 1
    assert list(journal.parent.glob("*.cut*"))
    assert f"{node.data}: nothing is damaged\n" == output("repair", node.data)
    node.start()
    with RawClient(node.mqtt) as sub, RawClient(node.mqtt) as pub:
        assert sub.connect("sub", clean=False)
        assert [b"message %d" % n for n in range(5)] == [m.payload for m in sub.take(5)]
        pub.connect("pub")
        pub.publish("t", b"after", qos=1)
        assert [b"after"] == [m.payload for m in sub.take(1)]


def test_a_torn_tail_is_cut_off_and_told(node: NodeProcess) -> None:
    """A write that a crash left incomplete is no damage: the node starts, with all before it."""
    node.kill()
    (journal,) = (node.data / "journal").glob("*/*/*.log")
    content = bytearray(journal.read_bytes())
    end = content.rindex(b"message 9") + len(b"message 9")
    content[end : end + 30] = b"what a crash left of the next."
    journal.write_bytes(content)

    node.start()

    told = node.wait_event("journal.tail_trimmed")
    assert (str(journal), 10) == (told["file"], told["last_entry"])
    with RawClient(node.mqtt) as sub:
        assert sub.connect("sub", clean=False)
        assert [b"message %d" % n for n in range(10)] == [m.payload for m in sub.take(10)]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_removed_last_segment(node: NodeProcess, is_clean: bool) -> None:
    """The only one here. The node refuses; after the repair it takes no number a second time."""
    node.terminate() if is_clean else node.kill()
    (journal,) = (node.data / "journal").glob("*/*/*.log")
    journal.unlink()

    node.start(ready=False)
    assert 1 == node.wait()
    reason = str(node.wait_event("node.refused")["reason"])
    assert f"{journal}: this segment is missing" in reason
    assert reason.endswith(f"txbroker repair {node.data}")

    assert f"{journal}: is missing; the log goes on with entry" in output("repair", node.data)
    assert f"{node.data}: nothing is damaged\n" == output("repair", node.data)
    node.start()
    with RawClient(node.mqtt) as sub, RawClient(node.mqtt) as pub:
        assert sub.connect("sub", clean=False)
        pub.connect("pub")
        pub.publish("t", b"after", qos=1)
        assert [b"after"] == [m.payload for m in sub.take(1)]


@pytest.mark.parametrize("name", ["state.json", "part.json"])
def test_a_flipped_bit_in_a_small_file(node: NodeProcess, name: str) -> None:
    """Never believed: the node refuses, and its copy is put back."""
    node.kill()
    (file,) = node.data.rglob(name)
    whole = bytearray(file.read_bytes())
    place = whole.index(b'"epoch":') + len(b'"epoch":')
    whole[place] ^= 1 << 1
    file.write_bytes(whole)

    node.start(ready=False)
    assert 1 == node.wait()
    reason = str(node.wait_event("node.refused")["reason"])
    assert str(file) in reason and reason.endswith(f"txbroker repair {node.data}")

    said = output("repair", node.data)
    assert f"{file}: put back from {file.with_suffix('.copy')}\n" == said
    node.start()
    with RawClient(node.mqtt) as sub:
        assert sub.connect("sub", clean=False)
        assert [b"message %d" % n for n in range(10)] == [m.payload for m in sub.take(10)]


def test_a_small_file_without_a_copy(node: NodeProcess) -> None:
    """The command fails, and still puts back what has a copy: nobody starts such a node."""
    node.kill()
    part = next(node.data.rglob("part.json"))
    for file in (node.data / "state.json", node.data / "state.copy", part):
        file.write_bytes(file.read_bytes().replace(b'"epoch":', b'"epoch";'))

    done = run("repair", node.data)

    assert 1 == done.returncode
    assert f"{part}: put back from {part.with_suffix('.copy')}\n" == done.stdout
    assert done.stderr.startswith(f"Error: {node.data}/state.json: damaged, with no copy; restore")


@pytest.mark.parametrize("name", ["journal", "tables"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_removed_folder(node: NodeProcess, name: str, is_clean: bool) -> None:
    """An empty one in its place would pass for a node that never had a record or a session."""
    node.terminate() if is_clean else node.kill()
    shutil.rmtree(node.data / name)

    node.start(ready=False)
    assert 1 == node.wait()
    reason = str(node.wait_event("node.refused")["reason"])
    assert reason.startswith(
        f"{node.data / name}: this folder is missing; restore it from a backup"
    )

    done = run("repair", node.data)
    assert 1 == done.returncode
    assert f"Error: {node.data / name}: missing; restore it from a backup" in done.stderr


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("name", ["%2E", "%2E/1"])
def test_a_removed_part(node: NodeProcess, name: str, is_clean: bool) -> None:
    """An empty one in its place would pass for a part whose records were all trimmed."""
    node.terminate() if is_clean else node.kill()
    shutil.rmtree(node.data / "journal" / name)

    for _ in range(2):
        node.start(ready=False)
        assert 1 == node.wait()
        reason = str(node.wait_event("node.refused")["reason"])
        assert reason == (
            f"{node.data}/journal/%2E/1: this folder is missing; restore it from a backup, or use"
            " another `data` folder"
        )


def test_a_removed_state(node: NodeProcess) -> None:
    """A new state beside the logs would know of no delegation, without a word."""
    node.kill()
    for name in ("state.json", "state.copy"):
        (node.data / name).unlink()

    node.start(ready=False)
    assert 1 == node.wait()
    reason = str(node.wait_event("node.refused")["reason"])
    assert reason.startswith(f"{node.data}/state.json: missing, beside the logs of a node; restore")

    done = run("repair", node.data)
    assert 1 == done.returncode
    assert done.stderr.startswith(f"Error: {node.data}/state.json: missing, with no copy; restore")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    """Nothing is said of its health, and no file is made in it."""
    (tmp_path / "kitchen").mkdir()

    assert "no node's data" in failure("repair", tmp_path)
    assert ["kitchen"] == [path.name for path in tmp_path.iterdir()]


def test_a_node_that_runs(node: NodeProcess) -> None:
    """Is not repaired behind its back."""
    assert "in use by another process" in failure("repair", node.data)


def test_no_such_folder(tmp_path: Path) -> None:
    """It is not made either."""
    assert f"Error: {tmp_path}/gone: no such folder" == failure("repair", tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
