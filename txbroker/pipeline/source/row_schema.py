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

LEDGER_COLUMNS = (
    "node string, ledger string, number long, kind string, client_id string, filter string,"
    " qos byte, zone string, epoch long, offset long, through long, left_zone string,"
    " left_epoch long, time timestamp"
)
"""
A row of a node's delivery ledger, in Spark's DDL. `number` is its place in that ledger, `kind` one
of those of `txbroker.journal.delivery_ledger.LedgerKind` in lower case: `delivery`, `start`, `end`,
`dropped`, `passage`, `gap` (which a reader puts, too, in place of rows that retention took before
it had them). What a kind does not speak of is null, but for `zone`, `epoch` and `offset` (of a gap:
"", 0 and how many rows are missing).

- `filter`: of a start or an end; of a passage the apex of the topics. `qos`: of a start or an end.
- `zone`, `epoch`, `offset`: the message's place; where a subscription begins or ends (above it, up
  to it); where topics go on.
- `through`: the last offset that was dropped; the last one of a passage's topics in the part that
  they left, which is `left_zone`, `left_epoch`.
- `time`: UTC, when the node wrote it down.
"""

LEDGER_ARROW = pa.schema(
    [
        ("node", pa.string()),
        ("ledger", pa.string()),
        ("number", pa.int64()),
        ("kind", pa.string()),
        ("client_id", pa.string()),
        ("filter", pa.string()),
        ("qos", pa.int8()),
        ("zone", pa.string()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("through", pa.int64()),
        ("left_zone", pa.string()),
        ("left_epoch", pa.int64()),
        ("time", TIME),
    ]
)
"""The same as `LEDGER_COLUMNS`."""

CURSOR_COLUMNS = (
    "node string, kept boolean, client_id string, zone string, epoch long, offset long,"
    " open array<long>"
)
"""
How far a durable session has come in one part, in Spark's DDL: it has taken all up to `offset`, but
for the offsets in `open`, which are on their way to its client. `kept`: its node keeps a ledger.
A session that has come nowhere yet has one row, in which `zone` is null.
"""

CURSOR_ARROW = pa.schema(
    [
        ("node", pa.string()),
        ("kept", pa.bool_()),
        ("client_id", pa.string()),
        ("zone", pa.string()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("open", pa.list_(pa.int64())),
    ]
)
"""The same as `CURSOR_COLUMNS`."""

AUDIT_COLUMNS = (
    "client_id string, filter string, zone string, epoch long, offset long, topic string,"
    " created timestamp, status string"
)
"""
What became of one message for one session, in Spark's DDL: `delivered`, `pending`, `dropped`,
`unknown` or `lost`. `filter` is one of the session's filters by which it was owed.
"""

AUDIT_ARROW = pa.schema(
    [
        ("client_id", pa.string()),
        ("filter", pa.string()),
        ("zone", pa.string()),
        ("epoch", pa.int64()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("created", TIME),
        ("status", pa.string()),
    ]
)
"""The same as `AUDIT_COLUMNS`."""
