"""CORE: converts stored batches, already columns of the core, to Arrow record batches."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from txbroker.core import Filled, FilledProperties
from txbroker.pipeline.source.row_schema import MESSAGE_ARROW, PROPERTIES, USER_PROPERTY


def to_arrow(
    filled: Filled, zone: str, epoch: int, columns: Sequence[str] = tuple(MESSAGE_ARROW.names)
) -> pa.RecordBatch:
    """
    Convert records of one part to rows of `row_schema.MESSAGE_ARROW`, or to some columns of it.

    The result has `columns` in this order. Only the names of publishers, zone and epoch are copied.
    """
    fields = [MESSAGE_ARROW.field(name) for name in columns]
    made = {
        "zone": lambda: pa.repeat(pa.scalar(zone, pa.string()), filled.rows),
        "epoch": lambda: pa.repeat(pa.scalar(epoch, pa.int64()), filled.rows),
        "offset": lambda: _flat(filled, pa.int64(), filled.offset),
        "topic": lambda: _flat(filled, pa.string(), *filled.topics),
        "payload": lambda: _flat(filled, pa.binary(), *filled.payloads),
        "qos": lambda: _flat(filled, pa.int8(), filled.qos),
        "retain": lambda: _flat(filled, pa.bool_(), filled.retain),
        "client_id": lambda: _publisher(filled, 0),
        "node": lambda: _publisher(filled, 1),
        "created": lambda: _flat(filled, MESSAGE_ARROW.field("created").type, filled.created),
    }
    arrays = [
        _property(filled, field) if field.name in PROPERTIES else made[field.name]()
        for field in fields
    ]
    if not fields:  # A count of rows needs no column, but Arrow needs the number of rows.
        return pa.RecordBatch.from_struct_array(
            pa.StructArray.from_buffers(pa.struct([]), filled.rows, [None])
        )
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _flat(filled: Filled, kind: pa.DataType, *buffers: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, filled.rows, [None, *(pa.py_buffer(one) for one in buffers)])


def _property(filled: Filled, field: pa.Field) -> pa.Array:
    """Return the column of a property; without properties, its buffers are shared zeros."""
    properties = filled.properties
    if properties is None:
        return pa.nulls(filled.rows, field.type)
    children = [_pairs(properties)] if field.name == "user_properties" else None
    buffers = [pa.py_buffer(one) for one in getattr(properties, field.name)]
    return pa.Array.from_buffers(field.type, filled.rows, buffers, children=children)


def _pairs(properties: FilledProperties) -> pa.Array:
    """Return the user properties of all rows, one after the other."""
    count = len(properties.names[0]) // 4 - 1
    texts = [
        pa.Array.from_buffers(pa.string(), count, [None, *(pa.py_buffer(one) for one in buffers)])
        for buffers in (properties.names, properties.values)
    ]
    return pa.StructArray.from_arrays(texts, fields=list(USER_PROPERTY))


def _publisher(filled: Filled, which: int) -> pa.Array:
    names = pa.array([one[which] for one in filled.publishers], pa.string())
    if len(names) == 1:
        return pa.repeat(names[0], filled.rows)
    return names.take(_flat(filled, pa.int32(), filled.publisher))
