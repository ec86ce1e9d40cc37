"""`rlox export`: files for other programs, which hold what the run's policy is."""

import sys

import numpy as np
import pytest
import safetensors.numpy

import rlox as package

OBS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)


def test_safetensors_hold_the_networks(rlox, trained, tmp_path):
    said = rlox("export", trained, "--out", "policy.safetensors")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("ppo CartPole-v1 as safetensors, ")
    written = safetensors.numpy.load_file(tmp_path / "policy.safetensors")
    saved = package.load(trained).learner.state(replay=False).networks
    assert written.keys() == saved.keys()
    assert all((written[name] == x).all() for name, x in saved.items())


@pytest.mark.parametrize("words", [["--out", "a.pt"], ["--out", "a.bin", "--format", "torch"]])
def test_torch_reads_its_file_without_running_anything(words, rlox, trained, tmp_path):
    torch = pytest.importorskip("torch")
    assert rlox("export", trained, *words, "--json").json["format"] == "torch"
    tensors = torch.load(tmp_path / words[1], weights_only=True)
    saved = package.load(trained).learner.state(replay=False).networks
    assert all((tensors[name].numpy() == x).all() for name, x in saved.items())
    assert [file.name for file in tmp_path.iterdir()] == [words[1]]


def test_onnx_gives_the_same_actions(rlox, trained, tmp_path):
    pytest.importorskip("onnx", reason="needs onnx: pip install 'rlox[onnx]'")
    runtime = pytest.importorskip("onnxruntime")
    assert rlox("export", trained, "--format", "onnx", "--out", "policy.onnx").code == 0
    session = runtime.InferenceSession(tmp_path / "policy.onnx", providers=["CPUExecutionProvider"])
    actions = session.run(["action"], {"obs": OBS})[0]
    np.testing.assert_array_equal(actions, package.load(trained).predict(OBS))


def test_without_onnx_the_extra_is_named(rlox, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    said = rlox("export", trained, "--out", "policy.onnx")
    assert said.code == 1
    assert "save_onnx: expected the package onnx, got none; pip install 'rlox[onnx]'" in (said.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("RUN", 2, "--out"),
        ("RUN --out policy", 2, "--format: expected torch, safetensors or onnx, as 'policy' ends"),
        ("RUN --out a.onnx --format jax", 2, "'jax'"),
        ("RUN --out none/a.pt", 2, "--out: expected a file in a folder, got one in "),
        ("RUN --out .safetensors/", 2, "--format: expected torch, safetensors or onnx"),
        ("nowhere --out a.pt", 1, "path: expected a checkpoint, "),
        (". --out a.pt", 1, "path: expected a checkpoint"),
    ],
)
def test_mistakes_are_told(words, code, message, rlox, trained, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "300")
    said = rlox("export", *(trained if word == "RUN" else word for word in words.split()))
    assert said.code == code
    assert message in said.err
    assert list(tmp_path.iterdir()) == []
