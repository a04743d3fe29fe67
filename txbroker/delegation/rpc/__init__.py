"""Changes of a zone's owner over gRPC: join, handover, hand-back, reclaim, retire."""
