"""How zones change hands over gRPC: join, handover, hand-back, reclaim, retire."""
