"""
A federated MQTT broker: one topic namespace served by many nodes.
"""

import os

__version__ = "0.1.0"

# gRPC's C core logs plain text to file descriptor 2 by itself, and nothing in Python can redirect
# that; off a terminal every line on stderr has to be a JSON object. It reads this variable once,
# when it is first imported, so the earliest place of ours has to set it. What those lines would
# say reaches the log anyway, as the status of the call that failed.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
