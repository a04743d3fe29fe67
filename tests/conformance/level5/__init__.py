"""MQTT 5.0 against the OASIS text: raw sockets, on one node and across nodes."""
