"""DDP: gradients, weights, resumed runs, errors and stops of several ranks."""

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rlox  # noqa: E402
from rlox import ArgumentError, RunningMeanStd, trainers  # noqa: E402
from rlox.algorithms._on_policy import Batch  # noqa: E402
from rlox.algorithms._replay import ReplayBatch  # noqa: E402
from rlox.algorithms.a2c import a2c_loss  # noqa: E402
from rlox.algorithms.ppo import ppo_loss  # noqa: E402
from rlox.algorithms.sac import actor_loss, critic_loss, sac_targets  # noqa: E402
from rlox.checkpoint import read_checkpoint  # noqa: E402
from rlox.distributed import ddp  # noqa: E402
from support import ddp_runs  # noqa: E402
from support.ddp_runs import SETTINGS, run_ranks  # noqa: E402
from support.rejections import rejects  # noqa: E402


def results(function, *args, **kwargs):
    """Return the results of a function on all ranks, which must not raise."""
    ranks = run_ranks(function, *args, **kwargs)
    assert [rank.error for rank in ranks] == [""] * len(ranks)
    return [rank.result for rank in ranks]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """Return a folder, and the results of `ddp_runs.smoke` on two ranks."""
    folder = tmp_path_factory.mktemp("ddp")
    return folder, results(ddp_runs.smoke, folder)


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    return results(ddp_runs.extended, tmp_path_factory.mktemp("ddp"))


@pytest.fixture(scope="module")
def rejections(tmp_path_factory):
    return results(ddp_runs.rejections, tmp_path_factory.mktemp("ddp"))


def make_reference(algorithm):
    """Return the learner of a single process with the same settings."""
    env, settings = SETTINGS[algorithm]
    cls = getattr(trainers, f"{algorithm.upper()}Trainer")
    return cls(env, 0, backend="torch", runs_dir=None, **settings).learner


def is_close(gradient, expected):
    """Return whether vectors are equal to 1e-6 of the norm of the expected vector."""
    distance = np.linalg.norm(gradient.astype(np.float64) - expected.astype(np.float64))
    return distance <= 1e-6 * np.linalg.norm(expected)


def check_on_policy_gradient(algorithm, first, second):
    assert np.array_equal(first["gradient"], second["gradient"])
    assert not np.array_equal(first["obs"], second["obs"])
    fields = [name for name in Batch._fields if name in first]
    rows = {name: torch.from_numpy(np.concatenate([first[name], second[name]])) for name in fields}
    learner = make_reference(algorithm)
    loss, clip = (ppo_loss, (0.2,)) if algorithm == "ppo" else (a2c_loss, ())
    weights = torch.from_numpy(first["weights"])
    torch.nn.utils.vector_to_parameters(weights, learner.policy.parameters())

    def gradient(config):
        value = loss(learner.evaluate, Batch(**rows), config, *clip)[0]
        return learner.optimizer.gradient(value).numpy()

    assert is_close(first["gradient"], gradient(learner.config))
    # The control: advantages that each rank normalises alone give another gradient.
    plain = replace(learner.config, normalize_advantage=False)
    halves = [rows["advantages"][:32], rows["advantages"][32:]]
    rows["advantages"] = torch.cat([(x - x.mean()) / (x.std() + 1e-8) for x in halves])
    assert not is_close(first["gradient"], gradient(plain))


def check_resumed(first, second):
    """Check the digests of uninterrupted, saved and resumed runs of two ranks."""
    assert first[0] == first[1] == first[2]
    assert second[0] == second[1] == second[2]
    for name, value in first[0]["arrays"].items():
        is_local = name.split(".")[0] in ("environment", "replay") or name == "normalizer.returns"
        assert is_local or second[0]["arrays"][name] == value, name
    # The ranks step different environments.
    states = "environment.states"
    assert second[0]["arrays"][states] != first[0]["arrays"][states]
    assert second[0]["streams"] != first[0]["streams"]


def test_ppo_gradient_of_two_ranks_equals_gradient_of_one_process(smoke):
    check_on_policy_gradient("ppo", *(rank["ppo"] for rank in smoke[1]))


def test_ranks_have_equal_weights_and_resume_exactly(smoke):
    check_resumed(*(rank["resumed"] for rank in smoke[1]))


def test_results_are_equal_on_all_ranks_and_rank_0_writes_the_run_folder(smoke):
    folder, (first, second) = smoke
    assert first["result"] == second["result"]
    assert first["result"]["timesteps"] == 512
    assert first["evaluation"] == second["evaluation"]
    assert first["num_envs"] == second["num_envs"] == 8
    (rows,) = folder.glob("runs/*/*/*/metrics.csv")
    names, *_, last = (line.split(",") for line in rows.read_text().splitlines())
    assert last[names.index("time/total_timesteps")] == "512"
    assert (rows.parent / "checkpoint").is_dir()
    assert read_checkpoint(folder / "alone").manifest["counters"]["timesteps"] == 512


def test_checkpoints_require_the_same_number_of_ranks_for_training_only(smoke):
    saved = smoke[0] / "ppo-saved"
    assert rlox.load(saved).predict(np.zeros(4)) in (0, 1)
    with rejects(ArgumentError, "path", "torchrun", got="a checkpoint of 2"):
        trainers.PPOTrainer.load(saved, runs_dir=None)
    manifest = read_checkpoint(saved).manifest
    assert manifest["settings"]["num_envs"] == 4
    assert manifest["counters"]["timesteps"] == 128
    assert manifest["env_state"] == "saved"
    assert [rank["counters"]["timesteps"] for rank in manifest["ranks"]] == [64, 64]


def test_a_group_of_one_rank_learns_the_same_weights_as_a_trainer(monkeypatch, tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "normalize_obs": True}
    plain = trainers.PPOTrainer("CartPole-v1", 1, backend="torch", runs_dir=None, **settings)
    plain.train(128)
    expected = plain.learner.state().networks
    with ddp.group() as group:
        trainer = group.trainer("ppo", "CartPole-v1", seed=1, runs_dir=None, **settings)
        trainer.train(128)
        trainer.save(tmp_path / "saved")
        loaded = group.load(tmp_path / "saved", runs_dir=None)
        for x in (trainer, loaded):
            networks = x.learner.state().networks
            for name, array in expected.items():
                np.testing.assert_allclose(networks[name], array, rtol=1e-5, atol=1e-6)
    assert trainers.PPOTrainer.load(tmp_path / "saved", runs_dir=None).timesteps == 128
    with rejects(RuntimeError, "group"):
        type(trainer)("CartPole-v1")
    for arguments, name in (({"backend": "mpi"}, "backend"), ({"timeout": 0}, "timeout")):
        with rejects(ArgumentError, name):
            ddp.group(**arguments)
    if not torch.cuda.is_available():
        with rejects(ArgumentError, "backend"):
            ddp.group(backend="nccl").__enter__()


def test_the_error_of_a_group_outside_of_torchrun_names_the_command(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="torchrun --nproc-per-node"):
        ddp.group()


@pytest.mark.distributed
def test_a2c_gradient_of_two_ranks_equals_gradient_of_one_process(extended):
    check_on_policy_gradient("a2c", *(rank["a2c"] for rank in extended))


@pytest.mark.distributed
def test_sac_gradients_of_two_ranks_equal_gradients_of_one_process(extended):
    ranks = [rank["sac"] for rank in extended]
    learner = make_reference("sac")
    names = learner.modules.state_dict()
    learner.modules.load_state_dict({n: torch.from_numpy(ranks[0][n]) for n in names})
    keys = ("obs", "actions", "rewards", "next_obs", "terminated")
    batches = [ReplayBatch(**{n: torch.from_numpy(rank[n]) for n in keys}, discounts=0.9) for rank in ranks]
    alpha, samples = learner.temperature.log_alpha.detach().exp(), []
    for rank, half in zip(ranks, batches, strict=True):  # the ranks draw different noise
        learner.generator.set_state(torch.from_numpy(rank["generator"]))
        sample = learner.policy.get_action_and_logprob(half.obs)
        samples.append((*sample, sac_targets(learner.policy, learner.critic_target, half, alpha)))
    actions, log_probs, targets = (torch.cat(x) for x in zip(*samples, strict=True))
    batch = ReplayBatch(**{n: torch.cat([getattr(b, n) for b in batches]) for n in keys}, discounts=0.9)
    critic = learner.policy.critic
    actor_optimizer, critic_optimizer, temperature = learner.optimizers
    excess = (log_probs + learner.target_entropy).detach()
    critic_gradient = critic_optimizer.gradient(critic_loss(critic, batch, targets))
    expected = {
        "critic": critic_gradient,
        "actor": actor_optimizer.gradient(actor_loss(critic, batch, actions, log_probs, alpha)),
        "alpha": temperature.gradient(-(learner.temperature.log_alpha * excess).mean()),
    }
    for name, gradient in expected.items():
        assert np.array_equal(ranks[0][name], ranks[1][name])
        assert is_close(ranks[0][name], gradient.numpy()), name
        assert not is_close(1.001 * ranks[0][name], gradient.numpy())


@pytest.mark.distributed
def test_normalizer_statistics_of_all_ranks_equal_statistics_of_all_data(extended):
    ranks = [rank["statistics"] for rank in extended]
    for name in ("obs_mean", "obs_var", "obs_count", "return_mean", "return_var", "return_count"):
        assert np.array_equal(ranks[0][name], ranks[1][name])
    expected = RunningMeanStd((4,))
    for rank in ranks:
        expected.update(rank["raw"].reshape(-1, 4))
    np.testing.assert_allclose(ranks[0]["obs_mean"], expected.mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ranks[0]["obs_var"], expected.var, rtol=1e-12)
    assert ranks[0]["obs_count"] == pytest.approx(expected.count, rel=1e-12)
    assert expected.count > 256


@pytest.mark.distributed
@pytest.mark.parametrize("algorithm", ["a2c", "sac"])
def test_ranks_resume_exactly(extended, algorithm):
    check_resumed(*(rank["resumed"][algorithm] for rank in extended))


@pytest.mark.distributed
def test_a_stop_on_one_rank_stops_all_ranks(extended):
    for rank in extended:
        assert rank["callback"]["stopped_by"] == "solved"
        assert rank["callback"]["timesteps"] == 64
        assert rank["interrupt"]["interrupted"]
        assert rank["interrupt"]["timesteps"] < 1000
        # The KL divergence exceeds the target in the second minibatch.
        assert rank["updates"] == 1
        assert rank["second"] == 64


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("case", "argument", "got", "hint"),
    [
        ("num_envs", "num_envs", "3", "pass 2"),
        ("batch_size", "batch_size", "33", "pass 32"),
        ("backend", "backend", "'native'", ""),
        ("unknown algorithm", "algorithm", "'dqn'", ""),
        ("next step", "env", "NEXT_STEP", ""),
        ("setting", "n_steps", "16 on rank 0, 32 on rank 1", ""),
        ("algorithm", "algorithm", "sac on rank 0, ppo on rank 1", ""),
        ("env", "env", "CartPole-v1 on rank 0, Acrobot-v1 on rank 1", ""),
        ("vector env", "env", "CartPole-v1 on rank 0, existing environments on rank 1", ""),
        ("spaces", "observation space", None, ""),
        ("policy", "policy", None, ""),
        ("steps", "total_timesteps", "64 on rank 0, 128 on rank 1", ""),
        ("checkpoint", "path", None, ""),
    ],
)
def test_wrong_or_different_arguments_raise_the_same_error_on_all_ranks(rejections, case, argument, got, hint):
    assert rejections[0]["seed"] == rejections[1]["seed"] == 0
    assert rejections[0][case] == rejections[1][case]
    error, _, found, value, fix = rejections[0][case]
    assert (error, found) == ("ArgumentError", argument)
    assert got in (None, value)
    assert hint in fix


@pytest.mark.distributed
def test_a_second_group_is_rejected_on_all_ranks(rejections):
    assert rejections[0]["second group"] == rejections[1]["second group"]
    error, message, *_ = rejections[0]["second group"]
    assert error == "RuntimeError"
    assert message.startswith("this process is already in a process group")


@pytest.mark.distributed
@pytest.mark.kills
@pytest.mark.parametrize(
    ("fault", "rank", "error", "exit_code"),
    [
        ("raise", 1, "OSError: the simulator is gone", 1),
        ("raise", 0, "OSError: the simulator is gone", 1),
        ("nan", 1, "NonFiniteError: rewards:", 1),
        ("die", 1, "", -signal.SIGKILL),
        ("stop", 1, "", -signal.SIGKILL),
    ],
)
def test_a_failed_rank_stops_the_others_and_rank_0_saves(tmp_path, fault, rank, error, exit_code):
    ranks = run_ranks(ddp_runs.train_with_fault, tmp_path, fault, rank, hang=fault == "stop")
    failed, other = ranks[rank], ranks[1 - rank]
    assert failed.error.startswith(error)
    assert failed.exit_code == exit_code
    assert other.error.startswith("PeerError: another rank failed")
    (saved,) = tmp_path.glob("*/*/*/checkpoint")
    manifest = read_checkpoint(saved).manifest
    assert manifest["counters"]["timesteps"] == 128
    assert len(manifest["ranks"]) == 2
    assert manifest["ranks"][0]["streams"] != manifest["ranks"][1]["streams"]
    assert manifest["env_state"] == "missing"
    reason = error if rank == 0 else "rank 0: RuntimeError"
    assert reason in manifest["env_state_reason"]
    assert rlox.load(saved).predict([0.0]) in (0, 1)


@pytest.mark.distributed
@pytest.mark.kills
@pytest.mark.parametrize("fault", ["die", "raise"])
def test_the_other_rank_saves_before_torchrun_terminates_it(tmp_path, fault):
    script = Path(ddp_runs.__file__)
    path = os.pathsep.join([str(Path(rlox.__file__).parents[1]), str(script.parents[1])])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    result = subprocess.run(
        [*launcher, script, fault, tmp_path],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 1
    assert "PeerError" in result.stderr
    (saved,) = tmp_path.glob("*/*/*/checkpoint")
    assert read_checkpoint(saved).manifest["counters"]["timesteps"] == 128


@pytest.mark.distributed
def test_different_calls_on_ranks_raise():
    _, second = run_ranks(ddp_runs.different_calls)
    assert second.error.startswith("PeerError: ranks make different calls")


@pytest.mark.distributed
def test_three_ranks_with_local_environments_have_equal_weights():
    ranks = results(ddp_runs.train_on_three_ranks, size=3)
    assert {rank["num_envs"] for rank in ranks} == {6}
    assert len({rank["seed"] for rank in ranks}) == 1
    assert {rank["timesteps"] for rank in ranks} == {384}
    assert "networks.total" in ranks[0]["arrays"]
    for name, value in ranks[0]["arrays"].items():
        if not name.startswith("environment"):
            assert ranks[1]["arrays"][name] == ranks[2]["arrays"][name] == value, name


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ranks_solve_cartpole_and_the_control_does_not(monkeypatch):
    monkeypatch.setattr(ddp_runs, "TIMEOUT", 800.0)
    scores = [results(ddp_runs.solve, average)[0] for average in (True, False)]
    assert scores[0] >= 475
    assert scores[1] < 200
