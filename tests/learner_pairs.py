"""Learners on networks in Rust and on torch, which are to compute the same."""

import numpy as np

from rlox import make_vec
from rlox.algorithms import A2C, PPO, A2CConfig, PPOConfig
from rlox.native import NativeA2C, NativePPO


def pair(algorithm, env, backend="native", **settings):
    """A learner in Rust and one on torch with the same weights, and a rollout in both buffers."""
    make, other, config = {
        "ppo": (NativePPO, PPO, PPOConfig),
        "a2c": (NativeA2C, A2C, A2CConfig),
    }[algorithm]
    chosen = config(num_envs=3, n_steps=11, **settings)
    native = make(make_vec(env, 3), chosen, 5, backend)
    theirs = other(make_vec(env, 3), chosen, seed=5)
    theirs.policy.load_state_dict(native.to_torch().state_dict())
    with theirs.seeded():
        assert theirs.collect()
    assert native.collect()
    for name in ("obs", "actions", "log_probs", "values", "advantages", "returns", "valid"):
        getattr(native.buffer, name)[...] = getattr(theirs.buffer, name)
    # Other advantages and old values than the policy's own, so that something is clipped.
    rng = np.random.default_rng(0)
    for name in ("log_probs", "values", "advantages", "returns"):
        noise = rng.normal(0, 0.3, (11, 3)).astype(np.float32)
        for learner in (native, theirs):
            getattr(learner.buffer, name)[...] += noise
    if algorithm == "a2c":  # whose torch learner tells the values from these two
        for learner in (native, theirs):
            learner.buffer.values[...] = learner.buffer.returns - learner.buffer.advantages
    return native, theirs
