"""Trainers: what they take, what they leave, what they give back."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import nn

import rlox
from rlox import CorruptFileError
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
        ({"n_steps": -1}, ValueError, "n_steps: expected"),
        ({"policy": nn.Linear(1, 1)}, TypeError, "policy: expected a torch module with"),
        ({"policy": MlpPolicy, "net_arch": (8,)}, TypeError, "net_arch: expected no settings"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        PPOTrainer(**{"env": "CartPole-v1", "runs_dir": None, **arguments})


@pytest.mark.parametrize("total", [0, -5, 1.5, None])
def test_steps_that_make_no_sense_are_refused(total):
    with pytest.raises(ValueError, match="total_timesteps: expected an integer of at least 1"):
        small().train(total)


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
    ],
)
def test_observations_that_are_none_are_refused(obs, message):
    with pytest.raises(ValueError, match=message):
        small().predict(obs)


def test_evaluation_is_the_same_each_time_and_disturbs_nothing():
    trainer, other = small(), small()
    first = trainer.evaluate(5)
    assert trainer.evaluate(5) == first
    assert trainer.evaluate(5, seed=99) != first
    trainer.train(100, callbacks=[lambda trainer, metrics: trainer.evaluate(1)])
    other.train(100)
    assert equal(weights(trainer), weights(other))


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
        for name in ("networks", "optimizer", "normalizer"):
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


INTERRUPTED = """
import sys
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
""".replace("import sys", "import sys, time")


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_stops_in_order_and_a_second_one_at_once(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
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
