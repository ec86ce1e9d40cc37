"""What processes that are to learn together, but have not the same, do in tests; see ddp_runs."""

import json
import os
import signal
import time

import pytest

from rlox import make_vec
from rlox.distributed import ddp, groups
from rlox.logger import versions
from rlox.policies import MlpPolicy

SMALL = {"num_envs": 4, "n_steps": 16, "batch_size": 16, "n_epochs": 10, "runs_dir": None}


class Wide(MlpPolicy):
    """As many hidden units as its rank says."""

    def __init__(self, *spaces):
        super().__init__(*spaces, net_arch=(8 * (1 + int(os.environ["RANK"])),))


def unlike(folder):
    """What is said where something differs by rank, and that what may differ does."""
    with ddp.group(timeout=60) as group:
        rank = group.rank

        def asked(algorithm="ppo", env="CartPole-v1", **kwargs):
            return group.trainer(algorithm, env, **SMALL | kwargs)

        other = ("CartPole-v1", "Acrobot-v1")[rank]
        trainer = asked(seed=rank, env_kwargs={"render_mode": (None, "rgb_array")[rank]})
        trainer.train(64)
        if rank == 0:
            trainer.save(folder / "early")
        trainer.train(64)
        if rank == 0:
            trainer.save(folder / "late")
        calls = {
            "setting": lambda: asked(n_steps=(16, 32)[rank]),
            "settings": lambda: asked(n_steps=(16, 32)[rank], gamma=(0.9, 0.99)[rank]),
            "refused": lambda: asked(**({"gamma": 2.0} if rank else {})),
            "unknown": lambda: asked(**({} if rank else {"num_env": 4})),
            "backend": lambda: asked(backend=("torch", "native")[rank]),
            "algorithm": lambda: asked(**{} if rank else {"algorithm": "sac", "n_steps": 5}),
            "env": lambda: asked(env=other),
            "made": lambda: asked(env=make_vec("CartPole-v1", 4) if rank else "CartPole-v1"),
            "spaces": lambda: group.trainer("a2c", make_vec(other, 2), n_steps=8, runs_dir=None),
            "policy": lambda: asked(policy=Wide),
            "steps": lambda: trainer.train((64, 128)[rank]),
            "checkpoint": lambda: group.load(folder / ("early", "late")[rank], runs_dir=None),
        }
        said = {"seed": trainer.seed}
        for name, call in calls.items():
            with pytest.raises((TypeError, ValueError)) as refused:
                call()
            said[name] = f"{type(refused.value).__name__}: {refused.value}"
        (folder / f"unlike-{rank}.json").write_text(json.dumps(said))


def sizes(folder):
    """One of two processes was told of three."""
    if os.environ["RANK"] == "1":
        os.environ["WORLD_SIZE"] = "3"
    began = time.monotonic()
    try:
        ddp.group(timeout=60).__enter__()
    finally:
        (folder / f"sizes-{os.environ['RANK']}.json").write_text(str(time.monotonic() - began))


def version(folder):
    """They have other versions of the package."""
    if os.environ["RANK"] == "1":
        groups.versions = lambda: {**versions(), "rlox": "0.0.1", "numpy": "1.0"}
    ddp.group(timeout=60).__enter__()


def absent(folder):
    """The other one does not come."""
    if os.environ["RANK"] == "1":
        time.sleep(4)
        return
    ddp.group(timeout=2).__enter__()


def in_gradients(folder, what):
    """Rank 1 fails where rank 0 is in the all-reduce of a gradient, which it looks at as NCCL's."""
    with ddp.group(timeout=60) as group:
        trainer = group.trainer("ppo", "CartPole-v1", **SMALL | {"runs_dir": folder / what})
        ranks, sums = group.ranks, []
        ranks.looks, plain = True, ranks.sum_

        def sum_(gradient):
            sums.append(0)
            # Four minibatches of an iteration in each of 10 epochs: in the middle of the second.
            if group.rank == 1 and len(sums) == 60:
                time.sleep(0.5)  # the other one is there
                if what == "gradient-die":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError("the gradient is gone")
            return plain(gradient)

        ranks.sum_ = sum_
        trainer.train(10_000)


CASES = {
    "unlike": unlike,
    "sizes": sizes,
    "version": version,
    "absent": absent,
    "gradient-die": lambda folder: in_gradients(folder, "gradient-die"),
    "gradient-raise": lambda folder: in_gradients(folder, "gradient-raise"),
}
