"""Measurements beside Mosquitto; never part of the tests."""
