"""
The lock files fit what setup.cfg and pyproject.toml ask for, and name hashes instead of registries.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from release.lock import FOLDER, PROCESSORS, PYTHONS, pins, requirements

ROOT = Path(__file__).resolve().parents[2]
FILES = ("dev", "pipeline", "release")


def texts(name: str) -> list[str]:
    """The text of a lock file, and of those that it includes."""
    text = (FOLDER / f"{name}.txt").read_text()
    included = re.findall(r"^-r (\w+)\.txt$", text, re.MULTILINE)
    return [text, *itertools.chain.from_iterable(map(texts, included))]


def locked(name: str) -> list[Requirement]:
    """The pins of a lock file, each with its marker."""
    found = [pin for text in texts(name) for pin in pins(text)]
    return [Requirement(pin.partition("\\\n")[0]) for pin in found]


def normal(name: str) -> str:
    """The name by which registries know a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("dev", ("build", "run", "dev")),
        ("pipeline", ("build", "run", "dev", "pipeline")),
        ("release", ("build", "release")),
    ],
)
@pytest.mark.parametrize("python", PYTHONS)
def test_each_requirement_has_one_pin_that_fits(
    name: str, wanted: tuple[str, ...], python: str
) -> None:
    """On each Python; else `make lock` was forgotten after a change."""
    for processor in PROCESSORS:
        machine = {
            "python_version": python,
            "python_full_version": f"{python}.9",
            "platform_machine": processor,
            "sys_platform": "linux",
            "os_name": "posix",
        }
        pinned: dict[str, str] = {}
        for pin in locked(name):
            if pin.marker is None or pin.marker.evaluate(machine):
                assert normal(pin.name) not in pinned, pin
                pinned[normal(pin.name)] = str(pin.specifier).removeprefix("==")
        for line in requirements(*wanted):
            requirement = Requirement(line)
            version = pinned.get(normal(requirement.name))
            assert version is not None, f"{name}.txt lacks {line}: make lock"
            assert requirement.specifier.contains(version), f"{line}, not {version}: make lock"


def test_a_package_has_one_version_in_all_files() -> None:
    """What builds a release is what builds an installation."""
    for one, other in itertools.combinations(FILES, 2):
        versions = {str(pin).partition("==")[0]: str(pin) for pin in locked(one) if not pin.marker}
        for pin in locked(other):
            if not pin.marker:
                assert versions.get(pin.name, str(pin)).startswith(str(pin)), pin


@pytest.mark.parametrize("name", FILES)
def test_a_lock_file_has_pins_and_hashes_only(name: str) -> None:
    """No registry, no option of pip; each pin has hashes, so pip takes no other file."""
    text = (FOLDER / f"{name}.txt").read_text()
    rest = text
    for pin in pins(text):
        assert re.search(r" \\\n    --hash=sha256:[0-9a-f]{64}", pin), pin
        rest = rest.replace(pin, "", 1)

    assert re.fullmatch(r"#.*\n(-r dev\.txt\n)?", rest), rest
    assert "://" not in text


def test_installations_use_the_lock_files() -> None:
    """With their hashes, and nothing that is built in an environment with other packages."""
    text = (ROOT / "Makefile").read_text()

    assert "--require-hashes -r requirements/$$lock.txt" in text
    assert "--no-deps -e ." in text
    assert "--no-build-isolation" in text
    assert "--require-hashes" in (ROOT / "tests" / "machines" / "wheels.sh").read_text()
