"""A node's data folder as a whole: opened, committed, copied, repaired together."""
