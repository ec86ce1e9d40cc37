"""Modules that import torch, and features that work without torch."""

import importlib
import pkgutil
import subprocess
import sys

import rlox

# Modules that import torch. All other modules work without torch.
WITH_TORCH = """
_nn.critics _nn.custom _nn.distributions _nn.networks _nn.optim _nn.runtime algorithms._off_policy
algorithms._on_policy algorithms._replay algorithms.a2c algorithms.dqn algorithms.impala
algorithms.ppo algorithms.sac algorithms.td3 distributed._collectives distributed._ddp_learners
features policies
"""
WITH_TORCH = {f"rlox.{name}" for name in WITH_TORCH.split()}
# Make torch unavailable.
BLOCKED = """
import importlib, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def modules():
    """Return the names of all Python modules of rlox."""
    found = [module.name for module in pkgutil.walk_packages(rlox.__path__, "rlox.")]
    return ["rlox", *(name for name in found if name != "rlox._rlox")]


def run_without_torch(program):
    command = [sys.executable, "-c", BLOCKED + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_only_the_named_modules_import_torch():
    lines = run_without_torch(f"""
for name in {modules()}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name == "torch", error
        print(name)
assert "torch" not in sys.modules
""")
    assert {*lines} == WITH_TORCH
    assert {*modules()} > WITH_TORCH | {"rlox.trainers", "rlox.presets", "rlox.algorithms"}


def test_names_that_need_torch_raise_errors_with_the_extra():
    lines = run_without_torch("""
import rlox
from rlox.algorithms import A2CConfig, PPOConfig
from rlox.trainers import A2CTrainer, PPOTrainer
assert rlox.algorithms.PPOConfig(n_steps=8).n_steps == A2CConfig(n_steps=8).n_steps
assert rlox.trainers.PPOTrainer is PPOTrainer

for call in (
    lambda: rlox.algorithms.PPO,
    lambda: rlox.algorithms.a2c,
    lambda: PPOTrainer("CartPole-v1", 0, backend="torch"),
    lambda: PPOTrainer("CartPole-v1", 0, policy=type("Policy", (), {})),
    lambda: PPOTrainer("CartPole-v1", 0, device="cuda"),
):
    try:
        call()
    except ModuleNotFoundError as error:
        assert error.name == "torch"
        print(error)
try:
    rlox.algorithms.REINFORCE
except AttributeError as error:
    print(error)
""")
    end = ": expected the package torch, got none; pip install 'rlox[torch]'"
    assert [line.removesuffix(end) for line in lines] == [
        "rlox.algorithms.PPO",
        "rlox.algorithms.a2c",
        "backend is 'torch'",
        "policy= is a torch module",
        "device is 'cuda'",
        "module 'rlox.algorithms' has no attribute 'REINFORCE'",
    ]


def test_training_and_loading_work_without_torch(tmp_path):
    lines = run_without_torch(f"""
import numpy as np
import rlox
from rlox.trainers import A2CTrainer, PPOTrainer, SACTrainer
on = dict(num_envs=4, n_steps=64)
off = dict(num_envs=2, learning_starts=20, buffer_size=2000, batch_size=8, net_arch=(8,))
for kind, env, settings in (
    (A2CTrainer, "CartPole-v1", on),
    (PPOTrainer, "FrozenLake-v1", on),
    (PPOTrainer, "Pendulum-v1", on | dict(use_sde=True, normalize_obs=True)),
    (SACTrainer, "Pendulum-v1", off),
):
    with kind(env, 0, runs_dir={str(tmp_path)!r}, **settings) as trainer:
        result = trainer.train(1024)
        trainer.evaluate(2)
        loaded = kind.load(trainer.run.path / "checkpoint", runs_dir=None)
        assert loaded.timesteps == result["timesteps"]
        obs = np.stack([trainer.env.single_observation_space.sample() for _ in range(5)])
        assert (rlox.load(trainer.run.path).predict(obs) == trainer.predict(obs)).all()
        print(trainer.learner.backend, loaded.learner.backend)
assert "torch" not in sys.modules
""")
    assert lines == ["native native"] * 4


def test_torch_free_modules_do_not_import_an_installed_torch():
    program = f"""
import importlib, sys
for name in {sorted({*modules()} - WITH_TORCH)}:
    importlib.import_module(name)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_versions_list_only_installed_packages(monkeypatch):
    from importlib import metadata

    from rlox._training.run_folder import versions

    assert {"rlox", "python", "numpy", "gymnasium"} <= {*versions()}
    version = metadata.version

    def version_without_torch(name):
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", version_without_torch)
    assert {*versions()} == {"rlox", "python", "numpy", "gymnasium"}


PROGRAM = """
import sys
import rlox
assert not {"torch", "matplotlib", "rich", "tyro", "yaml", "rlox.cli"} & {*sys.modules}
from rlox.trainers import PPOTrainer
trainer = PPOTrainer(env="CartPole-v1", seed=0, backend="torch", runs_dir=None)
trainer.train(1)
trainer.evaluate(1)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_import_is_light_and_training_does_not_import_torchs_compiler():
    assert subprocess.check_output([sys.executable, "-c", PROGRAM], text=True) == "[]\n"


PUBLIC_MODULES = (
    *("trainers", "configs", "policies", "features", "checkpoint", "evaluation", "exporting"),
    *("interchange", "noise", "plotting", "presets", "scores", "inference", "envs", "algorithms"),
    *("callbacks", "logger", "distributed", "distributed.ddp", "distributed.remote"),
    *("distributed.ray", "experiments", "learners"),
)


def test_public_names_are_listed_and_bounded():
    assert len(rlox.__all__) <= 45
    assert sorted(dir(rlox)) == sorted(rlox.__all__)
    public = {id(getattr(rlox, name)) for name in rlox.__all__}
    for module in (importlib.import_module(f"rlox.{name}") for name in PUBLIC_MODULES):
        public |= {id(getattr(module, name)) for name in module.__all__}
    assert len(public) <= 130
