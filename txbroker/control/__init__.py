"""The control plane over gRPC (shells): join, resolve, hand over, and what an operator asks."""
