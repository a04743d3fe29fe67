"""Coroutines of a test, on a loop of their own beside that of Twisted's reactor."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_apart(scenario: Coroutine[Any, Any, T]) -> T:
    """Run it to its end; gives what it returns."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, scenario).result()
