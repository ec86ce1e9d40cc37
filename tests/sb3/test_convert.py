"""Converted zips of Stable-Baselines3 predict equally, and their code does not run."""

import base64
import contextlib
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
from rlox import ArgumentError, ArgumentTypeError, CorruptFileError
from rlox._registry import ALGORITHMS
from rlox.sb3.convert import PickleStub, as_array, convert, main, read_pickle
from rlox.trainers import load_trainer
from support.rejections import rejects

pytest.importorskip("torch")
FIXTURES = Path(__file__).parent / "fixtures"
RECORDED = json.loads((FIXTURES / "predictions.json").read_text())
STATISTICS = FIXTURES / "ppo_normalized.pkl"


class AnyActionEnv(gym.Env):
    """Environment with any action space and no rewards."""

    def __init__(self, action_space):
        self.observation_space = gym.spaces.Box(-1, 1, (2, 3), np.float64)
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros((2, 3)), {}

    def step(self, action):
        return np.zeros((2, 3)), 0.0, False, True, {}


MAKERS = {
    "multi-discrete": lambda: AnyActionEnv(gym.spaces.MultiDiscrete([3, 4, 2])),
    "multi-binary": lambda: AnyActionEnv(gym.spaces.MultiBinary(5)),
    "wide box": lambda: AnyActionEnv(gym.spaces.Box(np.float32([-1, 0.1, 3]), np.float32([2, 7.3, 4]))),
}


def env_of(name):
    """Return an id, or a function that creates an environment without an id."""
    return MAKERS.get(RECORDED[name]["env"], RECORDED[name]["env"])


def rescaled_pendulum():
    return gym.wrappers.RescaleAction(gym.make("Pendulum-v1"), -1, 1)


def convert_fixture(name, path, **keywords):
    if name == "ppo_normalized":
        keywords.setdefault("vecnormalize", STATISTICS)
    keywords = {"env": env_of(name), "trust": True, **keywords}
    return convert(FIXTURES / f"{name}.zip", path, **keywords)


def change_fixture(name, path, **members):
    """Copy a fixture with other members. The function `data` changes the settings."""
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
@pytest.mark.parametrize("name", RECORDED)
def test_converted_checkpoint_predicts_like_stable_baselines3(name, backend, tmp_path):
    result = convert_fixture(name, tmp_path / "out", backend=backend)
    recorded = RECORDED[name]
    assert (result.algorithm, result.backend) == (recorded["algorithm"], backend)
    env = MAKERS.get(recorded["env"])  # if the checkpoint has no id
    trainer = load_trainer(ALGORITHMS[result.algorithm]).load(tmp_path / "out", env=env, runs_dir=None)
    actions = trainer.predict(recorded["obs"])
    np.testing.assert_allclose(actions, np.array(recorded["actions"]), rtol=0, atol=1e-5)
    model = getattr(rlox.sb3, result.algorithm.upper()).load(tmp_path / "out", env=env)
    np.testing.assert_array_equal(model.predict(recorded["obs"], deterministic=True)[0], actions)
    if backend == "native":
        assert model.learn(1).num_timesteps > 0


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo_discrete", {"learning_rate": 1e-3, "lr_schedule": "linear", "net_arch": (8, 6)}),
        ("ppo_discrete", {"activation": "tanh"}),
        ("ppo_one_hot", {"gamma": 0.9, "clip_coef": 0.1}),
        ("a2c", {"optimizer": "rmsprop", "optimizer_eps": 1e-4}),
        ("a2c_adam", {"optimizer": "adam"}),
        ("sac", {"ent_coef": "auto_0.3"}),
        ("sac_sde", {"ent_coef": 0.1}),
    ],
)
def test_settings_are_converted(name, settings, tmp_path):
    algorithm = convert_fixture(name, tmp_path / "out").algorithm
    trainer = load_trainer(ALGORITHMS[algorithm]).load(tmp_path / "out", runs_dir=None)
    assert {key: getattr(trainer.config, key) for key in settings} == settings
    if name == "sac":
        assert np.exp(trainer.learner.state().networks["log_alpha"]) == pytest.approx(0.3)


def test_pickled_settings_are_reported_and_replaced_by_keywords(tmp_path):
    assert convert_fixture("dqn", tmp_path / "a").unread == ("train_freq",)
    assert convert_fixture("dqn", tmp_path / "b", train_freq=(8, "step")).unread == ()
    assert load_trainer(ALGORITHMS["dqn"]).load(tmp_path / "b", runs_dir=None).config.train_freq == 8


class HarmfulPickle:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_code_in_pickles_does_not_run(tmp_path):
    marker = tmp_path / "mark"
    harmful = pickle.dumps(HarmfulPickle(str(marker)))

    def replace_pickles(data):
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = base64.b64encode(harmful).decode()

    file = change_fixture("ppo_discrete", tmp_path / "a.zip", data=replace_pickles)
    convert(file, tmp_path / "a", env="CartPole-v1", trust=True)
    file = change_fixture("ppo_discrete", tmp_path / "b.zip", policy=harmful)
    with rejects(CorruptFileError, str(file), section="policy.pth"):
        convert(file, tmp_path / "b", env="CartPole-v1", trust=True)
    (tmp_path / "statistics.pkl").write_bytes(harmful)
    with rejects(CorruptFileError, str(tmp_path / "statistics.pkl")):
        convert_fixture("ppo_normalized", tmp_path / "c", vecnormalize=tmp_path / "statistics.pkl")
    assert not marker.exists()
    assert not (tmp_path / "b").exists()


def test_converted_statistics_equal_the_file(tmp_path):
    convert_fixture("ppo_normalized", tmp_path / "out")
    trainer = load_trainer(ALGORITHMS["ppo"]).load(tmp_path / "out", runs_dir=None)
    assert trainer.config.normalize_obs
    assert trainer.config.normalize_reward
    saved = read_pickle(STATISTICS.read_bytes()).state
    state = trainer.learner.state().normalizer
    np.testing.assert_array_equal(state["obs_mean"], as_array(saved["obs_rms"].state["mean"]))
    np.testing.assert_array_equal(state["return_var"], [as_array(saved["ret_rms"].state["var"])])


def test_read_pickle_returns_stubs_and_arrays():
    content = {"a": [Path("x"), np.arange(3.0, dtype=np.float32)]}
    path, numbers = read_pickle(pickle.dumps(content))["a"]
    assert isinstance(path, PickleStub)
    assert path.qualified_name.endswith("PosixPath")
    assert as_array(numbers).tolist() == [0, 1, 2]
    assert as_array(read_pickle(pickle.dumps(np.float64(2.5)))) == 2.5
    fortran = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    for protocol in (4, 5):
        stub = read_pickle(pickle.dumps(fortran, protocol=protocol))
        np.testing.assert_array_equal(as_array(stub), fortran)
    with rejects(ArgumentError, "pickle", expected="an array of float32 or float64"):
        as_array(read_pickle(pickle.dumps(np.array([object()]))))


@pytest.mark.parametrize("cut", [0, 1, 5, 200, -5])
def test_damaged_files_are_rejected(cut, tmp_path):
    (tmp_path / "in.zip").write_bytes((FIXTURES / "td3.zip").read_bytes()[:cut])
    with rejects(CorruptFileError, str(tmp_path / "in.zip")):
        convert(tmp_path / "in.zip", tmp_path / "out", env="Pendulum-v1", trust=True)
    with rejects(ArgumentError, "pickle", "use another copy"):
        read_pickle(STATISTICS.read_bytes()[:cut])


def test_flipped_bits_are_rejected_or_have_no_effect(tmp_path):
    rng = np.random.default_rng(0)
    for _ in range(50):
        data = bytearray((FIXTURES / "dqn.zip").read_bytes())
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        (tmp_path / "in.zip").write_bytes(data)
        with contextlib.suppress(ValueError):
            convert(tmp_path / "in.zip", tmp_path / "out", env="CartPole-v1", trust=True)


FOREIGN = {"__module__": "sb3_contrib.common.maskable.policies"}
MISH = "<class 'torch.nn.modules.activation.Mish'>"


@pytest.mark.parametrize(
    ("key", "value", "error", "argument", "got"),
    [
        ("policy_class", FOREIGN, ArgumentError, "data", FOREIGN["__module__"]),
        ("clip_range", None, ArgumentError, "data", "no settings"),
        ("policy_kwargs", {"activation_fn": MISH}, ArgumentError, "activation_fn", "'Mish'"),
        ("policy_kwargs", {"use_expln": True}, ArgumentError, "policy_kwargs", "True"),
        (
            "policy_kwargs",
            {"features_extractor_class": "<class 'mine.Features'>"},
            *(ArgumentError, "policy_kwargs", "'Features'"),
        ),
        ("gamma", 3.0, ArgumentError, "gamma", "3.0"),
        ("n_steps", "many", ArgumentTypeError, "n_steps", "'many'"),
    ],
)
def test_unsupported_models_are_rejected(key, value, error, argument, got, tmp_path):
    def change(data):
        data.clear() if value is None else data.update({key: value})

    file = change_fixture("ppo_discrete", tmp_path / "in.zip", data=change)
    with rejects(error, argument, got=got):
        convert(file, tmp_path / "out", env="CartPole-v1", trust=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "is_damaged"),
    [
        (lambda t: t.update({"mlp_extractor.value_net.0.weight": t["value_net.weight"]}), False),
        (lambda t: t.update({"features_extractor.cnn.0.weight": t["value_net.weight"]}), False),
        (lambda t: t["action_net.weight"].fill_(float("nan")), True),
        (lambda t: t.pop("value_net.bias"), False),
        (lambda t: t.update({"value_net.bias": 3}), True),
    ],
    ids=["shape", "unknown", "not finite", "missing", "no tensor"],
)
def test_unsupported_and_damaged_networks_are_rejected(change, is_damaged, tmp_path):
    import torch

    with zipfile.ZipFile(FIXTURES / "ppo_discrete.zip") as file, file.open("policy.pth") as opened:
        tensors = torch.load(opened, weights_only=True)
    change(tensors)
    torch.save(tensors, tmp_path / "policy.pth")
    policy = (tmp_path / "policy.pth").read_bytes()
    file = change_fixture("ppo_discrete", tmp_path / "in.zip", policy=policy)
    damaged = rejects(CorruptFileError, str(file), section="policy.pth")
    with damaged if is_damaged else rejects(ArgumentError, "policy.pth"):
        convert(file, tmp_path / "out", env="CartPole-v1", trust=True)


@pytest.mark.parametrize(
    ("name", "keywords", "error", "hint"),
    [
        ("ppo_discrete", {"vecnormalize": STATISTICS}, ArgumentError, "of this environment"),
        ("ppo_normalized", {"gamma": 0.5}, ArgumentError, "normalize in an environment wrapper"),
        ("ppo_normalized", {"vecnormalize": "none.pkl"}, FileNotFoundError, "VecNormalize.save"),
        ("ppo_discrete", {"env": "Acrobot-v1"}, ArgumentError, "the model was trained"),
        ("sac", {"env": "MountainCarContinuous-v0"}, ArgumentError, "the model was trained"),
        ("sac", {"env": rescaled_pendulum}, ArgumentError, "the model was trained"),
    ],
)
def test_mismatched_spaces_and_statistics_are_rejected(name, keywords, error, hint, tmp_path):
    argument = "env" if "env" in keywords else "vecnormalize"
    with rejects(error, argument, hint):
        convert_fixture(name, tmp_path / "out", **keywords)


def test_old_torch_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.5.1+cpu")
    with rejects(RuntimeError, "torch", "2.6"):
        convert_fixture("dqn", tmp_path / "out")


def test_command_reports_its_result(tmp_path, capsys):
    args = [str(FIXTURES / "dqn.zip"), str(tmp_path / "out"), "--env", "CartPole-v1"]
    assert main(args) == 1
    assert "--trust" in capsys.readouterr().err
    with rejects(ArgumentError, "trust", "pass trust=True"):  # no file is opened
        convert(tmp_path / "nothing.zip", tmp_path / "out", env="CartPole-v1", trust=False)
    with pytest.raises(TypeError, match="trust"):
        convert(FIXTURES / "dqn.zip", tmp_path / "out", env="CartPole-v1")
    assert main([*args, "--trust"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"wrote {tmp_path / 'out'}: dqn for the native backend")
    assert "train_freq" in output
    assert (tmp_path / "out/manifest.json").exists()
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    command = [sys.executable, "-W", "error", "-m", "rlox.sb3.convert", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
