"""Where sweeps are kept: one at a time trains a study, and files have any name."""

import pytest

from rlox import machine
from rlox.sweep import Plan, Sweep, study
from rlox.sweep.space import Range

pytest.importorskip("optuna", reason="needs optuna: pip install 'rlox[sweep]'")


@pytest.fixture
def plan():
    small = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}
    space = {"learning_rate": Range(1e-4, 1e-3)}
    return Plan("ppo", "CartPole-v1", space, 32, 32, 1, seed=1, settings=small)


@pytest.mark.parametrize("url", [False, True])
def test_a_second_sweep_of_a_study_is_refused_while_one_trains_it(url, plan, tmp_path):
    storage = tmp_path / "sweep.db"
    refused = []

    def another(trial):
        where = f"sqlite:///{storage}" if url else storage
        with pytest.raises(BlockingIOError) as raised:
            Sweep(plan, where, runs_dir=None).run(2)
        refused.append(str(raised.value))
        Sweep(plan, where, "another", runs_dir=None).run(1)

    sweep = Sweep(plan, storage, runs_dir=None)
    sweep.run(1, tell=another)
    (said,) = refused
    assert (
        "storage: expected a study that no other sweep trains now, got 'ppo-CartPole-v1', which "
        "one does; wait for its end, or pass another --study" in said
    )
    assert len(sweep.done()) == 1
    Sweep(plan, storage, runs_dir=None).run(2)
    assert [trial.user_attrs["seed"] for trial in sweep.done()] == [1, 2]


@pytest.mark.parametrize("name", ["a?b.db", "a%3Fb.db", "{a}.db", "a b#c.db"])
def test_a_storage_is_the_file_that_is_named(name, plan, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Sweep(plan, name, runs_dir=None)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    assert Sweep(plan, name, runs_dir=None).done() == []


def test_trials_share_the_cpus_that_control_groups_grant(plan, monkeypatch):
    class Asked(Exception):  # noqa: N818
        pass

    def asked(count, threads):
        raise Asked(count, threads)

    monkeypatch.setattr(machine, "allowed_cpus", lambda: 64)
    monkeypatch.setattr(machine, "quota", lambda: 6.0)
    monkeypatch.setattr(study, "Pool", asked)
    with pytest.raises(Asked) as raised:
        Sweep(plan, runs_dir=None).run(4, jobs=2)
    assert raised.value.args == (2, 3)
