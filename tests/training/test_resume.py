"""Checkpoints of trainers: a loaded run continues exactly, and damaged checkpoints are rejected."""

import gymnasium as gym
import numpy as np
import pytest

from rlox import ArgumentError, CorruptFileError
from rlox._rlox import network_backends
from rlox.callbacks import Callback
from rlox.checkpoint import read_checkpoint
from rlox.policies import MlpPolicy
from rlox.trainers import DQNTrainer, PPOTrainer
from support.checkpoints import assert_states_equal, rewrite
from support.envs import Echo
from support.policies import Coin
from support.rejections import rejects
from support.runs import small


@pytest.mark.parametrize("backend", ["auto", "torch", *network_backends()[1:]])
@pytest.mark.parametrize(("env", "use_sde"), [("CartPole-v1", False), ("Pendulum-v1", False), ("Pendulum-v1", True)])
def test_resumed_run_equals_an_uninterrupted_run(tmp_path, env, use_sde, backend):
    """Compare weights, optimizer, statistics, environments, streams, predictions and metrics."""
    settings = {"env": env, "backend": backend, "lr_schedule": "linear", "use_sde": use_sde}
    settings |= {"normalize_obs": True, "normalize_reward": True}
    uninterrupted, rows, resumed_rows = small(**settings), [], []
    uninterrupted.train(640, callbacks=[lambda _, metrics: rows.append(metrics)])

    stop_at_320 = lambda run, metrics: run.budget_used >= 320 and run.stop()  # noqa: E731
    first = small(**settings)
    first.train(640, callbacks=[stop_at_320])
    first.save(tmp_path / "half")
    second = PPOTrainer.load(tmp_path / "half", runs_dir=None)
    for name in ("config", "seed", "config_sources"):
        assert getattr(second, name) == getattr(first, name)
    assert_states_equal(second.learner.state(), first.learner.state())
    result = second.train(callbacks=[lambda _, metrics: resumed_rows.append(metrics)])
    assert (result["timesteps"], result["interrupted"]) == (640, False)

    state = second.learner.state()
    assert_states_equal(state, uninterrupted.learner.state())
    assert all((state.networks, state.optimizer, state.normalizer, state.environment))
    obs = np.random.default_rng(0).normal(size=(40, *uninterrupted.env.single_observation_space.shape))
    for deterministic in (True, False):
        actions = [trainer.predict(obs, deterministic) for trainer in (second, uninterrupted)]
        np.testing.assert_array_equal(*actions)
    assert second.evaluate(3) == uninterrupted.evaluate(3)
    for got, expected in zip(resumed_rows, rows[10:], strict=True):
        for name in expected:
            if not name.startswith("time/") or name == "time/total_timesteps":
                np.testing.assert_equal(got[name], expected[name])
    rates = [row["train/learning_rate"] for row in rows]
    np.testing.assert_allclose(rates, 1e-3 * (1 - np.arange(20) / 20), rtol=1e-6)


def test_load_requires_the_same_env_and_policy_classes(tmp_path):
    trainer, path = small(env=Echo, policy=Coin), tmp_path / "saved"
    trainer.train(64)
    trainer.save(path)
    for keywords, argument, expected in (
        ({"policy": Coin}, "env", "the object that the trainer was created with"),
        ({"env": Echo}, "policy", "the object that the trainer was created with"),
        ({"env": "CartPole-v1", "policy": Coin}, "env", "observation space"),
        ({"env": Echo, "policy": MlpPolicy}, str(path), "float32 (64,) as actor.0.bias"),
    ):
        with pytest.raises(ArgumentError) as raised:
            PPOTrainer.load(path, **keywords)
        assert raised.value.argument == argument
        assert raised.value.expected.startswith(expected)
    loaded = PPOTrainer.load(path, env=Echo, policy=Coin)
    actions = [x.predict(np.eye(3), deterministic=False) for x in (loaded, trainer)]
    np.testing.assert_array_equal(*actions)


KEYS = "algorithm backend env env_kwargs custom_policy seed settings sources spaces run counters"


@pytest.mark.parametrize("key", [*KEYS.split(), "streams"])
def test_load_names_missing_keys_and_wrong_types_in_a_manifest(tmp_path, key):
    small().save(tmp_path / "saved")
    for i, change in enumerate((lambda m, _: m.pop(key), lambda m, _: m.update({key: 1.5}))):
        path = rewrite(tmp_path / "saved", change, tmp_path / str(i))
        got = (f"no key {key!r}", f"1.5 for the key {key!r}")[i]
        with rejects(CorruptFileError, str(path / "manifest.json"), got=got, section="manifest"):
            PPOTrainer.load(path)


# Section and change of the manifest or of the members.
DAMAGE = [
    ("settings", lambda m, _: m["settings"].update(gamma=7.0)),
    ("settings", lambda m, _: m["settings"].update(more=1)),
    ("settings", lambda m, _: m["settings"].pop("gamma")),
    ("sources", lambda m, _: m["sources"].pop("gamma")),
    ("spaces", lambda m, _: m["spaces"].pop("action")),
    ("run", lambda m, _: m["run"].update(start=-1)),
    ("manifest", lambda m, _: m.update(seed=-1)),
    ("manifest", lambda m, _: m.update(env_state="unknown")),
    ("counters", lambda m, _: m["counters"].update(timesteps="7")),
    ("counters", lambda m, _: m["counters"].update(episodes={"count": 3})),
    ("streams", lambda m, _: m["streams"].pop("resets")),
    ("streams", lambda m, _: m["streams"]["resets"].update(state={})),
    ("networks", lambda _, members: members["networks"].pop("actor.0.bias")),
    ("networks", lambda _, members: members["networks"].update({"actor.0.bias": np.zeros(64)})),
    ("optimizer", lambda _, members: members.pop("optimizer")),
    ("optimizer", lambda _, members: members["optimizer"].update(steps=np.array(-1))),
    ("normalizer", lambda _, members: members["normalizer"].update(obs_mean=np.zeros(9))),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    trainer = small(normalize_obs=True, backend="torch")
    trainer.train(32)
    trainer.save(path := tmp_path_factory.mktemp("saved") / "saved")
    return path


@pytest.mark.parametrize(("section", "change"), DAMAGE, ids=[f"{row[0]}-{i}" for i, row in enumerate(DAMAGE)])
def test_load_names_the_damaged_section(saved, tmp_path, section, change):
    rewrite(saved, change, tmp_path / "damaged")
    with pytest.raises(CorruptFileError) as raised:
        PPOTrainer.load(tmp_path / "damaged")
    assert raised.value.section.split(", ")[0] == section


def test_checkpoint_without_env_state_loads(saved, tmp_path):
    rewrite(saved, lambda manifest, _: manifest.pop("env_state"), tmp_path / "old")
    assert PPOTrainer.load(tmp_path / "old", runs_dir=None).train(32)["timesteps"] == 64


@pytest.mark.parametrize("part", ["networks", "optimizer", "normalizer", "counters", "streams"])
def test_rejected_state_changes_nothing(part):
    settings = {"normalize_obs": True, "normalize_reward": True, "backend": "torch"}
    ppo, other = small(**settings).learner, small(seed=2, **settings).learner
    for _ in range(2):
        ppo.iterate()
        other.iterate()
    before, state = ppo.state(), other.state()
    getattr(state, part).pop(min(getattr(state, part)))
    with pytest.raises(ArgumentError) as raised:
        ppo.load_state(state)
    assert part in (raised.value.argument, raised.value.section)
    assert_states_equal(ppo.state(), before, ("networks", "optimizer", "normalizer"))
    assert ppo.env_initialized


def test_print_options_do_not_change_the_spaces_of_a_checkpoint(tmp_path):
    small(env="Pendulum-v1").save(tmp_path / "saved")
    with np.printoptions(precision=1, floatmode="fixed", sign="+"):
        assert PPOTrainer.load(tmp_path / "saved").timesteps == 0


def test_native_checkpoint_rejects_other_devices_than_the_cpu(tmp_path):
    small(backend="native").save(tmp_path / "saved")
    expected = "'cpu' on the native backend"
    with rejects(ArgumentError, "device", 'pass backend="torch"', expected=expected):
        PPOTrainer.load(tmp_path / "saved", device="cuda", runs_dir=None)
    assert PPOTrainer.load(tmp_path / "saved", device="cpu", runs_dir=None).timesteps == 0


@pytest.mark.filterwarnings("ignore:checkpoint has no replay buffer", "ignore:environments could not be restored")
def test_a_manifest_before_the_first_iteration_names_parts_that_were_not_restored(tmp_path):
    trainer = DQNTrainer(lambda: gym.make("CartPole-v1"), 1, runs_dir=None, buffer_size=64)
    trainer.train(32)
    trainer.save(tmp_path / "saved", replay=False)
    loaded = DQNTrainer.load(tmp_path / "saved", env=lambda: gym.make("CartPole-v1"), runs_dir=None)

    class FailingAtStart(Callback):
        def on_train_start(self, run):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        loaded.train(32, callbacks=[FailingAtStart()])
    loaded.save(tmp_path / "again")
    assert read_checkpoint(tmp_path / "again").manifest["replay"] is False
