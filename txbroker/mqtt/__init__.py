"""MQTT 3.1.1: wire format, sessions and connections; zones are unknown here."""
