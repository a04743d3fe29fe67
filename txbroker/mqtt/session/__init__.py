"""The state of a client session: flows, window, subscriptions, cursors. Pure."""
