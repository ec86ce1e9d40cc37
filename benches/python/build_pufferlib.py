"""Puts PufferLib with its CartPole, and nothing else of what it can build, into an environment.

    .peers/pufferlib/bin/python build_pufferlib.py pufferlib==3.0.0

PufferLib has no wheels, and its `setup.py` fetches raylib and Box2D for all its environments from
GitHub before it does anything; without environments it fails. So pip unpacks the sources, and
CartPole's C file is compiled with the options of that `setup.py` and the raylib that lies there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

RAYLIB = "raylib-5.5_linux_amd64"
FOLDER = Path("pufferlib", "ocean", "cartpole")


def unpacked(requirement: str, folder: Path) -> Path:
    """The sources, as pip leaves them where it was to make a wheel and could not."""
    options = ["--no-clean", "--no-deps", "--no-build-isolation", "--no-binary", "pufferlib"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *options]
    environ = {**os.environ, "TMPDIR": str(folder), "NO_OCEAN": "1", "NO_TRAIN": "1"}
    command = [*pip, requirement]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    found = list(folder.glob("pip-*/pufferlib_*/setup.py"))
    if not found:
        sys.exit(f"{requirement}: pip unpacked no sources: {done.stderr.strip()[-300:]}")
    return found[0].parent


def build(sources: Path, site: Path) -> None:
    """Copies the Python files and compiles the extension."""
    import numpy
    from setuptools import Extension, setup

    if not (sources / RAYLIB / "lib" / "libraylib.a").exists():
        sys.exit(f"the sources have no {RAYLIB}")
    ignored = shutil.ignore_patterns("resources")
    shutil.copytree(sources / "pufferlib", site / "pufferlib", ignore=ignored, dirs_exist_ok=True)
    shutil.copytree(sources / "pufferlib.egg-info", site / "pufferlib.egg-info", dirs_exist_ok=True)
    os.chdir(sources)
    binding = Extension(
        ".".join((*FOLDER.parts, "binding")),
        [str(FOLDER / "binding.c")],
        include_dirs=[numpy.get_include(), f"{RAYLIB}/include"],
        define_macros=[("PLATFORM_DESKTOP", None)],
        extra_compile_args=["-O2", "-flto", "-Wno-implicit-function-declaration"],
        extra_link_args=["-fwrapv", "-O2", "-Bsymbolic-functions"],
        extra_objects=[f"{RAYLIB}/lib/libraylib.a"],
    )
    # A name of its own: the `pyproject.toml` beside it is not meant.
    os.rename("pyproject.toml", "pyproject.toml.unused")
    setup(
        name="cartpole",
        packages=[],
        ext_modules=[binding],
        script_args=["--quiet", "build_ext", "--build-lib", str(site), "--build-temp", "built"],
    )


def main() -> None:
    """Builds the version named on the command line for the interpreter that runs this."""
    with tempfile.TemporaryDirectory() as folder:
        here = os.getcwd()
        build(unpacked(sys.argv[1], Path(folder)), Path(sysconfig.get_path("platlib")))
        os.chdir(here)


if __name__ == "__main__":
    main()
