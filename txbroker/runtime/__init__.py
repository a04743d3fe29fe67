"""The event loop and its fairness: sockets, timers, flush queue, back-pressure, logs."""
