"""Trees of topic levels: who subscribes to what, and what is retained where."""
