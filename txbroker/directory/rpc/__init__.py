"""The client directory over gRPC."""
