"""Import order, modules that import torch, and features that work without torch."""

import ast
import graphlib
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import rlox

PACKAGE = Path(__file__).resolve().parents[1] / "python/rlox"
# A module imports only from its own row and the rows above it.
ORDER = """
_concurrency _errors _files _finite _layout _optional _processes _registry _rng _serialize _spaces
    _system _timing _types _validation checkpoint configs noise
envs
_nn
features
policies
buffers
learners
evaluation
algorithms
logger
scores
_training
callbacks
exporting inference interchange plotting presets trainers
experiments
distributed
cli llm sb3
__main__
"""
ORDER = ORDER.replace("\n ", "").strip().splitlines()

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


def read_imports():
    """Map each module to the modules that it imports and the line numbers.

    Imports in functions and for type checking count, too.
    """
    paths = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        paths[".".join(parts).removesuffix(".__init__")] = path
    graph = {}
    for module, path in paths.items():
        lines = graph.setdefault(module, {})
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                modules = {*paths, "rlox._rlox"}
                names = [name if name in modules else node.module for name in names]
            for name in names:
                if name in paths and name != module:
                    lines.setdefault(name, node.lineno)
    return graph


def get_row(module):
    """Return the number of the row of a module in `ORDER`; `rlox` itself is above all rows."""
    rows = [
        (len(name), row)
        for row, names in enumerate(ORDER)
        for name in names.split()
        if f"{module}.".startswith(f"rlox.{name}.")
    ]
    return max(rows)[1] if rows else len(ORDER)


def find_imports_against_the_order(graph):
    return [
        f"{module}:{line} imports {name}"
        for module, names in sorted(graph.items())
        for name, line in sorted(names.items())
        if get_row(name) > get_row(module)
    ]


def find_cycle(graph):
    """Return a cycle of imports, or an empty list."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize(
    ("graph", "against", "cycle"),
    [
        ({"rlox.trainers": {"rlox.envs": 1, "rlox._training.loop": 2}}, [], 0),
        ({"rlox.envs.native": {"rlox": 3}}, ["rlox.envs.native:3 imports rlox"], 0),
        ({"rlox.logger.base": {"rlox._training.run": 4}}, ["rlox.logger.base:4 imports rlox._training.run"], 0),
        ({"rlox.envs.a": {"rlox.envs.b": 1}, "rlox.envs.b": {"rlox.envs.a": 1}}, [], 3),
    ],
)
def test_checks_of_the_import_order_find_violations(graph, against, cycle):
    assert find_imports_against_the_order(graph) == against
    assert len(find_cycle(graph)) == cycle


def test_no_import_is_against_the_order():
    assert find_imports_against_the_order(read_imports()) == []


def test_imports_have_no_cycle():
    assert find_cycle(read_imports()) == []


def test_order_names_every_module_and_package():
    names = {path.stem for path in PACKAGE.glob("*.py")} | {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert names - {"__init__"} <= {name for row in ORDER for name in row.split()}


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
