"""What Spark says in many lines, in one; checkpoints that a job looks at before Spark does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from txbroker.model.errors import PipelineError
from txbroker.pipeline.source.error_reasons import known_line, line_of
from txbroker.pipeline.spark.checkpoints import check_checkpoint
from txbroker.pipeline.spark.masters import addresses, is_here, is_master

TRACE = """An error occurred while calling o12.start.
: org.apache.spark.SparkException: {}
\tat org.apache.spark.Here.there(Here.scala:1)
Caused by: java.io.IOException: the disk is gone
\t... 23 more
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("[NO_SUCH_THING] It is not there. SQLSTATE: 42K03 SQLSTATE: XXKST", "It is not there."),
        (
            "Query [id = 1, runId = 2] terminated with exception: assertion failed SQLSTATE: XXKST",
            "assertion failed",
        ),
        (TRACE.format("All is lost."), "All is lost: the disk is gone"),
        (
            "It ends.\n\nCaused by: java.io.IOException: the disk is gone",
            "It ends: the disk is gone",
        ),
    ],
)
def test_what_is_unknown_is_its_first_line_and_the_cause(text: str, line: str) -> None:
    assert known_line(text) is None
    assert line_of(text).startswith(line)
    assert line or not line_of(text)


@pytest.mark.parametrize(
    ("text", "begin", "remedy"),
    [
        (
            "Traceback (most recent call last):\ntxbroker.model.errors.PipelineError: a: one\n\n"
            "During handling\ntxbroker.model.errors.PipelineError: b: two; mend it\n"
            " SQLSTATE: 38000\n\tat x",
            "b: two; ",
            "mend it",
        ),
        ("Failed to read log file file:/c/commits/0. x", "/c/commits/0: damaged", "delete the c"),
        (
            "Checkpoint location file:/c is in an inconsistent state: the metadata file is missing",
            "/c: the file metadata is missing there",
            "delete the checkpoint",
        ),
        (
            "Multiple streaming queries are concurrently using file:/c/commits.",
            "/c/commits: another query writes there",
            "delete the checkpoint",
        ),
        (
            "Failed when Python streaming data source perform latestOffset: Traceback\n a\n"
            "json.decoder.JSONDecodeError: Unterminated string",
            "the query's checkpoint: its newest offsets are damaged",
            "delete the checkpoint",
        ),
        ("x\n\tat o.a.s.StreamMetadata$.read(x.scala:1)", "the query's checkpoint", "delete the c"),
        ("Path does not exist: file:/a/b.parquet. SQLSTATE: 42K03", "/a/b.parquet: is", "a copy"),
        (
            TRACE.format("file:/a/b.parquet is not a Parquet file (length is too low: 7)"),
            "/a/b.parquet: damaged",
            "restore it from a copy",
        ),
        (
            "Mkdirs failed to create file:/ro/t/_temporary/0/x (exists=false, cwd=file:/w)",
            "/ro/t: cannot be made",
            "that can be written to",
        ),
        (
            TRACE.format("x") + "java.io.IOException: No space left on device",
            "No space",
            "make spa",
        ),
        ("Python worker failed to connect back. SQLSTATE: XXKST", "the machine is", "run it again"),
    ],
)
def test_what_users_meet_has_a_remedy(text: str, begin: str, remedy: str) -> None:
    line = line_of(text)

    assert line == known_line(text)
    assert line.startswith(begin)
    assert remedy in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("master", "is_one", "is_on_this_machine"),
    [
        ("local", True, True),
        ("local[*]", True, True),
        ("local[2,3]", True, True),
        ("local-cluster[2,1,1024]", True, True),
        ("spark://127.0.0.1:7077", True, True),
        ("spark://localhost:7077", True, True),
        ("spark://a.example:7077,b.example:7077", True, False),
        ("yarn", True, False),
        ("k8s://https://a.example:6443", True, False),
        ("lokal", False, False),
        ("spark://a.example", False, False),
        ("", False, False),
    ],
)
def test_masters(master: str, is_one: bool, is_on_this_machine: bool) -> None:
    assert is_one == is_master(master)
    assert not is_one or is_on_this_machine == is_here(master)


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("spark://a:7077,[::1]:7078", [("a", 7077), ("::1", 7078)]),
        ("local[2]", []),
        ("k8s://https://a:6443", []),
    ],
)
def test_where_masters_listen(master: str, expected: list[tuple[str, int]]) -> None:
    assert is_master(master)
    assert expected == addresses(master)


def a_checkpoint(folder: Path) -> Path:
    """As Spark leaves it after two batches."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
        for number in range(2):
            (folder / name / f".{number}.crc").write_bytes(b"crc")
    (folder / "metadata").write_text('{"id":"1"}')
    for number in range(2):
        (folder / "offsets" / str(number)).write_text('v1\n{"conf":{}}\n{"": {"offset": 2}}')
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: None,
        lambda folder: (folder / "commits" / "1").unlink(),
        lambda folder: (folder / "offsets" / "0").unlink(),
        lambda folder: [file.unlink() for file in folder.rglob("*") if file.is_file()],
    ],
)
def test_a_checkpoint_that_is_good(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """Also without what Spark has cleaned up, or not written yet."""
    change(a_checkpoint(tmp_path / "a"))

    check_checkpoint(tmp_path / "a")
    check_checkpoint(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("metadata", None),
        ("metadata", "garbage"),
        ("metadata", "[]"),
        ("metadata", "{}"),
        ("offsets/1", None),
        ("offsets/1", ""),
        ("offsets/1", "v1"),
        ("offsets/1", 'v1\n{"conf":{}}\n{"": {"off'),
        ("offsets/1", 'v1\n{"conf":{}}\n1'),
        ("commits/1", "garbage"),
        ("commits/1", "v2\n{}"),
        ("commits/1", "v1\n{"),
        ("commits/1", b"v1\n\xff"),
    ],
)
def test_a_checkpoint_that_is_damaged(tmp_path: Path, name: str, text: str | bytes | None) -> None:
    """The file is named, and what to do."""
    file = a_checkpoint(tmp_path / "a") / name
    if text is None:
        file.unlink()
    else:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    with pytest.raises(PipelineError) as caught:
        check_checkpoint(tmp_path / "a")

    remedy = f"; delete {tmp_path / 'a'}: the job then goes on where its results end"
    assert str(caught.value).startswith(f"{file}: ")
    assert str(caught.value).endswith(remedy)
