"""
The core: what is done for each packet, compiled where that was possible.

The core cuts bytes into packets, looks at each packet, and finds its receivers. The core keeps the
messages that are on their way to clients. The caller decides all the rest, for many packets at a
time. `reference` is the same in Python. The reference is there to be read, and runs where there is
no compiler (or with `TXBROKER_PURE=1`). `KIND` says which one it is: `compiled` or `python`.

Measured against Python alone, mypyc and Cython over all: docs/decisions/compiled-core.md.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

# Both cores have the same marks.
from txbroker.core.reference.columns import Filled
from txbroker.core.reference.packet_writer import HIGH_MARK, QUEUE_HIGH_MARK
from txbroker.core.reference.property_columns import FilledProperties
from txbroker.core.reference.sockets import BATCH, FED, READ_SIZE, Way

__all__ = [
    "BATCH",
    "FED",
    "HIGH_MARK",
    "KIND",
    "QUEUE_HIGH_MARK",
    "READ_SIZE",
    "Apexes",
    "Columns",
    "Router",
    "Filled",
    "FilledProperties",
    "Flows",
    "PacketReader",
    "LinkReader",
    "PacketWriter",
    "Run",
    "Sender",
    "Sieve",
    "Sockets",
    "StoredRecords",
    "Target",
    "Way",
    "accept",
    "limit_levels",
]

KIND = "python"

if not TYPE_CHECKING and os.environ.get("TXBROKER_PURE") != "1":
    try:
        from txbroker.core.compiled import (
            Apexes,
            Columns,
            Flows,
            LinkReader,
            PacketReader,
            PacketWriter,
            Router,
            Run,
            Sender,
            Sieve,
            Sockets,
            StoredRecords,
            Target,
            accept,
            limit_levels,
        )

        KIND = "compiled"
    except ImportError:
        pass

if TYPE_CHECKING or KIND == "python":
    from txbroker.core.reference.accept import accept
    from txbroker.core.reference.columns import Columns, Sieve
    from txbroker.core.reference.flows import Flows
    from txbroker.core.reference.link import LinkReader
    from txbroker.core.reference.packet_reader import PacketReader
    from txbroker.core.reference.packet_writer import PacketWriter
    from txbroker.core.reference.packets import limit_levels
    from txbroker.core.reference.records import StoredRecords
    from txbroker.core.reference.router import Apexes, Router, Target
    from txbroker.core.reference.run import Run
    from txbroker.core.reference.sockets import Sender, Sockets
