"""The message history through Spark: see docs/pipeline.md."""
