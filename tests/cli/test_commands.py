"""What the shell hears: exit codes, one line of an error, tracebacks on demand, pipes, Ctrl-C."""

import os
import signal
import subprocess
import sys
import time

import gymnasium as gym
import pytest

import rlox as package
from rlox.cli import main
from rlox.cli.commands import COMMANDS, in_a_line

MODULE = [sys.executable, "-m", "rlox"]


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"]])
def test_the_overview_names_every_command(words, rlox):
    said = rlox(*words)
    assert said.code == 0
    assert all(f"\n  {name} " in said.out for name in COMMANDS)


def test_without_a_command_the_overview_is_shown_as_a_mistake(rlox):
    said = rlox()
    assert (said.code, said.out.split()[0]) == (2, "usage:")


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version_is_the_packages(word, rlox):
    assert rlox(word)[:2] == (0, f"rlox {package.__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_fits_a_screen(name, rlox):
    said = rlox(name, "--help")
    lines = said.out.splitlines()
    assert (said.code, said.err) == (0, "")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_an_unknown_command_is_told_which_was_meant(rlox):
    said = rlox("trian")
    assert (said.code, said.out) == (2, "")
    assert said.err == "rlox: expected a command, got 'trian'; did you mean 'train'?\n"


def test_an_error_is_one_line_and_a_traceback_only_where_asked_for(rlox):
    said = rlox("eval", "nowhere")
    assert said.code == 1
    assert said.err.startswith("rlox: path: expected a checkpoint, ")
    assert said.err.count("\n") == 1
    said = rlox("eval", "nowhere", "--traceback")
    assert said.code == 1
    assert said.err.startswith("Traceback")
    assert "rlox: path: expected a checkpoint, " in said.err.splitlines()[-1]


def test_messages_move_no_cursor(rlox):
    said = rlox("eval", "a\x1b[31m\nb")
    assert "\\x1b[31m b does not exist" in said.err
    assert said.err.count("\n") == 1


def test_errors_that_say_too_little_are_told_with_their_type():
    assert in_a_line(KeyError("x")) == "KeyError: 'x'; --traceback shows where"
    assert in_a_line(FileNotFoundError(2, "none", "a")) == "none: 'a'"
    assert in_a_line(ValueError()) == "ValueError: ; --traceback shows where"


def test_ctrl_c_ends_a_command_with_130(rlox, monkeypatch):
    def interrupted(words):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlox.cli.envs.run", interrupted)
    assert rlox("envs") == (130, "", "interrupted\n")


def test_without_tyro_the_extra_is_named_and_what_needs_no_words_works():
    program = (
        "import sys; sys.modules['tyro'] = None; from rlox.cli import main\n"
        "assert main(['envs']) == 0\n"
        "sys.exit(main(['eval', 'somewhere']))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 1
    assert "CartPole-v1" in run.stdout
    assert "pip install 'rlox[cli]'" in run.stderr
    assert run.stderr.count("\n") == 1


def test_importing_the_package_imports_nothing_of_the_command_line():
    names = "{'tyro', 'rich', 'yaml', 'rlox.cli'} & {*sys.modules}"
    program = f"import sys, rlox; sys.exit(len({names}))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_module_is_the_command_and_a_closed_pipe_is_no_error():
    with subprocess.Popen([*MODULE, "envs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        said = run.stderr.read()
        assert (run.wait(), said) == (0, b"")


def test_nothing_is_coloured_where_no_colour_is_wanted():
    run = subprocess.run(
        [*MODULE, "eval", "--help"], capture_output=True, env={**os.environ, "NO_COLOR": "1"}
    )
    assert run.returncode == 0
    assert b"\x1b" not in run.stdout + run.stderr


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_ends_training_with_a_checkpoint_a_summary_and_130(tmp_path, capsys):
    words = ["train", "ppo", "CartPole-v1", "--total-timesteps", "1_000_000_000", "--seed", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*MODULE, *words], cwd=tmp_path, **pipes) as run:
        try:
            until = time.monotonic() + 60
            while not list(tmp_path.rglob("metrics.csv")) and time.monotonic() < until:
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 130
    assert "stopping after the current step" in err
    assert "interrupted; go on with: rlox resume runs" in out
    (folder,) = (file.parent for file in tmp_path.rglob("summary.json"))
    assert (folder / "checkpoint" / "manifest.json").is_file()
    assert main(["eval", str(folder), "--episodes", "1"]) == 0


class Broken(gym.Wrapper):
    """Its simulator is gone."""

    how: BaseException = BrokenPipeError(32, "Broken pipe")

    def reset(self, *, seed=None, options=None):
        raise self.how


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (BrokenPipeError(32, "Broken pipe"), "living worker processes"),
        (SystemExit("no licence found"), "rlox: no licence found"),
    ],
)
def test_what_ends_an_environment_is_no_end_of_the_command(how, said, rlox, monkeypatch):
    def made(**keywords):
        return Broken(gym.make("CartPole-v1").unwrapped)

    monkeypatch.setattr(Broken, "how", how)
    gym.register("Broken-v0", made)
    try:
        told = rlox("train", "ppo", "Broken-v0", "--total-timesteps", "64", "--no-progress")
    finally:
        del gym.registry["Broken-v0"]
    assert told.code == 1
    assert said in told.err.strip().splitlines()[-1]
