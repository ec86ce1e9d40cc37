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
