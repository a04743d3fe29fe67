"""The client session: flows, window, subscriptions, cursors. Pure."""
