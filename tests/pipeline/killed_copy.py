"""
The copying of ledgers, which kills itself before or behind its commit: ROOT ARCHIVE WHEN. What
Spark's workers do of it is done here, so that it begins in a second.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa

from txbroker.pipeline.archives.commits import Commits
from txbroker.pipeline.ledgers.ledger_archive import LedgerCopy, _copy_planned
from txbroker.pipeline.ledgers.ledgers import LedgerSpan


class CopyHere(LedgerCopy):
    """The same without Spark."""

    def _write(self, spans: Sequence[LedgerSpan]) -> list[dict[str, Any]]:
        planned = pa.RecordBatch.from_pylist([attrs.asdict(span) for span in spans])
        written = _copy_planned(str(self._commits.archive), [planned])
        return [json.loads(row["copied"]) for batch in written for row in batch.to_pylist()]


def main(root: str, archive: str, when: str) -> None:
    commit = Commits.commit

    def commit_and_die(self: Commits, *given: Any) -> Any:
        if when == "behind":
            commit(self, *given)
        os.kill(os.getpid(), signal.SIGKILL)

    Commits.commit = commit_and_die  # type: ignore[method-assign]
    CopyHere(None, root, Path(archive)).all()  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
