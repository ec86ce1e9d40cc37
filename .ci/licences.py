"""Check the licence of every crate in the build and of every Python package that rlox requires.

A licence that is not in ALLOWED stops the build: read it, then add it here or drop the package.
"""

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable

ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MPL-2.0",  # asks for the sources of changed files only; none are changed
    "PSF-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
# Packages whose metadata holds a name instead of an SPDX expression.
NAMES = {
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}


def allowed(expression: str) -> bool:
    """Return True if an SPDX expression can be satisfied with the licences in ALLOWED.

    >>> allowed("MIT OR GPL-3.0-only"), allowed("(MIT OR GPL-3.0-only) AND GPL-2.0-only")
    (True, False)
    >>> allowed("Apache-2.0 WITH LLVM-exception AND MIT/Zlib")
    True
    """
    tokens = re.findall(r"[()]|\bAND\b|\bOR\b|[\w.+-]+(?:\s+WITH\s+[\w.-]+)?", expression.replace("/", " OR "))
    position = 0

    def one() -> bool:
        nonlocal position
        token = tokens[position]
        position += 1
        if token != "(":
            return " ".join(token.split()) in ALLOWED
        inside = alternatives()
        position += 1  # the closing parenthesis
        return inside

    def chain(operator: str, operand: Callable[[], bool]) -> list[bool]:
        nonlocal position
        values = [operand()]
        while position < len(tokens) and tokens[position] == operator:
            position += 1
            values.append(operand())
        return values

    def alternatives() -> bool:
        return any(chain("OR", lambda: all(chain("AND", one))))

    return bool(tokens) and alternatives()


def crates() -> dict[str, str]:
    """Return the licence expression of every crate that is built on some platform.

    Cargo.lock has more crates, which only the GPU features of Candle and Burn need.
    """
    command = ["cargo", "tree", "--workspace", "--target", "all", "--prefix", "none"]
    lines = subprocess.check_output([*command, "--format", "{p}|{l}"], text=True).splitlines()
    found = {}
    for line in filter(None, lines):
        package, _, licence = line.removesuffix(" (*)").partition("|")
        found[" ".join(package.split()[:2])] = licence or "(none given)"
    return found


def python_packages(root: str) -> dict[str, str]:
    """Return the licence expression of every package that `root` requires without its extras."""
    found: dict[str, str] = {}
    waiting = [root]
    while waiting:
        meta = importlib.metadata.metadata(waiting.pop())
        key = f"{meta['Name']} {meta['Version']}"
        if key in found:
            continue
        classifiers = meta.get_all("Classifier") or []
        names = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License :: OSI")]
        licence = meta["License-Expression"] or " AND ".join(NAMES.get(n, n) for n in names)
        licence = licence or NAMES.get(meta["License"] or "", meta["License"] or "(none given)")
        found[key] = licence
        for requirement in meta.get_all("Requires-Dist") or []:
            if "extra ==" not in requirement:
                name = re.match(r"[\w.-]+", requirement)
                assert name is not None
                try:
                    importlib.metadata.distribution(name[0])
                except importlib.metadata.PackageNotFoundError:
                    continue  # for another platform or Python version
                waiting.append(name[0])
    return found


def main() -> int:
    """Print the rejected licences and the number of checked packages."""
    everything = crates() | python_packages("rlox")
    rejected = {name: licence for name, licence in everything.items() if not allowed(licence)}
    for name, licence in sorted(rejected.items()):
        print(f"licence not allowed: {name}: {licence}", file=sys.stderr)
    print(f"licences: {len(everything)} packages checked, {len(rejected)} rejected")
    return 1 if rejected else 0


if __name__ == "__main__":
    sys.exit(main())
