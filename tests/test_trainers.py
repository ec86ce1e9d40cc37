"""Trainers: what they take, what they leave, what they give back."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

import rlox
from rlox import CorruptFileError, checkpoint
from rlox.callbacks import Callback
from rlox.policies import MlpPolicy
from rlox.trainers import PPOTrainer
from toy_envs import Count, Echo, Imitate

SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}


def small(env="CartPole-v1", seed=1, **kwargs):
    return PPOTrainer(env=env, seed=seed, **{"runs_dir": None, **SMALL, **kwargs})


def weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.learner.policy.named_parameters()}


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_makes_at_least_the_steps_asked_for_and_says_how_many():
    trainer = small()
    assert trainer.train(total_timesteps=100)["timesteps"] == 128
    assert trainer.train(total_timesteps=1)["timesteps"] == 160
    assert trainer.timesteps == 160


def test_mean_reward_is_that_of_the_last_hundred_episodes():
    result = small(env=Count).train(1)
    assert (result["mean_reward"], result["mean_length"], result["episodes"]) == (10.0, 10.0, 2)
    assert np.isnan(small(env=lambda: Count(limit=50)).train(1)["mean_reward"])


def test_settings_come_from_arguments_then_rl_zoo3_then_defaults():
    trainer = PPOTrainer(env="CartPole-v1", seed=0, gamma=0.9, runs_dir=None)
    assert (trainer.config.gamma, trainer.sources["gamma"]) == (0.9, "argument")
    assert (trainer.config.n_steps, trainer.sources["n_steps"]) == (32, "rl-zoo3")
    assert (trainer.config.vf_coef, trainer.sources["vf_coef"]) == (0.5, "default")
    prefixed = PPOTrainer(env="rlox/CartPole-v1", seed=0, runs_dir=None)
    assert prefixed.config.n_steps == 32
    assert PPOTrainer(env=Count, seed=0, runs_dir=None).config.n_steps == 2048


def test_an_unknown_setting_is_told_near_ones():
    message = r"PPOTrainer has no setting 'learning_rat'; did you mean 'learning_rate'"
    with pytest.raises(TypeError, match=message):
        PPOTrainer(env="CartPole-v1", learning_rat=1e-3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"env": "CartPoll-v1"}, ValueError, "did you mean CartPole-v1"),
        ({"env": 3}, TypeError, "env: expected an id"),
        ({"seed": -1}, ValueError, "seed: expected"),
        ({"seed": "abc"}, TypeError, "seed: expected"),
        ({"seed": [1]}, TypeError, "seed: expected"),
        ({"seed": float("nan")}, ValueError, "seed: expected"),
        ({"seed": True}, TypeError, "seed: expected"),
        ({"sde_sample_freq": 0}, ValueError, "sde_sample_freq: expected -1 or an integer"),
        ({"device": 3}, TypeError, "device: expected a str"),
        ({"device": "meta"}, ValueError, "device: expected one that torch can use here"),
        ({"net_arch": (2**62,)}, MemoryError, "net_arch: expected layers that fit in memory"),
        ({"n_steps": 2**62}, MemoryError, "n_steps"),
        ({"env_kwargs": [1]}, TypeError, "env_kwargs: expected a dict"),
        ({"env_kwargs": {"f": print}}, TypeError, r"env_kwargs\['f'\]: expected what JSON can"),
        ({"env_kwargs": {"num_envs": 3}}, TypeError, "env_kwargs: expected no 'num_envs'"),
        ({"runs_dir": 3}, TypeError, "runs_dir: expected a folder"),
        ({"runs_dir": __file__}, ValueError, "runs_dir: expected a folder"),
        ({"policy": "MlpPolicy"}, TypeError, "policy: expected a torch module, a function"),
        ({"n_steps": -1}, ValueError, "n_steps: expected"),
        ({"policy": nn.Linear(1, 1)}, TypeError, "policy: expected a torch module with"),
        ({"policy": MlpPolicy, "net_arch": (8,)}, TypeError, "net_arch: expected no settings"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        PPOTrainer(**{"env": "CartPole-v1", "runs_dir": None, **arguments})


@pytest.mark.parametrize("total", [0, -5, 1.5, None, float("nan"), float("inf")])
def test_steps_that_make_no_sense_are_refused(total):
    with pytest.raises(ValueError, match="total_timesteps: expected an integer of at least 1"):
        small().train(total)


@pytest.mark.parametrize("total", ["100", True, [1]])
def test_steps_that_are_no_number_are_refused_before_anything_is_made(tmp_path, total):
    trainer = small(runs_dir=tmp_path)
    with pytest.raises(TypeError, match="total_timesteps: expected an integer of at least 1"):
        trainer.train(total)
    assert os.listdir(tmp_path) == []
    assert trainer.timesteps == trainer.target_timesteps == 0


def test_numpys_numbers_are_settings_and_arguments_like_others(tmp_path):
    kwargs = {"g": np.float32(5.0)}
    trainer = small(
        "Pendulum-v1", np.int64(3), n_steps=np.int64(8), env_kwargs=kwargs, runs_dir=tmp_path
    )
    result = trainer.train(np.int64(1))
    config = json.loads((trainer.run.path / "config.json").read_text())
    assert (config["seed"], config["settings"]["n_steps"]) == (3, 8)
    assert config["env_kwargs"] == {"g": 5.0}
    assert PPOTrainer.load(trainer.run.path / "checkpoint").timesteps == result["timesteps"] == 16


@pytest.mark.parametrize(
    "env",
    [
        "toy/Echo-v0",
        Echo,
        lambda: Echo(n=2),
        lambda: gym.make_vec(
            "CartPole-v1", 2, "sync", vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}
        ),
        lambda: rlox.VecEnv(2, env_id="Pendulum-v1"),
    ],
    ids=["Gymnasium's id", "class", "function", "Gymnasium's vector", "native vector"],
)
def test_any_environment_can_be_trained_on(env, request):
    if "vector" in request.node.callspec.id:
        env = env()
    assert small(env=env).train(1)["timesteps"] == 32


def test_environments_get_their_arguments():
    trainer = small(env="Pendulum-v1", env_kwargs={"g": 1.0})
    assert trainer.evaluate(2) != small(env="Pendulum-v1").evaluate(2)
    assert small(env=Count, env_kwargs={"limit": 3}).train(1)["mean_length"] == 3.0


def test_predictions_are_actions():
    trainer = small(env=lambda: Echo(n=3, start=5))
    one, batch = np.eye(3, dtype=np.float32)[0], np.eye(3)
    assert trainer.predict(one) in gym.spaces.Discrete(3, start=5)
    assert trainer.predict(batch).shape == (3,)
    samples = trainer.predict(np.repeat(batch, 50, axis=0), deterministic=False)
    assert set(samples.tolist()) == {5, 6, 7}

    wide = small(env=Imitate, log_std_init=3.0)
    samples = wide.predict(np.zeros((50, 1)), deterministic=False)
    assert samples.dtype == np.float32
    assert (np.abs(samples) <= 1).all()
    assert wide.predict(np.zeros(1)).shape == (1,)


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3), r"obs: expected one observation of shape \(4,\) or a batch.* shape \(3,\)"),
        (np.zeros((2, 2, 4)), r"got shape \(2, 2, 4\)"),
        (0.0, r"got shape \(\)"),
        ([np.nan, 0, 0, 0], "obs: expected finite numbers"),
        ("abc", "obs: expected an array of real numbers, got dtype"),
        ([[0.0] * 4, [0.0]], "obs: expected an array of real numbers, got list"),
        (np.array([0, 0, 0, None]), "obs: expected an array of real numbers, got dtype object"),
    ],
)
def test_observations_that_are_none_are_refused(obs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        small().predict(obs)


def test_evaluation_is_the_same_each_time_and_disturbs_nothing():
    trainer, other = small(), small()
    first = trainer.evaluate(5)
    assert trainer.evaluate(5) == first
    assert trainer.evaluate(5, seed=99) != first
    trainer.train(100, callbacks=[lambda trainer, metrics: trainer.evaluate(1)])
    other.train(100)
    assert equal(weights(trainer), weights(other))


def test_sampled_evaluation_is_the_same_each_time_and_disturbs_nothing():
    trainer, other = small(), small()
    first = trainer.evaluate(5, deterministic=False)
    assert trainer.evaluate(5, deterministic=False) == first
    assert trainer.evaluate(5, seed=99, deterministic=False) != first
    seeded = trainer.evaluate(5, seed=99, deterministic=False)
    assert trainer.evaluate(5, seed=np.int64(99), deterministic=False) == seeded
    assert seeded != trainer.evaluate(5, seed=99)
    assert trainer.learner.state().streams == other.learner.state().streams
    sample = lambda trainer, metrics: trainer.evaluate(1, deterministic=False)  # noqa: E731
    trainer.train(100, callbacks=[sample])
    other.train(100)
    assert equal(weights(trainer), weights(other))
    obs = np.zeros((20, 4))
    samples = [one.predict(obs, deterministic=False) for one in (trainer, other)]
    np.testing.assert_array_equal(*samples)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n_episodes": "x"}, TypeError),
        ({"n_episodes": 1.5}, ValueError),
        ({"n_episodes": True}, TypeError),
        ({"seed": "x"}, TypeError),
        ({"seed": -1}, ValueError),
        ({"env": 0}, TypeError),
        ({"env": "CartPoll-v1"}, ValueError),
    ],
)
def test_what_cannot_be_evaluated_is_named(arguments, error):
    with pytest.raises(error, match=f"{next(iter(arguments))}: expected"):
        small().evaluate(**arguments)


def test_evaluation_needs_to_know_an_environment():
    made = small(env=rlox.VecEnv(2))
    with pytest.raises(ValueError, match="env: expected an id or a function"):
        made.evaluate(1)
    assert len(made.evaluate(2, env="CartPole-v1")["returns"]) == 2


def test_the_run_folder_has_everything(tmp_path):
    trainer = small(runs_dir=tmp_path, seed=5)
    result = trainer.train(100)
    run = trainer.run.path
    assert str(run) == result["run_dir"]
    assert run.parent == tmp_path / "CartPole-v1" / "ppo"
    assert run.name.endswith("-5")
    assert sorted(os.listdir(run)) == [
        "checkpoint",
        "config.json",
        "curve.png",
        "metrics.csv",
        "summary.json",
    ]
    config = json.loads((run / "config.json").read_text())
    assert config["settings"]["n_steps"] == 16
    assert (config["sources"]["n_steps"], config["sources"]["gamma"]) == ("argument", "rl-zoo3")
    assert (config["env"], config["seed"], config["versions"]["rlox"]) == (
        "CartPole-v1",
        5,
        rlox.__version__,
    )
    assert json.loads((run / "summary.json").read_text()) == {
        **result,
        "mean_reward": pytest.approx(result["mean_reward"], nan_ok=True),
        "mean_length": pytest.approx(result["mean_length"], nan_ok=True),
    }
    with open(run / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["time/total_timesteps"]) for row in rows] == [32, 64, 96, 128]
    assert float(rows[-1]["time/fps"]) > 0
    assert (run / "curve.png").read_bytes()[1:4] == b"PNG"
    assert PPOTrainer.load(run / "checkpoint").timesteps == 128

    trainer.train(1)
    assert len((run / "metrics.csv").read_text().splitlines()) == 6  # the same run goes on


def test_runs_of_the_same_second_have_their_own_folders(tmp_path):
    folders = {small(runs_dir=tmp_path).train(1)["run_dir"] for _ in range(3)}
    assert len(folders) == 3


def test_without_a_runs_dir_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert small().train(1)["run_dir"] is None
    assert os.listdir(tmp_path) == []


class Diary(Callback):
    def __init__(self):
        self.entries = []

    def on_train_start(self, trainer):
        self.entries.append("start")

    def on_iteration(self, trainer, metrics):
        self.entries.append(metrics["time/total_timesteps"])

    def on_train_end(self, trainer):
        self.entries.append("end")


def test_callbacks_are_called_around_iterations():
    diary, seen = Diary(), []
    small().train(64, callbacks=[diary, lambda trainer, metrics: seen.append(trainer.timesteps)])
    assert diary.entries == ["start", 32, 64, "end"]
    assert seen == [32, 64]


def test_callbacks_hear_of_the_end_after_an_error():
    def fail(trainer, metrics):
        raise RuntimeError("enough")

    diary = Diary()
    with pytest.raises(RuntimeError, match="enough"):
        small().train(64, callbacks=[diary, fail])
    assert diary.entries == ["start", 32, "end"]


def test_what_is_no_callback_is_refused():
    with pytest.raises(TypeError, match="callbacks: expected"):
        small().train(1, callbacks=[3])


def test_a_callback_can_stop_the_run_and_it_can_go_on():
    trainer = small()
    result = trainer.train(320, callbacks=[lambda trainer, metrics: trainer.stop()])
    assert (result["timesteps"], result["interrupted"]) == (32, True)
    result = trainer.train()
    assert (result["timesteps"], result["interrupted"]) == (320, False)


def test_a_run_that_made_all_its_steps_was_not_interrupted():
    trainer = small()
    result = trainer.train(32, callbacks=[lambda trainer, metrics: trainer.stop()])
    assert (result["timesteps"], result["interrupted"]) == (32, False)
    with pytest.raises(ValueError, match="no run to go on with"):
        trainer.train()


def test_a_closed_trainer_keeps_what_was_learned(tmp_path):
    with small() as trainer:
        trainer.train(64)
        obs = np.zeros((3, 4))
        before = trainer.predict(obs)
    trainer.close()  # twice is allowed
    assert trainer.env.closed
    np.testing.assert_array_equal(trainer.predict(obs), before)
    assert len(trainer.evaluate(2)["returns"]) == 2
    trainer.save(tmp_path / "saved")
    assert PPOTrainer.load(tmp_path / "saved", runs_dir=None).timesteps == 64
    with pytest.raises(rlox.ClosedError, match="trainer: expected an open one"):
        trainer.train(64)


def test_environments_that_were_given_stay_open():
    given = rlox.VecEnv(2)
    with small(env=given):
        pass
    assert not given.closed
    assert given.reset_all(seed=0).shape == (2, 4)


def test_environments_that_were_made_are_closed_also_when_the_rest_fails(monkeypatch):
    closed = []

    class Watched(Echo):
        def close(self):
            closed.append(self)

    with pytest.raises(ValueError, match="use_sde"):
        small(env=Watched, use_sde=True)
    assert len(closed) == 2
    with small(env=Watched):
        pass
    assert len(closed) == 4


def test_episodes_of_an_iteration_that_was_cut_short_are_in_the_state():
    trainer = small(env=Count, n_steps=64)
    trainer.train(1)
    ended = trainer.learner.episodes.count
    env, steps = trainer.env, []
    step = env.step_rollout

    def stop_after_25(*args):
        step(*args)
        steps.append(1)
        if len(steps) == 25:
            trainer.stop()

    env.step_rollout = stop_after_25
    result = trainer.train(64)
    assert result["interrupted"]
    assert trainer.timesteps == 128  # those 25 do not count
    assert trainer.learner.state().counters["episodes"]["count"] == ended + 2 * 2
    assert result["episodes"] == ended + 2 * 2
    trainer.learner.stopping = False
    trainer.learner.collect()  # 153 steps now
    assert trainer.learner.state().counters["episodes"]["count"] == 2 * 15


def test_progress_is_told_in_plain_lines_where_there_is_no_terminal(capfd):
    small().train(64, progress_bar=True)
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("64/64 steps, return ")
    assert said.err.count("\n") == 1


def test_a_loaded_trainer_predicts_the_same(tmp_path):
    for env, kwargs in {
        "CartPole-v1": {},
        "Pendulum-v1": {"normalize_obs": True, "normalize_reward": True, "use_sde": True},
    }.items():
        trainer = small(env=env, **kwargs)
        trainer.train(200)
        trainer.save(tmp_path / env)
        loaded = PPOTrainer.load(tmp_path / env)
        obs = np.random.default_rng(0).normal(
            size=(40, *trainer.env.single_observation_space.shape)
        )
        np.testing.assert_array_equal(loaded.predict(obs), trainer.predict(obs))
        assert (loaded.config, loaded.seed, loaded.sources) == (
            trainer.config,
            trainer.seed,
            trainer.sources,
        )
        samples = [t.predict(obs, deterministic=False) for t in (loaded, trainer)]
        np.testing.assert_array_equal(*samples)
        assert loaded.evaluate(3) == trainer.evaluate(3)


def test_a_loaded_trainer_goes_on_from_where_it_was(tmp_path):
    trainer = small(env="Pendulum-v1", lr_schedule="linear", normalize_obs=True)
    rates = []
    note = lambda trainer, metrics: rates.append(metrics["train/learning_rate"])  # noqa: E731
    halt = lambda trainer, metrics: trainer.timesteps >= 320 and trainer.stop()  # noqa: E731
    trainer.train(640, callbacks=[note, halt])
    trainer.save(tmp_path / "half")
    before = trainer.learner.state()

    halves = [PPOTrainer.load(tmp_path / "half", runs_dir=None) for _ in range(2)]
    for half in halves:
        state = half.learner.state()
        assert (state.counters, state.streams) == (before.counters, before.streams)
        for name in ("networks", "optimizer", "normalizer", "environment"):
            mine, theirs = getattr(state, name), getattr(before, name)
            assert mine.keys() == theirs.keys()
            assert mine
            for key in mine:
                np.testing.assert_array_equal(mine[key], theirs[key])
        result = half.train(callbacks=[note])
        assert (result["timesteps"], result["interrupted"]) == (640, False)
    assert equal(weights(halves[0]), weights(halves[1]))
    assert not equal(weights(halves[0]), weights(trainer))
    expected = 1e-3 * (1 - np.arange(20) / 20)
    np.testing.assert_allclose(rates, [*expected, *expected[10:]], rtol=1e-6)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_run_in_two_parts_is_the_run_in_one(tmp_path, env):
    """Weights, optimiser, statistics, environments, streams and metrics, byte for byte."""
    settings = {
        "env": env,
        "lr_schedule": "linear",
        "normalize_obs": True,
        "normalize_reward": True,
    }
    whole, rows, again = small(**settings), [], []
    whole.train(640, callbacks=[lambda _, metrics: rows.append(metrics)])

    halt = lambda trainer, metrics: trainer.timesteps >= 320 and trainer.stop()  # noqa: E731
    first = small(**settings)
    first.train(640, callbacks=[halt])
    first.save(tmp_path / "half")
    second = PPOTrainer.load(tmp_path / "half", runs_dir=None)
    second.train(callbacks=[lambda _, metrics: again.append(metrics)])

    expected, got = whole.learner.state(), second.learner.state()
    assert (got.counters, got.streams) == (expected.counters, expected.streams)
    for name in ("networks", "optimizer", "normalizer", "environment"):
        mine, theirs = getattr(got, name), getattr(expected, name)
        assert mine.keys() == theirs.keys()
        assert mine
        for key in mine:
            np.testing.assert_array_equal(mine[key], theirs[key])
    assert len(again) == len(rows) / 2
    for got, expected in zip(again, rows[len(rows) // 2 :], strict=True):
        for name in expected:
            if not name.startswith("time/") or name == "time/total_timesteps":
                np.testing.assert_equal(got[name], expected[name])


def test_an_update_after_loading_is_the_update_without(tmp_path):
    trainer = small()
    trainer.train(64)
    trainer.save(tmp_path / "saved")
    loaded = PPOTrainer.load(tmp_path / "saved")
    trainer.learner.collect()
    for mine, theirs in zip(loaded.learner.rows, trainer.learner.rows, strict=True):
        mine.copy_(theirs)
    for one in (trainer, loaded):
        one.learner.generator.manual_seed(0)
        one.learner.update(1e-3, 0.2)
    assert equal(weights(trainer), weights(loaded))


def test_a_loaded_trainer_does_not_replay_its_first_episodes(tmp_path):
    trainer = small()
    trainer.train(1)
    first = trainer.learner.buffer.obs[0].copy()
    trainer.save(tmp_path / "saved")
    loaded = PPOTrainer.load(tmp_path / "saved", runs_dir=None)
    loaded.train(1)
    assert (loaded.learner.buffer.obs[0] != first).all()


class Own(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.net = nn.Linear(observation_space.shape[0], int(action_space.n) + 1)

    def get_action_and_logprob(self, obs, mask=None, action=None):
        pi = torch.distributions.Categorical(logits=self.net(obs)[:, :-1])
        action = pi.sample() if action is None else action
        return action, pi.log_prob(action), pi.entropy()

    def get_value(self, obs):
        return self.net(obs)[:, -1]

    def mode(self, obs):
        return self.net(obs)[:, :-1].argmax(-1)


def test_what_a_checkpoint_cannot_hold_must_be_given(tmp_path):
    trainer = small(env=Echo, policy=Own)
    trainer.train(64)
    trainer.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"env: expected what the trainer was made with.*env="):
        PPOTrainer.load(tmp_path / "saved", policy=Own)
    with pytest.raises(ValueError, match=r"policy: expected what .* pass policy="):
        PPOTrainer.load(tmp_path / "saved", env=Echo)
    with pytest.raises(ValueError, match="expected observation space"):
        PPOTrainer.load(tmp_path / "saved", env="CartPole-v1", policy=Own)
    with pytest.raises(ValueError, match="networks: expected what a MlpPolicy"):
        PPOTrainer.load(tmp_path / "saved", env=Echo, policy=MlpPolicy)
    loaded = PPOTrainer.load(tmp_path / "saved", env=Echo, policy=Own)
    np.testing.assert_array_equal(loaded.predict(np.eye(3)), trainer.predict(np.eye(3)))


def test_a_damaged_checkpoint_is_named(tmp_path):
    small().save(tmp_path / "saved")
    (tmp_path / "saved" / "networks.safetensors").write_bytes(b"")
    with pytest.raises(CorruptFileError, match=r"networks\.safetensors, section networks"):
        PPOTrainer.load(tmp_path / "saved")


def forged(folder, change):
    """A checkpoint's manifest, changed and signed again."""
    read = checkpoint.read_checkpoint(folder)
    about = {k: v for k, v in read.manifest.items() if k not in ("format", "rlox", "members")}
    change(about, read.members)
    checkpoint.write_checkpoint(folder, about, read.members)


KEYS = "algorithm backend env env_kwargs own_policy seed settings sources spaces run counters"


@pytest.mark.parametrize("key", [*KEYS.split(), "streams"])
@pytest.mark.parametrize("change", ["missing", "of another type"])
def test_a_manifest_without_what_it_needs_is_named(tmp_path, key, change):
    small().save(tmp_path / "saved")
    spoil = lambda m, _: m.pop(key) if change == "missing" else m.update({key: 1.5})  # noqa: E731
    forged(tmp_path / "saved", spoil)
    with pytest.raises(CorruptFileError, match=rf"manifest\.json, section .*{key}"):
        PPOTrainer.load(tmp_path / "saved")


DAMAGE = {
    "settings": lambda m, _: m["settings"].update(gamma=7.0),
    "settings: unknown": lambda m, _: m["settings"].update(more=1),
    "settings: none": lambda m, _: m["settings"].pop("gamma"),
    "sources": lambda m, _: m["sources"].pop("gamma"),
    "spaces": lambda m, _: m["spaces"].pop("action"),
    "run": lambda m, _: m["run"].update(start=-1),
    "manifest": lambda m, _: m.update(seed=-1),
    "counters": lambda m, _: m["counters"].update(timesteps="7"),
    "counters: episodes": lambda m, _: m["counters"].update(episodes={"count": 3}),
    "streams": lambda m, _: m["streams"].pop("resets"),
    "streams: state": lambda m, _: m["streams"]["resets"].update(state={}),
    "networks": lambda _, members: members["networks"].pop("actor.0.bias"),
    "networks: dtype": lambda _, members: members["networks"].update(
        {"actor.0.bias": np.zeros(64)}
    ),
    "optimizer": lambda _, members: members.pop("optimizer"),
    "optimizer: steps": lambda _, members: members["optimizer"].update(steps=np.array(-1)),
    "normalizer": lambda _, members: members["normalizer"].update(obs_mean=np.zeros(9)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_section_is_named(tmp_path, what):
    trainer = small(normalize_obs=True)
    trainer.train(32)
    trainer.save(tmp_path / "saved")
    forged(tmp_path / "saved", DAMAGE[what])
    section = what.partition(":")[0]
    with pytest.raises(CorruptFileError, match=rf"saved.*, section {section}: "):
        PPOTrainer.load(tmp_path / "saved")


@pytest.mark.parametrize("part", ["networks", "optimizer", "normalizer", "counters", "streams"])
def test_a_state_that_is_refused_changes_nothing(part):
    ppo = small(normalize_obs=True, normalize_reward=True).learner
    other = small(seed=2, normalize_obs=True, normalize_reward=True).learner
    for _ in range(2):
        ppo.iterate()
        other.iterate()
    before, state = ppo.state(), other.state()
    getattr(state, part).pop(min(getattr(state, part)))
    with pytest.raises(ValueError, match=f"^{part}: "):
        ppo.load_state(state)
    after = ppo.state()
    assert (after.counters, after.streams) == (before.counters, before.streams)
    for name in ("networks", "optimizer", "normalizer"):
        mine, theirs = getattr(after, name), getattr(before, name)
        assert mine.keys() == theirs.keys()
        for key in mine:
            np.testing.assert_array_equal(mine[key], theirs[key])
    assert ppo.started


def test_print_options_do_not_change_what_a_checkpoint_fits(tmp_path):
    small(env="Pendulum-v1").save(tmp_path / "saved")
    with np.printoptions(precision=1, floatmode="fixed", sign="+"):
        assert PPOTrainer.load(tmp_path / "saved").timesteps == 0


INTERRUPTED = """
import sys, time
from rlox.trainers import PPOTrainer
trainer = PPOTrainer(env="CartPole-v1", seed=0, runs_dir=sys.argv[1])
say = lambda trainer, metrics: print("going", flush=True) if trainer.timesteps == 512 else None
try:
    result = trainer.train(10**9, callbacks=[say])
    print("interrupted", result["interrupted"], result["timesteps"] >= 512, flush=True)
    print(PPOTrainer.load(trainer.run.path / "checkpoint").timesteps == result["timesteps"])
    trainer.train(10**9, callbacks=[lambda *_: (print("again", flush=True), time.sleep(60))])
except KeyboardInterrupt:
    print("at once")
"""


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_stops_in_order_and_a_second_one_at_once(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as run, ExitStack() as ends:
        ends.callback(run.kill)  # leaving waits for it, also when the test's time is up
        assert run.stdout.readline() == "going\n"
        run.send_signal(signal.SIGINT)
        assert run.stdout.readline() == "interrupted True True\n"
        assert run.stdout.readline() == "True\n"
        assert run.stdout.readline() == "again\n"
        run.send_signal(signal.SIGINT)
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert out == "at once\n"
    assert "stopping after the current step" in err


def test_without_torch_the_extra_is_named():
    code = "import sys; sys.modules['torch'] = None; import rlox; import rlox.trainers"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "pip install 'rlox[torch]'" in run.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("package", "use", "extra"),
    [
        ("rich", "ProgressBar()", "rlox[progress]"),
        ("matplotlib.figure", "plot_curve('x', 'y')", "rlox[plot]"),
    ],
)
def test_a_missing_extra_is_named(package, use, extra, monkeypatch):
    from rlox import callbacks, plotting

    monkeypatch.setitem(sys.modules, package, None)
    if package == "rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(ModuleNotFoundError) as error:
        eval(use, {"ProgressBar": callbacks.ProgressBar, "plot_curve": plotting.plot_curve})
    assert f"pip install '{extra}'" in str(error.value)


def test_without_matplotlib_a_run_says_so_and_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = small(runs_dir=tmp_path).train(1)
    assert "curve.png" not in os.listdir(result["run_dir"])
    assert "rlox[plot]" in caplog.text
