"""
Makes `twistd txbroker` known; this folder has no `__init__.py`, so that Twisted's own stays.
"""

from twisted.application.service import ServiceMaker

txbroker = ServiceMaker(
    "txbroker",
    "txbroker.tap",
    "A node of a federated MQTT broker.",
    "txbroker",
)
