"""Shared subscriptions."""
