"""Code blocks of the documentation pages."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Return the code blocks of a language as pairs of the preceding line number and the code."""
    source = page.read_text()
    found = [m for m in BLOCK.finditer(source) if m[1] == language]
    return [(source.count("\n", 0, m.start(2)), m[2]) for m in found]
