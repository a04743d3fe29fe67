"""Segment logs, group commit, tables, atomic files: durable bytes of no domain."""
