"""Small networks: gradient steps and actions of PyTorch and of rlox's own networks.

From Python, rlox's networks are used through larger calls: `ppo` learns from a rollout, `learn`
from a replay buffer, and `act` and `predict` process a batch. The time of a PPO step is therefore
the time of an epoch of 16 minibatches divided by 16, with shuffling and the overhead of Python.
PyTorch makes the same epoch from equally many rows. The time of a DQN step is that of 16 steps
divided by 16. It includes sampling and target updates, which PyTorch omits. SAC's samples are those
of `predict` with a seed.

A step of one critic is available only in Rust. This row compares PyTorch, called from Python, with
rlox, called from Rust. `cargo bench nn_backends` measures this step, and most other rows without
Python, for rlox, Candle and Burn. The tables contain its results if the benchmark is built (`cargo
bench -p rlox-bench --bench nn_backends --no-run`).

Candle and Burn are measured with "rlox native" if rlox is built with them, for example by
`maturin develop --release --features candle,burn`. `make bench` builds both and the binary.
"""

from __future__ import annotations

import contextlib
import sys
import timeit
from collections.abc import Sequence
from typing import Any

import criterion_rows
import numpy as np
from side_by_side import Benchmark, Repeated, Row, Subject, run, swept

TORCH = "torch"  # the peer
MINIBATCHES, ENVS = 16, 8  # minibatches of an epoch, environments of its rollout
FIELDS = ("actions", "log_probs", "advantages", "returns")
Sizes = Sequence[int]


def native_learner(sizes: Sizes, num_envs: int, steps: int, batch: int, backend: str = "native") -> Any:
    """Return a PPO learner with networks in Rust and a full rollout."""
    from rlox import make_vec
    from rlox.configs import PPOConfig
    from rlox.learners._backends import check_backend
    from rlox.learners.native_on_policy import NativePPO

    check_backend(backend, None)
    config = PPOConfig(num_envs=num_envs, n_steps=steps, batch_size=batch, net_arch=tuple(sizes))
    learner = NativePPO(make_vec("CartPole-v1", num_envs), config, 1, backend)
    assert learner.collect()
    return learner


def settings(batch: int, rate: float) -> dict[str, Any]:
    """Return PyTorch's settings with the names of `NativePolicy.ppo`."""
    return {
        "batch_size": batch,
        "n_epochs": 1,
        "learning_rate": rate,
        "clip_coef": 0.2,
        "clip_coef_vf": None,
        "ent_coef": 0.01,
        "vf_coef": 0.5,
        "max_grad_norm": 0.5,
        "target_kl": None,
        "normalize_advantage": True,
        "optimizer": "adam",
        "optimizer_eps": 1e-5,
    }


def check_native(learner: Any, sizes: Sizes) -> None:
    """Check that one step on the full rollout equals PyTorch's step, if torch is installed."""
    with contextlib.suppress(ImportError):
        import torch
        import torch_steps as steps

        buffer, rate = learner.buffer, 1e-3
        nets = steps.actor_critic(sizes)
        before = {name: torch.from_numpy(x) for name, x in learner.policy.tensors().items()}
        nets.load_state_dict(before)
        rows = [torch.from_numpy(getattr(buffer, name).reshape(-1).copy()) for name in FIELDS]
        rows.insert(0, torch.from_numpy(buffer.obs.reshape(-1, 4)[: len(rows[0])].copy()))
        steps.Step(steps.ppo_loss, nets, "eager", rows, steps.MAX_GRAD_NORM, rate)(*rows)
        learner.policy.ppo(buffer, settings(len(rows[0]), rate))
        for name, after in learner.policy.tensors().items():
            got, expected = after - before[name].numpy(), nets.state_dict()[name] - before[name]
            np.testing.assert_allclose(got, expected.numpy(), 0.01, 0.02 * rate, err_msg=name)


def rlox_ppo(sizes: Sizes, batch: int, backend: str) -> timeit.Timer:
    """Time `NativePolicy.ppo` for an epoch."""
    learner = native_learner(sizes, ENVS, MINIBATCHES * batch // ENVS, batch, backend)
    check_native(learner, sizes)
    ppo_settings = settings(batch, 1e-6)
    learner.policy.ppo(learner.buffer, ppo_settings)
    names = {"f": learner.policy.ppo, "buffer": learner.buffer, "ppo_settings": ppo_settings}
    return Repeated("f(buffer, ppo_settings)", names, MINIBATCHES)


def rlox_act(sizes: Sizes, batch: int, backend: str) -> timeit.Timer:
    """Time `NativePolicy.act` for one step of `batch` environments."""
    learner = native_learner(sizes, batch, 1, batch, backend)
    actions, log_probs, values = learner.policy.act(learner.buffer, 0)
    assert len(actions) == len(log_probs) == len(values) == batch
    return timeit.Timer("f(b, 0)", globals={"f": learner.policy.act, "b": learner.buffer})


def rlox_predict(sizes: Sizes, batch: int, backend: str) -> timeit.Timer:
    """Time `NativePolicy.predict`: greedy actions for a batch, or for one observation if `batch` is 1."""
    learner = native_learner(sizes, 1, 8, 8, backend)
    obs = np.random.default_rng(1).standard_normal((batch, 4), np.float32)
    obs = obs[0] if batch == 1 else obs
    assert learner.policy.predict(obs).shape == obs.shape[:-1]
    return timeit.Timer("f(obs)", globals={"f": learner.policy.predict, "obs": obs})


def make_learner(algorithm: str, obs: int, actions: Any, sizes: Sizes, backend: str, **settings: Any) -> Any:
    """Return an off-policy learner with a full buffer, on a random environment with these spaces."""
    import gymnasium as gym

    from rlox import configs, make_vec
    from rlox.learners import native_off_policy
    from rlox.learners._backends import check_backend

    class RandomEnv(gym.Env[Any, Any]):
        observation_space, action_space = gym.spaces.Box(-1, 1, (obs,)), actions

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
            super().reset(seed=seed)
            return self.np_random.uniform(-1, 1, obs).astype(np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            following = self.np_random.uniform(-1, 1, obs).astype(np.float32)
            return following, 1.0, False, False, {}

    check_backend(backend, None)
    config = getattr(configs, f"{algorithm}Config")(
        net_arch=tuple(sizes), buffer_size=4096, learning_starts=4095, train_freq=1024, **settings
    )
    learner = getattr(native_off_policy, f"Native{algorithm}")(make_vec(RandomEnv, 1), config, 1, backend)
    for _ in range(4):
        learner.iterate()
    return learner


def rlox_dqn(sizes: Sizes, batch: int, backend: str) -> timeit.Timer:
    """Time `NativeAgent.learn` on minibatches from replay."""
    import gymnasium as gym

    options = {"batch_size": batch, "gradient_steps": MINIBATCHES, "learning_rate": 1e-6}
    policy = make_learner("DQN", 4, gym.spaces.Discrete(2), sizes, backend, **options).policy
    policy.begin(0.0)
    return Repeated("f(None)", {"f": policy.learn}, MINIBATCHES)


def rlox_sac(sizes: Sizes, batch: int, backend: str) -> timeit.Timer:
    """Time samples of `NativeAgent.predict` with a seed."""
    import gymnasium as gym

    policy = make_learner("SAC", 17, gym.spaces.Box(-1, 1, (6,)), sizes, backend).policy
    obs = np.random.default_rng(1).standard_normal((batch, 17), np.float32)
    obs = obs[0] if batch == 1 else obs
    assert policy.predict(obs, 1).shape == (*obs.shape[:-1], 6)
    return timeit.Timer("f(obs, 1)", globals={"f": policy.predict, "obs": obs})


def rust(sizes: Sizes, batch: int, benchmark: str) -> Any:
    """Return a subject that runs a benchmark of criterion."""
    return criterion_rows.criterion_subject(benchmark)


def torch(sizes: Sizes, batch: int, row: str, way: str) -> timeit.Timer:
    """Time a row of `torch_steps` with the threads of the process."""
    import torch_steps

    return torch_steps.TIMERS[row](sizes, batch, way)


WAYS = {"eager": "PyTorch eager", "fused": "PyTorch fused Adam", "compile": "PyTorch compiled, fused Adam"}
CALLS = {"eager": "PyTorch eager", "compile": "PyTorch compiled"}

# Row: title, ways of PyTorch, function of rlox, name of the criterion benchmark.
ROW_KINDS = {
    "ppo": ("PPO step", WAYS, "rlox_ppo", "ppo_step"),
    "dqn": ("DQN TD step", WAYS, "rlox_dqn", "dqn_step"),
    "critic": ("critic step", WAYS, None, "critic_step"),
    "sac": ("SAC sample", CALLS, "rlox_sac", "sac_sample"),
    "act": ("act in a rollout", CALLS, "rlox_act", "inference"),
    "predict": ("predict", CALLS, "rlox_predict", None),
}
SMALL, LARGE, TD3 = (64, 64), (256, 256), (400, 300)
CASES: list[tuple[str, Sizes, int]] = [
    ("ppo", SMALL, 64),
    ("ppo", SMALL, 256),
    ("ppo", LARGE, 256),
    ("ppo", TD3, 256),
    ("dqn", SMALL, 64),
    ("dqn", TD3, 64),
    ("critic", LARGE, 256),
    ("sac", SMALL, 1),
    ("sac", TD3, 1),
    *((kind, SMALL, batch) for kind in ("act", "predict") for batch in (1, 8, 64, 256)),
    *(("predict", sizes, batch) for sizes in (LARGE, TD3) for batch in (1, 64, 256)),
]
QUICK: list[tuple[str, Sizes, int]] = [
    ("ppo", SMALL, 64),
    ("dqn", SMALL, 64),
    ("sac", SMALL, 1),
    ("act", SMALL, 8),
    ("predict", SMALL, 1),
]


def python_subjects(function: str) -> list[Subject]:
    """Return a subject for each network backend in Rust.

    The error of a backend that is not built contains the build command.
    """
    subjects = []
    for backend in ("native", "candle", "burn"):
        name = "rlox native" if backend == "native" else f"{backend.capitalize()} through rlox"
        options = {"backend": backend}
        subjects.append(Subject(name, function, options=options, rival=backend != "native"))
    return subjects


def row(kind: str, sizes: Sizes, batch: int, quick: bool) -> Row:
    """Return a row with all subjects, each with one thread and with two."""
    title, ways, rlox_function, benchmark = ROW_KINDS[kind]
    shape = f"{sizes[0]}x{sizes[1]}"
    subjects = [] if rlox_function is None else python_subjects(rlox_function)
    for way, name in ways.items():
        options = {"row": kind, "way": way}
        subjects.append(Subject(name, "torch", TORCH, options))
    if quick:
        subjects = [subjects[0], next(variant for variant in subjects if variant.peer == TORCH)]
    else:
        subjects = [variant for subject in subjects for variant in swept(subject)]
        if benchmark is not None:
            # If rlox runs only in Rust, PyTorch is compared with Rust. Otherwise subjects in Rust
            # are compared only with each other, because they have no shuffling and no Python.
            work = "in Rust" if rlox_function else ""
            name = f"{benchmark}/{shape}/{batch}"
            found = criterion_rows.subjects("rust", name, TORCH, work)
            subjects = [*subjects, *found] if rlox_function else [*found, *subjects]
    params = {"sizes": sizes, "batch": batch}
    return Row(f"{title} {shape}, batch {batch}", params, subjects, batch, "rows")


def rows(quick: bool) -> list[Row]:
    """Return the documented rows and rows of actions for batches."""
    return [row(*case, quick) for case in (QUICK if quick else CASES)]


BENCHMARK = Benchmark("bench_nn_backends", "Small networks", rows, rounds=21)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK))
