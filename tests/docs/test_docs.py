"""Code blocks of the documentation run, and commands and links name existing files."""

import doctest
import importlib
import inspect
import pkgutil
import re
import runpy
import shlex
from pathlib import Path

import pytest

import rlox
from rlox._registry import ALGORITHMS
from support.doc_blocks import BLOCK, ROOT, code_blocks

SETTINGS_TABLES = runpy.run_path(str(ROOT / ".ci/settings_tables.py"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LANGUAGES = {"python", "rust", "sh", "text", "mermaid"}


def relative_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def modules() -> list[str]:
    """Return the names of all modules of the package, including the extension."""
    names = [m.name for m in pkgutil.walk_packages(rlox.__path__, "rlox.")]
    return ["rlox", *(name for name in names if not name.endswith("__main__"))]


@pytest.mark.parametrize("page", [page for page in PAGES if code_blocks(page, "python")], ids=relative_name)
def test_python_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for line, code in code_blocks(page, "python"):
        exec(compile("\n" * line + code, page, "exec"), namespace)


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


@pytest.mark.parametrize("name", [n for n in rlox.__all__ if hasattr(rlox._rlox, n)])
def test_public_names_of_the_extension_have_an_example(name):
    value = getattr(rlox._rlox, name)
    if name == "__version__" or (inspect.isclass(value) and issubclass(value, Exception)):
        return
    (test, *_) = doctest.DocTestFinder(recurse=False).find(value, name)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=relative_name)
def test_blocks_have_a_language_and_rust_blocks_are_doctests(page):
    assert {m[1] for m in BLOCK.finditer(page.read_text())} <= LANGUAGES
    included = (ROOT / "docs/pages.rs").read_text()
    assert not code_blocks(page, "rust") or f'"../{relative_name(page)}"' in included


@pytest.mark.parametrize("page", PAGES, ids=relative_name)
def test_commands_name_existing_targets_and_files(page):
    rules = re.findall(r"^([a-z][a-z -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    for _, code in code_blocks(page, "sh"):
        for argv in filter(None, (shlex.split(line, comments=True) for line in code.splitlines())):
            if argv[0] == "make":
                assert set(argv[1:]) <= targets
            if argv[0].endswith("python") and argv[1].endswith(".py"):
                assert (ROOT / argv[1]).is_file()


@pytest.mark.parametrize("page", PAGES, ids=relative_name)
def test_relative_links_name_existing_files(page):
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=relative_name)
def test_tables_of_settings_match_the_metadata(page):
    assert SETTINGS_TABLES["update_page"](page.read_text()) == page.read_text()


def test_every_algorithm_has_a_table_of_settings():
    comments = re.findall("<!-- settings: (.+) -->", "".join(page.read_text() for page in PAGES))
    assert {*ALGORITHMS} <= {name for comment in comments for name in comment.split()}
