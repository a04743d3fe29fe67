"""Spark sessions, checkpoints and the jobs that follow journals."""
