"""Functions that the ranks of DDP tests run, and `run_ranks`, which starts the ranks.

`python ddp_runs.py FAULT FOLDER` is the script that torchrun starts.
"""

import multiprocessing
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlox import make_vec
from rlox._errors import StructuredError
from rlox.algorithms._replay import ReplayBatch
from rlox.distributed import ddp
from rlox.policies import MlpPolicy
from support.resume_runs import digest

TIMEOUT = 60.0
ON_POLICY = {"num_envs": 4, "n_steps": 16, "normalize_obs": True, "normalize_reward": True}
OFF_POLICY = {"num_envs": 4, "learning_starts": 40, "buffer_size": 200, "batch_size": 16}
SETTINGS = {
    "ppo": ("CartPole-v1", {**ON_POLICY, "batch_size": 16, "n_epochs": 2}),
    "a2c": ("Pendulum-v1", {**ON_POLICY, "normalize_advantage": True}),
    "sac": ("Pendulum-v1", {**OFF_POLICY, "net_arch": (16,), "normalize_obs": True}),
}
STEPS = {"ppo": 128, "a2c": 128, "sac": 64}
SMALL = {"num_envs": 4, "n_steps": 16, "batch_size": 16, "runs_dir": None}


class RankResult(NamedTuple):
    """Return value, error and exit code of a rank."""

    result: Any
    error: str  # type and message
    exit_code: int


def run_ranks(function, *args, size=2, hang=False):
    """Run a function on `size` ranks, forked from one process that has imported torch.

    With `hang`, rank 1 hangs and is killed. Returns a `RankResult` for each rank.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.ddp_runs"])
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    ranks = []
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(paths)):
        for rank in range(size):
            reader, writer = context.Pipe(duplex=False)
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
            variables = {name: str(x) for name, x in numbers.items()}
            variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
            process = context.Process(target=_run_rank, args=(variables, writer, function, args))
            process.start()
            writer.close()
            ranks.append((process, reader))
    outcomes = []
    for rank, (process, pipe) in enumerate(ranks):
        if hang and rank == 1:
            process.kill()
        process_ended = pipe.poll(TIMEOUT + 20)
        try:
            result, error = pipe.recv() if process_ended else (None, "still running")
        except EOFError:
            result, error = None, ""
        process.join(10)
        process.kill()
        process.join()
        outcomes.append(RankResult(result, error, process.exitcode))
    return outcomes


def _run_rank(variables, pipe, function, args):
    os.environ.update(variables)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result, error = function(*args), ""
    except BaseException as raised:
        result, error = None, f"{type(raised).__name__}: {raised}"
    pipe.send((result, error))
    sys.exit(1 if error else 0)


def make(group, algorithm, **kwargs):
    env, settings = SETTINGS[algorithm]
    return group.trainer(algorithm, env, seed=3, runs_dir=None, **settings | kwargs)


def rows_of(batch):
    return {name: x.numpy(force=True) for name, x in batch._asdict().items() if x is not None}


def local_digest(trainer):
    """Return the digest of one rank's state, without the collective call of the main rank."""
    is_main_rank, trainer.learner.ranks.is_main_rank = trainer.learner.ranks.is_main_rank, False
    try:
        return digest(trainer)
    finally:
        trainer.learner.ranks.is_main_rank = is_main_rank


def on_policy_gradient(group, algorithm):
    """Return a rollout of this rank, and the averaged gradient of its loss."""
    learner = make(group, algorithm, normalize_obs=False, normalize_reward=False).learner
    with learner.seeded(), learner._use_local_episodes():
        assert learner.collect()
    half = learner.unpack_batch(learner.rows)
    clip = (0.2,) if algorithm == "ppo" else ()
    # The changed weights give ratios other than 1.
    with torch.no_grad():
        for i, p in enumerate(learner.policy.parameters()):
            p += 0.03 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
    loss = learner.loss(learner.evaluate, half, learner.config, *clip)[0]
    gradient = learner.optimizer.gradient(loss).numpy()
    weights = torch.nn.utils.parameters_to_vector(learner.policy.parameters()).detach().numpy()
    return {"gradient": gradient, "weights": weights, **rows_of(half)}


def sac_gradients(group):
    """Return half of a minibatch, and the averaged gradients of an update from it."""
    learner = make(group, "sac", normalize_obs=False).learner
    stream = np.random.default_rng(5)
    shapes = {"obs": (16, 3), "actions": (16, 1), "rewards": (16,), "next_obs": (16, 3)}
    full = {name: stream.uniform(-1, 1, shape) for name, shape in shapes.items()}
    half = {n: torch.tensor(x[8 * group.rank :][:8], dtype=torch.float32) for n, x in full.items()}
    batch = ReplayBatch(**half, terminated=torch.arange(8) % 3 == 0, discounts=0.9)
    generator = learner.generator.get_state()
    gradients = []
    for optimizer in learner.optimizers:
        optimizer.step = lambda gradient, rate: gradients.append(gradient.numpy().copy())
    learner.update(batch, 1e-3)
    arrays = {name: x.numpy() for name, x in learner.modules.state_dict().items()}
    arrays |= {name: x.numpy() for name, x in half.items()}
    arrays |= zip(("critic", "actor", "alpha"), gradients, strict=True)
    return {**arrays, "generator": generator.numpy(), "terminated": batch.terminated.numpy()}


def normalizer_statistics(group):
    """Return all observations of this rank, and the statistics of its normalizer."""
    trainer = make(group, "ppo")
    env, rows = trainer.learner.env, []

    def record_obs(call, first_only):
        def call_and_record(*args):
            call(*args)
            if not (first_only and rows):
                rows.append(env.get_state()["states"][:, :4].astype(np.float32))

        return call_and_record

    env.begin_rollout = record_obs(env.begin_rollout, first_only=True)
    env.step_rollout = record_obs(env.step_rollout, first_only=False)
    trainer.train(256)
    return {"raw": np.concatenate(rows), **trainer.learner.normalizer.state()}


def run_and_resume(group, folder, algorithm):
    """Return digests of an uninterrupted run, a run saved half way, and the resumed run."""
    steps = STEPS[algorithm]
    uninterrupted = make(group, algorithm)
    uninterrupted.train(2 * steps)
    first = make(group, algorithm)
    saved = folder / f"{algorithm}-saved"

    def save(run, metrics):
        if run.budget_used == steps:
            run.save(saved)

    first.train(2 * steps, callbacks=[save])
    resumed = group.load(saved, runs_dir=None)
    assert resumed.timesteps == steps
    resumed.train()
    assert resumed.timesteps == 2 * steps
    return [local_digest(trainer) for trainer in (uninterrupted, first, resumed)]


def smoke(folder):
    """Return the results that the default tests check: a gradient, a resumed run, a run folder."""
    with ddp.group(timeout=TIMEOUT) as group:
        found = {"ppo": on_policy_gradient(group, "ppo"), "resumed": run_and_resume(group, folder, "ppo")}
        trainer = group.trainer("ppo", "CartPole-v1", seed=4, runs_dir=folder / "runs", num_envs=8)
        found["result"] = trainer.train(512)
        found["evaluation"] = trainer.evaluate(2)
        found["num_envs"] = trainer.config.num_envs
        if group.rank == 0:
            trainer.save(folder / "alone")  # the other rank sends its state on exit
        return found


def extended(folder):
    """Return the results of all other runs that succeed."""
    with ddp.group(timeout=TIMEOUT) as group:
        found = {"a2c": on_policy_gradient(group, "a2c"), "sac": sac_gradients(group)}
        found["statistics"] = normalizer_statistics(group)
        found["resumed"] = {name: run_and_resume(group, folder, name) for name in ("a2c", "sac")}
        found["callback"] = make(group, "ppo").train(10_000, callbacks=[lambda run, metrics: run.stop("solved")])
        interrupting = group.trainer("ppo", lambda: Faulty("interrupt", 1), **FAULTY)
        found["interrupt"] = interrupting.train(10_000_000)
        limited = make(group, "ppo", target_kl=1e-9, n_epochs=4, learning_rate=0.01)
        limited.train(64)
        found["updates"] = limited.learner.optimizer.steps
    with ddp.group(timeout=TIMEOUT) as group:  # a second group in the same processes
        found["second"] = make(group, "ppo").train(64)["timesteps"]
    return found


def rejections(folder):
    """Return the errors of invalid calls, and of calls that differ between ranks."""
    errors = {}
    with ddp.group(timeout=TIMEOUT) as group:
        rank = group.rank

        def ppo(algorithm="ppo", env="CartPole-v1", **kwargs):
            return group.trainer(algorithm, env, **SMALL | kwargs)

        trainer = ppo(seed=rank, env_kwargs={"render_mode": (None, "rgb_array")[rank]})
        errors["seed"] = trainer.seed  # the seed of rank 0
        for name in ("early", "late"):
            trainer.train(64)
            trainer.save(folder / name)
        other = ("CartPole-v1", "Acrobot-v1")[rank]
        next_step = gym.make_vec("CartPole-v1", 1, vectorization_mode="sync")
        calls = {
            "num_envs": lambda: ppo(num_envs=3),
            "batch_size": lambda: ppo(batch_size=33, n_steps=32),
            "backend": lambda: ppo(backend="native"),
            "unknown algorithm": lambda: ppo("dqn"),
            "next step": lambda: group.trainer("ppo", next_step, runs_dir=None),
            "second group": lambda: ddp.group().__enter__(),
            "setting": lambda: ppo(n_steps=(16, 32)[rank]),
            "algorithm": lambda: ppo(**{} if rank else {"algorithm": "sac", "n_steps": 5}),
            "env": lambda: ppo(env=other),
            "vector env": lambda: ppo(env=make_vec("CartPole-v1", 4) if rank else "CartPole-v1"),
            "spaces": lambda: group.trainer("a2c", make_vec(other, 2), n_steps=8, runs_dir=None),
            "policy": lambda: ppo(policy=Wide),
            "steps": lambda: trainer.train((64, 128)[rank]),
            "checkpoint": lambda: group.load(folder / ("early", "late")[rank], runs_dir=None),
        }
        for name, call in calls.items():
            with pytest.raises((StructuredError, RuntimeError)) as raised:
                call()
            error = raised.value
            fields = (getattr(error, field, None) for field in ("argument", "got", "hint"))
            errors[name] = (type(error).__name__, str(error), *fields)
    return errors


def train_with_fault(folder, fault, rank=1):
    with ddp.group(timeout=TIMEOUT if fault != "stop" else 4) as group:
        settings = {**FAULTY, "runs_dir": folder, "normalize_obs": True}
        group.trainer("ppo", lambda: Faulty(fault, rank), **settings).train(10_000)


def different_calls():
    with ddp.group(timeout=TIMEOUT) as group:
        trainer = make(group, "ppo")
        if group.rank == 1:
            trainer.train(64)


def train_on_three_ranks():
    """Train with local environments in mode DISABLED, and a policy with a torch buffer."""
    with ddp.group(timeout=TIMEOUT) as group:
        env = make_vec("CartPole-v1", 2, autoreset_mode="Disabled")
        settings = {"policy": Changing, "n_steps": 16, "batch_size": 24, "runs_dir": None}
        trainer = group.trainer("ppo", env, **settings)
        trainer.train(300)
        config = {"num_envs": trainer.config.num_envs, "timesteps": trainer.timesteps}
        return local_digest(trainer) | config | {"seed": trainer.seed}


def solve(average):
    with ddp.group(timeout=600) as group:
        trainer = group.trainer("ppo", "CartPole-v1", seed=1, runs_dir=None)
        if not average:  # the control negates the gradient on every rank
            mean = trainer.learner.optimizer.average
            trainer.learner.optimizer.average = lambda gradient: -mean(gradient)
        trainer.train(100_000)
        return trainer.evaluate(30)["mean_reward"]


FAULTY = {"num_envs": 2, "n_steps": 64, "batch_size": 32, "runs_dir": None}


class Faulty(gym.Env):
    """Environment that fails in its 70th step on one rank."""

    def __init__(self, fault, rank):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
        self.action_space = gym.spaces.Discrete(2)
        self.fault = fault if os.environ["RANK"] == str(rank) else None
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        signals = {"die": signal.SIGKILL, "stop": signal.SIGSTOP, "interrupt": signal.SIGINT}
        reward = 1.0
        if self.steps == 70 and self.fault is not None:
            if self.fault == "raise":
                raise OSError("the simulator is gone")
            if self.fault == "nan":
                reward = float("nan")
            elif self.fault in signals:
                os.kill(os.getpid(), signals[self.fault])
        return np.zeros(1, np.float32), reward, False, False, {}


class Wide(MlpPolicy):
    """Policy whose width depends on the rank."""

    def __init__(self, *spaces):
        super().__init__(*spaces, net_arch=(8 * (1 + int(os.environ["RANK"])),))


class Changing(MlpPolicy):
    """Policy that changes a torch buffer in forward passes, differently on each rank."""

    def __init__(self, *spaces):
        super().__init__(*spaces)
        self.register_buffer("total", torch.zeros(4))

    def act(self, obs, mask=None):
        self.total += obs.sum(0)
        return super().act(obs, mask)


if __name__ == "__main__":
    train_with_fault(Path(sys.argv[2]), sys.argv[1])
