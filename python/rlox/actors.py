"""`Actors`: native environments stepped in threads while a learner learns."""

from typing import Any, NamedTuple

import numpy as np

from rlox import native_shapes, spaces
from rlox._rlox import NativeActors, NativePolicy, Normalizer, RolloutBuffer
from rlox.backends import torch_needs
from rlox.layouts import Layout
from rlox.learner import Arrays, EpisodeStatistics
from rlox.masks import mask_width
from rlox.rollout import RolloutEnv, make_buffer
from rlox.streams import state_for_native, to_numpy
from rlox.vec_env import VecEnv

INEXACT = (
    "actors collect ahead of the learner: rollouts under way are not saved; "
    "lockstep=True with max_lag=0 goes on exactly"
)


def in_turn(config: Any) -> bool:
    """Whether one thread collects and learns, by turns: there are no actors then.

    >>> from rlox.configs import A2CConfig, IMPALAConfig
    >>> in_turn(A2CConfig()), in_turn(A2CConfig(async_collect=True)), in_turn(IMPALAConfig())
    (True, False, False)
    >>> in_turn(IMPALAConfig(lockstep=True, max_lag=0))
    True
    """
    if not getattr(config, "async_collect", hasattr(config, "num_actors")):
        return True
    return bool(config.lockstep) and config.max_lag == 0 and config.num_actors == 1


def gae_lambda(config: Any) -> float:
    """Of the advantages that are estimated while collecting; IMPALA estimates its own later."""
    return float(getattr(config, "gae_lambda", 1.0))


# What networks in Rust must be able to do for actors to have copies of a policy's weights.
_COPIED = (
    "policy",
    "features_extractor",
    "observation space",
    "activation",
    "full_std",
    "net_arch",
)


def expect_actors(
    env: RolloutEnv, config: Any, policy: object = None, features_extractor: object = None
) -> None:
    """Actors in threads can step these environments with copies of such a policy.

    Raises:
        ValueError: They cannot; actor and learner may take turns then.
    """
    turns = "set lockstep=True, max_lag=0 and num_actors=1: actor and learner take turns then"
    if not isinstance(env, VecEnv):
        raise ValueError(
            "env: expected native environments, which actors step in threads, got "
            f"{type(env).__name__}; {turns}"
        )
    space = env.single_observation_space
    for need in torch_needs(config, space, policy, features_extractor):
        if need.name in _COPIED:
            raise ValueError(
                f"{need.name}: expected {need.expected} where actors in threads have copies of "
                f"the policy, got {need.got}; {turns}"
            )
    if env.has_action_masks != config.action_masks:
        has = "masks" if env.has_action_masks else "none"
        raise ValueError(
            f"action_masks: expected {env.has_action_masks} where actors collect, as the "
            f"environments have {has}, got {config.action_masks}; set it so"
        )
    if (config.normalize_obs or config.normalize_reward) and config.num_actors > 1:
        raise ValueError(
            "num_actors: expected 1 beside normalize_obs or normalize_reward, as each actor would "
            f"have statistics of its own, got {config.num_actors}; take one, or normalise in a "
            "wrapper"
        )


def _alike(env: VecEnv, n: int) -> VecEnv:
    """`n` environments of the same id, mode and arguments."""
    return VecEnv(n, autoreset_mode=env.metadata["autoreset_mode"], **env._made)


def blank_policy(env: RolloutEnv, config: Any) -> NativePolicy:
    """A policy of the shape that the config says, whose weights are to be replaced."""
    observed = native_shapes.observed(Layout(env.single_observation_space))
    counted = spaces.to_native(env.single_action_space)
    words = state_for_native(np.random.default_rng(0))
    return NativePolicy(observed, counted, words, native_shapes.shape(config), "native")


class Taken(NamedTuple):
    """A rollout to learn from."""

    buffer: int  # its number
    lag: int  # how many updates its policy is behind
    seed: int  # that was drawn for its iteration
    num_envs: int  # that were stepped for it


class Actors:
    """Threads, the environments and policies they work with, and the ring of rollouts they fill.

    Args:
        env: The learner's native environments; a single actor steps these, several have their own.
        config: Has `num_actors`, `max_lag` and `lockstep` beside the settings of rollouts.
        weights: The learner's policy on native networks, with the weights to begin with.
        normalizer: The learner's.
        seed: Of the first environment; None: they go on where they stand.
        stream: Where each rollout's seed comes from.

    Raises:
        MemoryError: They do not fit into memory.
    """

    def __init__(
        self,
        env: VecEnv,
        config: Any,
        weights: NativePolicy,
        normalizer: Normalizer | None,
        seed: int,
        stream: np.random.Generator,
    ) -> None:
        count, each = config.num_actors, config.num_envs // config.num_actors
        self.envs = [env] if count == 1 else [_alike(env, each) for _ in range(count)]
        self.num_envs = each
        lag = count if config.max_lag is None else config.max_lag
        width = mask_width(env.single_action_space) if config.action_masks else None
        normal = config.normalize_obs
        self.buffers: list[RolloutBuffer] = [
            make_buffer(self.envs[0], config.n_steps, normalize_obs=normal, mask_width=width)
            for _ in range(lag + 1)
        ]
        for i, one in enumerate(self.envs):
            one.drain_episodes()
            one.begin_rollout(self.buffers[0], normalizer, seed + i * each)
        made = [blank_policy(env, config) for _ in range(count)]
        self._native = NativeActors(
            [one._native for one in self.envs],
            made,
            self.buffers,
            weights,
            state_for_native(stream),
            normalizer,
            lag,
            config.lockstep,
            config.gamma,
            gae_lambda(config),
            max(config.sde_sample_freq, 0),
        )

    def next(self, policy: NativePolicy, episodes: EpisodeStatistics) -> Taken | None:
        """The next rollout; None where `policy.stopping` is set.

        Raises:
            Whatever an actor failed of; all have ended then.
        """
        told = self._native.next(policy)
        if told is None:
            return None
        number, _, lag, seed, returns, lengths, dropped = told
        episodes.add(returns, lengths)
        episodes.count += dropped
        return Taken(number, lag, seed, self.num_envs)

    def publish(self, policy: NativePolicy) -> None:
        """The rollout was learned from: actors act with this policy from here on."""
        self._native.publish(policy)

    def publish_tensors(self, tensors: Arrays) -> None:
        """As `publish`, of weights by name."""
        self._native.publish_tensors(tensors)

    def stream(self) -> np.random.Generator:
        """Where the next rollout's seed comes from."""
        return to_numpy(self._native.stream())

    def metrics(self) -> dict[str, float]:
        """How long learner and actors have waited so far, in seconds; those of all actors."""
        stats = self._native.stats()
        return {f"time/{name}": stats[name] for name in ("learner_waited", "actors_waited")}

    def close(self) -> None:
        """Ends the threads."""
        self._native.close()
