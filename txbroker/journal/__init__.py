"""A zone's history and the delivery ledger, as values. Pure."""
