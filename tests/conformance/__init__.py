"""The MQTT 3.1.1 conformance suite: one node alone, and pairs of nodes of a tree."""
