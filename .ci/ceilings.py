"""Check that no source file, and no function, has grown too long to be read at a sitting.

Rust files have at most 400 lines, Python files 350, Python functions 60 without their docstrings.
Clippy counts the lines of Rust functions. A stub only lists what the extension has, however much,
and nobody reads generated code.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

FILE = {".rs": 400, ".py": 350}
FUNCTION = 60


def long_functions(source: str) -> Iterator[tuple[str, int]]:
    """Names and lengths of functions above the ceiling, docstrings not counted.

    >>> list(long_functions("def f():\\n" + "    pass\\n" * 60))
    [('f', 61)]
    >>> list(long_functions("def f():\\n    '''" + "\\n" * 90 + "'''"))
    []
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if ast.get_docstring(node) is not None:
                said = node.body[0]
                length -= (said.end_lineno or 0) - said.lineno + 1
            if length > FUNCTION:
                yield node.name, length


def main() -> int:
    """Names what is too long; returns the exit status."""
    listed = subprocess.run(
        ["git", "ls-files", "*.rs", "*.py"], capture_output=True, text=True, check=True
    )
    found = []
    for path in map(Path, listed.stdout.split()):
        if not path.exists() or "generated" in path.parts:
            continue
        source = path.read_text()
        lines = source.count("\n")
        if lines > FILE[path.suffix]:
            found.append(f"{path}: {lines} lines, at most {FILE[path.suffix]}; split it")
        if path.suffix == ".py":
            long = long_functions(source)
            found += [f"{path}: {name} has {n} lines, at most {FUNCTION}" for name, n in long]
    print("\n".join(found) or "no file or function is too long")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
