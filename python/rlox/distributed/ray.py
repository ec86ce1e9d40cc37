"""Rollouts and runs on a Ray cluster, by its own scheduling and object store.

`actors="ray"` has the actors of IMPALA, and of PPO and A2C with `async_collect=True`, work there;
`train_many` trains seeds and settings there. Both use the cluster that the program is connected to
(`ray.init`), or that `RAY_ADDRESS` names, else a local one that is started.
"""

from collections.abc import Generator, Iterable, Sequence
from typing import Any

from rlox.distributed.ray_actors import LOOK, cause_of, connect
from rlox.interrupt import Group
from rlox.many import together
from rlox.many.job import Came, Job
from rlox.results import TrainResult
from rlox.trainer import EnvLike, Trainer


def train_many(
    algorithm: str | type[Trainer],
    env: EnvLike,
    seeds: Iterable[int],
    total_timesteps: int,
    *,
    tell: together.Tell | None = None,
    **common: Any,
) -> list[TrainResult]:
    """`rlox.train_many` on a cluster: every run is a task of Ray, which a CPU of it works on.

    Where a machine dies, Ray begins its runs anew on others. Folders of runs are on the machine
    that trains, so that `runs_dir` is best one that all of them share. Ctrl-C ends all runs.

    Args:
        algorithm, env, seeds, total_timesteps, tell, **common: As for `rlox.train_many`, but
            `workers` and `processes`.

    Returns:
        A result for each run, in the order of the settings and their seeds.

    Raises:
        ModuleNotFoundError: Ray is not installed.
            What `rlox.train_many` raises.

    Example:
        >>> from rlox.distributed import ray  # doctest: +SKIP
        >>> results = ray.train_many("ppo", "CartPole-v1", range(10), 100_000)  # doctest: +SKIP
    """
    for name in ("workers", "processes"):
        if name in common:
            raise TypeError(
                f"train_many has no argument {name!r} on a cluster, which decides it; leave it out"
            )
    connect()
    asked = together.runs(
        algorithm, env, seeds, total_timesteps, processes=True, every=_in_tasks, **common
    )
    return asked.train(tell)


def _train(job: Job) -> TrainResult:
    return job.train()


def _in_tasks(
    jobs: Sequence[Job], workers: int, group: Group
) -> Generator[tuple[int, Came], None, None]:
    """Runs as tasks, and gives each that has ended, by its number. Ray has the others wait."""
    ray = connect()
    task = ray.remote(num_cpus=1)(_train)
    left = {task.remote(job): number for number, job in enumerate(jobs)}

    def cancel() -> None:
        for ref in list(left):
            ray.cancel(ref)

    try:
        with group.going_on(cancel):
            while left:
                done, _ = ray.wait(list(left), timeout=LOOK)
                for ref in done:
                    number = left.pop(ref)
                    try:
                        came: Came = ray.get(ref)
                    except ray.exceptions.TaskCancelledError:
                        continue
                    except ray.exceptions.RayTaskError as error:
                        came = cause_of(error)
                    except ray.exceptions.RayError as error:
                        came = error
                    yield number, came
    finally:
        for ref in left:  # where who asked does not go on
            ray.cancel(ref, force=True)
