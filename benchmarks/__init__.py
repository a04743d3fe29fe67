"""Measurements beside Mosquitto and nats-server; never part of the tests."""
