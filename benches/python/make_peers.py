"""Create a Python environment for each library (peer) with which rlox is compared.

    python benches/python/make_peers.py              # all of them
    python benches/python/make_peers.py sb3 jax      # only these

The environments are in benches/python/.peers, or in `--peers DIR` or the variable RLOX_PEERS. Each
library has a separate environment: rlox 1.2.0 has the same import name, and the dependencies of the
others conflict. uv is used if it is installed, because uv links the files of torch instead of
copying them.

A library that cannot be installed does not stop the others. The reason is stored, and the
benchmarks show it in the library's rows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Packages of each environment. Versions are limited, because results depend on them.
PEERS: dict[str, tuple[str, ...]] = {
    "rlox-1.2.0": ("rlox==1.2.0",),
    "sb3": ("stable-baselines3>=2.9,<2.10", "gymnasium>=1.4,<1.5"),
    "torchrl": ("torchrl>=0.14,<0.15",),
    "gymnasium": ("gymnasium>=1.4,<1.5",),
    "envpool": ("envpool>=1.2,<1.3", "gymnasium>=1.4,<1.5"),
    "pufferlib": ("numpy<2", "gym<=0.23", "gymnasium<=0.29.1", "pettingzoo<=1.24.1", "pip", "setuptools"),
    "jax": ("jax[cpu]>=0.10", "numpy"),
    "cpprb": ("cpprb>=11,<12", "setuptools"),
    "trl": ("trl>=1.16,<1.17",),
    "torch": ("torch>=2.15,<2.16", "numpy", "setuptools"),
    # RLtools needs MKL to be fast and compiles on use with the installed compiler.
    "rltools": ("rltools>=2.2,<2.3", "mkl>=2025", "mkl-include>=2025", "gymnasium>=1.4,<1.5"),
}

# Scripts in this folder, with arguments, that install a library that pip cannot install.
BUILDS: dict[str, tuple[str, ...]] = {"pufferlib": ("build_pufferlib.py", "pufferlib==3.0.0")}


def peers_folder(folder: str | None = None) -> Path:
    """Return the folder of the environments."""
    default = Path(__file__).resolve().parent / ".peers"
    return Path(folder or os.environ.get("RLOX_PEERS") or default).absolute()


def interpreter(folder: Path, peer: str) -> Path:
    """Return the path of a peer's Python, which may not exist."""
    inside = "Scripts/python.exe" if os.name == "nt" else "bin/python"
    return folder / peer / inside


def why_missing(folder: Path, peer: str) -> str | None:
    """Return why a peer cannot be measured, or None."""
    if interpreter(folder, peer).exists() and stamp(folder, peer).exists():
        return None
    reason = folder / f"{peer}.failed"
    if reason.exists():
        return f"could not be installed: {reason.read_text().strip()}"
    return "not installed (run make_peers.py)"


def stamp(folder: Path, peer: str) -> Path:
    """Return the file that is written when a peer's environment is complete."""
    return folder / peer / "installed.txt"


def make(folder: Path, peer: str) -> bool:
    """Create the environment of a peer unless it exists. Return False after a failure."""
    build = BUILDS.get(peer, ())
    expected = "\n".join(PEERS[peer] + build)
    if why_missing(folder, peer) is None and stamp(folder, peer).read_text() == expected:
        print(f"{peer}: already installed")
        return True
    print(f"{peer}: installing {', '.join(PEERS[peer])}", flush=True)
    target, python = folder / peer, interpreter(folder, peer)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv:
        create = [uv, "venv", "--quiet", "--python", sys.executable, str(target)]
        install = [uv, "pip", "install", "--quiet", "--python", str(python), *PEERS[peer]]
    else:
        create = [sys.executable, "-m", "venv", str(target)]
        install = [str(python), "-m", "pip", "install", "--quiet", *PEERS[peer]]
    commands = [create, install]
    if build:
        commands.append([str(python), str(Path(__file__).with_name(build[0])), *build[1:]])
    failed = folder / f"{peer}.failed"
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason was given"]
            failed.write_text(" ".join(line.strip() for line in lines[:3]))
            print(f"{peer}: {why_missing(folder, peer)}")
            return False
    failed.unlink(missing_ok=True)
    stamp(folder, peer).write_text(expected)
    return True


def main() -> None:
    """Create the environments named on the command line, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="PEER", help=f"some of {', '.join(PEERS)}")
    parser.add_argument("--peers", metavar="DIR", help="folder of the environments")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PEERS]
    if unknown:
        parser.error(f"{unknown[0]}: expected one of {', '.join(PEERS)}")
    folder = peers_folder(options.peers)
    results = [make(folder, peer) for peer in options.names or PEERS]
    print(f"{sum(results)} of {len(results)} are in {folder}")


if __name__ == "__main__":
    main()
