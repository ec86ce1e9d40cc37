"""What processes that learn together do in tests: `python ddp_runs.py CASE FOLDER`.

Under torchrun, or by processes forked from this one, so that torch is imported once, any cases at
the same time: `python ddp_runs.py forked raise die FOLDER`. What rank 1 says of the first one is in
`raise-1.txt`, at the end its exit status.
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import ddp_unlike
from ddp_processes import SIZES
from resume_runs import digest
from rlox import make_vec
from rlox.distributed import ddp
from rlox.policies import MlpPolicy
from rlox.replaying import ReplayBatch

ON_POLICY = {"num_envs": 4, "n_steps": 16, "normalize_obs": True, "normalize_reward": True}
OFF_POLICY = {"num_envs": 4, "learning_starts": 40, "buffer_size": 200, "batch_size": 16}
SETTINGS = {
    "ppo": ("CartPole-v1", {**ON_POLICY, "batch_size": 16, "n_epochs": 2}),
    "a2c": ("Pendulum-v1", {**ON_POLICY, "normalize_advantage": True}),
    "sac": ("Pendulum-v1", {**OFF_POLICY, "net_arch": (16,), "normalize_obs": True}),
}
STEPS = {"ppo": 128, "a2c": 128, "sac": 64}


class Bad(gym.Env):
    """Does in its third step what it is told by the name of a file, if that is this rank's."""

    def __init__(self, do, rank):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (1,))
        self.action_space = gym.spaces.Discrete(2)
        self.do = do if os.environ["RANK"] == str(rank) else None
        self.made = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.made += 1
        if self.made == 70 and self.do == "raise":
            raise OSError("the simulator is gone")
        if self.made == 70 and self.do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.made == 70 and self.do == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.made == 70 and self.do == "press":
            os.kill(os.getpid(), signal.SIGINT)
        return np.zeros(1, np.float32), float("nan") if self.do == "nan" else 1.0, False, False, {}


def made(group, algorithm, **kwargs):
    env, settings = SETTINGS[algorithm]
    return group.trainer(algorithm, env, seed=3, runs_dir=None, **settings | kwargs)


def rows_of(batch):
    return {name: x.numpy(force=True) for name, x in batch._asdict().items() if x is not None}


def gradients(group, folder):
    """Rollouts that the ranks collect, and the averaged gradients of their losses."""
    for algorithm in ("ppo", "a2c"):
        learner = made(group, algorithm, normalize_obs=False, normalize_reward=False).learner
        with learner.seeded(), learner._own():
            assert learner.collect()
        half = learner.unpacked(learner.rows)
        coef = (0.2,) if algorithm == "ppo" else ()
        # Weights other than those that collected, so that ratios are not all 1.
        with torch.no_grad():
            for i, p in enumerate(learner.policy.parameters()):
                p += 0.03 * torch.randn(p.shape, generator=torch.Generator().manual_seed(i))
        loss = learner.loss(learner.evaluate, half, learner.config, *coef)[0]
        gradient = learner.optimizer.gradient(loss).numpy()
        weights = torch.nn.utils.parameters_to_vector(learner.policy.parameters())
        arrays = {"gradient": gradient, "weights": weights.detach().numpy(), **rows_of(half)}
        np.savez(folder / f"{algorithm}-{group.rank}.npz", **arrays)
    learner = made(group, "sac", normalize_obs=False).learner
    stream = np.random.default_rng(5)
    whole = {
        "obs": stream.normal(size=(16, 3)),
        "actions": stream.uniform(-1, 1, (16, 1)),
        "rewards": stream.normal(size=16),
        "next_obs": stream.normal(size=(16, 3)),
    }
    mine = {n: torch.tensor(x[8 * group.rank :][:8], dtype=torch.float32) for n, x in whole.items()}
    batch = ReplayBatch(**mine, terminated=torch.arange(8) % 3 == 0, discounts=0.9)
    state, seen = learner.generator.get_state(), []
    for optimizer in learner.optimizers:
        optimizer.step = lambda gradient, rate: seen.append(gradient.numpy().copy())
    learner.update(batch, 1e-3)
    arrays = {"critic": seen[0], "actor": seen[1], "alpha": seen[2], "generator": state.numpy()}
    parameters = {n: x.numpy() for n, x in learner.modules.state_dict().items()}
    names = {"terminated": batch.terminated.numpy(), **{n: x.numpy() for n, x in mine.items()}}
    np.savez(folder / f"sac-{group.rank}.npz", **arrays, **parameters, **names)


def statistics(group, folder):
    """What normalisers have seen, and hold."""
    trainer = made(group, "ppo")
    learner = trainer.learner
    step = learner.env.step_rollout
    seen = []
    begin = learner.env.begin_rollout

    def noting_begin(*args):
        begin(*args)
        if not seen:
            seen.append(learner.env.get_state()["states"][:, :4].astype(np.float32))

    def noting(*args):
        step(*args)
        seen.append(learner.env.get_state()["states"][:, :4].astype(np.float32))

    learner.env.begin_rollout, learner.env.step_rollout = noting_begin, noting
    trainer.train(256)
    raw = {"raw": np.concatenate(seen)}
    np.savez(folder / f"statistics-{group.rank}.npz", **raw, **learner.normalizer.state())


def resumed(group, folder, algorithm):
    """A run that is saved half way and goes on, and one that is not."""
    steps = STEPS[algorithm]
    straight = made(group, algorithm)
    straight.train(2 * steps)
    first = made(group, algorithm)
    saved = folder / f"{algorithm}-saved"

    def save(trainer, metrics):
        if trainer.timesteps == steps:
            trainer.save(saved)

    result = first.train(2 * steps, callbacks=[save])
    again = group.load(saved, runs_dir=None)
    assert again.timesteps == steps, again.timesteps
    again.train()
    told = [own_digest(trainer) for trainer in (straight, first, again)]
    return {"digests": told, "result": result, "timesteps": again.timesteps}


def own_digest(trainer):
    """What a rank holds; rank 0's learner would ask the others."""
    leads, trainer.learner.ranks.leads = trainer.learner.ranks.leads, False
    try:
        return digest(trainer)
    finally:
        trainer.learner.ranks.leads = leads


def refusals(group):
    """What is refused on every rank alike, before anything is made."""
    said, cases = (
        {},
        {
            "num_envs": {"num_envs": 3},
            "batch_size": {"num_envs": 4, "batch_size": 33, "n_steps": 32},
            "backend": {"backend": "native"},
            "setting": {"num_env": 4},
        },
    )

    def asked(**kwargs):
        return group.trainer("ppo", "CartPole-v1", runs_dir=None, **kwargs)

    calls = {name: partial(asked, **kwargs) for name, kwargs in cases.items()} | {
        "algorithm": lambda: group.trainer("dqn", "CartPole-v1"),
        "next_step": lambda: group.trainer(
            "ppo", gym.make_vec("CartPole-v1", 1, vectorization_mode="sync"), runs_dir=None
        ),
        "steps": lambda: made(group, "ppo").train(0),
        "second": lambda: ddp.group().__enter__(),
    }
    for name, call in calls.items():
        with pytest.raises((TypeError, ValueError, RuntimeError)) as refused:
            call()
        said[name] = f"{type(refused.value).__name__}: {refused.value}"
    return said


def stops(group):
    """A callback of rank 0 stops all, and so does Ctrl-C on rank 1, in its environment."""
    trainer = made(group, "ppo")
    told = trainer.train(10_000, callbacks=[lambda t, m: t.stop("enough")])
    pressed = group.trainer(
        "ppo", lambda: Bad("press", 1), num_envs=2, n_steps=64, batch_size=32, runs_dir=None
    )
    began = time.monotonic()
    interrupted = pressed.train(10_000_000)
    assert time.monotonic() - began < 30
    kl = made(group, "ppo", target_kl=1e-9, n_epochs=4, learning_rate=0.01)
    kl.train(64)
    return {"told": told, "interrupted": interrupted, "updates": kl.learner.optimizer.steps}


def checks(folder):
    with ddp.group(timeout=60) as group:
        gradients(group, folder)
        statistics(group, folder)
        said = {algorithm: resumed(group, folder, algorithm) for algorithm in SETTINGS}
        said["refusals"], said["stops"] = refusals(group), stops(group)
        trainer = group.trainer("ppo", "CartPole-v1", seed=4, runs_dir=folder / "runs", num_envs=8)
        said["run"] = trainer.train(512)
        said["evaluated"] = trainer.evaluate(2)
        said["seed"], said["whole"] = trainer.seed, trainer.config.num_envs
        if group.rank == 0:
            trainer.save(folder / "alone")  # the other one serves it where it leaves
        (folder / f"said-{group.rank}.json").write_text(json.dumps(said))


def fault(folder, what, rank=1):
    with ddp.group(timeout=60) as group:
        about = {"runs_dir": folder / what, "normalize_obs": True}
        trainer = group.trainer(
            "ppo", lambda: Bad(what, rank), num_envs=2, n_steps=64, batch_size=32, **about
        )
        trainer.train(10_000)


def differently(folder):
    with ddp.group(timeout=60) as group:
        trainer = made(group, "ppo")
        if group.rank == 1:
            trainer.train(64)


class Changing(MlpPolicy):
    """Notes what it sees in a buffer, as batch norms do: on each rank something else."""

    def __init__(self, *spaces):
        super().__init__(*spaces)
        self.register_buffer("seen", torch.zeros(4))

    def act(self, obs, mask=None):
        self.seen += obs.sum(0)
        return super().act(obs, mask)


def three(folder):
    """Environments of each rank's own, which somebody resets, and a policy with a buffer."""
    with ddp.group(timeout=60) as group:
        env = make_vec("CartPole-v1", 2, autoreset_mode="Disabled")
        how = {"n_steps": 16, "batch_size": 24, "runs_dir": None}
        trainer = group.trainer("ppo", env, policy=Changing, **how)
        trainer.train(300)
        told = own_digest(trainer) | {"num_envs": trainer.config.num_envs, "seed": trainer.seed}
        told["timesteps"] = trainer.timesteps
        (folder / f"three-{group.rank}.json").write_text(json.dumps(told))


def solve(folder, average):
    with ddp.group() as group:
        trainer = group.trainer("ppo", "CartPole-v1", seed=1, runs_dir=None)
        if not average:  # the control: everybody learns the opposite
            mean = trainer.learner.optimizer.average
            trainer.learner.optimizer.average = lambda gradient: -mean(gradient)
        trainer.train(100_000)
        if group.rank == 0:
            score = trainer.evaluate(30)
            (folder / f"score-{average}.json").write_text(json.dumps(score))


CASES = {
    "checks": checks,
    "differently": differently,
    "three": three,
    "solve": lambda folder: solve(folder, True),
    "control": lambda folder: solve(folder, False),
    "lead": lambda folder: fault(folder / "lead", "raise", 0),
    **{what: partial(fault, what=what) for what in ("raise", "die", "stop", "nan")},
    **ddp_unlike.CASES,
}


def forked(cases, folder):
    """Has processes do each of the cases, all at the same time."""
    children = []
    for case in cases:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = str(free.getsockname()[1])
        size = SIZES.get(case, 2)
        for rank in range(size):
            if (child := os.fork()) == 0:
                about = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
                os.environ.update({name: str(x) for name, x in about.items()})
                os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=port)
                file = os.open(folder / f"{case}-{rank}.txt", os.O_WRONLY | os.O_CREAT)
                os.dup2(file, 2)
                if case not in ("solve", "control"):
                    faulthandler.dump_traceback_later(60, exit=True)
                CASES[case](folder)
                return
            children.append((child, folder / f"{case}-{rank}.txt"))
    for child, file in children:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with file.open("a") as said:
            said.write(f"exit status {status}\n")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    *words, folder = sys.argv[1:]
    if words[0] == "forked":
        forked(words[1:], Path(folder))
    else:
        faulthandler.dump_traceback_later(100, exit=True)
        CASES[words[0]](Path(folder))
