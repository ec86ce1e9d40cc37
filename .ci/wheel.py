"""Build the wheel, install it into an empty environment without torch, and train there."""

import pathlib
import subprocess
import sys
import tempfile
import venv
import zipfile

MEGABYTES = 15
CONTENT = ("rlox/__init__.py", "rlox/_rlox.pyi", "rlox/py.typed", "LICENSE-MIT", "LICENSE-APACHE")
USE = """
import sys
import numpy as np
import rlox

assert "torch" not in sys.modules
envs = rlox.VecEnv(n=3, seed=0, env_id="CartPole-v1")
obs, _ = envs.reset(seed=0)
assert obs.shape == (3, 4) and obs.dtype == np.float32
envs.step(np.zeros(3, np.int64))
envs.close()
rlox.compute_gae([1.0, 1.0], [0.5, 0.5], [False, True], 0.0)

from rlox.trainers import A2CTrainer, PPOTrainer

for kind in (PPOTrainer, A2CTrainer):
    with kind(env="CartPole-v1", seed=0, backend="native", runs_dir=None) as trainer:
        result = trainer.train(total_timesteps=4_096)
        assert result["timesteps"] >= 4_096 and result["episodes"] > 10, result
        assert trainer.predict(obs).shape == (3,)
        trainer.save(kind.__name__)
        assert kind.load(kind.__name__, runs_dir=None).evaluate(2) == trainer.evaluate(2)
    assert kind(env="CartPole-v1", seed=0).learner.backend == "native"
    try:
        kind(env="CartPole-v1", seed=0, backend="torch")
    except ModuleNotFoundError as error:
        assert "pip install 'rlox[torch]'" in str(error), error
    else:
        raise AssertionError("a trainer on torch did not say what to install")
assert "torch" not in sys.modules
print("rlox", rlox.__version__, "trains without torch")
"""


def build(folder: pathlib.Path) -> pathlib.Path:
    """Build one wheel into `folder`."""
    maturin = pathlib.Path(sys.executable).with_name("maturin")
    subprocess.run([maturin, "build", "--profile", "dist", "--out", folder], check=True)
    (wheel,) = folder.glob("rlox-*.whl")
    return wheel


def check(wheel: pathlib.Path) -> None:
    """Inspect the wheel, then install and use it in a new environment."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        size = sum(entry.file_size for entry in archive.infolist()) / 1e6
    missing = [name for name in CONTENT if not any(entry.endswith(name) for entry in names)]
    assert not missing, f"{wheel.name} lacks {missing}"
    assert "-cp310-abi3-" in wheel.name, f"{wheel.name} is not an abi3 wheel for Python 3.10 on"
    assert size <= MEGABYTES, f"{wheel.name} unpacks to {size:.1f} MB, more than {MEGABYTES}"
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = pathlib.Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", wheel], check=True)
        program = pathlib.Path(folder) / "use.py"
        program.write_text(USE)
        subprocess.run([python, "-I", "-W", "error", program], check=True, cwd=folder)
        # Commands without options do not need the extra for the command line.
        subprocess.run([python.with_name("rlox"), "envs"], check=True, cwd=folder)
    print(f"{wheel.name}: {size:.1f} MB unpacked")


def main() -> None:
    """Build a wheel into dist/ and check it."""
    folder = pathlib.Path("dist")
    for old in folder.glob("rlox-*.whl"):
        old.unlink()
    check(build(folder))


if __name__ == "__main__":
    main()
