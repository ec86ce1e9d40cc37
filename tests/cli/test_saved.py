"""`rlox eval`, `enjoy` and `resume`: what was trained is scored, watched and trained on."""

import json
import shutil

import gymnasium as gym
import pytest

from rlox.scores import score
from rlox.trainers import PPOTrainer


def test_the_score_is_that_of_the_trainers_evaluation(rlox, trained):
    said = rlox("eval", trained, "--episodes", "8", "--json")
    expected = PPOTrainer.load(trained, runs_dir=None).evaluate(8)
    assert (said.code, said.err) == (0, "")
    assert said.json["returns"] == expected["returns"]
    assert said.json["lengths"] == expected["lengths"]
    told = score(expected["returns"])
    assert said.json["iqm_interval"] == list(told["iqm_interval"])
    assert (said.json["mean"], said.json["std"]) == (told["mean"], told["std"])


def test_people_are_told_means_and_the_interval(rlox, trained):
    said = rlox("eval", trained / "checkpoint", "--episodes", "4")
    lines = said.out.splitlines()
    assert lines[0] == "ppo CartPole-v1, 4 episodes"
    assert lines[1].startswith("mean ")
    assert ", 95% interval [" in lines[2]


def test_episodes_are_those_of_a_seed_and_samples_too(rlox, trained):
    words = ("eval", trained, "--episodes", "3", "--json", "--seed", "5")
    greedy, samples = rlox(*words).json, rlox(*words, "--stochastic").json
    assert greedy["returns"] != samples["returns"]
    assert samples["returns"] == rlox(*words, "--stochastic").json["returns"]


def test_a_policy_is_scored_in_another_environment_of_the_same_spaces(rlox, trained):
    said = rlox("eval", trained, "--env", "rlox/CartPole-v1", "--episodes", "2", "--json")
    assert (said.code, said.json["env"]) == (0, "rlox/CartPole-v1")


def test_a_checkpoint_is_scored_on_another_backend(rlox, trained):
    words = ("eval", trained, "--episodes", "3", "--json")
    assert rlox(*words, "--backend", "torch").json["returns"] == rlox(*words).json["returns"]


@pytest.mark.parametrize("mode", ["rgb_array", "human"])
def test_every_step_of_an_episode_is_drawn(mode, rlox, trained):
    pytest.importorskip("pygame")
    said = rlox("enjoy", trained, "--episodes", "1", "--render-mode", mode, "--json")
    assert said.code == 0
    # The first observation, each step, and the first one of the episode that would follow.
    assert said.json["frames"] == said.json["lengths"][0] + 2


def test_people_are_told_each_episode(rlox, trained):
    pytest.importorskip("pygame")
    said = rlox("enjoy", trained, "--episodes", "2", "--render-mode", "rgb_array")
    assert [line.split(":")[0] for line in said.out.splitlines()] == ["episode 1", "episode 2"]


def test_where_there_is_no_screen_the_other_mode_is_named(rlox, trained, monkeypatch):
    class error(Exception):  # noqa: N801, N818  # as pygame calls it
        pass

    error.__module__ = "pygame"

    def no_screen(*args, **kwargs):
        raise error("No available video device")

    monkeypatch.setattr("gymnasium.make", no_screen)
    said = rlox("enjoy", trained)
    assert said.code == 1
    assert "expected rgb_array where there is no screen, got human" in said.err


def test_more_steps_go_into_the_same_folder(rlox, copied):
    rows = len((copied / "metrics.csv").read_text().splitlines())
    said = rlox("resume", copied, "--total-timesteps", "32", "--no-progress", "--json")
    assert (said.code, said.json["timesteps"], said.json["run_dir"]) == (0, 96, str(copied))
    assert len((copied / "metrics.csv").read_text().splitlines()) == rows + 1
    assert PPOTrainer.load(copied, runs_dir=None).timesteps == 96
    assert json.loads((copied / "summary.json").read_text())["timesteps"] == 96


def test_a_run_that_was_stopped_goes_on_to_its_end_as_if_it_was_not(rlox, tmp_path):
    small = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}
    stopped = PPOTrainer("CartPole-v1", 1, runs_dir=tmp_path, **small)
    stopped.train(128, callbacks=[lambda trainer, metrics: trainer.stop()])
    whole = PPOTrainer("CartPole-v1", 1, runs_dir=None, **small)
    whole.train(128)
    said = rlox("resume", stopped.run.path, "--no-progress", "--json")
    assert (said.code, said.json["timesteps"]) == (0, 128)
    again = PPOTrainer.load(stopped.run.path, runs_dir=None).learner.policy.tensors()
    for name, array in whole.learner.policy.tensors().items():
        assert (again[name] == array).all()


def test_a_checkpoint_outside_of_a_run_gets_a_folder(rlox, trained, tmp_path):
    trainer = PPOTrainer.load(trained, runs_dir=None)
    trainer.save(tmp_path / "alone")
    words = ("resume", "alone", "--total-timesteps", "1", "--no-progress", "--json")
    assert rlox(*words).json["run_dir"].startswith("runs/CartPole-v1/ppo/")


@pytest.fixture
def made_of_a_function(tmp_path):
    """The folder of a run whose environment a function made."""
    small = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}
    trainer = PPOTrainer(lambda: gym.make("CartPole-v1"), 1, runs_dir=tmp_path / "own", **small)
    trainer.train(64)
    return trainer.run.path


def test_a_run_without_an_id_plays_in_the_environment_that_is_given(rlox, made_of_a_function):
    words = (made_of_a_function, "--episodes", "2", "--json")
    evaluated = rlox("eval", *words, "--env", "CartPole-v1")
    assert (evaluated.code, len(evaluated.json["returns"])) == (0, 2), evaluated.err
    pytest.importorskip("pygame")
    watched = rlox("enjoy", *words, "--env", "CartPole-v1", "--render-mode", "rgb_array")
    assert (watched.code, len(watched.json["returns"])) == (0, 2)


@pytest.mark.parametrize("command", ["eval", "enjoy", "resume"])
def test_a_run_without_an_id_needs_an_environment(command, rlox, made_of_a_function):
    said = rlox(command, made_of_a_function)
    assert said.code == 1
    assert said.err == (
        "rlox: --env: expected an environment's id, as the run was made without one, got none; "
        "add --env ID\n"
    )


def test_the_config_of_a_run_says_what_goes_on(rlox, made_of_a_function):
    run = made_of_a_function
    words = ("--total-timesteps", "1", "--no-progress", "--json")
    before = json.loads((run / "config.json").read_text())
    asked = ("--backend", "torch", "--env", "CartPole-v1")
    with pytest.warns(UserWarning, match="training goes on with new episodes"):
        said = rlox("resume", run, *asked, *words)
    assert (said.code, said.json["backend"]) == (0, "torch")
    after = json.loads((run / "config.json").read_text())
    assert (before["backend"], before["env"]) == ("native", None)
    assert (after["backend"], after["env"]) == ("torch", "CartPole-v1")
    assert after["sources"] == before["sources"]
    assert rlox("resume", run, *words).json["run_dir"] == str(run)


@pytest.mark.parametrize(
    "about",
    [{"name": "theirs"}, {"algorithm": "ppo", "seed": 3}, {"versions": {"rlox": "0"}, "seed": 4}],
)
@pytest.mark.parametrize("name", ["models/saved", "models/checkpoint", "checkpoints/saved"])
def test_a_folder_of_another_program_is_no_run(about, name, rlox, trained, tmp_path):
    theirs = tmp_path / "theirs"
    shutil.copytree(trained / "checkpoint", theirs / name)
    rows = "time/total_timesteps,rollout/ep_rew_mean\n96,1.0\n"
    mine = {"config.json": json.dumps(about), "summary.json": "{}", "metrics.csv": rows}
    for folder in (theirs, theirs / "models"):
        folder.mkdir(exist_ok=True)
        for file, content in mine.items():
            (folder / file).write_text(content)
    words = ("--total-timesteps", "1", "--no-progress", "--json")
    said = rlox("resume", theirs / name, *words)
    assert said.json["run_dir"].startswith("runs/CartPole-v1/ppo/")
    assert {file: (theirs / file).read_text() for file in mine} == mine


@pytest.mark.parametrize("name", ["checkpoint", "checkpoints/step-000000064"])
def test_checkpoints_of_a_run_go_on_in_its_folder(name, rlox, copied):
    if not (copied / name).exists():
        shutil.copytree(copied / "checkpoint", copied / name)
    words = ("--total-timesteps", "1", "--no-progress", "--json")
    assert rlox("resume", copied / name, *words).json["run_dir"] == str(copied)


def test_what_a_diagnosis_saved_goes_on_elsewhere(rlox, copied):
    diagnosis = copied / "diagnosis"
    shutil.copytree(copied / "checkpoint", diagnosis / "checkpoint")
    shutil.copy(copied / "config.json", diagnosis)
    said = rlox("eval", copied.parent)
    assert f"expected a run folder, got one above 1 of them; pass {copied}" in said.err
    for path in (diagnosis, diagnosis / "checkpoint"):
        words = ("--total-timesteps", "1", "--no-progress", "--json")
        assert rlox("resume", path, *words).json["run_dir"].startswith("runs/CartPole-v1/ppo/")


def test_a_wrong_number_of_steps_changes_nothing_in_the_run(rlox, copied):
    with open(copied / "metrics.csv", "a") as file:
        file.write((copied / "metrics.csv").read_text().splitlines()[-1].replace("64", "96") + "\n")
    before = {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}
    said = rlox("resume", copied, "--total-timesteps", "0", "--backend", "torch")
    assert (said.code, "total_timesteps: expected an integer of at least 1" in said.err) == (2, 1)
    assert {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()} == before


def test_a_run_that_is_done_says_how_to_make_more(rlox, trained):
    said = rlox("resume", trained)
    assert said.code == 1
    assert "expected a run that was stopped, got one that made all its 64 steps" in said.err


@pytest.mark.parametrize("algorithm", ["a2c", "dqn", "sac", "td3"])
def test_runs_of_every_algorithm_are_known_by_their_files(algorithm, rlox, tmp_path):
    env = "CartPole-v1" if algorithm in ("a2c", "dqn") else "Pendulum-v1"
    words = ["train", algorithm, env, "--total-timesteps", "4", "--no-progress", "--net-arch", "4"]
    words += [] if algorithm == "a2c" else ["--buffer-size", "300", "--train-freq", "1"]
    assert rlox(*words, "--json", "--num-envs", "1").code == 0
    (run,) = (file.parent for file in tmp_path.rglob("config.json"))
    said = rlox("eval", run, "--episodes", "1", "--json")
    assert (said.code, said.json["algorithm"]) == (0, algorithm)


def test_a_folder_above_runs_names_the_newest(rlox, trained):
    said = rlox("eval", trained.parents[2])
    assert said.code == 1
    assert f"expected a run folder, got one above 1 of them; pass {trained}" in said.err


def test_a_damaged_file_is_named_and_nothing_goes_on(rlox, copied):
    file = copied / "checkpoint" / "networks.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    said = rlox("resume", copied, "--total-timesteps", "1")
    assert said.code == 1
    assert "networks.safetensors" in said.err
