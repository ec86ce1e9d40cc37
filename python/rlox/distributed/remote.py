"""Environments and actors of workers on other machines, which the program `rlox worker` is.

`RemoteVecEnv` steps environments there; `actors="grpc://host:port,host:port"` (`grpcs://` with TLS;
behind it waits, such as `?reply_timeout=60`) has workers collect whole rollouts for IMPALA, and for
PPO and A2C with `async_collect=True`. Where a worker is lost, another one, or the same when it is
back, does again what was lost: the same seeds give the same trajectories as here, and no transition
is lost or doubled.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlox import _rlox
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._rlox import NativePolicy
from rlox._rng import state_for_native
from rlox._types import Arrays
from rlox._validation import check_int, short_repr, worker_addresses
from rlox.envs.vec_env import VecEnv
from rlox.learners._actors import Actors, as_policy, gae_lambda, lag_bound, ring

# What clients of workers beyond this machine are told by: the token, and who signed certificates.
TOKEN, CA, DOMAIN = "RLOX_WORKER_TOKEN", "RLOX_WORKER_CA", "RLOX_WORKER_DOMAIN"


def load_extension() -> Any:
    """The extension, with what workers need.

    Raises:
        ModuleNotFoundError: It was built without.
    """
    if not hasattr(_rlox, "remote_env"):
        raise ModuleNotFoundError(
            "rlox.distributed.remote: expected an extension that was built with the feature grpc, "
            "got one without; build it with: --features pyo3/abi3-py310,grpc"
        )
    return _rlox


def make_connection_options(
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_domain: str | None = None,
    **waits: float,
) -> dict[str, Any]:
    """How workers are reached, as the extension takes it; what is None, environment variables say.

    Raises:
        OSError: The file of the certificate cannot be read.
        ValueError: It holds none.
    """
    path = os.environ.get(CA) if tls_ca is None else tls_ca
    signer = None if path is None else Path(path).read_bytes()
    if signer is not None and b"-----BEGIN CERTIFICATE-----" not in signer:
        raise ArgumentError(
            "tls_ca",
            "a file with a certificate as PEM",
            f"{str(path)!r} without",
            "pass that of who signed the workers' certificates",
        )
    return {
        "token": os.environ.get(TOKEN) if token is None else token,
        "tls_ca": None if signer is None else signer.decode("ascii", "replace"),
        "tls_domain": os.environ.get(DOMAIN) if tls_domain is None else tls_domain,
        **waits,
    }


class RemoteVecEnv(VecEnv):
    """Native environments that workers step, as if they were here.

    They are shared evenly over the workers. A step is sent to all before any is waited for. The
    client keeps where they stood at most `snapshot_every` steps ago and what was done since: with
    that, another worker goes on where one was lost.

    Args:
        addresses: Of workers, "host:port", or "https://host:port" for those that speak TLS.
        n: How many environments.
        seed: Of the first: environment i has seed + i. None takes one from the system.
        env_id: The id of a native environment.
        token: What workers ask for that were started with one. None: `RLOX_WORKER_TOKEN`.
        tls_ca: A file with the certificate (PEM) of who signed theirs. None: `RLOX_WORKER_CA`.
        tls_domain: The name in their certificates, where it is not that of the address. None:
            `RLOX_WORKER_DOMAIN`.
        connect_timeout: Seconds that a connection may take; the first is tried again for so long.
        keepalive_timeout: Seconds without a word from a worker after which it counts as lost. More
            than it takes to send the policy's weights, which the question waits for.
        reply_timeout: Seconds that an answer may take, after which a worker counts as lost.
        recovery_timeout: Seconds that it is tried to go on elsewhere, all lost workers together.
        snapshot_every: Steps between two snapshots.
        **kwargs: As for `rlox.VecEnv`: `autoreset_mode`, `max_episode_steps`, and the environment's
            own.

    Raises:
        ValueError: As for `VecEnv`; more workers than environments, an address that is none, a
            worker with another token, protocol, or other environments.
        RuntimeError: A worker that does not answer; the message names it.
        ModuleNotFoundError: The extension was built without the feature grpc.

    Example:
        >>> env = RemoteVecEnv(["127.0.0.1:50051"], 8, seed=1)  # doctest: +SKIP
    """

    def __init__(
        self,
        addresses: Sequence[str],
        n: int = 1,
        seed: int | None = None,
        env_id: str = "CartPole-v1",
        *,
        token: str | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_domain: str | None = None,
        connect_timeout: float = 5.0,
        keepalive_timeout: float = 0.9,
        reply_timeout: float = 30.0,
        recovery_timeout: float = 30.0,
        snapshot_every: int = 64,
        **kwargs: Any,
    ) -> None:
        reach = make_connection_options(
            token,
            tls_ca,
            tls_domain,
            connect_timeout=connect_timeout,
            keepalive_timeout=keepalive_timeout,
            reply_timeout=reply_timeout,
            recovery_timeout=recovery_timeout,
            snapshot_every=check_int("snapshot_every", snapshot_every, 1),
        )
        value: object = addresses
        listed = isinstance(value, Sequence) and not isinstance(value, str)
        if not listed or not all(isinstance(one, str) for one in addresses):
            raise ArgumentTypeError(
                "addresses",
                "a list of workers' addresses",
                short_repr(addresses),
                'pass for example ["127.0.0.1:50051"]',
            )
        self.addresses = [one if "://" in one else f"http://{one}" for one in addresses]
        remote_env = load_extension().remote_env

        def make(
            env_id: str, n: int, seed: int, mode: str, limit: int | None, kwargs: Any, _name: str
        ) -> Any:
            native, self._faults = remote_env(
                self.addresses,
                env_id,
                n=n,
                seed=seed,
                autoreset_mode=mode,
                max_episode_steps=limit,
                kwargs=kwargs,
                reach=reach,
            )
            return native

        self._kind = make
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        super().__init__(n, seed, env_id, **kwargs)

    def faults(self) -> dict[str, float]:
        """What went wrong with workers so far, and was made good.

        Returns:
            "lost", sessions; "recovered", those that went on elsewhere; "replayed", requests made
            again for it; "longest", the seconds of the longest recovery.
        """
        faults: dict[str, float] = self._faults()
        return faults


def start_remote_actors(
    env: VecEnv, config: Any, weights: NativePolicy | Arrays, seed: int, stream: np.random.Generator
) -> Actors:
    """Actors whose environments and policies are workers'.

    Args:
        env: The learner's, of whose kind theirs are.
        config: `actors` names the workers, and how long they are waited for; it has `num_actors`,
            `max_lag` and `lockstep` beside the settings of rollouts.
        weights: To begin with, of a policy on native networks.
        seed: Of the first environment.
        stream: Where each rollout's seed comes from.

    Raises:
        ValueError: What workers refuse.
        RuntimeError: One that does not answer.
    """
    buffers = ring(env, config)
    arguments = dict(env._init_kwargs)
    named = worker_addresses(config.actors)
    assert named is not None, "the configuration has been checked"
    addresses, waits = named
    native, faults = load_extension().remote_actors(
        addresses,
        arguments.pop("env_id"),
        num_actors=config.num_actors,
        env=env._native,
        buffers=buffers,
        weights=as_policy(env, config, weights),
        seed=seed,
        stream=state_for_native(stream),
        max_lag=lag_bound(config),
        lockstep=config.lockstep,
        gamma=config.gamma,
        gae_lambda=gae_lambda(config),
        sde_sample_freq=max(config.sde_sample_freq, 0),
        autoreset_mode=env.metadata["autoreset_mode"].value,
        max_episode_steps=arguments.pop("max_episode_steps"),
        kwargs=arguments,
        reach=make_connection_options() | waits,
    )
    return Actors(native, buffers, faults=faults)
