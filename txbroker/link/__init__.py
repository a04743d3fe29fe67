"""
Message links between an edge and an owner.

Measured against gRPC streams and bridges: docs/decisions/links.md.
"""
