"""Install PufferLib with only its CartPole environment.

    .peers/pufferlib/bin/python build_pufferlib.py pufferlib==3.0.0

PufferLib has no wheels. Its `setup.py` first downloads raylib and Box2D for all environments from
GitHub, and fails without environments. Therefore pip unpacks the sources, and this script compiles
the C file of CartPole with the options of that `setup.py` and the unpacked raylib.
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


def unpack_sources(requirement: str, folder: Path) -> Path:
    """Return the folder of the sources that pip leaves after a failed build."""
    options = ["--no-clean", "--no-deps", "--no-build-isolation", "--no-binary", "pufferlib"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder), *options]
    environ = {**os.environ, "TMPDIR": str(folder), "NO_OCEAN": "1", "NO_TRAIN": "1"}
    command = [*pip, requirement]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    found = list(folder.glob("pip-*/pufferlib_*/setup.py"))
    if not found:
        sys.exit(f"{requirement}: pip unpacked no sources: {done.stderr.strip()[-300:]}")
    return found[0].parent


def build(source_folder: Path, site: Path) -> None:
    """Copy the Python files and compile the extension."""
    import numpy
    from setuptools import Extension, setup

    if not (source_folder / RAYLIB / "lib" / "libraylib.a").exists():
        sys.exit(f"the sources have no {RAYLIB}")
    ignored = shutil.ignore_patterns("resources")
    shutil.copytree(source_folder / "pufferlib", site / "pufferlib", ignore=ignored, dirs_exist_ok=True)
    shutil.copytree(source_folder / "pufferlib.egg-info", site / "pufferlib.egg-info", dirs_exist_ok=True)
    os.chdir(source_folder)
    binding = Extension(
        ".".join((*FOLDER.parts, "binding")),
        [str(FOLDER / "binding.c")],
        include_dirs=[numpy.get_include(), f"{RAYLIB}/include"],
        define_macros=[("PLATFORM_DESKTOP", None)],
        extra_compile_args=["-O2", "-flto", "-Wno-implicit-function-declaration"],
        extra_link_args=["-fwrapv", "-O2", "-Bsymbolic-functions"],
        extra_objects=[f"{RAYLIB}/lib/libraylib.a"],
    )
    # setuptools must not read the `pyproject.toml` of PufferLib.
    os.rename("pyproject.toml", "pyproject.toml.unused")
    setup(
        name="cartpole",
        packages=[],
        ext_modules=[binding],
        script_args=["--quiet", "build_ext", "--build-lib", str(site), "--build-temp", "built"],
    )


def main() -> None:
    """Build the version named on the command line for this interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        previous = os.getcwd()
        build(unpack_sources(sys.argv[1], Path(folder)), Path(sysconfig.get_path("platlib")))
        os.chdir(previous)


if __name__ == "__main__":
    main()
