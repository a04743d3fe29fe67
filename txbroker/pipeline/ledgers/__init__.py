"""Delivery ledgers against journals: what became of each message."""
