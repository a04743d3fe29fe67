"""What holds for all tests."""

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

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


LONGEST = """
    pipeline/kills/test_kills federation/test_handover system/test_wills faults/test_faults
    system/test_restores pipeline/test_audit_nodes directory/test_left_over_sites
    system/test_clock_steps system/test_wills_slow_disk pipeline/spark/test_spark_session
    federation/test_crashes system/test_shared_groups pipeline/test_cluster
    directory/test_left_over system/test_expiry_frozen pipeline/test_standalone
    directory/test_sole federation/test_retirement examples/test_home_pipeline
    federation/test_model test_docs conformance/level5/test_flows5 system/test_retained_memory
    pipeline/test_pages system/test_cli_divergent pipeline/test_programs
    conformance/level5/test_roaming5 system/test_lost_clock pipeline/test_rollup
    system/test_forgotten_delegation pipeline/test_archive system/test_lost_parents
    pipeline/test_properties pipeline/test_look_pages
"""
"""Files of a minute and more: begun last, each would keep one process busy and the others idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, and all others mixed: three files of Spark at once are slow."""
    order = {f"{name}.py": number for number, name in enumerate(LONGEST.split())}
    here = Path(__file__).parent

    def place(item: pytest.Item) -> tuple[int, int]:
        name = item.path.relative_to(here).as_posix()
        return order.get(name, len(order)), crc32(name.encode())

    items.sort(key=place)


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
