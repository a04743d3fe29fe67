"""What a client session is: flows, window, subscriptions, cursors. Pure."""
