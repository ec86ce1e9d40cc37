"""The commands of docs/cli.md run in order."""

import glob
import shlex
from pathlib import Path

from rlox.cli.commands import COMMANDS
from test_docs import ROOT, blocks


def words_of(line):
    """A line's words as a shell has them: without `rlox`, patterns as what they match."""
    words = [sorted(glob.glob(word)) or [word] for word in shlex.split(line, comments=True)[1:]]
    return [word for matched in words for word in matched]


def test_the_commands_of_the_page_run_in_order(rlox):
    for _, code in blocks(ROOT / "docs/cli.md", "sh"):
        for line in code.splitlines():
            assert line.startswith("rlox ")
            command, _, file = line.partition(" > ")
            said = rlox(*words_of(command))
            assert said.code == 0, (line, said.err)
            if file:
                Path(file).write_text(said.out)


def test_the_page_names_every_command():
    page = (ROOT / "docs/cli.md").read_text()
    assert [name for name in COMMANDS if f"| `{name}" not in page] == []
