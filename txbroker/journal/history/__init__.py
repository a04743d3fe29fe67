"""The history of zones over gRPC, for Spark and for sessions that are behind."""
