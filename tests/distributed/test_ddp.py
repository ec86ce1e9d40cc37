"""Processes that learn together do what one would, hold the same, and end together."""

import json
import re
import socket
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import rlox  # noqa: E402
from ddp_processes import torchrun  # noqa: E402
from ddp_runs import SETTINGS  # noqa: E402
from rlox import RunningMeanStd, make_vec, trainers  # noqa: E402
from rlox.algorithms.a2c import a2c_loss  # noqa: E402
from rlox.algorithms.ppo import ppo_loss  # noqa: E402
from rlox.algorithms.sac import actor_loss, critic_loss, sac_targets  # noqa: E402
from rlox.batches import Batch  # noqa: E402
from rlox.checkpoint import read_checkpoint  # noqa: E402
from rlox.distributed import ddp  # noqa: E402
from rlox.replaying import ReplayBatch  # noqa: E402


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What two processes did in one run of many checks, by rank."""
    folder = tmp_path_factory.mktemp("ddp")
    text, status = torchrun(2, "checks", str(folder))
    assert status == 0, text
    said = [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(2)]
    return folder, said


def reference(algorithm):
    """The learner of one process with the same settings."""
    env, settings = SETTINGS[algorithm]
    kind = getattr(trainers, f"{algorithm.upper()}Trainer")
    return kind(env, 0, backend="torch", runs_dir=None, **settings).learner


def halves(folder, algorithm):
    return [dict(np.load(folder / f"{algorithm}-{rank}.npz")) for rank in range(2)]


def close(gradient, expected):
    """Equal to 1e-6, relative to the length of the whole vector."""
    gap = np.linalg.norm(gradient.astype(np.float64) - expected.astype(np.float64))
    return gap <= 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_averaged_gradients_are_those_of_one_process_on_the_whole_rollout(checked, algorithm):
    one, two = halves(checked[0], algorithm)
    assert np.array_equal(one["gradient"], two["gradient"])
    assert not np.array_equal(one["obs"], two["obs"])
    fields = [name for name in Batch._fields if name in one]
    rows = {name: torch.from_numpy(np.concatenate([one[name], two[name]])) for name in fields}
    learner = reference(algorithm)
    loss, rest, config = ppo_loss, (0.2,), learner.config
    if algorithm == "a2c":
        loss, rest = a2c_loss, ()
    weights = torch.from_numpy(one["weights"])
    torch.nn.utils.vector_to_parameters(weights, learner.policy.parameters())

    def gradient(config):
        whole = loss(learner.evaluate, Batch(**rows), config, *rest)[0]
        return learner.optimizer.gradient(whole).numpy()

    assert close(one["gradient"], gradient(config))
    # Each rank's own mean and deviation would have been noticed.
    plain = replace(config, normalize_advantage=False)
    parts = [rows["advantages"][:32], rows["advantages"][32:]]
    rows["advantages"] = torch.cat([(x - x.mean()) / (x.std() + 1e-8) for x in parts])
    assert not close(one["gradient"], gradient(plain))


def test_averaged_gradients_of_sac_are_those_of_one_process_on_the_whole_batch(checked):
    ranks = halves(checked[0], "sac")
    learner = reference("sac")
    names = learner.modules.state_dict()
    learner.modules.load_state_dict({n: torch.from_numpy(ranks[0][n]) for n in names})
    keys = ("obs", "actions", "rewards", "next_obs", "terminated")
    batches = [
        ReplayBatch(**{n: torch.from_numpy(rank[n]) for n in keys}, discounts=0.9) for rank in ranks
    ]
    alpha, drawn = learner.temperature.log_alpha.detach().exp(), []
    for rank, half in zip(ranks, batches, strict=True):  # each has noise of its own
        learner.generator.set_state(torch.from_numpy(rank["generator"]))
        said = learner.policy.get_action_and_logprob(half.obs)
        target = sac_targets(learner.policy, learner.critic_target, half, alpha)
        drawn.append((*said, target))
    actions, log_probs, targets = (torch.cat(x) for x in zip(*drawn, strict=True))
    whole = ReplayBatch(
        **{n: torch.cat([getattr(b, n) for b in batches]) for n in keys}, discounts=0.9
    )
    critic, (actor_optimizer, critic_optimizer, temperature) = (
        learner.policy.critic,
        learner.optimizers,
    )
    gradient = critic_optimizer.gradient(critic_loss(critic, whole, targets))
    excess = (log_probs + learner.target_entropy).detach()
    expected = {
        "critic": gradient,
        "actor": actor_optimizer.gradient(actor_loss(critic, whole, actions, log_probs, alpha)),
        "alpha": temperature.gradient(-(learner.temperature.log_alpha * excess).mean()),
    }
    for name, one in expected.items():
        assert np.array_equal(ranks[0][name], ranks[1][name])
        assert close(ranks[0][name], one.numpy()), name
        assert not close(1.001 * ranks[0][name], one.numpy())


def test_statistics_of_normalisers_are_those_of_one_process_over_all_data(checked):
    ranks = halves(checked[0], "statistics")
    for name in ("obs_mean", "obs_var", "obs_count", "return_mean", "return_var", "return_count"):
        assert np.array_equal(ranks[0][name], ranks[1][name])
    whole = RunningMeanStd((4,))
    for rank in ranks:
        whole.update(rank["raw"].reshape(-1, 4))
    assert np.allclose(ranks[0]["obs_mean"], whole.mean, rtol=1e-12, atol=1e-14)
    assert np.allclose(ranks[0]["obs_var"], whole.var, rtol=1e-12)
    assert ranks[0]["obs_count"] == pytest.approx(whole.count, rel=1e-12)
    assert whole.count > 256


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "sac"])
def test_all_hold_the_same_weights_and_resuming_is_exact(checked, algorithm):
    one, two = (said[algorithm]["digests"] for said in checked[1])
    straight, interrupted, again = one
    assert straight == interrupted == again
    assert two[0] == two[1] == two[2]
    for name, digest in straight["arrays"].items():
        own = name.split(".")[0] in ("environment", "replay") or name == "normalizer.returns"
        assert own or two[0]["arrays"][name] == digest, name
    # They are not one process's: each has steps of its own.
    assert two[0]["arrays"]["environment.states"] != straight["arrays"]["environment.states"]
    assert two[0]["streams"] != straight["streams"]
    assert {said[algorithm]["timesteps"] for said in checked[1]} == {
        128 if algorithm == "sac" else 256
    }


def test_a_checkpoint_predicts_anywhere_and_trains_on_as_many_processes_only(checked):
    folder = checked[0]
    for algorithm, kind in (("ppo", trainers.PPOTrainer), ("sac", trainers.SACTrainer)):
        saved = folder / f"{algorithm}-saved"
        env = {"ppo": "CartPole-v1", "sac": "Pendulum-v1"}[algorithm]
        obs = np.zeros(make_vec(env, 1).single_observation_space.shape)
        assert np.isfinite(rlox.load(saved).predict(obs)).all()
        with pytest.raises(ValueError, match="expected world size 1, got a checkpoint of 2; load"):
            kind.load(saved, runs_dir=None)
    manifest = read_checkpoint(folder / "ppo-saved").manifest
    assert manifest["settings"]["num_envs"] == 4
    assert manifest["counters"]["timesteps"] == 128
    assert manifest["environment"] == "exact"
    assert [own["counters"]["timesteps"] for own in manifest["ranks"]] == [64, 64]
    assert read_checkpoint(folder / "alone").manifest["counters"]["timesteps"] == 512


def test_the_run_is_rank_0s_and_its_result_everybodys(checked):
    folder, (one, two) = checked
    assert one["run"] == two["run"]
    assert one["run"]["timesteps"] == 512
    assert one["evaluated"] == two["evaluated"]
    (rows,) = folder.glob("runs/*/*/*/metrics.csv")
    names, *_, last = (line.split(",") for line in rows.read_text().splitlines())
    assert last[names.index("time/total_timesteps")] == "512"
    assert (rows.parent / "checkpoint").is_dir()
    assert (one["seed"], one["whole"]) == (two["seed"], two["whole"]) == (4, 8)


def test_a_stop_on_one_rank_stops_all(checked):
    for said in checked[1]:
        told, interrupted = said["stops"]["told"], said["stops"]["interrupted"]
        assert told["stopped_by"] == "enough"
        assert told["timesteps"] == 64
        assert interrupted["interrupted"]
        assert interrupted["stopped_by"] == "stop()"
        assert interrupted["timesteps"] < 1000
        # The KL of the first minibatch is 0: the second one's is too large, on both.
        assert said["stops"]["updates"] == 1


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "num_envs",
            "num_envs: expected a multiple of the 2 processes that share it, got 3; pass 2",
        ),
        ("batch_size", "batch_size: expected a multiple of the 2 processes .* got 33; pass 32"),
        ("backend", "backend: expected 'torch', .* got 'native'; leave it out"),
        ("setting", "no setting 'num_env'; did you mean 'num_envs'"),
        ("algorithm", "algorithm: expected one of ppo, a2c, sac, got 'dqn'"),
        ("next_step", "env: expected .* SAME_STEP or DISABLED .*, got NEXT_STEP; make them"),
        ("steps", "total_timesteps: expected an integer of at least 1, got 0"),
        ("second", "group: expected the only process group .*; leave that first"),
    ],
)
def test_what_cannot_be_done_is_refused_on_all_ranks(checked, case, message):
    for said in checked[1]:
        assert re.search(message, said["refusals"][case])


def test_outside_of_torchrun_the_message_says_how_to_start(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RuntimeError, match=r"got no .*RANK.*start it with: torchrun --nproc-per"):
        ddp.group()


def alone(monkeypatch):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    about = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    for name, value in {**about, "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, value)


def test_a_group_of_one_learns_what_a_trainer_does(monkeypatch, tmp_path):
    alone(monkeypatch)
    with pytest.raises(ValueError, match="backend: expected 'gloo' or 'nccl', got 'mpi'"):
        ddp.group(backend="mpi")
    with pytest.raises(ValueError, match="timeout: expected"):
        ddp.group(timeout=0)
    how = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "normalize_obs": True, "runs_dir": None}
    plain = trainers.PPOTrainer("CartPole-v1", 1, backend="torch", **how)
    plain.train(128)
    with ddp.group() as group:
        trainer = group.trainer("ppo", "CartPole-v1", seed=1, **how)
        trainer.train(128)
        trainer.save(tmp_path / "saved")
        again = group.load(tmp_path / "saved", runs_dir=None)
        expected = plain.learner.state().networks
        for one in (trainer, again):
            networks = one.learner.state().networks
            assert all(
                np.allclose(networks[n], x, rtol=1e-5, atol=1e-6) for n, x in expected.items()
            )
        assert again.timesteps == 128
    assert trainers.PPOTrainer.load(tmp_path / "saved", runs_dir=None).timesteps == 128
    with pytest.raises(RuntimeError, match="group: expected to be within"):
        type(trainer)("CartPole-v1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_is_refused_without_a_gpu(monkeypatch):
    alone(monkeypatch)
    with pytest.raises(ValueError, match="backend: expected 'gloo' without a GPU"):
        ddp.group(backend="nccl").__enter__()
