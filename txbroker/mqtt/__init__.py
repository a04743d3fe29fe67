"""MQTT 3.1.1: packets, their bytes, sessions, and the socket that carries them."""
