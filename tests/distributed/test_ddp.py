"""DDP: several processes learn what one process does, hold the same weights, and end together."""

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
from support.refusals import refuses  # noqa: E402


def results(function, *args, **kwargs):
    outcomes = run_ranks(function, *args, **kwargs)
    assert [one.error for one in outcomes] == [""] * len(outcomes)
    return [one.result for one in outcomes]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """What two ranks found in `ddp_runs.smoke`, and their folder."""
    folder = tmp_path_factory.mktemp("ddp")
    return folder, results(ddp_runs.smoke, folder)


@pytest.fixture(scope="module")
def further(tmp_path_factory):
    return results(ddp_runs.further, tmp_path_factory.mktemp("ddp"))


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    return results(ddp_runs.refusals, tmp_path_factory.mktemp("ddp"))


def reference(algorithm):
    """The learner of one process with the same settings."""
    env, settings = SETTINGS[algorithm]
    kind = getattr(trainers, f"{algorithm.upper()}Trainer")
    return kind(env, 0, backend="torch", runs_dir=None, **settings).learner


def close(gradient, expected):
    """Equal to 1e-6, relative to the length of the whole vector."""
    gap = np.linalg.norm(gradient.astype(np.float64) - expected.astype(np.float64))
    return gap <= 1e-6 * np.linalg.norm(expected)


def check_on_policy_gradient(algorithm, one, two):
    assert np.array_equal(one["gradient"], two["gradient"])
    assert not np.array_equal(one["obs"], two["obs"])
    fields = [name for name in Batch._fields if name in one]
    rows = {name: torch.from_numpy(np.concatenate([one[name], two[name]])) for name in fields}
    learner = reference(algorithm)
    loss, clip = (ppo_loss, (0.2,)) if algorithm == "ppo" else (a2c_loss, ())
    weights = torch.from_numpy(one["weights"])
    torch.nn.utils.vector_to_parameters(weights, learner.policy.parameters())

    def gradient(config):
        whole = loss(learner.evaluate, Batch(**rows), config, *clip)[0]
        return learner.optimizer.gradient(whole).numpy()

    assert close(one["gradient"], gradient(learner.config))
    # The control: advantages normalised by each rank alone give another gradient.
    plain = replace(learner.config, normalize_advantage=False)
    halves = [rows["advantages"][:32], rows["advantages"][32:]]
    rows["advantages"] = torch.cat([(x - x.mean()) / (x.std() + 1e-8) for x in halves])
    assert not close(one["gradient"], gradient(plain))


def check_resumed(one, two):
    straight, interrupted, again = one
    assert straight == interrupted == again
    assert two[0] == two[1] == two[2]
    for name, value in straight["arrays"].items():
        own = name.split(".")[0] in ("environment", "replay") or name == "normalizer.returns"
        assert own or two[0]["arrays"][name] == value, name
    # Each rank has steps of its own.
    assert two[0]["arrays"]["environment.states"] != straight["arrays"]["environment.states"]
    assert two[0]["streams"] != straight["streams"]


def test_ppo_gradient_of_two_ranks_equals_gradient_of_one_process(smoke):
    check_on_policy_gradient("ppo", *(rank["ppo"] for rank in smoke[1]))


def test_ranks_hold_the_same_weights_and_resume_exactly(smoke):
    check_resumed(*(rank["resumed"] for rank in smoke[1]))


def test_result_is_the_same_on_all_ranks_and_rank_0_writes_the_run_folder(smoke):
    folder, (one, two) = smoke
    assert one["result"] == two["result"]
    assert one["result"]["timesteps"] == 512
    assert one["evaluation"] == two["evaluation"]
    assert one["num_envs"] == two["num_envs"] == 8
    (rows,) = folder.glob("runs/*/*/*/metrics.csv")
    names, *_, last = (line.split(",") for line in rows.read_text().splitlines())
    assert last[names.index("time/total_timesteps")] == "512"
    assert (rows.parent / "checkpoint").is_dir()
    assert read_checkpoint(folder / "alone").manifest["counters"]["timesteps"] == 512


def test_checkpoint_predicts_anywhere_and_trains_only_with_as_many_ranks(smoke):
    saved = smoke[0] / "ppo-saved"
    assert rlox.load(saved).predict(np.zeros(4)) in (0, 1)
    with refuses(ArgumentError, "path", "torchrun", got="a checkpoint of 2"):
        trainers.PPOTrainer.load(saved, runs_dir=None)
    manifest = read_checkpoint(saved).manifest
    assert manifest["settings"]["num_envs"] == 4
    assert manifest["counters"]["timesteps"] == 128
    assert manifest["environment"] == "exact"
    assert [own["counters"]["timesteps"] for own in manifest["ranks"]] == [64, 64]


def test_group_of_one_learns_what_a_trainer_does(monkeypatch, tmp_path):
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
        again = group.load(tmp_path / "saved", runs_dir=None)
        for one in (trainer, again):
            networks = one.learner.state().networks
            for name, x in expected.items():
                np.testing.assert_allclose(networks[name], x, rtol=1e-5, atol=1e-6)
    assert trainers.PPOTrainer.load(tmp_path / "saved", runs_dir=None).timesteps == 128
    with refuses(RuntimeError, "group"):
        type(trainer)("CartPole-v1")
    for arguments, name in (({"backend": "mpi"}, "backend"), ({"timeout": 0}, "timeout")):
        with refuses(ArgumentError, name):
            ddp.group(**arguments)
    if not torch.cuda.is_available():
        with refuses(ArgumentError, "backend"):
            ddp.group(backend="nccl").__enter__()


def test_group_outside_of_torchrun_names_the_command(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match="torchrun --nproc-per-node"):
        ddp.group()


@pytest.mark.distributed
def test_a2c_gradient_of_two_ranks_equals_gradient_of_one_process(further):
    check_on_policy_gradient("a2c", *(rank["a2c"] for rank in further))


@pytest.mark.distributed
def test_sac_gradients_of_two_ranks_equal_gradients_of_one_process(further):
    ranks = [rank["sac"] for rank in further]
    learner = reference("sac")
    names = learner.modules.state_dict()
    learner.modules.load_state_dict({n: torch.from_numpy(ranks[0][n]) for n in names})
    keys = ("obs", "actions", "rewards", "next_obs", "terminated")
    batches = [
        ReplayBatch(**{n: torch.from_numpy(rank[n]) for n in keys}, discounts=0.9) for rank in ranks
    ]
    alpha, drawn = learner.temperature.log_alpha.detach().exp(), []
    for rank, half in zip(ranks, batches, strict=True):  # each rank has noise of its own
        learner.generator.set_state(torch.from_numpy(rank["generator"]))
        sample = learner.policy.get_action_and_logprob(half.obs)
        drawn.append((*sample, sac_targets(learner.policy, learner.critic_target, half, alpha)))
    actions, log_probs, targets = (torch.cat(x) for x in zip(*drawn, strict=True))
    whole = ReplayBatch(
        **{n: torch.cat([getattr(b, n) for b in batches]) for n in keys}, discounts=0.9
    )
    critic = learner.policy.critic
    actor_optimizer, critic_optimizer, temperature = learner.optimizers
    excess = (log_probs + learner.target_entropy).detach()
    critic_gradient = critic_optimizer.gradient(critic_loss(critic, whole, targets))
    expected = {
        "critic": critic_gradient,
        "actor": actor_optimizer.gradient(actor_loss(critic, whole, actions, log_probs, alpha)),
        "alpha": temperature.gradient(-(learner.temperature.log_alpha * excess).mean()),
    }
    for name, one in expected.items():
        assert np.array_equal(ranks[0][name], ranks[1][name])
        assert close(ranks[0][name], one.numpy()), name
        assert not close(1.001 * ranks[0][name], one.numpy())


@pytest.mark.distributed
def test_normalizer_statistics_equal_those_of_one_process_over_all_data(further):
    ranks = [rank["statistics"] for rank in further]
    for name in ("obs_mean", "obs_var", "obs_count", "return_mean", "return_var", "return_count"):
        assert np.array_equal(ranks[0][name], ranks[1][name])
    whole = RunningMeanStd((4,))
    for rank in ranks:
        whole.update(rank["raw"].reshape(-1, 4))
    np.testing.assert_allclose(ranks[0]["obs_mean"], whole.mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ranks[0]["obs_var"], whole.var, rtol=1e-12)
    assert ranks[0]["obs_count"] == pytest.approx(whole.count, rel=1e-12)
    assert whole.count > 256


@pytest.mark.distributed
@pytest.mark.parametrize("algorithm", ["a2c", "sac"])
def test_ranks_resume_exactly(further, algorithm):
    check_resumed(*(rank["resumed"][algorithm] for rank in further))


@pytest.mark.distributed
def test_stop_on_one_rank_stops_all(further):
    for rank in further:
        assert rank["callback"]["stopped_by"] == "solved"
        assert rank["callback"]["timesteps"] == 64
        assert rank["interrupt"]["interrupted"]
        assert rank["interrupt"]["timesteps"] < 1000
        # The KL of the first minibatch is 0, that of the second one is above the target.
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
        ("made", "env", "CartPole-v1 on rank 0, existing environments on rank 1", ""),
        ("spaces", "observation space", None, ""),
        ("policy", "policy", None, ""),
        ("steps", "total_timesteps", "64 on rank 0, 128 on rank 1", ""),
        ("checkpoint", "path", None, ""),
    ],
)
def test_wrong_or_different_arguments_raise_the_same_error_on_all_ranks(
    refusals, case, argument, got, hint
):
    assert refusals[0]["seed"] == refusals[1]["seed"] == 0
    assert refusals[0][case] == refusals[1][case]
    kind, _, found, value, fix = refusals[0][case]
    assert (kind, found) == ("ArgumentError", argument)
    assert got in (None, value)
    assert hint in fix


@pytest.mark.distributed
def test_a_second_group_is_rejected_on_all_ranks(refusals):
    assert refusals[0]["second group"] == refusals[1]["second group"]
    kind, text, *_ = refusals[0]["second group"]
    assert kind == "RuntimeError"
    assert text.startswith("this process is already in a process group")


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
def test_rank_that_fails_ends_the_others_and_rank_0_saves(tmp_path, fault, rank, error, exit_code):
    outcomes = run_ranks(ddp_runs.fault, tmp_path, fault, rank, hang=fault == "stop")
    failed, other = outcomes[rank], outcomes[1 - rank]
    assert failed.error.startswith(error)
    assert failed.exit_code == exit_code
    assert other.error.startswith("PeerError: another rank failed")
    (saved,) = tmp_path.glob("*/*/*/checkpoint")
    manifest = read_checkpoint(saved).manifest
    assert manifest["counters"]["timesteps"] == 128
    assert len(manifest["ranks"]) == 2
    assert manifest["ranks"][0]["streams"] != manifest["ranks"][1]["streams"]
    assert manifest["environment"] == "approximate"
    reason = error if rank == 0 else "rank 0: RuntimeError"
    assert reason in manifest["environment_reason"]
    assert rlox.load(saved).predict([0.0]) in (0, 1)


@pytest.mark.distributed
@pytest.mark.kills
@pytest.mark.parametrize("fault", ["die", "raise"])
def test_torchrun_ends_the_other_rank_only_after_it_has_saved(tmp_path, fault):
    script = Path(ddp_runs.__file__)
    path = os.pathsep.join([str(Path(rlox.__file__).parents[1]), str(script.parents[1])])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    done = subprocess.run(
        [*launcher, script, fault, tmp_path],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 1
    assert "PeerError" in done.stderr
    (saved,) = tmp_path.glob("*/*/*/checkpoint")
    assert read_checkpoint(saved).manifest["counters"]["timesteps"] == 128


@pytest.mark.distributed
def test_different_calls_on_ranks_raise():
    _, one = run_ranks(ddp_runs.different_calls)
    assert one.error.startswith("PeerError: ranks make different calls")


@pytest.mark.distributed
def test_three_ranks_with_environments_of_their_own_hold_the_same():
    ranks = results(ddp_runs.three, size=3)
    assert {one["num_envs"] for one in ranks} == {6}
    assert len({one["seed"] for one in ranks}) == 1
    assert {one["timesteps"] for one in ranks} == {384}
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
