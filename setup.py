"""
Generates txbroker/v1/ from proto/txbroker/v1/ and compiles the core at build time; all else is in
setup.cfg.

`python setup.py build_proto` does only the first, `python setup.py build_ext --inplace` only the
second. Where there is no compiler the second fails with a warning, and the core's reference runs. A
proto file's folder is its Python package, so the imports in generated code work as they are.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
PROTO = ROOT / "proto"
GENERATED = ROOT / "txbroker" / "v1"

CORE = Path("txbroker", "core")
COMPILED = Extension(
    "txbroker.core.compiled",
    [str(CORE / "compiled.pyx")],
    depends=[str(path) for path in sorted(CORE.glob("native/*"))],
    include_dirs=[str(CORE)],
    extra_compile_args=["-O2", "-g0", "-std=c++20"],
    language="c++",
)

# find_namespace (setup.cfg) looks before anything is built.
GENERATED.mkdir(exist_ok=True)


def generate() -> None:
    """
    Write modules and type stubs for every proto file; needs grpcio-tools and mypy-protobuf.

    Exits on failure: setuptools only warns of an exception during an editable install.
    """
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    kinds = ("python", "grpc_python", "mypy", "mypy_grpc")
    outputs = [f"--{kind}_out={ROOT}" for kind in kinds]
    # protoc looks for mypy-protobuf's programs on PATH, where an environment's own need not be.
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}", *outputs, *sources],
        env={**os.environ, "PATH": path},
    )
    if done.returncode != 0:
        sys.exit("txbroker/v1/ could not be generated from proto/")


class BuildProto(Command):
    """
    The command `build_proto`.
    """

    description = "generate txbroker/v1/ from proto/"
    user_options = []

    def initialize_options(self) -> None:
        """No options."""

    def finalize_options(self) -> None:
        """No options."""

    def run(self) -> None:
        """Generate."""
        generate()


class BuildPy(build_py):
    """
    build_py, for wheels and editable installs alike, with the generated modules there in time.
    """

    def run(self) -> None:
        """Generate, then build."""
        generate()
        super().run()


class BuildExt(build_ext):
    """
    build_ext that runs Cython, whose output stays out of the tree.
    """

    def finalize_options(self) -> None:
        """Translate; Cython is needed only here."""
        from Cython.Build import cythonize

        if not self.finalized:
            translated = cythonize([COMPILED], build_dir="build/cython")
            for extension in translated:
                extension.optional = True  # which Cython does not hand on
            self.distribution.ext_modules = translated
        super().finalize_options()


setup(
    cmdclass={"build_ext": BuildExt, "build_proto": BuildProto, "build_py": BuildPy},
    ext_modules=[COMPILED],
)
