"""Tests of the TCP connections of a node."""
