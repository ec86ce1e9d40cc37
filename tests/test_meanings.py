"""Every setting has its meaning beside it."""

from dataclasses import fields

import pytest

from rlox import configs
from rlox.configs.meanings import meanings

CONFIGS = [getattr(configs, name) for name in configs.__all__ if name.endswith("Config")]


@pytest.mark.parametrize("config_type", CONFIGS)
def test_every_setting_has_one(config_type):
    told = meanings(config_type)
    assert [*told] == [field.name for field in fields(config_type)]
    assert all(told.values())


def test_settings_of_a_base_keep_theirs_where_only_the_default_is_another():
    told = meanings(configs.DQNConfig)["batch_size"]
    assert told.startswith("Transitions in a minibatch")
