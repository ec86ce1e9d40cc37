"""Compare the weights that a seed yields at two commits.

    .venv/bin/python .ci/same_weights.py BASE [HEAD]

Both commits are checked out and built into wheels. Every algorithm trains a short run on both
backends with each wheel, in the interpreter that runs this script (it needs what `make test`
installs). Kernels differ between CPUs, so hashes are compared within one call only. The exit status
is 1 if the weights of a run differ.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

TRAIN = """
import hashlib, sys
import rlox
import rlox.trainers as trainers
from safetensors.numpy import load_file

RUNS = {
    "PPO": ("CartPole-v1", 3_000, {}),
    "A2C": ("CartPole-v1", 3_000, {}),
    "IMPALA": ("CartPole-v1", 3_000, {"deterministic": True}),
    "DQN": ("CartPole-v1", 2_000, {"learning_starts": 200}),
    "SAC": ("Pendulum-v1", 600, {"learning_starts": 200}),
    "TD3": ("Pendulum-v1", 600, {"learning_starts": 200}),
}
folder, site = sys.argv[1:]
if not rlox.__file__.startswith(site + "/"):
    sys.exit(f"rlox: expected the one in {site}, got {rlox.__file__}; install a wheel there")
for name, (env, steps, settings) in RUNS.items():
    for backend in ("native", "torch"):
        make = getattr(trainers, name + "Trainer")
        with make(env=env, seed=7, backend=backend, runs_dir=None, **settings) as trainer:
            trainer.train(total_timesteps=steps)
            path = f"{folder}/{name}-{backend}"
            trainer.save(path)
        weights = load_file(f"{path}/networks.safetensors")
        digest = hashlib.sha256()
        for key in sorted(weights):
            digest.update(weights[key].tobytes())
        print(name, backend, digest.hexdigest(), flush=True)
"""


def build(commit: str, folder: pathlib.Path) -> pathlib.Path:
    """Return a folder from which Python imports rlox as of `commit`."""
    source = folder / "source"
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", source, commit], check=True)
    try:
        # The environment sets the profile, as older commits name the optimised one differently.
        optimised = {"CARGO_PROFILE_RELEASE_LTO": "thin", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "1"}
        maturin = pathlib.Path(sys.executable).with_name("maturin")
        command = [maturin, "build", "--release", "--out", folder / "wheels"]
        subprocess.run(command, cwd=source, env=os.environ | optimised, check=True)
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", source], check=True)
    (wheel,) = (folder / "wheels").glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*install, folder / "site", wheel], check=True)
    return folder / "site"


def train(site: pathlib.Path) -> dict[str, str]:
    """Return the hash of the weights of every run, by algorithm and backend."""
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"PYTHONPATH": str(site)}
        command = [sys.executable, "-W", "ignore", "-c", TRAIN, folder, str(site)]
        done = subprocess.run(command, env=environ, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    rows = (line.rsplit(" ", 1) for line in done.stdout.splitlines() if line.count(" ") == 2)
    return dict(rows)


def main() -> int:
    """Build, train and compare."""
    parser = argparse.ArgumentParser(description="Compare the weights of two commits.")
    parser.add_argument("base", help="a commit, or a folder that an rlox wheel is installed in")
    parser.add_argument("head", nargs="?", default="HEAD", help="as base")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sites = [
            pathlib.Path(name).resolve()
            if pathlib.Path(name).is_dir()
            else build(name, pathlib.Path(folder, role).resolve())
            for role, name in vars(options).items()
        ]
        before, after = (train(site) for site in sites)
    for run in before | after:
        equal = before.get(run) == after.get(run)
        print(f"{run:<15} {'equal' if equal else 'DIFFERS'} {str(before.get(run))[:16]}")
    print(f"{len(before)} runs")
    return int(not before or before != after)


if __name__ == "__main__":
    sys.exit(main())
