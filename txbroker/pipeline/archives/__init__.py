"""Archives of the history as Parquet: commits, compaction, expiry."""
