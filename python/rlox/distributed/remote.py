"""Environments and actors in gRPC workers, which `rlox worker` starts on other machines.

`RemoteVecEnv` steps environments in workers. With `actors="grpc://host:port,host:port"` (`grpcs://` for TLS, timeouts
as in `?reply_timeout=60`), workers collect whole rollouts for IMPALA, and for PPO and A2C with `async_collect=True`. If
a worker is lost, another worker (or the same worker when it is back) repeats the lost work. The trajectories equal
those of local environments with the same seeds, and no transition is lost or duplicated.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rlox import _rlox
from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._rlox import NativePolicy, NativeVectorEnv
from rlox._rng import state_for_native
from rlox._types import Arrays
from rlox._validation import check_int, resolve_seed, short_repr, worker_addresses
from rlox.configs import OnPolicyConfig
from rlox.envs.vec_env import VecEnv
from rlox.learners._actors import Actors, as_policy, max_staleness_of, ring

__all__ = ["RemoteVecEnv"]

# Environment variables with the token, the CA certificate file and the TLS domain of workers.
TOKEN, CA, DOMAIN = "RLOX_WORKER_TOKEN", "RLOX_WORKER_CA", "RLOX_WORKER_DOMAIN"


def load_extension() -> ModuleType:
    """Return the extension module after a check that it supports gRPC workers.

    Raises:
        ModuleNotFoundError: The extension was built without the feature grpc.
    """
    if not hasattr(_rlox, "remote_env"):
        raise ModuleNotFoundError(
            "rlox.distributed.remote: the extension was built without the feature grpc; build it "
            "with: --features pyo3/abi3-py310,grpc"
        )
    return _rlox


def make_connection_options(
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_domain: str | None = None,
    **waits: float,
) -> dict[str, Any]:
    """Return connection options for the extension; None is replaced by an environment variable.

    Raises:
        OSError: The certificate file cannot be read.
        ArgumentError: The certificate file has no PEM certificate.
    """
    path = os.environ.get(CA) if tls_ca is None else tls_ca
    certificate = None if path is None else Path(path).read_bytes()
    if certificate is not None and b"-----BEGIN CERTIFICATE-----" not in certificate:
        raise ArgumentError(
            "tls_ca",
            "a file with a PEM certificate",
            f"{str(path)!r} without one",
            "pass the certificate of the CA that signed the workers' certificates",
        )
    return {
        "token": os.environ.get(TOKEN) if token is None else token,
        "tls_ca": None if certificate is None else certificate.decode("ascii", "replace"),
        "tls_domain": os.environ.get(DOMAIN) if tls_domain is None else tls_domain,
        **waits,
    }


class RemoteVecEnv(VecEnv):
    """Vector environment whose native environments are stepped by gRPC workers.

    The workers share the environments evenly, and step them at the same time. The client stores
    snapshots of the environments and the requests since the last snapshot. If a worker is lost,
    another worker restores the snapshot and repeats the requests.

    Args:
        addresses: Addresses of workers: "host:port", or "https://host:port" with TLS.
        n: Number of environments.
        seed: Seed of the first environment; environment i has seed + i. None draws a random seed.
        env_id: Id of a native environment.
        token: Token of workers that require one. None: `RLOX_WORKER_TOKEN`.
        tls_ca: PEM file with the certificate of the CA that signed the workers' certificates. None: `RLOX_WORKER_CA`.
        tls_domain: Name in the workers' certificates if it differs from the address. None: `RLOX_WORKER_DOMAIN`.
        connect_timeout: Seconds until a connection attempt fails. The first connection is retried for the same time.
        keepalive_timeout: Seconds without any message until a worker counts as lost. Must exceed
            the time to send the policy's weights, which delay keepalive messages.
        reply_timeout: Seconds without a reply until a worker counts as lost.
        recovery_timeout: Seconds to replace all workers that are lost during one call.
        snapshot_every: Number of steps between two snapshots.
        **kwargs: As for `rlox.VecEnv`: `autoreset_mode`, `max_episode_steps` and keywords of the environment.

    Raises:
        ArgumentTypeError: `addresses` is not a list of str; also as for `VecEnv`.
        ArgumentError: There are more workers than environments, an address is invalid, or the
            token, protocol or environments of a worker differ; also as for `VecEnv`.
        RuntimeError: A worker does not answer. The message contains the address.
        ModuleNotFoundError: The extension was built without the feature grpc.
        OSError: The file `tls_ca` cannot be read.

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
        options = make_connection_options(
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
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if not is_list or not all(isinstance(address, str) for address in addresses):
            raise ArgumentTypeError(
                "addresses",
                "a list of worker addresses (str)",
                short_repr(addresses),
                'pass a list such as ["127.0.0.1:50051"]',
            )
        self.addresses = [x if "://" in x else f"http://{x}" for x in addresses]
        remote_env = load_extension().remote_env

        def make(
            env_id: str, n: int, seed: int, mode: str, limit: int | None, kwargs: object, _name: str
        ) -> NativeVectorEnv:
            native: NativeVectorEnv
            native, self._faults = remote_env(
                self.addresses,
                env_id,
                n=n,
                seed=seed,
                autoreset_mode=mode,
                max_episode_steps=limit,
                kwargs=kwargs,
                client_options=options,
            )
            return native

        self._kind = make
        super().__init__(n, resolve_seed(seed), env_id, **kwargs)

    def faults(self) -> dict[str, float]:
        """Return counts of lost and recovered sessions, each with one worker.

        Returns:
            "lost": number of lost sessions; "restarted": number of sessions that another worker continued; "replayed":
            number of repeated requests; "longest": seconds of the longest recovery.
        """
        faults: dict[str, float] = self._faults()
        return faults


def start_remote_actors(
    env: VecEnv, config: OnPolicyConfig, weights: NativePolicy | Arrays, seed: int, stream: np.random.Generator
) -> Actors:
    """Start actors whose environments and policies run in gRPC workers.

    Args:
        env: Environments of the learner; the workers create the same kind.
        config: Settings of the learner; `actors` has the addresses and timeouts of the workers.
        weights: Initial weights of the policy, which uses native networks.
        seed: Seed of the first environment.
        stream: Random stream from which the seed of each rollout is drawn.

    Raises:
        ArgumentError: A worker rejects the environments or the policy.
        RuntimeError: A worker does not answer.
    """
    buffers = ring(env, config)
    arguments = dict(env._init_kwargs)
    workers = worker_addresses(config.actors)
    assert workers is not None, "the configuration has been checked"
    addresses, waits = workers
    native, faults = load_extension().remote_actors(
        addresses,
        arguments.pop("env_id"),
        num_actors=config.num_actors,
        env=env._native,
        buffers=buffers,
        weights=as_policy(env, config, weights),
        seed=seed,
        stream=state_for_native(stream),
        max_staleness=max_staleness_of(config),
        deterministic=config.deterministic,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        sde_sample_freq=max(config.sde_sample_freq, 0),
        autoreset_mode=env.metadata["autoreset_mode"].value,
        max_episode_steps=arguments.pop("max_episode_steps"),
        kwargs=arguments,
        client_options=make_connection_options() | waits,
    )
    return Actors(native, buffers, faults=faults)
