"""The state of an edge on disk beside sessions: outboxes, the resolver cache."""
