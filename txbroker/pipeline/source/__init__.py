"""The Spark data source and sink: reading journals, publishing rows."""
