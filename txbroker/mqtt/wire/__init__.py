"""MQTT packets as bytes and as values (sections 2 and 3 of the OASIS text). Pure."""
