"""Durable state of a node (shell)."""
