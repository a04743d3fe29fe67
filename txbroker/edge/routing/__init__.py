"""From a publish to the owner of its topic: resolver cache, routes, outboxes. Pure."""
