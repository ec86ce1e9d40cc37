"""A Rust environment of another extension module works as a native environment."""

import datetime
import importlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

import rlox
from rlox import ArgumentError, ArgumentTypeError, VecEnv, make_vec
from rlox.envs import GymVecEnv
from rlox.envs import native as envs
from rlox.envs._ids import PLUGINS
from support.rejections import rejects

torch = pytest.importorskip("torch")
from rlox.trainers import A2CTrainer, PPOTrainer  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "rust" / "env_plugin"
BIN_PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
MATURIN = shutil.which("maturin", path=BIN_PATH)
pytestmark = [
    pytest.mark.build,
    pytest.mark.timeout(900),
    pytest.mark.skipif(MATURIN is None or shutil.which("cargo") is None, reason="builds a module"),
    pytest.mark.usefixtures("courier"),
]
SMALL = {"num_envs": 4, "n_steps": 32, "runs_dir": None, "action_masks": True}
STEPS = np.array([[0, -1], [0, 1], [-1, 0], [1, 0]])


@pytest.fixture(scope="module")
def courier(tmp_path_factory):
    """Build the module, put its folder on the path, and return the folder."""
    folder = tmp_path_factory.mktemp("courier")
    command = [MATURIN, "build", "--release", "--out", folder, "-m", EXAMPLE / "Cargo.toml"]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    sys.path.insert(0, str(folder))
    importlib.import_module("courier_env")
    yield folder
    sys.path.remove(str(folder))
    del PLUGINS["Courier-v0"], gym.registry["Courier-v0"]


def allowed(obs, size=5):
    """Return the masks of actions that stay inside the square, computed from the observations."""
    after = np.rint(obs[:, None, :2] * (size - 1)) + STEPS
    return ((after >= 0) & (after < size)).all(2)


def choose(masks, rng):
    return np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])


def test_the_id_makes_native_environments():
    ours = make_vec("courier_env:Courier-v0", 3, seed=0, size=7)
    assert type(ours) is VecEnv
    assert repr(ours) == "VecEnv(Courier-v0, num_envs=3)"
    assert ours.has_action_masks
    assert not ours.supports_state
    assert ours.single_action_space == gym.spaces.Discrete(4)
    assert ours.observation_space == batch_space(gym.spaces.Box(-1, 1, (5,)), 3)
    assert type(gym.make_vec("Courier-v0", 2)) is VecEnv
    assert gym.make("Courier-v0").spec.max_episode_steps == 60
    single = gym.make("Courier-v0").unwrapped
    assert type(single) is envs.NativeEnv
    assert not hasattr(single, "state")
    assert not hasattr(single, "gravity")
    for name in ("state", "gravity"):
        with rejects(AttributeError, f"{name}: ", name=name):
            setattr(single, name, 1.0)
    assert type(make_vec("Courier-v0", 2, vectorization_mode="sync")) is GymVecEnv
    for wrong, argument, got in (({"size": 1}, "size", "1"), ({"sise": 3}, "env_kwargs", '"sise"')):
        with rejects(ArgumentError, argument, got=got):
            VecEnv(1, env_id="Courier-v0", **wrong)
    for mode in ("human", "rgb_array"):
        with rejects(ArgumentError, "render_mode", expected="None"):
            VecEnv(1, env_id="Courier-v0", render_mode=mode)


def test_single_environments_equal_the_rows_of_a_vector_environment():
    envs, rng = VecEnv(3, seed=5, env_id="Courier-v0"), np.random.default_rng(0)
    obs, infos = envs.reset()
    singles = [gym.make("Courier-v0") for _ in range(3)]
    for i, single in enumerate(singles):
        single_obs, info = single.reset(seed=5 + i)
        assert single_obs.tolist() == obs[i].tolist()
        assert info["action_mask"].tolist() == infos["action_mask"][i].tolist()
    for _ in range(150):
        actions = choose(infos["action_mask"], rng)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        for i, single in enumerate(singles):
            single_obs, reward, *flags, info = single.step(actions[i])
            assert (reward, *flags) == (rewards[i], terminated[i], truncated[i])
            if any(flags):
                assert single_obs.tolist() == infos["final_obs"][i].tolist()
                single_obs, info = single.reset()
            assert single_obs.tolist() == obs[i].tolist()
            assert info["action_mask"].tolist() == infos["action_mask"][i].tolist()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_masks_match_the_returned_observations(mode):
    env = VecEnv(6, seed=1, env_id="Courier-v0", autoreset_mode=mode, max_episode_steps=9, size=3)
    rng, episodes, cuts = np.random.default_rng(0), 0, 0
    obs, infos = env.reset()
    masks = env.action_masks()
    assert masks.dtype == bool
    for _ in range(60):
        obs, _, terminated, truncated, infos = env.step(choose(masks, rng))
        over = (terminated | truncated) & (mode is not AutoresetMode.SAME_STEP)
        expected = allowed(obs, size=3) | over[:, None]
        out = np.zeros((6, 4), bool)
        assert env.action_masks(out) is out
        masks = env.action_masks()
        assert masks.tolist() == out.tolist() == expected.tolist()
        cut = truncated & ~terminated
        if mode is AutoresetMode.SAME_STEP:
            final = infos.get("final_info", {})
            assert np.array_equal(final.get("_action_mask", np.zeros(6, bool)), cut)
            last = [infos["final_obs"][i] for i in cut.nonzero()[0]]
        else:
            final, last = infos, obs[cut]
            expected = allowed(obs, size=3) | (over & terminated)[:, None]
        assert infos["action_mask"].astype(bool).tolist() == expected.tolist()
        if cut.any():
            reported = final["action_mask"][cut].astype(bool)
            assert reported.tolist() == allowed(np.array(last), size=3).tolist()
            assert np.array_equal(env.final_action_masks(cut)[cut], reported)
        cuts += cut.sum()
        episodes += (terminated | truncated).sum()
        if mode is AutoresetMode.DISABLED and over.any():
            obs, infos = env.reset(options={"reset_mask": over})
            masks = env.action_masks()
            assert masks.tolist() == allowed(obs, size=3).tolist()
            assert masks.tolist() == infos["action_mask"].astype(bool).tolist()
    assert episodes > 12
    assert cuts > 0
    for error, wrong in ((ArgumentError, np.zeros((4, 6), bool)), (ArgumentTypeError, np.zeros((6, 4), np.int8))):
        with rejects(error, "out"):
            env.action_masks(wrong)
    env.close()
    with pytest.raises(rlox.ClosedError):
        env.action_masks()


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("trainer_type", [PPOTrainer, A2CTrainer])
def test_a_learner_never_leaves_the_square(trainer_type, mode):
    masked = 0

    def check(run, metrics):
        nonlocal masked
        buffer = run.learner.buffer
        masks = buffer.field("action_masks")[buffer.valid]
        obs, actions = buffer.obs[buffer.valid], buffer.actions[buffer.valid]
        assert masks.tolist() == allowed(obs, size=3).tolist()
        assert masks[np.arange(len(masks)), actions].all()
        masked += (~masks.all(1)).sum()

    kwargs = {"autoreset_mode": mode.value, "size": 3}
    with trainer_type("courier_env:Courier-v0", 0, env_kwargs=kwargs, **SMALL) as trainer:
        trainer.train(1000, callbacks=[check])
        assert masked > 100
        assert trainer.learner.episodes.mean_return > -3.1  # no penalty of 10 in 60 steps
        result = trainer.evaluate(20, deterministic=False)
        assert min(result["returns"]) > -3.1
    with trainer_type("Courier-v0", 0, **{**SMALL, "action_masks": False}) as control:
        control.train(500)
        assert control.learner.episodes.mean_return < -8


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("random", [True, False])
def test_rollouts_without_a_trainer_never_leave_the_square(mode, random):
    env = VecEnv(6, seed=1, env_id="Courier-v0", autoreset_mode=mode, max_episode_steps=9, size=3)
    batch = rlox.collect_rollout(env, None if random else lambda obs, mask: mask.argmax(1), 30)
    rollouts = [(batch.obs, batch.actions, batch.action_masks, batch.valid)]
    assert not random or np.allclose(batch.log_probs, -np.log(batch.action_masks.sum(2)))
    if mode is AutoresetMode.SAME_STEP:
        policy = None if random else lambda obs, action_masks: action_masks.argmax(1)
        steps = env.collect_n_steps(30, policy)
        rollouts.append(tuple(steps[x] for x in ("obs", "actions", "action_masks", "valid")))
        assert len(steps["final_index"]) > 6
    for obs, actions, masks, valid in rollouts:
        assert masks[valid].tolist() == allowed(obs[valid], size=3).tolist()
        assert np.take_along_axis(masks, actions[..., None], 2).all()
    if mode is AutoresetMode.NEXT_STEP:
        with rejects(ArgumentError, "autoreset_mode"):
            env.collect_n_steps(3)


def test_native_gymnasium_and_wrapped_environments_give_the_same_weights():
    weights = []
    wrapped = gym.vector.VectorWrapper(VecEnv(4, env_id="Courier-v0"))
    sources = ["Courier-v0", "Courier-v0", wrapped]
    for env, kwargs in zip(sources, [{}, {"vectorization_mode": "sync"}, {}], strict=True):
        trainer = PPOTrainer(env, 3, backend="torch", env_kwargs=kwargs, batch_size=32, **SMALL)
        trainer.train(512)
        parameters = trainer.learner.policy.parameters()
        weights.append(torch.cat([p.detach().flatten() for p in parameters]))
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_checkpoints_resume_with_new_episodes(tmp_path):
    trainer = PPOTrainer("Courier-v0", 0, env_kwargs={"size": 4}, **SMALL)
    trainer.train(256)
    trainer.save(tmp_path / "saved")
    loaded = PPOTrainer.load(tmp_path / "saved", runs_dir=None)
    obs = np.zeros((3, 5), np.float32)
    assert loaded.predict(obs).tolist() == trainer.predict(obs).tolist()
    assert loaded.env.action_masks().shape == (4, 4)
    with pytest.warns(UserWarning, match="training resumes with new episodes"):
        loaded.train(256)


def test_register_env_rejects_other_objects_and_registered_ids():
    for wrong in (datetime.datetime_CAPI, "CartPole-v1", 3):
        with rejects(ArgumentTypeError, "plugin"):
            rlox.register_env(wrong)
    capsule = PLUGINS["Courier-v0"]
    assert rlox.register_env(capsule) == "Courier-v0"
    del PLUGINS["Courier-v0"]
    try:
        with rejects(ArgumentError, "plugin", expected="an id that no other environment has"):
            rlox.register_env(capsule)
    finally:
        PLUGINS["Courier-v0"] = capsule


def test_the_example_learns_to_deliver(courier):
    variables = {**os.environ, "PYTHONPATH": str(courier)}
    command = [sys.executable, EXAMPLE / "train.py"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    before, after = map(float, re.findall(r"(-?\d\.\d\d)", result.stdout))
    assert before < 0 < 1.5 < after
