"""
The calls of a store on files below one folder. They are counted, failed on demand, and played back
as what a loss of power may leave.

The files are real ones. Of each it is known what a sync has covered, and of each folder which of
its names. The names of one folder become durable in the order in which they were made. A synced
file can be reached, as with the file systems of Linux: so are the folders that lead there.
"""

from __future__ import annotations

import io
import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.support.crash import torn

Image = dict[Path, bytes | None]
"""The paths below a folder: the contents of files, None for folders."""

WRITES = frozenset({"write", "pwrite", "pwritev"})
SYNCS = frozenset({"fsync", "fdatasync"})
NAMES = frozenset({"open", "mkdir", "rename", "replace", "unlink", "rmdir"})
SIZES = frozenset({"ftruncate", "truncate", "posix_fallocate"})
ALL = WRITES | SYNCS | NAMES | SIZES


@attrs.frozen(kw_only=True)
class Fault:
    """
    The call numbered `at` of those with these `names`, and where it `is_lasting` all behind it,
    fail with `error`. Where it `is_short` half of the bytes are there all the same. With the error
    0 the caller hears how many.
    """

    at: int
    error: int
    names: frozenset[str] = ALL
    is_lasting: bool = False
    is_short: bool = False


@attrs.define(eq=False)
class Node:
    """A file, or a folder with its `names`. `synced`: content that a sync has covered."""

    is_folder: bool
    names: dict[str, Node] = attrs.field(factory=dict)
    synced: bytes = b""
    last: bytes = b""  # content when it lost its name


@attrs.define(eq=False)
class Change:
    """Names, each in a folder, that get another node at once."""

    names: tuple[tuple[Node, str, Node | None], ...]
    is_durable: bool = False


class Calls:
    """
    The calls below `root`, which is empty. `count`: how many there were; `before` hears of each
    before it is made; `fault` is what becomes of them, `failing` how many of them it could concern.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.count = 0
        self.before: Callable[[str], None] = lambda name: None
        self.fault: Fault | None = None
        self.failing = 0
        self._is_off = False
        self._real = {name: getattr(os, name) for name in ALL}
        self._top = Node(True)
        self._changes: list[Change] = []
        self._files: dict[int, Node] = {}
        for name in ALL:
            monkeypatch.setattr(os, name, getattr(self, f"_{name}"))
        real_open = io.open

        def opened(path: Any, mode: str = "r", *args: Any, **keys: Any) -> Any:
            if isinstance(path, int) or not self._is_mine(self._path(path)):
                return real_open(path, mode, *args, **keys)
            return _stream(path, mode, *args, **keys)

        monkeypatch.setattr(io, "open", opened)

    # -- what is left

    def written(self) -> Image:
        """By a process that is killed."""
        paths = dict(_walk(self._top, self.root))
        return {path: None if n.is_folder else self._read(path) for path, n in paths.items()}

    def after_power(self, chance: random.Random | None) -> Image:
        """By a loss of power; without `chance` no more than what was synced."""
        names: dict[Node, dict[str, Node]] = {}
        for change in self._changes_left(chance):
            for folder, name, node in change.names:
                names.setdefault(folder, {}).pop(name, None)
                if node is not None:
                    names[folder][name] = node
        now = {node: path for path, node in _walk(self._top, self.root)}
        image: Image = {}

        def collect(folder: Node, at: Path) -> None:
            for name, node in names.get(folder, {}).items():
                image[at / name] = None if node.is_folder else self._left_of(node, now, chance)
                collect(node, at / name)

        collect(self._top, self.root)
        return image

    def lay(self, image: Image) -> None:
        """Begin anew with this, all of it durable."""
        self._is_off = True
        for path in sorted(self.root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        for path, content in image.items():
            path.mkdir() if content is None else path.write_bytes(content)
        self._is_off = False
        self._top, self._changes, self._files = Node(True), [], {}
        for path, content in image.items():
            parent = self._at(path.parent)
            assert parent is not None
            self._change((parent, path.name, Node(content is None, synced=content or b"")))
        for change in self._changes:
            change.is_durable = True

    # -- internal

    def _changes_left(self, chance: random.Random | None) -> Iterator[Change]:
        left: dict[Node, int] = {}
        for change in self._changes:
            if change.is_durable:
                yield change
            elif chance is not None:
                folder = change.names[-1][0]
                if folder not in left:
                    left[folder] = chance.choice((0, 1, 2, 5, 1000))
                left[folder] -= 1
                if left[folder] >= 0:
                    yield change

    def _left_of(self, node: Node, now: dict[Node, Path], chance: random.Random | None) -> bytes:
        if chance is None:
            return node.synced
        return torn(node.synced, self._read(now[node]) if node in now else node.last, chance)

    def _read(self, path: Path) -> bytes:
        fd = self._real["open"](path, os.O_RDONLY)
        try:
            return os.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)

    def _at(self, path: Path) -> Node | None:
        node: Node | None = self._top
        for name in path.relative_to(self.root).parts:
            node = None if node is None else node.names.get(name)
        return node

    def _change(self, *names: tuple[Node, str, Node | None]) -> None:
        for folder, name, node in names:
            folder.names.pop(name, None)
            if node is not None:
                folder.names[name] = node
        self._changes.append(Change(names))

    def _path(self, path: Any, dir_fd: int | None = None) -> Path:
        if isinstance(path, int):
            return Path(os.readlink(f"/proc/self/fd/{path}"))
        base = "" if dir_fd is None else os.readlink(f"/proc/self/fd/{dir_fd}")
        return Path(os.path.abspath(os.path.join(base, path)))

    def _is_mine(self, path: Path) -> bool:
        return not self._is_off and path.is_relative_to(self.root)

    def _enter(self, name: str) -> bool:
        """A call begins; True if only half of it is to be done. Raises `OSError`."""
        self.before(name)
        self.count += 1
        fault = self.fault
        if fault is None or name not in fault.names:
            return False
        self.failing += 1
        if not (self.failing == fault.at or (fault.is_lasting and self.failing > fault.at)):
            return False
        if fault.is_short:
            return True
        raise OSError(fault.error, os.strerror(fault.error))

    def _said(self, done: int) -> int:
        assert self.fault is not None
        if self.fault.error:
            raise OSError(self.fault.error, os.strerror(self.fault.error))
        return done

    def fail(self, fault: Fault | None) -> None:
        """From now on."""
        self.fault, self.failing = fault, 0

    # -- the calls

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        real, mine = self._real["open"], self._path(path, dir_fd)
        if not self._is_mine(mine):
            return int(real(path, flags, mode, dir_fd=dir_fd))
        self._enter("open")
        fd = int(real(path, flags, mode, dir_fd=dir_fd))
        node = self._at(mine)
        if node is None:
            parent = self._at(mine.parent)
            assert parent is not None
            node = Node(False)
            self._change((parent, mine.name, node))
        if node is not None:
            self._files[fd] = node
        return fd

    def _write(self, fd: int, data: Any) -> int:
        real = self._real["write"]
        if self._is_mine(self._path(fd)) and self._enter("write"):
            return self._said(int(real(fd, bytes(data)[: len(data) // 2])))
        return int(real(fd, data))

    def _pwrite(self, fd: int, data: Any, position: int) -> int:
        real = self._real["pwrite"]
        if self._is_mine(self._path(fd)) and self._enter("pwrite"):
            return self._said(int(real(fd, bytes(data)[: len(data) // 2], position)))
        return int(real(fd, data, position))

    def _pwritev(self, fd: int, parts: Any, position: int, flags: int = 0) -> int:
        if self._is_mine(self._path(fd)) and self._enter("pwritev"):
            data = b"".join(parts)
            return self._said(int(self._real["pwrite"](fd, data[: len(data) // 2], position)))
        return int(self._real["pwritev"](fd, parts, position, flags))

    def _sync(self, name: str, fd: int) -> None:
        mine = self._path(fd)
        if not self._is_mine(mine):
            return  # of a test, which no loss of power concerns
        self._enter(name)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            folder = self._at(mine)
            for change in self._changes:
                change.is_durable |= any(one[0] is folder for one in change.names)
        elif fd in self._files:
            self._files[fd].synced = self._read(Path(f"/proc/self/fd/{fd}"))
        leading = [self._at(path) for path in (mine, *mine.parents) if self._is_mine(path)]
        for change in self._changes:
            change.is_durable |= any(
                node is not None and node.is_folder and node in leading
                for _, _, node in change.names
            )

    def _fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def _fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def _move(self, name: str, source: Any, target: Any) -> None:
        old, new = self._path(source), self._path(target)
        if not self._is_mine(old):
            self._real[name](source, target)
            return
        self._enter(name)
        node, before, after = self._at(old), self._at(old.parent), self._at(new.parent)
        over = self._at(new)
        if over is not None and not over.is_folder:
            over.last = self._read(new)
        self._real[name](source, target)
        assert before is not None and after is not None
        self._change((before, old.name, None), (after, new.name, node))

    def _rename(self, source: Any, target: Any, **_: Any) -> None:
        self._move("rename", source, target)

    def _replace(self, source: Any, target: Any, **_: Any) -> None:
        self._move("replace", source, target)

    def _remove(self, name: str, path: Any, dir_fd: int | None) -> None:
        mine = self._path(path, dir_fd)
        if not self._is_mine(mine):
            self._real[name](path, dir_fd=dir_fd)
            return
        self._enter(name)
        node, parent = self._at(mine), self._at(mine.parent)
        if node is not None and not node.is_folder:
            node.last = self._read(mine)
        self._real[name](path, dir_fd=dir_fd)
        assert parent is not None
        self._change((parent, mine.name, None))

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("unlink", path, dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("rmdir", path, dir_fd)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        mine = self._path(path, dir_fd)
        if self._is_mine(mine):
            self._enter("mkdir")
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        if self._is_mine(mine):
            parent = self._at(mine.parent)
            assert parent is not None
            self._change((parent, mine.name, Node(True)))

    def _ftruncate(self, fd: int, length: int) -> None:
        if self._is_mine(self._path(fd)):
            self._enter("ftruncate")
        self._real["ftruncate"](fd, length)

    def _truncate(self, path: Any, length: int) -> None:
        if self._is_mine(self._path(path)):
            self._enter("truncate")
        self._real["truncate"](path, length)

    def _posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        if self._is_mine(self._path(fd)):
            self._enter("posix_fallocate")
        self._real["posix_fallocate"](fd, offset, size)


class _Raw(io.FileIO):
    """A file whose calls are those of `os`."""

    def __init__(self, path: Any, mode: str) -> None:
        super().__init__(path, mode, opener=lambda name, flags: os.open(name, flags, 0o666))

    def write(self, data: Any) -> int:
        return os.write(self.fileno(), data)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        os.ftruncate(self.fileno(), size)
        return size


def _stream(path: Any, mode: str, buffering: int = -1, *args: Any, **keys: Any) -> Any:
    """Open as `io.open` does, over `_Raw`."""
    raw = _Raw(path, mode.replace("b", "").replace("t", ""))
    if buffering == 0:
        return raw
    if "+" in mode:
        stream: Any = io.BufferedRandom(raw)
    else:
        stream = io.BufferedReader(raw) if raw.readable() else io.BufferedWriter(raw)
    return stream if "b" in mode else io.TextIOWrapper(stream, *args, **keys)


def _walk(folder: Node, at: Path) -> Iterator[tuple[Path, Node]]:
    for name, node in folder.names.items():
        yield at / name, node
        yield from _walk(node, at / name)
