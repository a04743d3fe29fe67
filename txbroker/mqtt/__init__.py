"""MQTT 3.1.1: the wire, the session, the connection; nothing of zones."""
