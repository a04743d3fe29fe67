"""Links between nodes: framing and both ends' rules (pure), the dialer and the listener (shells)."""
