"""Find private words in identifiers, and documentation with a wrong first word.

Only definitions count, so that names of other libraries may have these words. Documentation does
not start with a question word. The documentation of a Rust function starts with a verb in the third
person, as in the standard library; that of the binding is read in Python. Ruff checks Python's
docstrings.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WORD = re.compile(
    "said|told|untold|kept|made|given|taken|seen|standing|unborn|begun|lend|lent|spare|few|aside|ahead|enough|room"
)
OPENERS = ("What", "How", "Where", "Whether", "Which", "Whose", "Those")
RUST_FUNCTIONS = re.compile(
    r"^((?:[ \t]*///.*\n)+)(?:[ \t]*(?:#\[|//(?!/)).*\n)*[ \t]*(?:pub(?:\(\w+\))? )?(?:(?:const|unsafe) )*fn ",
    re.MULTILINE,
)
GENERATED = "crates/rlox-grpc/src/generated/"
Finding = tuple[int, str]  # line number and message

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Comments, string literals and character literals of Rust, which hold no identifiers.
RUST_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|\'(?:\\.[^\']*|[^\\\'])\'', re.DOTALL)
# Patterns of Rust text that defines names: items; fields and parameters; enum variants; `let` and
# `for` patterns; parameters of closures; match arms.
RUST_DEFINITIONS = [
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"\b(?:fn|struct|enum|trait|type|const|static|mod|union|macro_rules!)\s+(?=(\w+))",
        r"\b([a-z_]\w*)\s*:(?!:)",
        r"^\s*([A-Z]\w*)\s*(?=[,({=])",
        r"\blet\s+([^=;]+)",
        r"\bfor\s+([^;={}]+?)\s+in\b",
        r"\|([^|\n;]*)\|",
        r"^([^\n]*)=>",
    )
]
# A name within such text, unless it is a field of a value, a path, a call or a macro.
RUST_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?!\w|::|\(|!)")


def check_name(line: int, name: str) -> Iterator[Finding]:
    """Report a name if one of its parts is a private word."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    words = [part.lower() for part in parts if WORD.fullmatch(part.lower())]
    if words:
        yield line, f"name {name} has the word {', '.join(words)}"


def check_opener(line: int, text: str) -> Iterator[Finding]:
    """Report documentation if its first word, or that of an argument's entry, is a question word."""
    first = re.match(r"\w*", text.strip()).group()
    entries = re.findall(r"^ +\w+: (\w+)", text, re.MULTILINE)
    for word in (first, *entries):
        if word in OPENERS:
            yield line, f"documentation starts with {word}"


def python_names(node: ast.AST) -> list[str | None]:
    """Return the names that a node defines."""
    if isinstance(node, FUNCTIONS):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        owner = node.value
        return [node.attr] if isinstance(owner, ast.Name) and owner.id in ("self", "cls") else []
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname for alias in node.names]
    return []


def check_python(text: str) -> Iterator[Finding]:
    """Check the definitions and the documentation of a Python file."""
    for node in ast.walk(ast.parse(text)):
        for name in python_names(node):
            yield from check_name(node.lineno, name or "")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from check_opener(node.lineno, str(node.value.value))


def check_verbs(text: str) -> Iterator[Finding]:
    """Report documentation of Rust functions that does not start with a verb in the third person."""
    for function in RUST_FUNCTIONS.finditer(text):
        first = function[1].split()[1].strip(",")
        if not first.endswith("s"):
            yield text.count("\n", 0, function.start()) + 1, f"documentation of a function starts with {first}"


def check_rust(text: str) -> Iterator[Finding]:
    """Check the definitions and the documentation of a Rust file."""
    for block in re.finditer(r"^[ \t]*(//[/!])(?!/)(.*)(?:\n[ \t]*\1.*)*", text, re.MULTILINE):
        yield from check_opener(text.count("\n", 0, block.start(1)) + 1, block[2])
    # Lines stay where they are, and one letter takes the place of each literal.
    code = RUST_TEXT.sub(lambda found: "_" + "\n" * found[0].count("\n"), text)
    for pattern in RUST_DEFINITIONS:
        for definition in pattern.finditer(code):
            for name in RUST_NAME.finditer(code, *definition.span(1)):
                yield from check_name(code.count("\n", 0, name.start()) + 1, name[0])


def main() -> int:
    """Print all findings; return 1 if there are any."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py", "*.pyi", "*.rs"]
    files = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    findings = 0
    for file in sorted({*files} - {""}):
        if file.startswith(GENERATED) or not Path(file).is_file():
            continue
        check = check_rust if file.endswith(".rs") else check_python
        stem = Path(file).stem
        text = Path(file).read_text(encoding="utf-8")
        found = {*check_name(1, stem), *check(text)}
        if re.match(r"crates/(?!rlox-python/)[\w-]+/src/", file):
            found.update(check_verbs(text))
        for line, message in sorted(found):
            print(f"{file}:{line}: {message}")
        findings += len(found)
    return int(findings > 0)


if __name__ == "__main__":
    sys.exit(main())
