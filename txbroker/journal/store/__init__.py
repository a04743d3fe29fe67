"""Journals on disk: record format, parts, retention."""
