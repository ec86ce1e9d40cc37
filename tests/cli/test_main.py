"""`rlox`: list of commands, exit codes, error lines, pipes, Ctrl-C, and docs/cli.md."""

import contextlib
import glob
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import pytest

import rlox as package
from rlox.cli import COMMANDS, describe_error, main
from support.doc_blocks import ROOT, code_blocks

MODULE = [sys.executable, "-m", "rlox"]


def test_overview_and_version_are_printed(rlox):
    for word in ("--help", "-h", "help"):
        result = rlox(word)
        assert result.code == 0
        assert all(f"\n  {name} " in result.out for name in COMMANDS)
    assert rlox()[:2] == (2, result.out)
    assert rlox("--version")[:2] == rlox("-V")[:2] == (0, f"rlox {package.__version__}\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_fits_a_screen(name, rlox):
    result = rlox(name, "--help")
    lines = result.out.splitlines()
    assert (result.code, result.err) == (0, "")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_errors_are_single_lines_with_an_optional_traceback(rlox):
    result = rlox("eval", "a\x1b[31m\nb")
    assert result.code == 1
    assert result.err.startswith("rlox: path: expected a checkpoint, ")
    assert "\\x1b[31m b does not exist" in result.err
    assert result.err.count("\n") == 1
    result = rlox("eval", "nowhere", "--traceback")
    assert (result.code, result.err.startswith("Traceback")) == (1, True)
    assert result.err.splitlines()[-1].startswith("rlox: path: expected")


def test_errors_with_short_messages_are_reported_with_the_type():
    assert describe_error(KeyError("x")) == "KeyError: 'x'; add --traceback to see where"
    assert describe_error(ValueError()) == "ValueError: ; add --traceback to see where"


def test_keyboard_interrupt_exits_with_130(rlox, monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("rlox.cli.inspect.envs", interrupt)
    assert rlox("envs") == (130, "", "interrupted\n")


def test_commands_with_arguments_need_tyro(rlox, monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert rlox("envs").code == 0
    result = rlox("eval", "somewhere")
    assert result.code == 1
    assert "tyro, got none; pip install 'rlox[cli]'" in result.err


def test_closed_pipe_is_not_an_error():
    with subprocess.Popen([*MODULE, "envs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        run.stdout.close()
        errors = run.stderr.read()
        assert (run.wait(), errors) == (0, b"")


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_no_color_is_honoured():
    program = (
        "import os; from rlox.cli import main\n"
        "main(['eval', '--help']); print('NO COLOR', flush=True); os.environ['NO_COLOR'] = '1'\n"
        "main(['eval', '--help'])\n"
    )
    reader, terminal = os.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stdout=terminal) as run:
        os.close(terminal)
        output = b""
        with contextlib.suppress(OSError):  # raised at the end of the output
            while chunk := os.read(reader, 4096):
                output += chunk
    os.close(reader)
    before, after = output.split(b"NO COLOR")
    assert run.returncode == 0
    assert b"\x1b[" in before
    assert b"\x1b[" not in after


@pytest.mark.serial
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
@pytest.mark.parametrize(
    ("seeds", "report"), [("--seed=1", "interrupted; continue with: rlox resume"), ("--seeds=0-5", "6 interrupted")]
)
def test_ctrl_c_saves_checkpoints_and_summaries_and_exits_with_130(seeds, report, tmp_path):
    arguments = ["train", "ppo", "CartPole-v1", "--total-timesteps", "1_000_000_000", seeds]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*MODULE, *arguments], cwd=tmp_path, **pipes) as run:
        try:
            deadline = time.monotonic() + 60
            while not [*tmp_path.rglob("metrics.csv")] and time.monotonic() < deadline:
                time.sleep(0.05)
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == 130, err
    assert report in out
    folders = [file.parent for file in tmp_path.rglob("config.json")]
    assert folders
    for name in ("summary.json", "checkpoint/manifest.json"):
        assert all((folder / name).is_file() for folder in folders)
    assert main(["eval", str(folders[0]), "--episodes", "1"]) == 0


class Failing(gym.Wrapper):
    """Environment whose reset raises."""

    error: BaseException

    def reset(self, *, seed=None, options=None):
        raise self.error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (BrokenPipeError(32, "Broken pipe"), "running worker processes"),
        (SystemExit("no licence found"), "rlox: no licence found"),
    ],
    ids=["pipe", "exit"],
)
def test_errors_of_environments_exit_with_1(error, message, rlox, monkeypatch):
    monkeypatch.setattr(Failing, "error", error, raising=False)
    gym.register("Failing-v0", lambda **_: Failing(gym.make("CartPole-v1").unwrapped))
    try:
        result = rlox("train", "ppo", "Failing-v0", "--total-timesteps", "64", "--no-progress")
    finally:
        del gym.registry["Failing-v0"]
    assert result.code == 1
    assert message in result.err.strip().splitlines()[-1]


def split_command(line):
    """Split a line as a shell does, expand patterns, and remove `rlox`."""
    parts = shlex.split(line, comments=True)[1:]
    return [path for part in parts for path in sorted(glob.glob(part)) or [part]]


def test_commands_of_the_documentation_page_run(rlox):
    page = (ROOT / "docs/cli.md").read_text()
    assert [name for name in COMMANDS if f"| `{name}" not in page] == []
    for _, code in code_blocks(ROOT / "docs/cli.md", "sh"):
        for line in code.splitlines():
            assert line.startswith("rlox ")
            command, _, file = line.partition(" > ")
            result = rlox(*split_command(command))
            assert result.code == 0, (line, result.err)
            if file:
                Path(file).write_text(result.out)
