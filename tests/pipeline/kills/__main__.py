"""
The command: `python -m tests.pipeline.kills [--seed N] [--kills N] [--master M]`.

A streaming archive of three nodes under load, while the query, Spark's workers and nodes are killed
at random moments; status 1 when the archive is not what the journals are. The folder is kept then.
With `--master standalone` Spark is a cluster of its own, whose executors and workers are killed.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

from tests.pipeline.standalone import Standalone
from txbroker.pipeline.spark.spark_session import session

from .play import Play


def main() -> int:
    """Exit status 0 if the archive equals the journals."""
    parser = argparse.ArgumentParser(prog="tests.pipeline.kills", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="txbroker-kills-"))
    print(f"seed {options.seed}, {options.kills} kills, {options.master}", flush=True)
    try:
        with contextlib.ExitStack() as stack:
            play = Play(
                folder,
                options.seed,
                master=options.master,
                say=lambda line: print(line, flush=True),
                cluster=stack.enter_context(Standalone(folder / "spark"))
                if options.master == "standalone"
                else None,
            )
            play.run(options.kills)
        print(play.reckon(session()), flush=True)
    except AssertionError as error:
        print(f"{error}\nseed {options.seed}: what is left is in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
