"""YAML as data: numbers are numbers, words are words, and nothing in it runs."""

import math
import sys

import pytest

from rlox.cli.config_file import LARGEST, read_config, read_yaml
from rlox.cli.mistakes import UsageError


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-2.5e+3", -2500.0),
        ("3e-4", 3e-4),
        (".5", 0.5),
        ("1.", 1.0),
        ("100_000", 100_000),
        ("1_0.5", 10.5),
        ("010", 10),
        ("+7", 7),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'1e-3'", "1e-3"),
        ("[64, 64]", [64, 64]),
        ("{a: 1, b: [x]}", {"a": 1, "b": ["x"]}),
        ("CartPole-v1", "CartPole-v1"),
        ("=", "="),
    ],
)
def test_words_are_what_yaml_1_2_calls_them(word, value):
    got = read_yaml(word, "here")
    assert (got, type(got)) == (value, type(value))


def test_nan_is_a_number_that_settings_refuse():
    assert math.isnan(read_yaml(".nan", "here"))


def test_a_merge_key_is_a_key_like_any():
    assert read_yaml("<<: 1", "here") == {"<<": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a: !!python/object/apply:os.system ['true']",
            "line 1: expected no tag, got tag:yaml.org",
        ),
        ("a: 1\nb: !!float 3", "line 2: expected no tag"),
        ("a: !own x", "line 1: expected no tag, got !own"),
        ("a: &x [1]\nb: *x", r"line 2: expected no alias, got \*x"),
        ("a: 1\na: 2", "line 2: expected 'a' once, got it twice"),
        ("1: 2", "line 1: expected a name as key, got 1"),
        ("null: 2", "line 1: expected a name as key, got None"),
        ("[1]: 2", r"line 1: expected a name as key, got \[1\]"),
        ("a: [1", "expected YAML, got other"),
        ("a: b: c", "line 1: expected YAML, got other"),
        ("a: 1\n---\nb: 2", "expected YAML, got other"),
        ("\x00", "expected YAML, got other"),
        ("[" * LARGEST, "line 1: expected at most 50 levels, got more; flatten it"),
    ],
)
def test_what_is_no_plain_data_is_refused_with_its_line(text, message):
    with pytest.raises(UsageError, match=f"^here.*{message}"):
        read_yaml(text, "here")


def test_ten_laughs_are_refused_before_they_grow():
    text = "a0: &a0 lol\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    with pytest.raises(UsageError, match="expected no alias"):
        read_yaml(text, "here")


def test_names_may_be_written_as_flags(tmp_path):
    (tmp_path / "a.yaml").write_text("n-steps: 8\n")
    assert read_config(str(tmp_path / "a.yaml")) == {"n_steps": 8}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- 1\n- 2\n", "expected keys and values, got a list; write key: value"),
        (b"word", "expected keys and values, got a str"),
        (b"a: \xff", "expected UTF-8, got other"),
        (b"#" * (LARGEST + 1), "expected at most 1,048,576 bytes, got more"),
    ],
)
def test_files_of_something_else_are_refused(content, message, tmp_path):
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_config(str(tmp_path / "a.yaml"))


def test_an_empty_file_says_nothing(tmp_path):
    (tmp_path / "a.yaml").write_text("# later\n")
    assert read_config(str(tmp_path / "a.yaml")) == {}


def test_a_file_that_is_not_there_is_told_with_near_ones(tmp_path):
    (tmp_path / "pendulum.yaml").write_text("")
    with pytest.raises(UsageError, match=r"which is not there; did you mean 'pendulum\.yaml'"):
        read_config(str(tmp_path / "pendulm.yaml"))


def test_without_pyyaml_the_extra_is_named(rlox, tmp_path, monkeypatch):
    (tmp_path / "a.yaml").write_text("algorithm: ppo\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    said = rlox("train", "--config", "a.yaml")
    assert said.code == 1
    assert said.err.startswith("rlox: yaml: expected this package of the command line, got none; ")
    assert "pip install 'rlox[cli]'" in said.err
