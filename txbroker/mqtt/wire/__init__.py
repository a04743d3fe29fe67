"""MQTT packets as bytes and as values (section 2 and 3 of the OASIS text). Pure."""
