"""Zips of Stable-Baselines3's become checkpoints that predict the same; nothing of them is run."""

import base64
import json
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import rlox.sb3
from rlox import trainers
from rlox.sb3.convert import convert, main
from rlox.sb3.inert import Inert, array, read_pickle
from rlox.trainers import TRAINERS

pytest.importorskip("torch")
FIXTURES = Path(__file__).parent / "fixtures"
TOLD = json.loads((FIXTURES / "predictions.json").read_text())
STATISTICS = FIXTURES / "ppo_normalized.pkl"


class Chooser(gym.Env):
    """Observations and actions of any space, and nothing to win."""

    def __init__(self, action_space):
        self.observation_space = gym.spaces.Box(-1, 1, (2, 3), np.float64)
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((2, 3)), {}

    def step(self, action):
        return np.zeros((2, 3)), 0.0, False, True, {}


MADE = {
    "multi-discrete": lambda: Chooser(gym.spaces.MultiDiscrete([3, 4, 2])),
    "multi-binary": lambda: Chooser(gym.spaces.MultiBinary(5)),
    "wide box": lambda: Chooser(gym.spaces.Box(np.float32([-1, 0.1, 3]), np.float32([2, 7.3, 4]))),
}


def env_of(name):
    """An id, or what makes an environment that has none."""
    return MADE.get(TOLD[name]["env"], TOLD[name]["env"])


def converted(name, path, **keywords):
    if name == "ppo_normalized":
        keywords.setdefault("vecnormalize", STATISTICS)
    keywords = {"env": env_of(name), "trust": True, **keywords}
    return convert(FIXTURES / f"{name}.zip", path, **keywords)


def changed(name, path, **members):
    """A copy of a fixture with other members; functions change what `data` says."""
    with zipfile.ZipFile(FIXTURES / f"{name}.zip") as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            member = info.filename.partition(".")[0]
            if member == "data" and "data" in members:
                data = json.loads(content)
                members["data"](data)
                content = json.dumps(data).encode()
            elif member in members:
                content = members[member]
            if content is not None:
                new.writestr(info.filename, content)
    return path


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("name", TOLD)
def test_the_checkpoint_predicts_what_stable_baselines3_did(name, backend, tmp_path):
    done = converted(name, tmp_path / "out", backend=backend)
    said = TOLD[name]
    assert (done.algorithm, done.backend) == (said["algorithm"], backend)
    env = MADE.get(said["env"])  # where the checkpoint has no id
    trainer = TRAINERS[done.algorithm].load(tmp_path / "out", env=env, runs_dir=None)
    actions = trainer.predict(said["obs"])
    np.testing.assert_allclose(actions, np.array(said["actions"]), rtol=0, atol=1e-5)
    model = getattr(rlox.sb3, done.algorithm.upper()).load(tmp_path / "out", env=env)
    np.testing.assert_array_equal(model.predict(said["obs"], deterministic=True)[0], actions)
    if backend == "native":
        assert model.learn(1).num_timesteps > 0


def test_settings_come_along(tmp_path):
    converted("ppo_discrete", tmp_path / "ppo")
    config = trainers.PPOTrainer.load(tmp_path / "ppo", runs_dir=None).config
    assert (config.learning_rate, config.lr_schedule) == (1e-3, "linear")
    assert (config.net_arch, config.activation) == ((8, 6), "tanh")
    converted("ppo_one_hot", tmp_path / "hot")
    config = trainers.PPOTrainer.load(tmp_path / "hot", runs_dir=None).config
    assert (config.gamma, config.clip_coef) == (0.9, 0.1)
    converted("a2c", tmp_path / "a2c")
    config = trainers.A2CTrainer.load(tmp_path / "a2c", runs_dir=None).config
    assert (config.optimizer, config.optimizer_eps) == ("rmsprop", 1e-4)
    converted("a2c_adam", tmp_path / "adam")
    assert trainers.A2CTrainer.load(tmp_path / "adam", runs_dir=None).config.optimizer == "adam"


def test_what_only_pickles_say_is_named_and_may_be_passed(tmp_path):
    assert converted("dqn", tmp_path / "a").unread == ("train_freq",)
    done = converted("dqn", tmp_path / "b", train_freq=(8, "step"))
    assert done.unread == ()
    assert trainers.DQNTrainer.load(tmp_path / "b", runs_dir=None).config.train_freq == 8


def test_the_temperature_of_sac_comes_along(tmp_path):
    for name, expected in (("sac", 0.3), ("sac_sde", None)):
        converted(name, tmp_path / name)
        trainer = trainers.SACTrainer.load(tmp_path / name, runs_dir=None)
        learned = trainer.learner.state().networks.get("log_alpha")
        assert trainer.config.ent_coef == ("auto_0.3" if expected else 0.1)
        if expected:
            assert np.exp(learned) == pytest.approx(expected)


def test_without_trust_nothing_is_opened(tmp_path):
    with pytest.raises(ValueError, match="trust: expected True"):
        convert(tmp_path / "nothing.zip", tmp_path / "out", env="CartPole-v1", trust=False)
    with pytest.raises(TypeError, match="trust"):
        convert(tmp_path / "nothing.zip", tmp_path / "out", env="CartPole-v1")


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickles_in_data_are_left_alone(tmp_path):
    mark = tmp_path / "mark"
    harm = base64.b64encode(pickle.dumps(Harmful(str(mark)))).decode()

    def spoil(data):
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = harm

    file = changed("ppo_discrete", tmp_path / "in.zip", data=spoil)
    convert(file, tmp_path / "out", env="CartPole-v1", trust=True)
    assert not mark.exists()


def test_pickles_in_place_of_tensors_and_statistics_are_refused(tmp_path):
    mark = tmp_path / "mark"
    harm = pickle.dumps(Harmful(str(mark)))
    file = changed("ppo_discrete", tmp_path / "in.zip", policy=harm)
    with pytest.raises(ValueError, match=r"policy\.pth"):
        convert(file, tmp_path / "out", env="CartPole-v1", trust=True)
    (tmp_path / "statistics.pkl").write_bytes(harm)
    with pytest.raises(ValueError, match="VecNormalize"):
        converted("ppo_normalized", tmp_path / "out", vecnormalize=tmp_path / "statistics.pkl")
    assert not mark.exists()
    assert not (tmp_path / "out").exists()


def test_statistics_are_those_that_were_saved(tmp_path):
    converted("ppo_normalized", tmp_path / "out")
    trainer = trainers.PPOTrainer.load(tmp_path / "out", runs_dir=None)
    assert trainer.config.normalize_obs
    assert trainer.config.normalize_reward
    saved = read_pickle(STATISTICS.read_bytes()).state
    state = trainer.learner.state().normalizer
    np.testing.assert_array_equal(state["obs_mean"], array(saved["obs_rms"].state["mean"]))
    np.testing.assert_array_equal(state["return_var"], [array(saved["ret_rms"].state["var"])])


def test_names_in_a_pickle_stay_names():
    told = read_pickle(pickle.dumps({"a": [Path("x"), np.arange(3.0, dtype=np.float32)]}))
    path, numbers = told["a"]
    assert isinstance(path, Inert)
    assert path.named.endswith("PosixPath")
    assert array(numbers).tolist() == [0, 1, 2]
    assert array(read_pickle(pickle.dumps(np.float64(2.5)))) == 2.5
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    for protocol in (2, 4, 5):
        told = read_pickle(pickle.dumps(fortran, protocol=protocol))
        if protocol > 2:  # which holds bytes as a text to be encoded
            np.testing.assert_array_equal(array(told), fortran)
    with pytest.raises(ValueError, match="float32 or float64"):
        array(read_pickle(pickle.dumps(np.array([object()]))))


@pytest.mark.parametrize("cut", [0, 1, 5, 200, -5])
def test_damaged_files_are_refused(cut, tmp_path):
    data = (FIXTURES / "td3.zip").read_bytes()
    file = tmp_path / "in.zip"
    file.write_bytes(data[:cut])
    with pytest.raises(ValueError, match="expected what Stable-Baselines3 wrote"):
        convert(file, tmp_path / "out", env="Pendulum-v1", trust=True)
    with pytest.raises(ValueError, match="pickle: expected"):
        read_pickle(STATISTICS.read_bytes()[:cut])


@pytest.mark.parametrize("seed", range(5))
def test_flipped_bytes_are_refused_or_without_effect(seed, tmp_path):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        data = bytearray((FIXTURES / "dqn.zip").read_bytes())
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        (tmp_path / "in.zip").write_bytes(data)
        try:
            convert(tmp_path / "in.zip", tmp_path / "out", env="CartPole-v1", trust=True)
        except ValueError:
            continue


def drop(name):
    return lambda data: data.pop(name)


def put(name, value):
    return lambda data: data.update({name: value})


FOREIGN = {"__module__": "sb3_contrib.common.maskable.policies"}
REFUSED = {
    "another library's policy": (put("policy_class", FOREIGN), "sb3_contrib"),
    "no algorithm's": (lambda data: data.clear(), "expected PPO, A2C"),
    "features of its own": (
        put("policy_kwargs", {"features_extractor_class": "<class 'mine.Features'>"}),
        "features_extractor_class",
    ),
    "an unknown activation": (
        put("policy_kwargs", {"activation_fn": "<class 'torch.nn.modules.activation.Mish'>"}),
        "activation_fn",
    ),
    "expln": (put("policy_kwargs", {"use_expln": True}), "use_expln"),
    "a number out of range": (put("gamma", 3.0), "gamma"),
    "a text as a number": (put("n_steps", "many"), "n_steps"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_other_models_are_refused(what, tmp_path):
    change, match = REFUSED[what]
    file = changed("ppo_discrete", tmp_path / "in.zip", data=change)
    with pytest.raises((ValueError, TypeError), match=match):
        convert(file, tmp_path / "out", env="CartPole-v1", trust=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "env"),
    [
        ("ppo_discrete", "Acrobot-v1"),
        ("ppo_discrete", "MountainCar-v0"),
        ("sac", "MountainCarContinuous-v0"),
        ("sac", lambda: gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), -1, 1)),
    ],
)
def test_other_spaces_are_refused(name, env, tmp_path):
    with pytest.raises(ValueError, match=r"env: expected the (observation|action) space"):
        converted(name, tmp_path / "out", env=env)


def test_other_networks_are_refused(tmp_path):
    import torch

    def with_weights(name, change):
        with zipfile.ZipFile(FIXTURES / f"{name}.zip") as file, file.open("policy.pth") as opened:
            tensors = torch.load(opened, weights_only=True)
        change(tensors)
        torch.save(tensors, tmp_path / "policy.pth")
        return changed(name, tmp_path / "in.zip", policy=(tmp_path / "policy.pth").read_bytes())

    changes = {
        "value_net": lambda t: t.update({"mlp_extractor.value_net.0.weight": torch.zeros(9, 4)}),
        "no features.cnn": lambda t: t.update({"features_extractor.cnn.0.weight": torch.zeros(1)}),
        "not finite": lambda t: t["action_net.weight"].fill_(torch.nan),
        "missing": lambda t: t.pop("value_net.bias"),
        "no tensor": lambda t: t.update({"value_net.bias": 3}),
    }
    for what, change in changes.items():
        file = with_weights("ppo_discrete", change)
        with pytest.raises(ValueError, match=r"policy\.pth"):
            convert(file, tmp_path / what, env="CartPole-v1", trust=True)


def test_statistics_that_trainers_do_not_have_are_refused(tmp_path):
    with pytest.raises(ValueError, match="vecnormalize: expected obs_mean"):
        converted("ppo_discrete", tmp_path / "out", vecnormalize=STATISTICS)
    with pytest.raises(ValueError, match="vecnormalize: expected gamma"):
        converted("ppo_normalized", tmp_path / "out", gamma=0.5)
    with pytest.raises(FileNotFoundError, match="vecnormalize"):
        converted("ppo_normalized", tmp_path / "out", vecnormalize=tmp_path / "none.pkl")


def test_torch_whose_reader_had_a_hole_is_refused(tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(RuntimeError, match=r"torch: expected 2\.6"):
        converted("dqn", tmp_path / "out")


def test_the_command_says_what_it_did(tmp_path, capsys):
    args = [str(FIXTURES / "dqn.zip"), str(tmp_path / "out"), "--env", "CartPole-v1"]
    assert main(args) == 1
    assert "--trust" in capsys.readouterr().err
    assert main([*args, "--trust"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("dqn for the native backend")
    assert "train_freq" in said
    assert (tmp_path / "out/manifest.json").exists()
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2


def test_the_command_is_a_module(tmp_path):
    words = [str(FIXTURES / "a2c.zip"), str(tmp_path / "out"), "--env", "CartPole-v1", "--trust"]
    command = [sys.executable, "-W", "error", "-m", "rlox.sb3.convert", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
