"""A job that kills itself after the archive's commit of a batch: GIVEN ARCHIVE BATCH."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.pipeline.conftest import start_spark
from txbroker.pipeline.archives.upkeep import KeepRules
from txbroker.pipeline.jobs import archive
from txbroker.pipeline.source.row_schema import MESSAGE_COLUMNS


def main(given: str, folder: str, last: str) -> None:
    write = archive.write_batch

    def write_and_die(df: Any, path: Any, query: str, batch: int, layout: Any) -> Any:
        written = write(df, path, query, batch, layout)
        if batch == int(last):
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    archive.write_batch = write_and_die
    reader = (
        start_spark("local[2]").readStream.schema(MESSAGE_COLUMNS).option("maxFilesPerTrigger", 1)
    )
    archive.archive_stream(reader.parquet(given), Path(folder), once=True, keep=KeepRules())


if __name__ == "__main__":
    main(*sys.argv[1:])
