"""Environments of another API than Gymnasium's: it is said which, what was expected, the fix."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

import rlox
from rlox.evaluation import evaluate
from rlox.interchange import to_arrow
from rlox.trainers import A2CTrainer, DQNTrainer, PPOTrainer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
OBS = np.zeros(4, np.float32)
SHIMMY = r"shimmy\.GymV21CompatibilityV0\(env=\.\.\.\)$"


class FourValues(gym.Env):
    """Steps as Gym did before 0.26."""

    observation_space, action_space = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return OBS, {}

    def step(self, action):
        return OBS, 0.0, False, {}


class NoSeed(FourValues):
    def reset(self):
        return OBS


class NoInfos(FourValues):
    def reset(self, *, seed=None, options=None):
        return OBS


class Spaceless(gym.Env):
    reset, step = FourValues.reset, FourValues.step


class Strange:
    """An environment of Gym, which Gymnasium's classes are no bases of."""

    observation_space, action_space = FourValues.observation_space, FourValues.action_space
    reset, step = NoSeed.reset, FourValues.step


STEP = (
    r"env: expected FourValues\.step\(action\) to give \(observation, reward, term.*, got 4 values"
)
CASES = [
    (FourValues, ValueError, f"{STEP}.*{SHIMMY}"),
    (NoSeed, TypeError, rf"env: expected NoSeed\.reset\(seed=, options=\) to give .*got.*{SHIMMY}"),
    (NoInfos, ValueError, rf"NoInfos\.reset\(seed=, options=\) to give .*got 'too many.*{SHIMMY}"),
    (Spaceless, TypeError, r"env: expected.*Spaceless.* (have a|with) .*[sS]pace"),
    (Strange, TypeError, rf"env: expected .*gymnasium\.Env.*got.*Strange.*{SHIMMY}"),
]
for kind, *_ in CASES:
    gym.register(f"foreign/{kind.__name__}-v0", entry_point=kind)


class Left:
    def predict(self, obs, deterministic=True):
        return np.zeros(len(obs), np.int64)


def rollout(env, **kwargs):
    made = rlox.make_vec(env, 2, **kwargs)
    try:
        rlox.collect_rollout(made, None, 3)
    finally:
        made.close()


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(("env", "error", "words"), CASES)
def test_rollouts_name_the_class_what_came_and_the_fix(env, error, words, how, registered):
    with pytest.raises(error, match=words):
        rollout(f"foreign/{env.__name__}-v0" if registered else env, vectorization_mode=how)


@pytest.mark.parametrize(("env", "error", "words"), CASES)
def test_trainers_evaluation_and_environments_already_made_say_it_too(env, error, words):
    with pytest.raises(error, match=words):
        PPOTrainer(env, 0, num_envs=1, n_steps=8, batch_size=8, runs_dir=None).train(8)
    for given in (env, f"foreign/{env.__name__}-v0"):
        with pytest.raises(error, match=words):
            evaluate(Left(), given, 1)
    with pytest.raises(error, match=words):
        rlox.collect_rollout(rlox.make_vec(env()), None, 3)


def test_of_functions_it_is_said_what_they_make():
    with pytest.raises(ValueError, match=STEP):
        rollout(lambda: FourValues(), vectorization_mode="async")
    made = AsyncVectorEnv([lambda: FourValues()], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ValueError, match=r"env: expected environment\.step\(action\) to give"):
        rlox.collect_rollout(rlox.make_vec(made), None, 3)
    made.close(terminate=True)
    second = [lambda: gym.make("CartPole-v1").unwrapped, FourValues]
    second[0].__name__ = "fine"
    made = SyncVectorEnv(
        second, observation_mode="different", autoreset_mode=AutoresetMode.SAME_STEP
    )
    with pytest.raises(ValueError, match=STEP):
        rlox.collect_rollout(rlox.make_vec(made), None, 3)


class Many(VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs, single_observation_space, single_action_space = (
        2,
        FourValues.observation_space,
        FourValues.action_space,
    )

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 4), np.float32), {}

    def step(self, actions):
        return np.zeros((2, 4), np.float32), np.zeros(2), np.zeros(2, bool), {}


class ManyNoSeed(Many):
    def reset(self):
        return np.zeros((2, 4), np.float32)


class ManyNoInfos(Many):
    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 4), np.float32)


class ManySpaceless(VectorEnv):
    metadata, num_envs = Many.metadata, 2


@pytest.mark.parametrize(
    ("env", "error", "words"),
    [
        (Many, ValueError, r"env: expected Many\.step\(action\) to give .* got 4 values; update"),
        (ManyNoSeed, TypeError, r"env: expected ManyNoSeed\.reset\(seed=, options=\) to give"),
        (ManyNoInfos, ValueError, r"ManyNoInfos\.reset\(.* got a ndarray; update it to"),
        (ManySpaceless, TypeError, "ManySpaceless to have the attribute single_observation_space"),
    ],
)
def test_vector_environments_of_another_api_are_named(env, error, words):
    with pytest.raises(error, match=words):
        rlox.collect_rollout(rlox.make_vec(env()), None, 3)


def test_what_an_environment_itself_fails_to_unpack_is_left_to_it():
    class Own(FourValues):
        def step(self, action):
            _, _, _, _, _ = (1, 2)

    class OwnReset(FourValues):
        def reset(self, *, seed=None, options=None):
            return Inner().reset(seed=3)

    class Inner:
        def reset(self):
            pass

    with pytest.raises(ValueError, match=r"^not enough values to unpack"):
        rollout(Own)
    with pytest.raises(TypeError, match=r"Inner\.reset\(\) got an unexpected keyword"):
        rollout(OwnReset)


def test_a_wrapper_may_make_an_environment_one_of_gymnasiums():
    class Modern(gym.Wrapper):
        def reset(self, *, seed=None, options=None):
            return self.env.reset(), {}

        def step(self, action):
            obs, reward, done, infos = self.env.step(action)
            return obs, reward, done, False, infos

    rollout(NoSeed, wrappers=[Modern])


class Walk(gym.Env):
    """Gives the array that it counts in, again and again: 0 to 3, and from 0 anew."""

    action_space = spaces.Discrete(2)

    def __init__(self, named=False):
        space = spaces.Box(-9, 9, (2,))
        self.named = named
        self.observation_space = spaces.Dict(own=spaces.Dict(at=space)) if named else space
        self.state = np.zeros(2, np.float32)

    def observe(self):
        return {"own": {"at": self.state}} if self.named else self.state

    def reset(self, *, seed=None, options=None):
        self.state[:] = 0
        return self.observe(), {}

    def step(self, action):
        self.state += 1
        return self.observe(), 1.0, False, bool(self.state[0] == 3), {}


gym.register("foreign/Walk-v0", entry_point=Walk)
WRITTEN_OVER = (
    "^env: expected observations of their own from environment 0, got the array of its last one"
)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_last_observations_that_were_written_over_are_refused_at_the_first_end(own, named):
    given = [lambda: Walk(named)] * 2
    same_step = AutoresetMode.SAME_STEP
    env = SyncVectorEnv(given, autoreset_mode=same_step) if own else given[0]
    env = rlox.make_vec(env, 2)
    env.reset(seed=0)
    for _ in range(2):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(ValueError, match=WRITTEN_OVER):
        env.step(np.zeros(2, np.int64))


@pytest.mark.parametrize(
    ("backend", "named"), [("native", False), ("torch", False), ("torch", True)]
)
@pytest.mark.parametrize("trainer", [A2CTrainer, DQNTrainer, PPOTrainer])
def test_trainers_refuse_last_observations_that_were_written_over(trainer, backend, named):
    made = trainer(lambda: Walk(named), 1, num_envs=2, backend=backend, runs_dir=None)
    with pytest.raises(ValueError, match=WRITTEN_OVER):
        made.train(1000)


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_what_resets_in_the_next_step_may_write_where_it_likes(backend, copy):
    made = SyncVectorEnv([Walk] * 2, copy=copy, autoreset_mode=AutoresetMode.NEXT_STEP)
    how = {"learning_starts": 1000, "num_envs": 2, "backend": backend, "runs_dir": None}
    trainer = DQNTrainer(made, 1, **how)
    trainer.train(24)
    table = to_arrow(trainer.learner.replay.buffer)
    obs, following, cut = (
        np.array(table[name].to_pylist()) for name in ("obs", "next_obs", "truncated")
    )
    assert np.array_equal(following, obs + 1)
    assert np.array_equal(cut, following[:, 0] == 3)
    assert (len(cut), cut.sum()) == (trainer.timesteps, trainer.timesteps // 3)


class Reading(gym.Env):
    """Gives parts of arrays that nobody writes to."""

    observation_space, action_space = spaces.Box(-99, 99, (4,)), spaces.Discrete(2)

    def __init__(self, parts):
        self.parts = parts

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.parts[0], {}

    def step(self, action):
        self.t += 1
        return self.parts[self.t], 1.0, False, self.t == 3, {}


NUMBERS = np.arange(40, dtype=np.float32)


@pytest.mark.parametrize(
    "parts",
    [
        NUMBERS.reshape(4, 10).T,
        [NUMBERS[t : t + 4] for t in range(4)],
        [OBS] * 4,
        [OBS, OBS + 1, OBS + 2, OBS],  # the end is where it begins
    ],
)
def test_arrays_that_nobody_writes_to_may_be_given_again(parts):
    env = rlox.make_vec(lambda: Reading(parts), 2)
    env.reset(seed=0)
    for t in range(1, 8):
        infos = env.step(np.zeros(2, np.int64))[-1]
        if t % 3 == 0:
            assert np.array_equal(infos["final_obs"][1], parts[3])


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("registered", [False, True])
def test_worker_processes_copy_last_observations(registered, named):
    given, how = "foreign/Walk-v0" if registered else Walk, {"vectorization_mode": "async"}
    env = rlox.make_vec(given, 2, named=named, **how)
    try:
        env.reset(seed=0)
        for t in range(1, 8):
            obs, _, _, truncated, infos = env.step(np.zeros(2, np.int64))
            assert truncated.tolist() == [t % 3 == 0] * 2
            assert (obs["own"]["at"] if named else obs).tolist() == [[t % 3] * 2] * 2
            if t % 3 == 0:
                last = infos["final_obs"]
                last = [x["own"]["at"] if named else x for x in last]
                assert np.array_equal(last, np.full((2, 2), 3))
    finally:
        env.close()
