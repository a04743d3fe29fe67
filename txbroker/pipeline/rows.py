"""CORE: the columns of what the pipeline reads, for Spark and for Arrow."""

from __future__ import annotations

import pyarrow as pa

MESSAGE_COLUMNS = (
    "zone string, epoch long, offset long, topic string, payload binary, qos byte, retain boolean,"
    " client_id string, node string, created timestamp"
)
"""
A published message, in Spark's DDL. `zone` is the apex ("" for the root's), `offset` its place in
the journal of that zone at that epoch, `node` the edge that it came in on, `created` when the
authoritative node received it (UTC).
"""

TIME = pa.timestamp("us", tz="UTC")

MESSAGE_ARROW = pa.schema(
    [
        ("zone", pa.string()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("payload", pa.binary()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("client_id", pa.string()),
        ("node", pa.string()),
        ("created", TIME),
    ]
)
"""The same as `MESSAGE_COLUMNS`."""
