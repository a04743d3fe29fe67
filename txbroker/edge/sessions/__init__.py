"""The sessions of an edge's clients: CONNECT, subscriptions, delivery, catch-up, transfer. Pure."""
