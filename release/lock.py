"""
Lock files for `make install` and `make wheels`: all packages, with the hashes of their files.

    make lock                        # pins that still fit stay
    make lock LOCK_ARGS=--upgrade    # newest versions

A single resolution covers Python 3.11 and later on each platform. `dev.txt` has what builds, runs
and tests the broker; `pipeline.txt` adds Spark; `release.txt` has what builds distributions. The
files name no registry, so pip takes the packages from whichever it is set up for.
"""

from __future__ import annotations

import configparser
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
PLACE = ROOT / "build" / "lock"
UV = Path(sys.executable).with_name("uv")

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PROCESSORS = ("x86_64", "aarch64")
SDISTS = {"pyspark"}  # packages that come as an sdist only; pure, so it serves each machine


def requirements(*names: str) -> list[str]:
    """Return the requirements of `build` (pyproject.toml), `run` or an extra (setup.cfg)."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = {
        **{name: text.split("\n") for name, text in settings["options.extras_require"].items()},
        "run": settings["options"]["install_requires"].split("\n"),
        "build": project["build-system"]["requires"],
    }
    return [line for name in names for line in listed[name] if line]


def pins(text: str) -> list[str]:
    """Return the pins of a lock file, each with its hashes."""
    return re.findall(r"^\w[^\n]*==(?:[^\n]*\\\n)*[^\n]*\n", text, re.MULTILINE)


def uv(*arguments: str | Path, given: list[str]) -> None:
    """Run `uv pip`; on its standard input `-` stands for these lines."""
    subprocess.run([UV, "pip", *arguments], input="\n".join(given), text=True, check=True)


def resolve(output: Path, *arguments: str | Path, given: list[str]) -> list[str]:
    """Pin requirements and all that these need; pins that the output has are kept if they fit."""
    command: list[str | Path] = ["compile", "--universal", "--python-version", PYTHONS[0]]
    command += ["--generate-hashes", "--no-annotate", "--no-header", "--no-config", "--quiet"]
    uv(*command, *arguments, "-", "-o", output, given=given)
    return pins(output.read_text())


def check(locked: list[str]) -> None:
    """Fail unless each Python on each processor finds a wheel whose hash is among the pins."""
    wheels = [pin for pin in locked if pin.partition("==")[0] not in SDISTS]
    for python, processor in itertools.product(PYTHONS, PROCESSORS):
        command: list[str | Path] = ["install", "--dry-run", "--quiet", "--require-hashes"]
        command += ["--only-binary", ":all:", "--target", PLACE / "none", "--no-config"]
        command += ["--python-platform", f"{processor}-manylinux_2_28"]
        uv(*command, "--python-version", python, "-r", "-", given=wheels)


def lock(*arguments: str) -> None:
    """Write all lock files; a package has one version in all of them."""
    FOLDER.mkdir(exist_ok=True)
    whole = PLACE / "whole.txt"
    kept = [pin for path in sorted(FOLDER.glob("*.txt")) for pin in pins(path.read_text())]
    whole.write_text("".join(dict.fromkeys(kept)))
    given = requirements("build", "run", "dev", "pipeline", "release")
    all_pins = resolve(whole, *arguments, given=given)
    check(all_pins)

    def part(*names: str) -> list[str]:
        output = PLACE / "part.txt"
        output.unlink(missing_ok=True)
        return resolve(output, "--constraint", whole, given=requirements(*names))

    dev = part("build", "run", "dev")
    pipeline = part("build", "run", "dev", "pipeline")
    write("dev", dev)
    write("pipeline", ["-r dev.txt\n", *(pin for pin in pipeline if pin not in dev)])
    write("release", part("build", "release"))


def write(name: str, lines: list[str]) -> None:
    """Write one lock file."""
    head = "# Made by `make lock` from setup.cfg and pyproject.toml.\n"
    (FOLDER / f"{name}.txt").write_text("".join([head, *lines]))


if __name__ == "__main__":
    lock(*sys.argv[1:])
