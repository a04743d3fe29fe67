"""Tables in memory that forget what was not synced: the store of a node that a test kills."""

from __future__ import annotations

from collections.abc import Iterable


class Store:
    """Tables over one log: changes are written turn by turn, and synced some time later."""

    def __init__(self) -> None:
        self.safe: dict[str, dict[bytes, bytes]] = {}
        self.now: dict[str, dict[bytes, bytes]] = {}
        self.turns: list[list[tuple[str, bytes, bytes | None]]] = []
        self.turn: list[tuple[str, bytes, bytes | None]] = []

    def table(self, name: str) -> Table:
        self.now.setdefault(name, {})
        self.safe.setdefault(name, {})
        return Table(self, name)

    def change(self, name: str, key: bytes, value: bytes | None) -> None:
        apply(self.now, (name, key, value))
        self.turn.append((name, key, value))

    def end_turn(self) -> None:
        if self.turn:
            self.turns.append(self.turn)
            self.turn = []

    def mark(self) -> int:
        """What is to be synced to make all safe that was changed so far."""
        self.end_turn()
        return len(self.turns)

    def sync(self, mark: int, done: int) -> int:
        """Make the turns up to `mark` safe; `done` were before. Returns the new `done`."""
        for turn in self.turns[done:mark]:
            for change in turn:
                apply(self.safe, change)
        return max(done, mark)

    def may_survive(self, done: int, name: str, key: bytes) -> bool:
        """True if a crash now might leave the key in a table, be it deleted by now."""
        unsafe = (change for turn in (*self.turns[done:], self.turn) for change in turn)
        return key in self.safe[name] or any(change[:2] == (name, key) for change in unsafe)

    def crash(self, done: int, survivors: int) -> None:
        """Only what was synced is left, and as many whole turns more as happened to be written."""
        self.end_turn()
        self.sync(min(done + survivors, len(self.turns)), done)
        self.now = {name: dict(table) for name, table in self.safe.items()}
        self.turns, self.turn = [], []


def apply(tables: dict[str, dict[bytes, bytes]], change: tuple[str, bytes, bytes | None]) -> None:
    name, key, value = change
    if value is None:
        tables[name].pop(key, None)
    else:
        tables[name][key] = value


class Table:
    """One of them."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name

    def get(self, key: bytes) -> bytes | None:
        return self._store.now[self._name].get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self._store.change(self._name, key, value)

    def delete(self, key: bytes) -> None:
        if key in self._store.now[self._name]:
            self._store.change(self._name, key, None)

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        return list(self._store.now[self._name].items())
