"""gRPC between nodes: channels, message pieces, and wire values as ours."""
