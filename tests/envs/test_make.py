"""`make_vec`: ids, specs, classes, functions, environments and vector environments."""

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.acrobot import AcrobotEnv
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlox import ArgumentError, ArgumentTypeError, OutOfMemoryError, VecEnv, make_vec
from rlox.envs import GymVecEnv
from rlox.envs._make import make_single
from rlox.envs.native import NativeEnv
from rlox.trainers import A2CTrainer, PPOTrainer
from support.envs import Count, Counter, fill
from support.rejections import expect_rejection, rejections, rejects

SAME_STEP = AutoresetMode.SAME_STEP
ENTRY = {"vectorization_mode": "vector_entry_point"}


@pytest.mark.parametrize(
    ("env_id", "argument", "name"),
    [
        ("nomodule:Foo-v0", "env: ", "nomodule"),
        ("gymnasium.none:Foo-v0", "env: ", "gymnasium.none"),
        ("needs_another:Foo-v0", "", "another_one"),
    ],
)
def test_ids_of_missing_modules_are_rejected(env_id, argument, name, tmp_path, monkeypatch):
    (tmp_path / "needs_another.py").write_text("import another_one")
    monkeypatch.syspath_prepend(tmp_path)
    with rejects(ModuleNotFoundError, argument, name=name):
        make_vec(env_id, 2)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "rlox/CartPole-v1", "rlox:rlox/CartPole-v1"])
def test_native_ids_make_native_environments(env_id):
    env = make_vec(env_id, 3, seed=5, sutton_barto_reward=True)
    assert isinstance(env, VecEnv)
    assert np.array_equal(env.reset_all(), VecEnv(3, 5).reset_all())
    assert (env.step([0, 0, 0])[1] == 0).all()


def test_classes_functions_and_environments_are_accepted():
    env = make_vec(lambda: gym.make("MountainCarContinuous-v0", goal_velocity=0.01), 2)
    assert env.unwrapped.envs[0].unwrapped.goal_velocity == 0.01
    envs = SyncVectorEnv([lambda: Counter(truncate_at=4)] * 3, autoreset_mode=SAME_STEP)
    for env, n in (
        (make_vec(Counter, 2, truncate_at=4), 2),
        (make_vec(lambda: Counter(truncate_at=4), 2), 2),
        (make_vec(Counter(truncate_at=4)), 1),
        (make_vec(envs), 3),
    ):
        assert isinstance(env, GymVecEnv)
        assert env.num_envs == n
        assert make_vec(env) is env
        assert fill(env, 5).truncated.sum() == n
    native = VecEnv(2)
    assert make_vec(native) is native
    first = make_vec(native, seed=9).collect_n_steps(1)["obs"][0]
    assert np.array_equal(first, VecEnv(2, 9).reset_all())


def to_none(env):
    return None


def raise_invalid_bound(env):
    raise gym.error.InvalidBound("of the wrapper")


def make_as(env, mode):
    return make_vec(env, vectorization_mode=mode)


@rejections(
    (lambda: make_vec("CartPole-v9"), ArgumentError, "env", "did you mean 'CartPole-v1'"),
    (lambda: make_vec("MountianCar-v0"), ArgumentError, "env", "did you mean 'MountainCar-v0'"),
    (lambda: make_vec("qqqq"), ArgumentError, "env", "gymnasium.registry"),
    (lambda: make_vec("not an id!"), ArgumentError, "env"),
    (lambda: make_vec(3), ArgumentTypeError, "env", "gymnasium.make"),
    (lambda: make_vec(lambda: VecEnv(1)), ArgumentTypeError, "env", "a vector environment itself"),
    (lambda: make_vec("CartPole-v1", 0), ArgumentError, "num_envs"),
    (lambda: make_vec(Counter, -3), ArgumentError, "num_envs"),
    (lambda: make_vec(gym.spec("Pendulum-v1"), 0), ArgumentError, "num_envs"),
    (lambda: make_vec("CartPole-v1", "3"), ArgumentTypeError, "num_envs"),
    (lambda: make_vec("toy/Echo-v0", 2**62), OutOfMemoryError, "num_envs"),
    (lambda: make_vec(Counter(), 2), ArgumentError, "num_envs", "pass its class"),
    (lambda: make_as(Counter(), "async"), ArgumentError, "vectorization_mode", "pass its class"),
    (lambda: make_vec(Counter(), g=1), ArgumentTypeError, "g", "constructor"),
    (lambda: make_vec(VecEnv(1), g=1), ArgumentTypeError, "g", "constructor"),
    (lambda: make_as(VecEnv(1), "sync"), ArgumentTypeError, "vectorization_mode"),
    (lambda: make_vec(VecEnv(1), wrappers=[to_none]), ArgumentTypeError, "wrappers"),
    (lambda: make_vec(gym.spec("Pendulum-v1"), gravity=1), ArgumentError, "env_kwargs"),
    (lambda: make_vec("Pendulum-v1", env_id="x"), TypeError, "multiple values", "'env_id'"),
    (lambda: make_as(Counter, "both"), ArgumentError, "vectorization_mode"),
    (lambda: make_vec(Counter, **ENTRY), ArgumentError, "vectorization_mode"),
    (lambda: make_vec("toy/Echo-v0", **ENTRY), ArgumentError, "vectorization_mode"),
    (lambda: make_vec(EnvSpec("No-v0")), ArgumentError, "vectorization_mode"),
    (lambda: make_vec(Counter, wrappers=["flat"]), ArgumentTypeError, "wrappers"),
    (lambda: make_vec(Counter, wrappers=to_none), ArgumentTypeError, "wrappers", "for example ["),
    (lambda: make_vec(Counter, wrappers=[to_none]), ArgumentTypeError, "wrappers", "return the"),
    (lambda: make_vec("CartPole-v1", wrappers=[to_none]), ArgumentTypeError, "wrappers"),
    (lambda: make_vec("CartPole-v1", wrappers=[raise_invalid_bound]), ArgumentError, "wrappers"),
    (lambda: make_vec(CartPoleVectorEnv, wrappers=[to_none]), ArgumentError, "wrappers"),
    (lambda: make_vec(Counter, autoreset_mode="never"), ArgumentError, "autoreset_mode"),
    (lambda: make_vec("FrozenLake-v1", seeds=2), TypeError, "'seeds'"),
    (lambda: make_vec(".here:Foo-v0"), ArgumentError, "env", "write its full name"),
)
def test_bad_arguments_are_rejected(rejection):
    expect_rejection(rejection)


def test_a_spec_makes_the_same_environments_as_its_id():
    native = make_vec(gym.spec("CartPole-v1"), 2, seed=3)
    assert isinstance(native, VecEnv)
    assert np.array_equal(native.reset_all(seed=3), VecEnv(2, 3).reset_all())
    limited = copy.deepcopy(gym.spec("CartPole-v1"))
    limited.max_episode_steps = 3
    limited.kwargs = {"sutton_barto_reward": True}
    short = make_vec(limited, 2, seed=3)
    assert isinstance(short, VecEnv)
    assert fill(short, 3).truncated[2].all()
    assert fill(short, 1).rewards.sum() == 0
    for env in (gym.spec("toy/Echo-v0"), "toy/Echo-v0"):
        foreign = make_vec(env, 2, seed=3, n=5)
        assert isinstance(foreign, GymVecEnv)
        expected = gym.make("toy/Echo-v0", n=5).reset(seed=4)[0]
        assert np.array_equal(fill(foreign, 1).obs[0, 1], expected)
    single = gym.make("toy/Echo-v0", n=4)
    assert make_vec(single.spec, 2).single_action_space.n == 4


def test_a_spec_with_another_entry_point_or_wrappers_is_not_native():
    spec = copy.deepcopy(gym.spec("CartPole-v1"))
    spec.entry_point = "support.envs:Echo"
    assert isinstance(make_vec(spec, 2), GymVecEnv)
    wrapped = gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1")).spec
    assert make_vec(wrapped, 2).single_observation_space.shape == (5,)


def test_the_spec_of_vector_environments_makes_equal_environments():
    envs = gym.make_vec("toy/Echo-v0", 3, "sync", {"autoreset_mode": AutoresetMode.DISABLED}, n=5)
    again = make_vec(envs.spec)
    assert again.num_envs == 3
    assert again.single_action_space.n == 5
    assert again.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    native = make_vec(VecEnv(3, max_episode_steps=7, autoreset_mode="NextStep").spec)
    assert isinstance(native, VecEnv)
    assert native.num_envs == 3
    assert native.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert isinstance(make_vec(gym.spec("rlox/CartPole-v1"), 2), VecEnv)
    flat = gym.make_vec("CartPole-v1", 2, "sync", wrappers=[gym.wrappers.FlattenObservation])
    assert isinstance(make_vec(flat.spec), GymVecEnv)


def vectors():
    """Return functions that make vector environments, or their specs, in DISABLED mode."""
    disabled = {"autoreset_mode": AutoresetMode.DISABLED}
    spec = gym.make_vec("toy/Echo-v0", 3, "sync", disabled).spec
    return {
        "SyncVectorEnv": lambda: SyncVectorEnv([Counter] * 3, **disabled),
        "GymVecEnv": lambda: GymVecEnv(SyncVectorEnv([Counter] * 3, **disabled)),
        "VecEnv": lambda: VecEnv(3, **disabled),
        "spec of VecEnv": lambda: VecEnv(3, **disabled).spec,
        "spec": lambda: spec,
    }


@pytest.mark.parametrize("source", vectors())
def test_arguments_must_agree_with_existing_environments(source):
    make = vectors()[source]
    for right in ({}, {"num_envs": 3}, {"autoreset_mode": "Disabled"}):
        envs = make_vec(make(), **right)
        assert (envs.num_envs, envs.metadata["autoreset_mode"].value) == (3, "Disabled")
    for wrong in (1, 2, 7):
        with rejects(ArgumentError, "num_envs", "leave it out", got=str(wrong)):
            make_vec(make(), wrong)
    with rejects(ArgumentError, "autoreset_mode", "leave it out", got="'SameStep'"):
        make_vec(make(), autoreset_mode=SAME_STEP)
    flat = gym.make_vec("toy/Echo-v0", 3, "sync", wrappers=[gym.wrappers.FlattenObservation]).spec
    assert make_vec(flat, vectorization_mode="sync").num_envs == 3
    assert make_vec(flat, wrappers=[gym.wrappers.FlattenObservation]).num_envs == 3
    for wrong in ({"vectorization_mode": "async"}, {"wrappers": [gym.wrappers.ClipAction]}):
        with rejects(ArgumentError, next(iter(wrong)), "leave it out"):
            make_vec(flat, **wrong)


def test_vector_entry_points_and_classes_determine_the_autoreset_mode():
    sources = ((CartPoleVectorEnv, {}), ("CartPole-v1", ENTRY), ("rlox/CartPole-v1", ENTRY))
    for env, kwargs in sources:
        mode = make_vec(env, 2, **kwargs).metadata["autoreset_mode"]
        assert mode is AutoresetMode.NEXT_STEP
        assert make_vec(env, 2, autoreset_mode=mode, **kwargs).num_envs == 2
        with rejects(ArgumentError, "autoreset_mode", "leave it out", got="'SameStep'"):
            make_vec(env, 2, autoreset_mode="SameStep", **kwargs)
    envs = make_vec(VecEnv, 2, autoreset_mode="NextStep")
    assert (envs.num_envs, envs.metadata["autoreset_mode"]) == (2, AutoresetMode.NEXT_STEP)
    envs = make_vec(CartPoleVectorEnv, 3, seed=1, max_episode_steps=5)
    assert isinstance(envs.unwrapped, CartPoleVectorEnv)
    assert (envs.num_envs, envs.unwrapped.max_episode_steps) == (3, 5)
    with rejects(ArgumentError, "vectorization_mode", "leave it out", got="'async'"):
        make_vec(CartPoleVectorEnv, 3, vectorization_mode="async")


@pytest.mark.parametrize("env", ["CartPole-v1", "toy/Echo-v0", Counter])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_errors_of_a_wrapper_are_raised_unchanged(env, mode):
    def fail(env):
        raise KeyError("of the wrapper")

    with pytest.raises(KeyError, match="of the wrapper"):
        make_vec(env, 2, vectorization_mode=mode, wrappers=[fail])


def test_errors_of_gymnasium_in_a_registered_environment_are_reported():
    def broken():
        raise gym.error.InvalidAction("at once")

    gym.register("toy/Broken-v0", entry_point=broken)
    try:
        with rejects(ArgumentError, "env", got="InvalidAction: at once"):
            make_vec("toy/Broken-v0")
    finally:
        del gym.registry["toy/Broken-v0"]


LARGE_SEED = 2**64 + 5


def test_seeds_beyond_64_bits_give_the_obs_of_gymnasium():
    expected = [gym.make("toy/Echo-v0").reset(seed=LARGE_SEED + i)[0] for i in range(2)]
    envs = make_vec("toy/Echo-v0", 2, seed=LARGE_SEED)
    assert np.array_equal(fill(envs, 1).obs[0], expected)
    assert np.array_equal(envs.reset(seed=[LARGE_SEED, LARGE_SEED + 1])[0], expected)
    assert np.array_equal(fill(envs, 1, seed=LARGE_SEED).obs[0], expected)
    with rejects(ArgumentError, "seed", got=str(LARGE_SEED)):
        fill(VecEnv(2), 1, seed=LARGE_SEED)


@pytest.mark.parametrize("entry_point", [Count, "support.envs:Count"])
def test_an_id_that_is_registered_again_is_not_native(monkeypatch, entry_point):
    assert isinstance(make_vec("CartPole-v1"), VecEnv)
    new_spec = EnvSpec("CartPole-v1", entry_point, kwargs={"limit": 3})
    monkeypatch.setitem(gym.registry, "CartPole-v1", new_spec)
    for env in ("CartPole-v1", new_spec):
        envs = make_vec(env, 2)
        assert envs.single_observation_space == Count().observation_space
    assert isinstance(make_vec("rlox/CartPole-v1"), VecEnv)
    assert isinstance(make_vec(gym.spec("rlox/CartPole-v1")), VecEnv)


@pytest.mark.parametrize("cls", [PPOTrainer, A2CTrainer])
def test_trainers_of_a_spec_have_the_presets_of_its_id(cls):
    short = gym.make("CartPole-v1", max_episode_steps=7).spec
    from_spec, from_id = (cls(env, 0, runs_dir=None) for env in (short, "CartPole-v1"))
    assert from_spec.config == from_id.config
    assert from_spec.config_sources == from_id.config_sources
    assert from_spec.evaluate(2)["lengths"] == [7, 7]
    full = from_id.evaluate(2)
    assert from_spec.evaluate(2, env=gym.spec("CartPole-v1")) == full
    assert from_id.evaluate(2, env=short)["lengths"] == [7, 7]
    with rejects(ArgumentError, "env", expected="an environment from gymnasium.make('No-v0')"):
        from_spec.evaluate(1, env=EnvSpec("No-v0"))


def test_num_envs_of_a_spec_is_used_in_training_only():
    native = VecEnv(n=3, env_id="Pendulum-v1", max_episode_steps=9, g=9.5).spec
    other = gym.make_vec("Pendulum-v1", 3, vectorization_mode="sync", max_episode_steps=9).spec
    for spec in (native, other):
        trainer = A2CTrainer(spec, 0, runs_dir=None)
        assert (trainer.config.num_envs, trainer.config_sources["num_envs"]) == (3, "env")
        assert trainer.config_sources["gamma"] == "rl-zoo3"
        assert trainer.evaluate(4)["lengths"] == [9] * 4


def test_trainers_accept_a_spec_with_wrappers_and_keywords():
    spec = EnvSpec("Counted-v0", entry_point=Count, kwargs={"limit": 6})
    spec.kwargs["wrappers"] = [lambda env: gym.wrappers.TransformReward(env, lambda r: 3 * r)]
    trainer = A2CTrainer(spec, 0, runs_dir=None)
    trainer.train(20)
    assert trainer.evaluate(2)["returns"] == [18.0, 18.0]
    other = A2CTrainer(spec, 0, env_kwargs={"limit": 4}, runs_dir=None)
    assert other.evaluate(1)["returns"] == [12.0]


@pytest.mark.parametrize(
    "env",
    ["CartPole-v1", gym.make_vec("CartPole-v1", 2).spec, lambda **kwargs: gym.make("CartPole-v1", **kwargs)],
    ids=["id", "spec", "function"],
)
def test_single_environments_ignore_keywords_of_vector_environments(env):
    wrappers = [gym.wrappers.FlattenObservation]
    modes = {"vectorization_mode": "sync", "autoreset_mode": "NextStep", "vector_kwargs": {}}
    single = make_single(env, {**modes, "wrappers": wrappers, "sutton_barto_reward": True})
    assert isinstance(single, gym.wrappers.FlattenObservation)
    single.reset(seed=0)
    assert single.step(0)[1] == 0.0


def test_single_environments_are_native_only_if_gymnasiums_lack_a_keyword():
    for env in ("Acrobot-v1", gym.make("Acrobot-v1", max_episode_steps=7).spec):
        single = make_single(env, {"max_episode_steps": 5, "disable_env_checker": True})
        assert isinstance(single.unwrapped, AcrobotEnv)
        single = make_single(env, {"dt": 0.1})
        assert isinstance(single.unwrapped, NativeEnv)
        assert single.spec.max_episode_steps == (500 if env == "Acrobot-v1" else 7)
    with rejects(ArgumentError, "env_kwargs"):
        make_single("CartPole-v1", {"gravity": 9.8})


@pytest.mark.parametrize("env", ["Acrobot-v1", gym.spec("Acrobot-v1")], ids=["id", "spec"])
def test_trainers_evaluate_with_keywords_that_only_native_environments_have(env):
    trainer = PPOTrainer(env, 1, runs_dir=None, num_envs=1, env_kwargs={"torque_noise_max": 0.5})
    assert trainer.evaluate(1, max_episode_steps=50)["lengths"] == [50]
