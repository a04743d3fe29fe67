"""Links between nodes: framing and both ends' rules (pure), dialer and listener (shells)."""
