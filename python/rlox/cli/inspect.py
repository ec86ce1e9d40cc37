"""Commands that read saved runs, presets and environments; see `rlox --help`."""

import io
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym

from rlox import exporting
from rlox import presets as tuned
from rlox._errors import ArgumentError
from rlox._files import write_file
from rlox._training.resume import NoEnvironmentError
from rlox._validation import hint
from rlox.checkpoint import FOLDER as CHECKPOINTS
from rlox.cli import UsageError, columns, report
from rlox.cli._args import Options, argument, option, parse
from rlox.envs._ids import native_ids
from rlox.envs.vec_env import VecEnv
from rlox.evaluation import SeededPredictor, evaluation_seed
from rlox.evaluation import evaluate as play
from rlox.inference import Policy, load
from rlox.logger.base import METRIC
from rlox.plotting import plot_runs, read_curve
from rlox.scores import score
from rlox.trainers import Trainer

_FORMATS = {".pt": "torch", ".pth": "torch", ".safetensors": "safetensors", ".onnx": "onnx"}


def open_trainer(path: str, *, fallback_env: str | None = None, **options: Any) -> Trainer:
    """Load the trainer of a run folder or checkpoint of any algorithm.

    Args:
        path: Run folder or checkpoint.
        fallback_env: Id of the environment if the checkpoint has none.
        **options: Arguments of `Trainer.load`; None: the saved value.
    """
    arguments = {"runs_dir": None, **{name: value for name, value in options.items() if value is not None}}
    try:
        return Trainer.load(path, **arguments)
    except NoEnvironmentError:
        if fallback_env is None:
            raise
        return Trainer.load(path, **arguments, env=fallback_env)


def run_folder(path: str, trainer: Trainer) -> Path | None:
    """Return the run folder of a path, or None if the path is not in a run of the trainer.

    Folders of other programs may have a `config.json` as well.
    """
    folder = Path(path).resolve()
    if folder.name == "checkpoint":
        folder = folder.parent
    elif folder.parent.name == CHECKPOINTS:
        folder = folder.parent.parent
    config = _read_json(folder / "config.json")
    versions = config.get("versions")
    is_run = isinstance(versions, dict) and "rlox" in versions
    same = (config.get("algorithm"), config.get("seed")) == (trainer.spec.name, trainer.seed)
    return folder if is_run and same else None


def _read_json(file: Path) -> dict[str, Any]:
    """Return the content of a JSON file; an empty dict if the file holds no object."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


@dataclass
class EvalOptions(Options):
    """Evaluate a trained policy over full episodes, in Gymnasium's own environment."""

    run: str = argument("Run folder or checkpoint.", "RUN")
    episodes: int = option("number of full episodes", 30, low=1)
    seed: int | None = option("seed of the episodes; default: derived from the run", None)
    stochastic: bool = option("sample actions instead of taking greedy ones", False)
    env: str | None = option("id of the environment; default: the training environment", None)
    backend: str | None = option("implementation of the networks; default: as saved", None)
    json: bool = option("print the score, returns and lengths as JSON", False)


def evaluate(argv: Sequence[str]) -> int:
    """Evaluate a trained policy, and print its score."""
    options = parse(EvalOptions, "eval", argv)
    with open_trainer(options.run, fallback_env=options.env, backend=options.backend) as trainer:
        result = trainer.evaluate(
            options.episodes, seed=options.seed, deterministic=not options.stochastic, env=options.env
        )
    total = score(result["returns"])
    env = options.env or trainer.run.task
    content = {"algorithm": trainer.spec.name, "env": env, **total}
    content |= {"returns": result["returns"], "lengths": result["lengths"]}
    low, high = total["iqm_interval"]
    lines = [
        f"{trainer.spec.name} {env}, {total['episodes']} episodes",
        f"mean {total['mean']:.2f}, standard deviation {total['std']:.2f}",
        f"interquartile mean {total['iqm']:.2f}, 95% interval [{low:.2f}, {high:.2f}]",
    ]
    return report(content, lines, as_json=options.json)


@dataclass
class EnjoyOptions(Options):
    """Watch a trained policy in Gymnasium's own environment."""

    run: str = argument("Run folder or checkpoint.", "RUN")
    episodes: int = option("number of full episodes", 3, low=1)
    render_mode: Literal["human", "rgb_array"] = option("window, or frames only", "human")
    seed: int | None = option("seed of the episodes; default: derived from the run", None)
    stochastic: bool = option("sample actions instead of taking greedy ones", False)
    env: str | None = option("id of the environment; default: the training environment", None)
    json: bool = option("print returns, lengths and the number of frames as JSON", False)


class _Rendered(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that renders every step and counts the frames; human mode renders by itself."""

    frames = 0

    def reset(self, **keywords: Any) -> tuple[Any, dict[str, Any]]:
        outputs = self.env.reset(**keywords)
        self._draw()
        return outputs

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        outputs = self.env.step(action)
        self._draw()
        return outputs

    def _draw(self) -> None:
        if self.render_mode != "human":
            self.env.render()
        self.frames += 1


def enjoy(argv: Sequence[str]) -> int:
    """Render episodes of a trained policy, and print their returns."""
    options = parse(EnjoyOptions, "enjoy", argv)
    rendered: list[_Rendered] = []

    def make() -> gym.Env[Any, Any]:
        rendered.append(_Rendered(trainer.run.make_env(options.env, render_mode=options.render_mode)))
        return rendered[-1]

    with open_trainer(options.run, fallback_env=options.env) as trainer:
        seed = evaluation_seed(trainer.seed) if options.seed is None else options.seed
        try:
            result = play(
                SeededPredictor(trainer.learner, seed),
                make,
                options.episodes,
                seed=seed,
                deterministic=not options.stochastic,
                num_envs=1,
            )
        except Exception as error:
            if type(error).__module__.startswith("pygame") and options.render_mode == "human":
                raise ArgumentError(
                    "--render-mode",
                    "rgb_array on a machine without a screen",
                    f"human ({error})",
                    "add --render-mode rgb_array",
                ) from error
            raise
    episodes = enumerate(zip(result["returns"], result["lengths"], strict=True), 1)
    lines = [f"episode {i}: return {reward:.2f} in {steps:,} steps" for i, (reward, steps) in episodes]
    return report({**result, "frames": sum(env.frames for env in rendered)}, lines, as_json=options.json)


@dataclass
class ExportOptions:
    """Write a trained policy as a file for other programs; the file contains no code."""

    run: str = argument("Run folder or checkpoint.", "RUN")
    out: str = option("file to write or replace", metavar="FILE")
    format: Literal["torch", "safetensors", "onnx"] | None = option("default: by suffix", None)
    json: bool = option("print file, format and size as JSON", False)


def export(argv: Sequence[str]) -> int:
    """Write a trained policy as torch, safetensors or ONNX."""
    options = parse(ExportOptions, "export", argv)
    out = Path(options.out)
    format_of_name = _FORMATS.get(out.suffix)
    file_format = options.format or format_of_name
    if file_format is None:
        raise UsageError(
            f"--format: expected torch, safetensors or onnx, as {options.out!r} has none of the "
            f"suffixes {', '.join(_FORMATS)}, got none; add --format onnx"
        )
    if format_of_name not in (None, file_format):
        raise UsageError(
            f"--out: expected the name of a {file_format} file, got {options.out!r}; pass another "
            "name, or omit --format"
        )
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise UsageError(f"--out: expected a file in an existing folder, got {options.out!r}; pass another path")
    policy = load(options.run)
    savers = {"torch": _save_torch, "safetensors": exporting.save_safetensors, "onnx": exporting.save_onnx}
    savers[file_format](policy, out)
    size = out.stat().st_size
    line = f"{policy.algorithm} {policy.env} as {file_format}, {size:,} bytes, in {options.out}"
    return report({"file": options.out, "format": file_format, "bytes": size}, [line], as_json=options.json)


def _save_torch(policy: Policy, path: Path) -> None:
    """Write a file that `torch.load(path, weights_only=True)` reads."""
    tensors = exporting.state_dict(policy)
    import torch

    data = io.BytesIO()
    torch.save(tensors, data)
    write_file(path, data.getvalue())


@dataclass
class PlotOptions(Options):
    """Plot a metric of runs; runs that differ only in their seed become a line with a band."""

    runs: tuple[str, ...] = argument("Run folders, or parent folders of runs.", "RUN...", ())
    metric: str = option("column of metrics.csv", METRIC)
    x: Literal["steps", "time"] = option("environment steps, or seconds of training", "steps")
    smooth: int = option("number of rows of the moving average", 1, low=1)
    bands: bool = option("draw runs that differ only in their seed as one line", True)
    out: str | None = option("image; default: curve.png in the run, or curves.png", None)
    title: str = option("title above the plot", "")
    json: bool = option("print image, lines and runs as JSON", False)


def plot(argv: Sequence[str]) -> int:
    """Plot learning curves, and print the path of the image."""
    options = parse(PlotOptions, "plot", argv)
    if not options.runs:
        raise UsageError("RUN...: expected at least one run folder, got none; try rlox plot runs")
    folders = list(dict.fromkeys(run for path in options.runs for run in _run_folders(Path(path))))
    out = options.out or (folders[0] / "curve.png" if len(folders) == 1 else "curves.png")
    curves = [read_curve(folder, options.metric, options.x, options.smooth) for folder in folders]
    lines = plot_runs(curves, out, metric=options.metric, along=options.x, bands=options.bands, title=options.title)
    content = {"image": str(out), "lines": lines, "runs": [str(folder) for folder in folders]}
    return report(content, [*lines, f"image {out}"], as_json=options.json)


def _run_folders(folder: Path) -> list[Path]:
    """Return the run folder itself, or the run folders below it."""
    if (folder / "metrics.csv").is_file():
        return [folder]
    runs = sorted(file.parent for file in folder.rglob("metrics.csv"))
    if not runs:
        raise FileNotFoundError(
            f"RUN: expected a run folder or a parent of run folders, got {str(folder)!r} without "
            "metrics.csv; pass a folder that rlox train wrote"
        )
    return runs


@dataclass
class PresetsOptions:
    """List rl-zoo3's tuned settings, which trainers use by default, or show the ones for ENV.

    The output for ENV is a YAML file for rlox train --config.
    """

    algorithm: str | None = argument("List only presets of this algorithm.", "ALGORITHM", None)
    env: str | None = argument("Show the settings for this environment.", "ENV", None)
    json: bool = option("print JSON", False)


def presets(argv: Sequence[str]) -> int:
    """List presets, or show a preset."""
    options = parse(PresetsOptions, "presets", argv)
    algorithm, names = options.algorithm, tuned.names()
    if algorithm not in (None, *names):
        raise UsageError(
            f"ALGORITHM: expected an algorithm with presets, got {algorithm!r}; {hint(str(algorithm), names)}"
        )
    if algorithm is None or options.env is None:
        listed = {name: envs for name, envs in names.items() if algorithm in (None, name)}
        table = columns((name, env) for name, envs in listed.items() for env in envs)
        return report(listed, [table], as_json=options.json)
    text = tuned.show(algorithm, options.env).rstrip()
    return report(tuned.preset(algorithm, options.env), [text], as_json=options.json)


@dataclass
class EnvsOptions:
    """List the native environments. Trainers also take every id that Gymnasium knows."""

    json: bool = option("print the list as JSON", False)


def envs(argv: Sequence[str]) -> int:
    """List the native environments."""
    options = parse(EnvsOptions, "envs", argv)
    descriptions = [_describe_env(env_id) for env_id in native_ids()]
    rows = [("id", "observations", "actions", "steps", "presets")]
    for env in descriptions:
        limit, algorithms = env["max_episode_steps"] or "no limit", env["presets"] or ["none"]
        spaces = env["observation_space"], env["action_space"]
        rows.append((env["id"], *spaces, str(limit), " ".join(algorithms)))
    return report(descriptions, [columns(rows)], as_json=options.json)


def _describe_env(env_id: str) -> dict[str, Any]:
    with closing(VecEnv(1, None, env_id)) as env:
        return {
            "id": env_id,
            "observation_space": _short(env.single_observation_space),
            "action_space": _short(env.single_action_space),
            "max_episode_steps": None if env.spec is None else env.spec.max_episode_steps,
            "presets": sorted(name for name, known in tuned.names().items() if env_id in known),
        }


def _short(space: gym.Space[Any]) -> str:
    """Return a short text for a space; bounds of a Box only if they are equal for all numbers."""
    if not isinstance(space, gym.spaces.Box):
        return str(space)
    low, high = space.low.min(), space.high.max()
    shared = (space.low == low).all() and (space.high == high).all()
    bounds = f", {low:g} to {high:g}" if shared else ""
    return f"Box{space.shape}{bounds}".replace(",)", ")")
