"""TCP sockets of the loop: accepting, reading, writing."""
