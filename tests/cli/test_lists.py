"""`rlox envs` and `rlox presets`."""

import pytest

from rlox import presets
from rlox.cli.config_file import read_yaml
from rlox.ids import native_ids


def test_native_environments_are_listed_with_their_spaces(rlox):
    said = rlox("envs")
    head, *lines = said.out.splitlines()
    assert head.split() == ["id", "observations", "actions", "steps", "presets"]
    assert [line.split()[0] for line in lines] == native_ids()
    (pendulum,) = (line for line in lines if line.startswith("Pendulum-v1"))
    assert "Box(3)" in pendulum
    assert "Box(1), -2 to 2  200    a2c ppo sac td3" in pendulum


def test_they_are_listed_as_json(rlox):
    (cartpole,) = (env for env in rlox("envs", "--json").json if env["id"] == "CartPole-v1")
    assert cartpole == {
        "id": "CartPole-v1",
        "observation_space": "Box(4)",
        "action_space": "Discrete(2)",
        "max_episode_steps": 500,
        "presets": ["a2c", "dqn", "ppo"],
    }


def test_presets_are_listed_by_algorithm(rlox):
    lines = [line.split() for line in rlox("presets").out.splitlines()]
    assert lines == [[name, env] for name, envs in presets.names().items() for env in envs]
    assert {line.split()[0] for line in rlox("presets", "sac").out.splitlines()} == {"sac"}
    assert rlox("presets", "sac", "--json").json == {"sac": presets.names()["sac"]}


@pytest.mark.parametrize(("algorithm", "env"), [("td3", "Pendulum-v1"), ("ppo", "Hopper-v4")])
def test_a_preset_that_is_shown_reads_as_what_it_is(algorithm, env, rlox):
    said = read_yaml(rlox("presets", algorithm, env).out, "here")
    assert (said["algorithm"], said["env"]) == (algorithm, env)
    assert said["settings"] == rlox("presets", algorithm, env, "--json").json
    assert said["settings"].keys() == presets.preset(algorithm, env).keys()
