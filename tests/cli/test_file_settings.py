"""Files of settings: what they may say, beside the command line and besides themselves."""

import sys

import pytest

from cli_runs import SMALL

WORDS = ("--total-timesteps", "1", "--no-progress", "--json")
SWEEP = ("sweep", "--config", "a.yaml", "--total-timesteps", "64", "--no-progress")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that can be imported, and was not."""
    (tmp_path / "a_module_of_others.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield "a_module_of_others"
    sys.modules.pop("a_module_of_others", None)


@pytest.mark.parametrize("words", [("train", "--config", "a.yaml", *WORDS), SWEEP])
def test_files_import_nothing(words, rlox, module, tmp_path):
    (tmp_path / "a.yaml").write_text(f'algorithm: ppo\nenv: "{module}:CartPole-v1"\n')
    said = rlox(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err == (
        f"rlox: --config, env: expected an id alone, as files import nothing, got "
        f"'{module}:CartPole-v1'; pass '{module}:CartPole-v1' as ENV on the command line if you "
        "trust its module\n"
    )
    assert module not in sys.modules
    assert not (tmp_path / "runs").exists()


def test_a_module_that_the_command_line_names_is_imported(rlox, module, tmp_path):
    env = f"{module}:CartPole-v1"
    (tmp_path / "a.yaml").write_text(f'algorithm: ppo\nenv: "{env}"\n')
    said = rlox("train", "ppo", env, "--config", "a.yaml", *SMALL, *WORDS)
    assert (said.code, said.json["env"]) == (0, "CartPole-v1")
    assert module in sys.modules


def test_seeds_of_the_command_line_win_over_the_seed_of_a_file(rlox, tmp_path):
    run = rlox("train", "ppo", "CartPole-v1", *SMALL, *WORDS, "--seed", "7")
    file = f"{run.json['run_dir']}/config.json"
    said = rlox("train", "--config", file, "--seeds", "0-1", *WORDS)
    assert [one["seed"] for one in said.json["runs"]] == [0, 1]
    (tmp_path / "seeds.yaml").write_text("algorithm: ppo\nenv: CartPole-v1\nseeds: 0-1\n")
    said = rlox("train", "--config", "seeds.yaml", "--seed", "5", *SMALL, *WORDS)
    assert said.json["seed"] == 5


@pytest.mark.parametrize("file", ["seed: 1\nseeds: 0-1\n", "seed: 1\n", "seeds: 0-1\n", ""])
def test_a_seed_and_seeds_from_one_place_are_refused(file, rlox, tmp_path):
    (tmp_path / "a.yaml").write_text(f"algorithm: ppo\nenv: CartPole-v1\n{file}")
    both = () if file.count("seed") == 2 else ("--seed", "1", "--seeds", "0-1")
    said = rlox("train", "--config", "a.yaml", *both, *WORDS)
    assert said.code == 2
    assert "--seeds: expected no --seed beside it, got both; leave one of them out" in said.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "n-steps: 8\nn_steps: 16\n",
            "a.yaml: expected 'n_steps' once, got it as 'n-steps' and as 'n_steps'; remove one",
        ),
        (
            "settings: {n_steps: 8, n-steps: 8}\n",
            "--config, settings: expected 'n_steps' once, got it as 'n_steps' and as 'n-steps'; "
            "remove one",
        ),
        (
            "n-steps: 8\nsettings: {n_steps: 16}\n",
            "--config: expected 'n_steps' once, got it at the top (8) and under settings (16); "
            "remove one",
        ),
    ],
)
@pytest.mark.parametrize("words", [("train", "--config", "a.yaml", *WORDS), SWEEP])
def test_settings_that_come_twice_are_refused_with_both_places(
    words, content, message, rlox, tmp_path
):
    (tmp_path / "a.yaml").write_text(f"algorithm: ppo\nenv: CartPole-v1\n{content}")
    said = rlox(*words)
    assert (said.code, said.err) == (2, f"rlox: {message}\n")


@pytest.mark.parametrize("name", ["num_envs", "eval_every"])
def test_a_sweep_is_told_which_number_of_its_file_is_a_word(name, rlox, tmp_path):
    (tmp_path / "a.yaml").write_text(f'algorithm: ppo\nenv: CartPole-v1\n{name}: "8"\n')
    said = rlox(*SWEEP)
    assert said.code == 2
    assert said.err.startswith(f"rlox: {name}: expected an integer of at least 1, got '8'; ")
