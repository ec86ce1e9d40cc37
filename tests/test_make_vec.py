"""`make_vec`: ids, classes, functions, environments and vector environments."""

import copy

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from counters import Counter, fill
from rlox import VecEnv, make_vec
from rlox.vector import ForeignVecEnv
from toy_envs import Count  # which registers an id

SAME_STEP = AutoresetMode.SAME_STEP


@pytest.mark.parametrize(
    ("env_id", "error", "words"),
    [
        (
            "nomodule:Foo-v0",
            ModuleNotFoundError,
            "env: .*'nomodule:Foo-v0'.* got 'nomodule' .*inst",
        ),
        ("gymnasium.none:Foo-v0", ModuleNotFoundError, "env: expected .* got 'gymnasium.none'"),
        (".here:Foo-v0", ValueError, "env: expected .* got '.here'; write its full name"),
        ("needs_another:Foo-v0", ModuleNotFoundError, "^No module named 'another_one'$"),
    ],
)
def test_ids_of_modules_that_are_not_there_are_refused(env_id, error, words, tmp_path, monkeypatch):
    (tmp_path / "needs_another.py").write_text("import another_one")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match=words):
        make_vec(env_id, 2)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "rlox/CartPole-v1", "rlox:rlox/CartPole-v1"])
def test_make_vec_takes_the_native_implementation_of_an_id(env_id):
    env = make_vec(env_id, 3, seed=5, sutton_barto_reward=True)
    assert isinstance(env, VecEnv)
    assert np.array_equal(env.reset_all(), VecEnv(3, 5).reset_all())
    assert (env.step([0, 0, 0])[1] == 0).all()


def test_make_vec_makes_gymnasiums_where_there_is_none():
    env = make_vec("toy/Echo-v0", 2, seed=3, n=5)
    assert isinstance(env, ForeignVecEnv)
    assert np.array_equal(fill(env, 1).obs[0, 1], gym.make("toy/Echo-v0", n=5).reset(seed=4)[0])


def test_make_vec_takes_gymnasiums_own_environment_from_a_function():
    env = make_vec(lambda: gym.make("MountainCarContinuous-v0", goal_velocity=0.01), 2, seed=3)
    assert isinstance(env, ForeignVecEnv)
    expected = VecEnv(1, env_id="MountainCarContinuous-v0").reset_all(seed=4)[0]
    assert np.array_equal(fill(env, 1).obs[0, 1], expected)
    assert env.unwrapped.envs[0].unwrapped.goal_velocity == 0.01


def test_make_vec_takes_classes_functions_environments_and_vector_environments():
    made = SyncVectorEnv([lambda: Counter(truncate_at=4)] * 3, autoreset_mode=SAME_STEP)
    for env, n in (
        (make_vec(Counter, 2, truncate_at=4), 2),
        (make_vec(lambda: Counter(truncate_at=4), 2), 2),
        (make_vec(Counter(truncate_at=4)), 1),
        (make_vec(made), 3),
    ):
        assert isinstance(env, ForeignVecEnv)
        assert env.num_envs == n
        assert make_vec(env) is env
        assert fill(env, 5).truncated.sum() == n
    native = VecEnv(2)
    assert make_vec(native) is native
    assert np.array_equal(
        make_vec(native, seed=9).collect_n_steps(1)["obs"][0], VecEnv(2, 9).reset_all()
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "words"),
    [
        (("CartPole-v9",), {}, ValueError, "env: .*'CartPole-v9'.*CartPole-v1"),
        (("cartpole",), {}, ValueError, "CartPole-v1"),
        (("MountianCar-v0",), {}, ValueError, "MountainCar-v0"),
        (("qqqq",), {}, ValueError, r"env: .*'qqqq'.*registry"),
        (("not an id!",), {}, ValueError, "env: .*'not an id!'"),
        (("CartPole-v1", 0), {}, ValueError, "num_envs: .*at least 1, got 0"),
        ((Counter, -3), {}, ValueError, "num_envs: .*at least 1, got -3"),
        (("CartPole-v1", "3"), {}, TypeError, "num_envs: .*integer.*'3'"),
        (("CartPole-v1", 2**62), {}, MemoryError, "num_envs: .*got 4611686018427387904"),
        (("toy/Echo-v0", 2**62), {}, MemoryError, "num_envs: .*got 4611686018427387904"),
        ((Counter, 2**62), {}, MemoryError, "num_envs: .*got 4611686018427387904"),
        ((Counter(), 2), {}, ValueError, "num_envs: .*1 for a single"),
        ((Counter(),), {"g": 1}, TypeError, "g: .*already made"),
        ((VecEnv(1),), {"g": 1}, TypeError, "g: .*already made"),
        ((3,), {}, TypeError, "env: .*got int"),
        (("Pendulum-v1",), {"gravity": 1}, ValueError, "gravity"),
        (("Pendulum-v1",), {"env_id": "x"}, TypeError, "make_vec has no setting 'env_id'"),
        ((gym.spec("Pendulum-v1"),), {"gravity": 1}, ValueError, "gravity"),
        ((gym.spec("Pendulum-v1"), 0), {}, ValueError, "num_envs: .*at least 1, got 0"),
        ((Counter,), {"vectorization_mode": "both"}, ValueError, "vectorization_mode: .*'both'"),
        ((Counter,), {"vectorization_mode": "vector_entry_point"}, ValueError, "vectorization_mod"),
        (("toy/Echo-v0",), {"vectorization_mode": "vector_entry_point"}, ValueError, "toy/Echo-v0"),
        ((Counter(),), {"vectorization_mode": "async"}, ValueError, "async.*its class"),
        ((VecEnv(1),), {"vectorization_mode": "sync"}, TypeError, "vectorization_mode: .*already"),
        ((VecEnv(1),), {"wrappers": [lambda env: env]}, TypeError, "wrappers: .*already"),
        ((Counter,), {"wrappers": ["flat"]}, TypeError, "wrappers: .*functions"),
        ((Counter,), {"wrappers": lambda env: env}, TypeError, "wrappers: .*list"),
        ((Counter,), {"wrappers": [lambda env: 3]}, TypeError, "wrappers: .*lambda.*got a int"),
        ((lambda: VecEnv(1),), {}, TypeError, "env: .*got a VecEnv"),
        ((Counter,), {"autoreset_mode": "never"}, ValueError, "autoreset_mode: .*'never'"),
    ],
)
def test_make_vec_says_what_is_wrong(args, kwargs, error, words):
    with pytest.raises(error, match=words):
        make_vec(*args, **kwargs)


def rolls(env):
    obs = fill(env, 3).obs
    env.close()
    return obs


def test_a_spec_of_gymnasiums_is_what_its_id_is():
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
    foreign = make_vec(gym.spec("toy/Echo-v0"), 2, seed=3, n=5)
    assert np.array_equal(rolls(foreign), rolls(make_vec("toy/Echo-v0", 2, seed=3, n=5)))
    single = gym.make("toy/Echo-v0", n=4)
    assert make_vec(single.spec, 2).single_action_space.n == 4


def test_a_spec_of_another_environment_is_not_the_native_one():
    spec = copy.deepcopy(gym.spec("CartPole-v1"))
    spec.entry_point = "toy_envs:Echo"
    assert isinstance(make_vec(spec, 2), ForeignVecEnv)
    wrapped = gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1")).spec
    assert make_vec(wrapped, 2).single_observation_space.shape == (5,)


def test_what_a_spec_says_of_vector_environments_is_what_is_made():
    made = gym.make_vec("toy/Echo-v0", 3, "sync", {"autoreset_mode": AutoresetMode.DISABLED}, n=5)
    again = make_vec(made.spec)
    assert again.num_envs == 3
    assert again.single_action_space.n == 5
    assert again.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    native = make_vec(VecEnv(3, max_episode_steps=7, autoreset_mode="NextStep").spec)
    assert isinstance(native, VecEnv)
    assert native.num_envs == 3
    assert native.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert isinstance(make_vec(gym.spec("rlox/CartPole-v1"), 2), VecEnv)
    flat = gym.make_vec("CartPole-v1", 2, "sync", wrappers=[gym.wrappers.FlattenObservation])
    assert isinstance(make_vec(flat.spec), ForeignVecEnv)


def vectors():
    """Vector environments, and what tells of them, all of three in DISABLED mode."""
    disabled = {"autoreset_mode": AutoresetMode.DISABLED}
    spec = gym.make_vec("toy/Echo-v0", 3, "sync", disabled).spec
    yield lambda: SyncVectorEnv([Counter] * 3, **disabled)
    yield lambda: ForeignVecEnv(SyncVectorEnv([Counter] * 3, **disabled))
    yield lambda: VecEnv(3, **disabled)
    yield lambda: VecEnv(3, **disabled).spec
    yield lambda: spec


@pytest.mark.parametrize("env", list(vectors()))
def test_what_environments_are_may_be_repeated_and_not_contradicted(env):
    for right in ({}, {"num_envs": 3}, {"autoreset_mode": "Disabled"}):
        made = make_vec(env(), **right)
        assert (made.num_envs, made.metadata["autoreset_mode"].value) == (3, "Disabled")
    for wrong in (1, 2, 7):
        with pytest.raises(ValueError, match=rf"num_envs: expected 3, as .*, got {wrong}; leave"):
            make_vec(env(), wrong)
    with pytest.raises(ValueError, match=r"autoreset_mode: expected 'Disabled'.* got 'SameStep'"):
        make_vec(env(), autoreset_mode=SAME_STEP)


def test_specs_are_not_contradicted_either():
    spec = gym.make_vec("toy/Echo-v0", 3, "sync", wrappers=[gym.wrappers.FlattenObservation]).spec
    assert make_vec(spec, vectorization_mode="sync").num_envs == 3
    with pytest.raises(ValueError, match=r"vectorization_mode: expected 'sync', .*got 'async'"):
        make_vec(spec, vectorization_mode="async")
    with pytest.raises(ValueError, match=r"wrappers: expected .* as the spec says, got"):
        make_vec(spec, wrappers=[gym.wrappers.ClipAction])


def test_the_autoreset_mode_of_vector_entry_points_and_classes_is_theirs():
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    entry = {"vectorization_mode": "vector_entry_point"}
    for env, how in ((CartPoleVectorEnv, {}), ("CartPole-v1", entry), ("rlox/CartPole-v1", entry)):
        own = make_vec(env, 2, **how).metadata["autoreset_mode"]
        assert own is AutoresetMode.NEXT_STEP
        assert make_vec(env, 2, autoreset_mode=own, **how).num_envs == 2
        with pytest.raises(ValueError, match=r"autoreset_mode: expected 'NextStep'.*'SameStep'"):
            make_vec(env, 2, autoreset_mode="SameStep", **how)
    made = make_vec(VecEnv, 2, autoreset_mode="NextStep")
    assert made.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


def test_a_class_of_vector_environments_is_made_as_a_vector_entry_point_is():
    from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

    made = make_vec(CartPoleVectorEnv, 3, seed=1, max_episode_steps=5)
    assert isinstance(made.unwrapped, CartPoleVectorEnv)
    assert (made.num_envs, made.unwrapped.max_episode_steps) == (3, 5)
    assert make_vec(VecEnv, 3).num_envs == 3
    with pytest.raises(ValueError, match=r"vectorization_mode: .*class of vector environments"):
        make_vec(CartPoleVectorEnv, 3, vectorization_mode="async")


class Refusing(gym.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        raise gym.error.InvalidBound("nothing to see")


def unfit(env):
    raise KeyError("unfit")


@pytest.mark.parametrize("env", ["CartPole-v1", "toy/Echo-v0", Counter])
@pytest.mark.parametrize("how", ["sync", "async", None])
@pytest.mark.parametrize(
    ("wrapper", "cause", "words"),
    [
        (Refusing, gym.error.InvalidBound, "wrappers: expected Refusing .*InvalidBound: nothing"),
        (unfit, KeyError, "wrappers: expected unfit to wrap .*KeyError: 'unfit'"),
    ],
)
def test_what_a_wrapper_raises_is_blamed_on_it(env, how, wrapper, cause, words):
    with pytest.raises(ValueError, match=words) as caught:
        make_vec(env, 2, vectorization_mode=how, wrappers=[wrapper])
    assert type(caught.value.__cause__) is cause


@pytest.mark.parametrize("env", ["CartPole-v1", Counter])
def test_a_wrapper_that_lacks_a_package_or_gives_no_environment_is_named(env):
    def lacking(env):
        raise gym.error.DependencyNotInstalled("get it")

    def nothing(env):
        return None

    with pytest.raises(gym.error.DependencyNotInstalled, match=r"wrappers: .*lacking.*get it"):
        make_vec(env, 2, wrappers=[lacking])
    with pytest.raises(TypeError, match=r"wrappers: expected nothing to give .*got a NoneType"):
        make_vec(env, 2, wrappers=[nothing])


def test_what_an_environment_raises_is_not_blamed_on_the_mode():
    def broken():
        raise gym.error.InvalidAction("at once")

    gym.register("toy/Broken-v0", entry_point=broken)
    try:
        with pytest.raises(ValueError, match=r"env: expected 'toy/Broken-v0' .*InvalidAction"):
            make_vec("toy/Broken-v0")
    finally:
        del gym.registry["toy/Broken-v0"]


FAR = 2**64 + 5


def test_seeds_may_be_any_that_gymnasium_takes():
    expected = [gym.make("toy/Echo-v0").reset(seed=FAR + i)[0] for i in range(2)]
    made = make_vec("toy/Echo-v0", 2, seed=FAR)
    assert np.array_equal(fill(made, 1).obs[0], expected)
    assert np.array_equal(made.reset(seed=[FAR, FAR + 1])[0], expected)
    assert np.array_equal(fill(made, 1, seed=FAR).obs[0], expected)


def test_rollouts_of_native_environments_say_which_seeds_they_take():
    with pytest.raises(ValueError, match=r"seed: expected an integer in \[0, 2\*\*64\), got"):
        fill(VecEnv(2), 1, seed=FAR)


@pytest.mark.parametrize("entry_point", [Count, "toy_envs:Count"])
def test_an_id_of_gymnasiums_registered_anew_is_the_callers(monkeypatch, entry_point):
    assert isinstance(make_vec("CartPole-v1"), VecEnv)
    anew = gym.envs.registration.EnvSpec("CartPole-v1", entry_point, kwargs={"limit": 3})
    monkeypatch.setitem(gym.registry, "CartPole-v1", anew)
    for env in ("CartPole-v1", anew):
        made = make_vec(env, 2)
        assert made.single_observation_space == Count().observation_space
    assert isinstance(make_vec("rlox/CartPole-v1"), VecEnv)
    assert isinstance(make_vec(gym.spec("rlox/CartPole-v1")), VecEnv)
