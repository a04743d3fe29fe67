"""What an edge keeps on disk beside sessions: outboxes, the resolver cache."""
