"""Write the tables of settings in the documentation from the metadata of the config classes.

A table follows a comment such as `<!-- settings: dqn sac td3 -->`, with one row per setting of the
algorithms. `a2c without ppo` has only the settings that differ from PPO's, and
`impala: num_envs n_steps` has only these two settings.
"""

import re
from pathlib import Path

from rlox._registry import ALGORITHMS
from rlox._validation import Setting, get_settings

TABLE = re.compile(r"(<!-- settings: (.+) -->\n)(?:\|.*\n)*")
HEAD = "| setting | default | values | meaning |\n|---|---|---|---|\n"


def update_page(text: str) -> str:
    """Return the text of a page with current tables."""
    return TABLE.sub(lambda match: match[1] + make_table(match[2]), text)


def make_table(content: str) -> str:
    """Return the table of a comment with this content."""
    algorithms, _, names = content.partition(": ")
    algorithms, _, base = algorithms.partition(" without ")
    configs = {name.upper(): get_settings(ALGORITHMS[name].config) for name in algorithms.split()}
    common = get_settings(ALGORITHMS[base].config) if base else {}
    rows: dict[tuple[str, str], dict[str, Setting]] = {}
    for algorithm, settings in configs.items():
        for name, setting in settings.items():
            if setting != common.get(name) and (not names or name in names.split()):
                rows.setdefault((f"`{name}`", setting.doc), {})[algorithm] = setting
    absent = [f"`{name}`" for name in common if not any(name in x for x in configs.values())]
    if absent:
        rows[", ".join(absent), f"not settings of {', '.join(configs)}"] = {}
    table = HEAD
    for (name, doc), settings in rows.items():
        values = dict.fromkeys(x.bounds or _join(x.choices) for x in settings.values())
        default = _describe_defaults(settings, [*configs])
        table += f"| {name} | {default} | {', '.join(values)} | {doc} |\n"
    return table


def _describe_defaults(settings: dict[str, Setting], algorithms: list[str]) -> str:
    """Return the defaults, with the names of the algorithms unless all have the same default."""
    users: dict[str, list[str]] = {}
    for algorithm, setting in settings.items():
        users.setdefault(_literal(setting.default), []).append(algorithm)
    if [*users.values()] == [algorithms]:
        return next(iter(users))
    return ", ".join(f"{default} ({', '.join(names)})" for default, names in users.items())


def _literal(default: object) -> str:
    if isinstance(default, str):
        return f'"{default}"'
    return f"{default:,}" if type(default) is int else str(default)


def _join(choices: tuple[str, ...]) -> str:
    return ", ".join(map(_literal, choices))


if __name__ == "__main__":
    for page in (Path(__file__).parent.parent / "docs").glob("*.md"):
        page.write_text(update_page(page.read_text()))
