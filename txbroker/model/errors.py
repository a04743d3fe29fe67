"""
Errors, split by whose fault they are.

The text of an error is the sentence that an operator reads, on one line. The text has the next step
where there is one. Errors are translated once, at the edge where they leave the program.
"""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100
_SHORT.maxlist = _SHORT.maxdict = 6


class TxbrokerError(Exception):
    """Base of every error that txbroker raises on purpose."""


class PeerError(TxbrokerError):
    """The other end broke a rule."""


class CallerError(TxbrokerError):
    """A caller inside this program broke a rule."""


class NoRoom(TxbrokerError):
    """A bounded table has no room for what another node brings; the message names the remedy."""


class StoreError(TxbrokerError):
    """The durable store cannot be opened, read or written; the message names the file."""


class InvariantBroken(AssertionError):
    """
    A rule of docs/protocol.md does not hold: this program is at fault.

    The text is one line: the rule's number, the class that owns its state, the statement, values.
    Not a `TxbrokerError`: whoever puts off work that the disk refused must not put off this.
    """

    def __init__(self, owner: object, rule: int, words: str, values: tuple[object, ...]) -> None:
        self.rule = rule
        shown = " ".join(_SHORT.repr(value) for value in values)
        super().__init__(f"rule {rule}: {type(owner).__name__}: {words}: {shown}")


class PipelineError(TxbrokerError):
    """
    The pipeline cannot do what it was asked for.

    The text is one line that names what and where, and the remedy. Spark wraps it in the traces of
    its processes; `txbroker.pipeline.spark.spark_session.reason` finds it there.
    """

    def __init__(self, line: str) -> None:
        super().__init__(" ".join(line.split()))


class ConfigError(TxbrokerError):
    """
    A topology file cannot be used.

    `str` of it is one line: `FILE[:LINE]: KEY: VALUE: PROBLEM; REMEDY`. `key` may be dotted
    (`limits.packet`), and is "" where the file as a whole is meant. Such a line leaves out VALUE
    too. `line` counts from 1.
    """

    def __init__(
        self,
        file: object,
        key: str,
        value: object,
        remedy: str,
        *,
        problem: str = "",
        line: int | None = None,
    ) -> None:
        self.file = str(file)
        self.key = key
        self.value = value
        self.remedy = remedy
        self.problem = problem
        self.line = line
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        what = "; ".join(part for part in (self.problem, self.remedy) if part)
        # repr, cut short: a value may hold line ends, or stand for a whole mapping.
        parts = [where, self.key, _SHORT.repr(self.value), what] if self.key else [where, what]
        return " ".join(": ".join(parts).splitlines())
