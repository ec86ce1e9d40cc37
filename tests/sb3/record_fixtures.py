"""Record `fixtures/`: models saved by Stable-Baselines3 and their predictions.

    python tests/sb3/record_fixtures.py

with rlox and stable-baselines3 2.x installed. The files omit the description
of the machine, the docstrings of classes and addresses.
"""

import inspect
import json
import re
import tempfile
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import stable_baselines3 as sb3
import torch
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from test_convert import MAKERS

FIXTURES = Path(__file__).parent / "fixtures"
SMALL = {"net_arch": [8, 6]}
REPLAY = {"buffer_size": 500}


CASES = {
    "ppo_multi_discrete": ("PPO", "multi-discrete", {}),
    "a2c_multi_binary": ("A2C", "multi-binary", {}),
    "sac_wide": ("SAC", "wide box", {**REPLAY}),
    "td3_wide": ("TD3", "wide box", {**REPLAY, "policy_kwargs": {"activation_fn": torch.nn.Tanh}}),
    "ppo_discrete": ("PPO", "CartPole-v1", {"learning_rate": LinearSchedule(1e-3, 0.0, 1.0)}),
    "ppo_relu": ("PPO", "CartPole-v1", {"policy_kwargs": {"activation_fn": torch.nn.ReLU}}),
    "ppo_one_hot": ("PPO", "FrozenLake-v1", {"gamma": 0.9, "clip_range": 0.1}),
    "ppo_box": ("PPO", "Pendulum-v1", {"n_steps": 16, "batch_size": 8}),
    "ppo_sde": ("PPO", "Pendulum-v1", {"use_sde": True}),
    "ppo_normalized": ("PPO", "Pendulum-v1", {}),
    "a2c": ("A2C", "CartPole-v1", {"rms_prop_eps": 1e-4}),
    "a2c_adam": ("A2C", "Pendulum-v1", {"use_rms_prop": False}),
    "dqn": ("DQN", "CartPole-v1", {**REPLAY, "train_freq": 8}),
    "sac": ("SAC", "Pendulum-v1", {**REPLAY, "ent_coef": "auto_0.3"}),
    "sac_sde": ("SAC", "Pendulum-v1", {**REPLAY, "use_sde": True, "ent_coef": 0.1}),
    "td3": ("TD3", "Pendulum-v1", {**REPLAY, "policy_delay": 3}),
}


def observations(space: gym.Space, rng: np.random.Generator) -> np.ndarray:
    if isinstance(space, gym.spaces.Discrete):
        return np.arange(16) % space.n
    return rng.normal(size=(16, *space.shape)).astype(space.dtype)


def rewrite(saved: Path, path: Path) -> None:
    """Write a compressed copy of a zip without machine descriptions and docstrings."""
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            content = old.read(info)
            if info.filename == "system_info.txt":
                continue
            if info.filename == "data":
                data = json.loads(content)
                for value in data.values():
                    if isinstance(value, dict):
                        value.pop("__doc__", None)
                # Addresses differ in each process.
                content = re.sub(r" at 0x[0-9a-f]+", "", json.dumps(data, indent=4)).encode()
            new.writestr(zipfile.ZipInfo(info.filename), content, zipfile.ZIP_DEFLATED)


def record(name: str, algorithm: str, env_id: str, keywords: dict) -> dict:
    env = DummyVecEnv([MAKERS.get(env_id, lambda: gym.make(env_id))])
    rng = np.random.default_rng(1)
    if name.endswith("normalized"):
        env = VecNormalize(env)
        env.seed(1)
        env.reset()
        for _ in range(30):
            env.step(rng.uniform(-2, 2, (1, 1)).astype(np.float32))
        env.save(str(FIXTURES / f"{name}.pkl"))
    policy_kwargs = {**SMALL, **keywords.pop("policy_kwargs", {})}
    cls = getattr(sb3, algorithm)
    model = cls("MlpPolicy", env, seed=1, device="cpu", policy_kwargs=policy_kwargs, **keywords)
    torch.manual_seed(1)
    with torch.no_grad():  # initial biases are 0
        for parameter in model.policy.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.zip")
        rewrite(Path(folder) / "model.zip", FIXTURES / f"{name}.zip")
    obs = observations(env.observation_space, rng)
    inputs = env.normalize_obs(obs) if isinstance(env, VecNormalize) else obs
    actions, _ = model.predict(inputs, deterministic=True)
    description = {"algorithm": algorithm.lower(), "env": env_id, "version": sb3.__version__}
    return {**description, "obs": obs.tolist(), "actions": actions.tolist()}


def signatures() -> dict:
    """Return the keywords with their defaults, in order, without policy and env."""
    return {
        name: [
            [key, parameter.default]
            for key, parameter in inspect.signature(getattr(sb3, name.upper())).parameters.items()
            if key not in ("policy", "env")
        ]
        for name in ("ppo", "a2c", "dqn", "sac", "td3")
    }


def main() -> None:
    FIXTURES.mkdir(exist_ok=True)
    (FIXTURES / "signatures.json").write_text(json.dumps(signatures(), indent=1) + "\n")
    predictions = {name: record(name, *case) for name, case in CASES.items()}
    (FIXTURES / "predictions.json").write_text(json.dumps(predictions, indent=1) + "\n")


if __name__ == "__main__":
    main()
