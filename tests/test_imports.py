"""Imports of torch and its compiler, and everything that works without torch."""

import pkgutil
import subprocess
import sys

import pytest

import rlox

# Modules that import torch; all others do without it.
WITH_TORCH = {
    "rlox.actor_critic",
    "rlox.adam",
    "rlox.algorithms.a2c",
    "rlox.algorithms.impala",
    "rlox.algorithms.dqn",
    "rlox.algorithms.ppo",
    "rlox.algorithms.sac",
    "rlox.algorithms.td3",
    "rlox.batches",
    "rlox.critics",
    "rlox.distributed._ddp_learners",
    "rlox.distributed._collectives",
    "rlox.distributions",
    "rlox.exploring",
    "rlox.featured",
    "rlox.features",
    "rlox.networks",
    "rlox.off_policy_learner",
    "rlox.optimizer",
    "rlox.own_networks",
    "rlox.policies",
    "rlox.replaying",
    "rlox.rmsprop",
    "rlox.squashed",
    "rlox.torch_learner",
    "rlox.torch_state",
}
# As if torch were not installed: whoever looks for it finds nothing.
BLOCKED = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def modules():
    """Names of all modules of rlox that are written in Python."""
    found = [module.name for module in pkgutil.walk_packages(rlox.__path__, "rlox.")]
    return ["rlox", *(name for name in found if name != "rlox._rlox")]


def run(program):
    command = [sys.executable, "-c", BLOCKED + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_modules_are_decided_on_and_only_those_named_here_import_torch():
    said = run(
        f"names = {modules()}\n"
        "for name in names:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        assert error.name == 'torch', error\n"
        "        print(name)\n"
        "assert 'torch' not in sys.modules\n"
    )
    assert {*said} == WITH_TORCH


def test_all_of_the_package_is_looked_at():
    assert {*modules()} > WITH_TORCH | {"rlox.trainers", "rlox.presets.ppo", "rlox.algorithms"}


def test_settings_and_names_are_there_and_learners_say_what_to_install():
    said = run("""
import rlox
from rlox.algorithms import A2CConfig, PPOConfig
from rlox.trainers import A2CTrainer, PPOTrainer
assert rlox.algorithms.PPOConfig(n_steps=8).n_steps == A2CConfig(n_steps=8).n_steps
assert rlox.trainers.PPOTrainer is PPOTrainer

policy = type("Policy", (), {})
for ask in (
    lambda: rlox.algorithms.PPO,
    lambda: rlox.algorithms.a2c,
    lambda: PPOTrainer("CartPole-v1", 0, backend="torch"),
    lambda: A2CTrainer("CartPole-v1", 0, backend="torch"),
    lambda: PPOTrainer("CartPole-v1", 0, policy=policy),
    lambda: PPOTrainer("CartPole-v1", 0, device="cuda"),
    lambda: rlox.algorithms.SAC,
):
    try:
        ask()
    except ModuleNotFoundError as error:
        assert error.name == "torch"
        print(error)
try:
    rlox.algorithms.REINFORCE
except AttributeError as error:
    print(error)
""")
    end = ", got none; pip install 'rlox[torch]'"
    start = "torch: expected PyTorch, as "
    assert [line.removeprefix(start).removesuffix(end) for line in said] == [
        "rlox.algorithms.PPO is written in it",
        "rlox.algorithms.a2c is written in it",
        "backend is 'torch'",
        "backend is 'torch'",
        "policy= is a torch module",
        "device is 'cuda'",
        "rlox.algorithms.SAC is written in it",
        "module 'rlox.algorithms' has no attribute 'REINFORCE'",
    ]


def test_training_is_native_from_the_first_step_to_the_checkpoint(tmp_path):
    said = run(f"""
from rlox.trainers import A2CTrainer, PPOTrainer
for kind in A2CTrainer, PPOTrainer:
    for env in "CartPole-v1", "FrozenLake-v1":
        with kind(env, 0, num_envs=4, n_steps=64, runs_dir={str(tmp_path)!r}) as trainer:
            result = trainer.train(1024)
            trainer.evaluate(2)
            loaded = kind.load(trainer.run.path / "checkpoint", runs_dir=None)
            backends = trainer.learner.backend, loaded.learner.backend
            print(*backends, loaded.timesteps == result["timesteps"])
assert "torch" not in sys.modules
""")
    assert said == ["native native True"] * 4


def test_no_torch_is_imported_where_it_is_installed_and_not_asked_for():
    pytest.importorskip("torch")
    program = f"""
import importlib, sys
for name in {sorted({*modules()} - WITH_TORCH)}:
    importlib.import_module(name)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_versions_are_those_of_what_is_installed(monkeypatch):
    from importlib import metadata

    from rlox import logger

    assert {"rlox", "python", "numpy", "gymnasium"} <= {*logger.versions()}
    version = metadata.version

    def none_of_torch(name):
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", none_of_torch)
    assert {*logger.versions()} == {"rlox", "python", "numpy", "gymnasium"}


PROGRAM = """
import sys
import rlox
assert "torch" not in sys.modules and "matplotlib" not in sys.modules and "rich" not in sys.modules
from rlox.trainers import PPOTrainer
trainer = PPOTrainer(env="CartPole-v1", seed=0, backend="torch", runs_dir=None)
trainer.train(1)
trainer.evaluate(1)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_training_starts_without_torchs_compiler():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert run.stdout == "[]\n"
