"""What holds for all tests."""

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support.java_classes import java_options
from txbroker.runtime import structured_log

# How long an example takes says more of the machine than of the code.
settings.register_profile("txbroker", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("txbroker")

os.environ.setdefault("SPARK_SUBMIT_OPTS", java_options())

# A shell that runs the tests in the background has them ignore SIGINT, and their children inherit
# that: nodes that are told to end by it would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """
    The marks that name the statements of the standards which a test shows.
    """
    for mark, text in (("statement", "MQTT 3.1.1"), ("level5_statement", "MQTT 5.0")):
        line = f"{mark}(*ids): the statements of {text} that the test shows"
        config.addinivalue_line("markers", line)


@pytest.fixture(autouse=True)
def log_undone() -> Iterator[None]:
    """
    What `telemetry.configure` sets belongs to the process, in which other tests follow: those that
    run a command here or make a node's service call it, too.
    """
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
    yield
    root = logging.getLogger()
    set_here = [h for h in root.handlers if type(h).__module__ == structured_log.__name__]
    if set_here:
        for handler in set_here:
            root.removeHandler(handler)
        root.setLevel(logging.WARNING)
        sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning = hooks
        structlog.reset_defaults()
