"""CORE: defines the columns that the pipeline reads, for Spark and for Arrow."""

from __future__ import annotations

import pyarrow as pa

MESSAGE_COLUMNS = (
    "zone string, epoch long, offset long, topic string, payload binary, qos byte, retain boolean,"
    " client_id string, node string, created timestamp, expiry long, payload_format byte,"
    " content_type string, response_topic string, correlation_data binary,"
    " user_properties array<struct<name:string,value:string>>"
)
"""
Columns of a published message, in Spark's DDL.

`zone` is the apex ("" for the root's). `offset` is the offset in the journal of that zone at that
epoch. `node` is the edge that received the publish from its client. `created` is the UTC time at
which the zone's owner received it.

The columns from `expiry` on are properties of MQTT 5.0, null if the message has none. `expiry` has
the seconds of the message expiry interval, as the zone's owner received it at `created`.
"""

TIME = pa.timestamp("us", tz="UTC")

USER_PROPERTY = pa.struct([("name", pa.string()), ("value", pa.string())])
"""A user property, with its field names in rows."""

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
        ("expiry", pa.int64()),
        ("payload_format", pa.int8()),
        ("content_type", pa.string()),
        ("response_topic", pa.string()),
        ("correlation_data", pa.binary()),
        ("user_properties", pa.list_(pa.field("element", USER_PROPERTY))),
    ]
)
"""The Arrow schema of `MESSAGE_COLUMNS`."""

PROPERTIES = tuple(MESSAGE_ARROW.names[MESSAGE_ARROW.get_field_index("expiry") :])
"""The columns of MQTT 5.0's properties."""

LEDGER_COLUMNS = (
    "node string, ledger string, number long, kind string, client_id string, filter string,"
    " qos byte, zone string, epoch long, offset long, through long, left_zone string,"
    " left_epoch long, time timestamp"
)
"""
Columns of a row of a node's delivery ledger, in Spark's DDL.

`number` is the row's number in that ledger. `kind` is a
`txbroker.journal.delivery_ledger.LedgerKind` in lower case: `delivery`, `start`, `end`, `dropped`,
`passage` or `gap`. A reader also inserts a gap for rows that retention deleted before the reader
had them. Columns that a kind does not use are null, except `zone`, `epoch` and `offset`. A gap has
"", 0 and the number of missing rows in these.

- `filter`: the filter of a start or an end; the apex of a passage's topics. `qos`: of a start or an
  end.
- `zone`, `epoch`, `offset`: the position of the message. A subscription starts above it, or ends at
  it. A passage's topics continue there.
- `through`: the last dropped offset; for a passage, the last offset of its topics in the part
  `left_zone`, `left_epoch`.
- `time`: the UTC time at which the node wrote the row.
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
"""The Arrow schema of `LEDGER_COLUMNS`."""

CURSOR_COLUMNS = (
    "node string, kept boolean, client_id string, zone string, epoch long, offset long,"
    " open array<long>"
)
"""
Columns of a durable session's cursor in one part, in Spark's DDL.

The session has received all records up to `offset`, except the offsets in `open`. These are in
flight to its client. `kept`: True if its node keeps a ledger. A session without a cursor has one
row, in which `zone` is null.
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
"""The Arrow schema of `CURSOR_COLUMNS`."""

AUDIT_COLUMNS = (
    "client_id string, filter string, zone string, epoch long, offset long, topic string,"
    " created timestamp, status string"
)
"""
Columns of the audit's verdict on one message for one session, in Spark's DDL.

`status` is `delivered`, `pending`, `dropped`, `unknown` or `lost`. `filter` is a filter of the
session that matches the message.
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
"""The Arrow schema of `AUDIT_COLUMNS`."""
