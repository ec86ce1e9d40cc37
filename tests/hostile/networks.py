"""Calls of native networks, agents and their learners."""

import os
from functools import partial

import numpy as np

import rlox
from hostile.arguments import booleans, duration, floats, instance, mapping, none, optional, without
from hostile.table import Subject, call
from rlox._rlox import NativeActors, NativeAgent, NativePolicy, write_rollout
from rlox._rng import state_for_native
from rlox.configs import A2CConfig, DQNConfig, IMPALAConfig, PPOConfig, SACConfig, TD3Config
from rlox.learners.native_off_policy import NativeDQN, NativeSAC, NativeTD3
from rlox.learners.native_on_policy import NativeA2C, NativeIMPALA, NativePPO

BACKEND = os.environ.get("RLOX_TEST_BACKEND", "native")
T, N, D = 2, 3, 4
ON_POLICY = {"num_envs": N, "n_steps": T, "net_arch": (4,)}
REPLAY = {"num_envs": N, "net_arch": (4,), "learning_starts": 3, "batch_size": 4, "buffer_size": 99}
# Environment id and settings of each learner.
LEARNERS = {
    NativePPO: ("CartPole-v1", PPOConfig(batch_size=4, n_epochs=1, **ON_POLICY)),
    NativeA2C: ("CartPole-v1", A2CConfig(**ON_POLICY)),
    NativeIMPALA: ("CartPole-v1", IMPALAConfig(deterministic=True, max_staleness=0, **ON_POLICY)),
    NativeDQN: ("CartPole-v1", DQNConfig(**REPLAY)),
    NativeSAC: ("Pendulum-v1", SACConfig(**REPLAY)),
    NativeTD3: ("Pendulum-v1", TD3Config(**REPLAY)),
}
OBSERVATION = {"kind": "numbers", "shape": (D,)}
ACTION = {"kind": "discrete", "n": 2, "start": 0}
SHAPE = {
    "net_arch": [4],
    "activation": "relu",
    "ortho_init": True,
    "shared_trunk": False,
    "use_sde": False,
    "log_std_init": -0.5,
}
A2C = {
    "learning_rate": 0.5,
    "optimizer": "adam",
    "optimizer_eps": 0.5,
    "normalize_advantage": True,
    "ent_coef": 0.5,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
}
IMPALA = {name: x for name, x in A2C.items() if name != "normalize_advantage"}
IMPALA |= {"gamma": 0.5, "vtrace_lambda": 0.75, "rho_bar": 1.0, "c_bar": 1.0}
PPO = A2C | {
    "batch_size": 4,
    "n_epochs": duration(1),
    "clip_coef": 0.5,
    "clip_coef_vf": optional(0.5),
    "target_kl": optional(0.5),
}
DQN = {
    "net_arch": [4],
    "activation": "relu",
    "buffer_size": 99,
    "learning_starts": 3,
    "batch_size": 4,
    "train_freq": 1,
    "gradient_steps": optional(1),
    "utd_ratio": optional(0.5),
    "n_steps": 1,
    "gamma": 0.5,
    "tau": 0.5,
    "learning_rate": 0.5,
    "lr_schedule": "linear",
    "target_update_interval": 1,
    "double": True,
    "dueling": False,
    "prioritized": True,
    "priority_alpha": 0.5,
    "priority_beta": 0.5,
    "max_grad_norm": 0.5,
    "exploration_fraction": 0.5,
    "exploration_initial_eps": 0.5,
    "exploration_final_eps": 0.5,
}
# Mean metrics of minibatches: metrics of all algorithms and of some algorithms.
UPDATE_METRICS = dict.fromkeys(("critic_loss", "mean_value", "grad_norm", "learning_rate"), 0.5)
UPDATE_METRICS |= dict.fromkeys(("actor_loss", "ent_coef", "ent_coef_loss"), optional(0.5))


def make_values(parts):
    return mapping(parts).make()


def make_stream():
    return state_for_native(np.random.default_rng(0))


def make_generator():
    return np.random.default_rng(0)


def make_normalizer():
    return rlox.Normalizer(N, (D,))


def make_policy(_=0):
    policy = NativePolicy(OBSERVATION, ACTION, make_stream(), SHAPE, BACKEND)
    policy.begin(3, N)
    return policy


def make_env():
    env = rlox.VecEnv(N, 5)
    env.reset_all()
    return env._native


def make_rollout(steps):
    """Return a buffer after some steps. Full buffers are finished."""
    buffer = rlox.RolloutBuffer(T, N, (D,))
    buffer.begin(np.ones((N, D)) / 2)
    for t in range(steps):
        results = np.ones((N, D)), np.ones(N), np.zeros(N, bool), np.zeros(N, bool)
        buffer.record(t, np.arange(N) % 2, -np.ones(N), np.ones(N), *results)
    if steps == T:
        buffer.finish(np.ones(N), 0.5, 0.75)
    return buffer


def empty_rollout():
    return make_rollout(0)


def full_rollout():
    return make_rollout(T)


def copies(arrays):
    return {name: x.copy() for name, x in arrays.items()}


ACTORS = {
    "envs": lambda: [make_env()],
    "policies": lambda: [make_policy()],
    "buffers": lambda: [rlox.RolloutBuffer(T, N, (D,)) for _ in range(2)],
    "weights": make_policy,
    "stream": make_stream,
}
ADVANTAGES = {"gamma": 0.5, "gae_lambda": 0.75}


def make_actors(rollouts):
    """Return actors after some rollouts, with the next rollout in use."""
    actors = NativeActors(
        **{name: make() for name, make in ACTORS.items()},
        **ADVANTAGES,
        normalizer=None,
        sde_sample_freq=0,
        max_staleness=1,
        deterministic=True,
    )
    learner_policy = make_policy()
    for _ in range(rollouts):
        actors.pop()
        actors.publish(learner_policy)
    actors.pop()
    return actors


def make_agent(_=0):
    spaces = OBSERVATION, ACTION, N, False, False
    agent = NativeAgent("dqn", *spaces, make_stream(), make_seeds(), make_values(DQN), "native")
    agent.start_from_obs(np.zeros((N, D), np.float32), True)
    agent.begin(0.5)
    agent.act()
    return agent


def make_seeds():
    return np.array([1, 2])


def agent_state(agent):
    return (agent.tensors(), agent.optimizer_state(), agent.streams(), agent.progress_state(), agent.metrics())


def envs_for(cls):
    return rlox.VecEnv(N, 5, LEARNERS[cls][0])


def make_learner(cls, _=0):
    backend = {"backend": BACKEND} if cls in (NativePPO, NativeA2C, NativeIMPALA) else {}
    return cls(envs_for(cls), LEARNERS[cls][1], 3, **backend)


SUBJECTS = {
    "NativePolicy": Subject(make_policy, lambda x: (x.tensors(), x.optimizer_state())),
    "NativeActors": Subject(make_actors, lambda x: x.stats()["rollouts"]),
    "NativeAgent": Subject(make_agent, agent_state),
    **{kind.__name__: Subject(partial(make_learner, kind), lambda x: x.state(), (RuntimeError,)) for kind in LEARNERS},
}


def learner_calls(cls):
    name = cls.__name__
    on_policy = cls in (NativePPO, NativeA2C, NativeIMPALA)
    width = 3 if LEARNERS[cls][0] == "Pendulum-v1" else D
    masks = none() if cls in (NativeSAC, NativeTD3) else booleans(1, 0, shape=(1, 2))
    yield call(
        name,
        env=partial(envs_for, cls),
        config=lambda: LEARNERS[cls][1],
        seed=3,
        backend=BACKEND if on_policy else "native",
    )
    yield call(f"{name}.iterate", progress=0.5)
    yield call(
        f"{name}.predict",
        obs=floats(*[0.5, -0.25, 0, 1][:width], shape=(1, width), dtype="f4"),
        deterministic=True,
        stream=make_generator,
        action_masks=masks,
    )


FLOAT_OBS = floats(0.5, -0.25, 0, 1, shape=(N, D), dtype="f4")
FLAGS = booleans(0, 0, 1)
ALLOWED = booleans(1, 0, 1, 1, 0, 1, shape=(N, 2))
NORMALIZER = {"normalizer": optional(make_normalizer)}
# The agent has an environment without masks.
NO_MASKS = {"action_masks": None, "final_action_masks": None}
NO_NOISE = without(instance(lambda: np.zeros(0, np.float32)), "a list")
AGENT_GETTERS = ("tensors", "replay_len", "replay_state", "optimizer_state", "streams", "progress_state")
AGENT_GETTERS += ("metrics", "last_update")
CALLS = [
    call("network_backends"),
    call("write_rollout", buffer=full_rollout),
    call("read_rollout", buffer=empty_rollout, data=lambda: write_rollout(make_rollout(T))),
    call("NativePolicy", observation=OBSERVATION, action=ACTION, stream=make_stream, shape=SHAPE, backend=BACKEND),
    call("NativePolicy.set_stop_requested", stop=False),
    call("NativePolicy.begin", seed=3, num_envs=N),
    call("NativePolicy.collect", env=make_env, buffer=empty_rollout, **NORMALIZER, **ADVANTAGES, sde_sample_freq=0),
    call("NativePolicy.act", buffer=empty_rollout, t=0, action_masks=ALLOWED, noise=False),
    call("NativePolicy.finish", buffer=full_rollout, **ADVANTAGES),
    call("NativePolicy.ppo", buffer=full_rollout, settings=PPO),
    call("NativePolicy.a2c", buffer=full_rollout, settings=A2C),
    call("NativePolicy.impala", buffer=full_rollout, settings=IMPALA),
    call("NativePolicy.predict", obs=FLOAT_OBS, seed=3, action_masks=ALLOWED, **NORMALIZER),
    call("NativePolicy.tensors"),
    call("NativePolicy.check_tensors", tensors=mapping(lambda: copies(make_policy().tensors()))),
    call("NativePolicy.load", tensors=mapping(lambda: copies(make_policy().tensors()))),
    call("NativePolicy.optimizer_state"),
    *(
        call(f"NativePolicy.{method}", state=mapping(lambda: copies(make_policy().optimizer_state())))
        for method in ("check_optimizer_state", "load_optimizer_state")
    ),
    call("NativeActors", **ACTORS, **NORMALIZER, **ADVANTAGES, max_staleness=1, deterministic=False, sde_sample_freq=0),
    call("NativeActors.pop"),
    call("NativeActors.set_stop_requested", stop=False),
    call("NativeActors.publish", policy=make_policy),
    call("NativeActors.publish_tensors", tensors=mapping(lambda: copies(make_policy().tensors()))),
    call("NativeActors.stream"),
    call("NativeActors.stats"),
    call(
        "NativeAgent",
        algorithm="dqn",
        observation=OBSERVATION,
        action=ACTION,
        num_envs=N,
        masked=False,
        idling=False,
        stream=make_stream,
        seeds=make_seeds,
        settings=DQN,
        backend="native",
    ),
    call("NativeAgent.set_stop_requested", stop=False),
    call("NativeAgent.start", env=make_env, **NORMALIZER),
    call("NativeAgent.attach", env=make_env),
    call("NativeAgent.iterate", env=make_env, progress=0.5, progress_per_step=0.001, **NORMALIZER),
    call("NativeAgent.start_from_obs", obs=FLOAT_OBS, is_new=True, action_masks=None, **NORMALIZER),
    call("NativeAgent.begin", progress=0.5, progress_per_step=0.001),
    call("NativeAgent.act", **NORMALIZER),
    call(
        "NativeAgent.observe",
        next_obs=FLOAT_OBS,
        obs=FLOAT_OBS,
        rewards=floats(0.5, 1, -2),
        terminated=FLAGS,
        truncated=FLAGS,
        valid=FLAGS,
        **NO_MASKS,
        **NORMALIZER,
    ),
    call("NativeAgent.learn", **NORMALIZER),
    call("NativeAgent.predict", obs=FLOAT_OBS, seed=3, action_masks=ALLOWED, **NORMALIZER),
    *(call(f"NativeAgent.{method}") for method in AGENT_GETTERS),
    call("NativeAgent.check_tensors", tensors=mapping(lambda: make_agent().tensors())),
    call("NativeAgent.load", tensors=mapping(lambda: make_agent().tensors())),
    call("NativeAgent.load_replay_state", arrays=mapping(lambda: make_agent().replay_state())),
    *(
        call(f"NativeAgent.{method}", state=mapping(lambda: make_agent().optimizer_state()))
        for method in ("check_optimizer_state", "load_optimizer_state")
    ),
    call(
        "NativeAgent.load_progress_state",
        streams=lambda: make_agent().streams(),
        noise=NO_NOISE,
        pending_updates=duration(0.5),  # number of updates of `learn`
        timesteps=9,
        updates=3,
        progress=0.5,
    ),
    call("NativeAgent.pending_limit", timesteps=9),
    call("NativeAgent.load_last_update", last_update=optional(UPDATE_METRICS)),
    *(each for kind in LEARNERS for each in learner_calls(kind)),
]
