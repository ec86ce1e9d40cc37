"""Checkpoints of trainers: what is loaded goes on as if it had never stopped, or is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from rlox import CorruptFileError, checkpoint
from rlox._rlox import network_backends
from rlox.policies import MlpPolicy
from rlox.trainers import PPOTrainer
from support.envs import Echo

BACKENDS = ("auto", "torch", *network_backends()[1:])
SMALL = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}


def small(env="CartPole-v1", seed=1, **kwargs):
    return PPOTrainer(env=env, seed=seed, **{"runs_dir": None, **SMALL, **kwargs})


def weights(trainer):
    return trainer.learner.state().networks


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loaded_trainer_predicts_the_same(tmp_path, backend):
    for env, kwargs in {
        "CartPole-v1": {},
        "Pendulum-v1": {"normalize_obs": True, "normalize_reward": True, "use_sde": True},
    }.items():
        trainer = small(env=env, backend=backend, **kwargs)
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loaded_trainer_goes_on_from_where_it_was(tmp_path, backend):
    trainer = small(env="Pendulum-v1", lr_schedule="linear", normalize_obs=True, backend=backend)
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_run_in_two_parts_is_the_run_in_one(tmp_path, env, backend):
    """Weights, optimiser, statistics, environments, streams and metrics, byte for byte."""
    settings = {
        "env": env,
        "backend": backend,
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
    trainer = small(backend="torch")
    trainer.train(64)
    trainer.save(tmp_path / "saved")
    loaded = PPOTrainer.load(tmp_path / "saved")
    trainer.learner.collect()
    rows = (loaded.learner.rows, trainer.learner.rows)
    for mine, theirs in zip(*(batch[:6] for batch in rows), strict=True):  # there are no masks
        mine.copy_(theirs)
    for one in (trainer, loaded):
        one.learner.generator.manual_seed(0)
        one.learner.update(1e-3, 0.2)
    assert equal(weights(trainer), weights(loaded))


def test_a_loaded_trainer_does_not_replay_its_first_episodes(tmp_path):
    trainer = small(backend="torch")
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
    trainer = small(normalize_obs=True, backend="torch")
    trainer.train(32)
    trainer.save(tmp_path / "saved")
    forged(tmp_path / "saved", DAMAGE[what])
    section = what.partition(":")[0]
    with pytest.raises(CorruptFileError, match=rf"saved.*, section {section}[:,]"):
        PPOTrainer.load(tmp_path / "saved")


@pytest.mark.parametrize("part", ["networks", "optimizer", "normalizer", "counters", "streams"])
def test_a_state_that_is_refused_changes_nothing(part):
    settings = {"normalize_obs": True, "normalize_reward": True, "backend": "torch"}
    ppo, other = small(**settings).learner, small(seed=2, **settings).learner
    for _ in range(2):
        ppo.iterate()
        other.iterate()
    before, state = ppo.state(), other.state()
    getattr(state, part).pop(min(getattr(state, part)))
    with pytest.raises(ValueError, match=rf"^({part}|\w+, section {part}): "):
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


def test_a_native_checkpoint_stays_on_the_cpu(tmp_path):
    trainer = small(backend="native")
    trainer.train(64)
    trainer.save(tmp_path / "saved")
    words = "device: expected 'cpu' on the native backend, got 'cuda'; .* pass backend=\"torch\"$"
    with pytest.raises(ValueError, match=words):
        PPOTrainer.load(tmp_path / "saved", device="cuda", runs_dir=None)
    assert PPOTrainer.load(tmp_path / "saved", device="cpu", runs_dir=None).timesteps == 64
