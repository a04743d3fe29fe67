"""
`make release`, in a small repository; builders stand in for the build, which takes minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from release.make import Refused, git, interpreters, main, release

CHANGES = """# Changelog

Words.

## Unreleased

### Added

- A thing.

## 1.0.0 (2020-01-02)

- The first.
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose version is 1.0.0, with one release and a change since."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A maintainer")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "maintainer@example.org")
    root = tmp_path / "checkout"
    (root / "txbroker").mkdir(parents=True)
    (root / "txbroker" / "__init__.py").write_text('"""Text."""\n\n__version__ = "1.0.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGES)
    (root / ".gitignore").write_text("/build/\n/dist/\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "all: begin")
    git(root, "tag", "v1.0.0")
    return root


def build(source: Path) -> list[Path]:
    """What a release would build: one file, with the text that the package has then."""
    built = source.parent / "txbroker.tar.gz"
    built.write_text((source / "txbroker" / "__init__.py").read_text())
    return [built]


def state(root: Path) -> tuple[str, str, str]:
    """All that a release changes in a repository."""
    return git(root, "rev-parse", "HEAD"), git(root, "tag"), git(root, "status", "--porcelain")


def test_a_release_sets_the_version_dates_the_changelog_commits_and_tags(root: Path) -> None:
    """The distributions have the new version already; they end in dist/."""
    before = git(root, "rev-parse", "HEAD")
    (built,) = release(root, "1.1.0", build)

    assert root / "dist" / "txbroker.tar.gz" == built
    assert '__version__ = "1.1.0"' in built.read_text()
    assert (
        '"""Text."""\n\n__version__ = "1.1.0"\n' == (root / "txbroker" / "__init__.py").read_text()
    )
    changes = (root / "CHANGELOG.md").read_text()
    head, _, rest = changes.partition("## Unreleased\n\n## 1.1.0 (")
    assert "# Changelog\n\nWords.\n\n" == head
    assert rest[10:] == ")\n" + CHANGES.partition("## Unreleased\n")[2]
    assert "release: set version 1.1.0" == git(root, "log", "-1", "--format=%s").strip()
    assert before == git(root, "rev-parse", "HEAD~")
    assert git(root, "rev-parse", "HEAD") == git(root, "rev-parse", "v1.1.0^{commit}")
    assert "" == git(root, "status", "--porcelain")


def test_only_what_is_committed_is_built(root: Path) -> None:
    """Files that git ignores are not in the export."""
    (root / "build").mkdir()
    (root / "build" / "stale.so").touch()
    seen: list[str] = []

    def look(source: Path) -> list[Path]:
        seen.extend(sorted(path.name for path in source.iterdir()))
        return []

    release(root, "1.1.0", look)

    assert [".gitignore", "CHANGELOG.md", "txbroker"] == seen


@pytest.mark.parametrize("version", ["", "1.1", "v1.1.0", "1.1.0rc1", "1.01.0", "1.0.0", "0.9.9"])
def test_a_version_that_is_no_next_one_is_refused(root: Path, version: str) -> None:
    """Three numbers, above those of the last one."""
    before = state(root)
    with pytest.raises(Refused):
        release(root, version, build)

    assert before == state(root)


def test_the_first_release_may_have_the_version_of_the_tree(root: Path) -> None:
    """Nobody had to change it before."""
    git(root, "tag", "--delete", "v1.0.0")
    changes = root / "CHANGELOG.md"
    changes.write_text(CHANGES.partition("## 1.0.0")[0])
    git(root, "commit", "--quiet", "-a", "-m", "docs: forget")

    release(root, "1.0.0", build)

    assert "v1.0.0" == git(root, "tag").strip()


def test_a_tag_that_is_there_is_refused(root: Path) -> None:
    """A release is made once."""
    git(root, "tag", "v1.1.0")
    with pytest.raises(Refused, match=r"v1\.1\.0 is there already"):
        release(root, "1.1.0", build)


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_a_dirty_tree_is_refused(root: Path, name: str) -> None:
    """Changed and new files alike: what is released is what is committed."""
    (root / name).write_text(CHANGES + "More.\n")
    with pytest.raises(Refused, match="not committed"):
        release(root, "1.1.0", build)


def test_a_changelog_without_news_is_refused(root: Path) -> None:
    """A release tells its users what is new."""
    (root / "CHANGELOG.md").write_text(CHANGES.replace("- A thing.\n", ""))
    git(root, "commit", "--quiet", "-a", "-m", "docs: forget")
    with pytest.raises(Refused, match="no entry"):
        release(root, "1.1.0", build)


def test_a_build_that_fails_leaves_the_checkout_as_it_was(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says in one line what failed."""
    before = state(root)

    assert 1 == main(root, "1.1.0")  # this repository has no Makefile
    assert before == state(root)
    assert "release: failed: make sdist" in capsys.readouterr().err


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_checkout_that_changes_during_the_build_is_refused(
    root: Path, is_committed: bool
) -> None:
    """The tag names what was built."""

    def change(source: Path) -> list[Path]:
        (root / "new.py").touch()
        if is_committed:
            git(root, "add", "new.py")
            git(root, "commit", "--quiet", "-m", "all: change")
        return build(source)

    with pytest.raises(Refused, match="since the build began"):
        release(root, "1.1.0", change)

    assert "v1.0.0\n" == git(root, "tag")
    assert not (root / "dist").exists()


def test_wheels_are_run_with_the_python_of_their_tag(tmp_path: Path) -> None:
    """A name on PATH that does not run is left out."""
    broken = tmp_path / "python3.99"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"

    found = interpreters(f"{broken} {sys.executable} {tmp_path}/none")

    assert {tag: sys.executable} == found
