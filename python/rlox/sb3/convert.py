"""Conversion of Stable-Baselines3's zips: `python -m rlox.sb3.convert IN OUT --env ID --trust`.

No code of a file is executed. The `data` of a zip is read as JSON without its pickles, and tensors
are read with `torch.load(weights_only=True)`. The pickle of a VecNormalize is read with a stub for
each class. `trust` is required because a bug in one of these readers could be exploited.
"""

import argparse
import dataclasses
import io
import json
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlox._errors import ArgumentError, CorruptFileError, NonFiniteError, one_line, rename_arguments
from rlox._registry import ALGORITHMS
from rlox.envs._make import EnvLike
from rlox.envs._rollout_env import RolloutEnv
from rlox.learners import NORMALIZER_CLIP, NORMALIZER_EPS
from rlox.learners._backends import Backend, check_torch
from rlox.sb3.evaluation import check_environment
from rlox.sb3.models import DEFAULTS, KEYWORDS, NO_SETTINGS, all_keywords, trainer_settings
from rlox.trainers import Trainer, load_trainer

Arrays = dict[str, npt.NDArray[np.float32]]
# Keys of `data` that identify the algorithm. The first key found decides.
_ALGORITHMS = {
    "clip_range": "ppo",
    "policy_delay": "td3",
    "target_entropy": "sac",
    "exploration_fraction": "dqn",
    "gae_lambda": "a2c",
}
_PICKLED = ":serialized:"  # key of a pickle in `data`
_CLASS = re.compile(r"<class '[\w.]*?(\w+)'>")
_NUMBER = r"([-+.\deE]+)"
_CONSTANT = re.compile(rf"(?:ConstantSchedule\(val=)?{_NUMBER}\)?")
_LINEAR = re.compile(rf"LinearSchedule\(start={_NUMBER}, end={_NUMBER}, end_fraction={_NUMBER}\)")
_LAYER = re.compile(r"(.+)\.(\d+)\.(weight|bias)")
# Keywords that are not settings, or that are read separately.
_SEPARATE = {"learning_rate", "clip_range", *NO_SETTINGS}
_ON_POLICY_NETS = {"mlp_extractor.policy_net": "actor", "mlp_extractor.value_net": "critic"}
_CRITICS = {f"critic{end}.qf{i}": f"critic{end}.qf{i}" for end in ("", "_target") for i in (0, 1)}
# Names of networks in Stable-Baselines3 and in rlox. Layer numbers are the same.
_NETS: dict[str, dict[str, str]] = {
    "ppo": _ON_POLICY_NETS,
    "a2c": _ON_POLICY_NETS,
    "dqn": {"q_net.q_net": "q_net", "q_net_target.q_net": "q_net_target"},
    "sac": {"actor.latent_pi": "actor", **_CRITICS},
    "td3": {"actor.mu": "actor", "actor_target.mu": "actor_target", **_CRITICS},
}


@dataclass(frozen=True)
class Converted:
    """Result of `convert`."""

    algorithm: str
    backend: str
    path: str
    unread: tuple[str, ...]
    """Settings that the zip stores as pickles; the checkpoint has default values instead."""


@rename_arguments(KEYWORDS)
def convert(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    env: EnvLike,
    trust: bool,
    vecnormalize: str | os.PathLike[str] | None = None,
    backend: Backend = "auto",
    **keywords: object,
) -> Converted:
    """Convert a model saved by Stable-Baselines3 to a checkpoint with the same predictions.

    Supported models are PPO, A2C, DQN, SAC and TD3 with MlpPolicy. The checkpoint has the networks,
    target networks, temperature (SAC) and settings, but no optimizer state, step counts or replay.

    Args:
        source: Path of the zip.
        path: Path of the checkpoint, a folder.
        env: Environment of the model, as for the trainers. The spaces of the environment are used
            because the zip stores spaces as pickles; their descriptions in the zip must match.
        trust: Must be True; see the module documentation.
        vecnormalize: File of `VecNormalize.save`, a pickle that is read without executing code.
        backend: As for the trainers.
        **keywords: Keywords of Stable-Baselines3 that replace the values in the zip.

    Returns:
        Algorithm, backend and path of the checkpoint, and the settings that could not be read.

    Raises:
        ArgumentError: `trust` is not True, the zip has an unsupported policy or setting or other
            spaces than `env`, or `vecnormalize` is not a complete pickle.
        ArgumentTypeError: A keyword is unknown, or a setting has an invalid type.
        CorruptFileError: The zip is damaged, or `vecnormalize` has other content.
        FileNotFoundError: `source` or `vecnormalize` does not exist.
        FileExistsError, OSError: The checkpoint cannot be written.
        ModuleNotFoundError: PyTorch is not installed.
        RuntimeError: PyTorch is older than 2.6.
    """
    if trust is not True:
        raise ArgumentError(
            "trust",
            "True, because a zip of Stable-Baselines3 can contain code",
            repr(trust),
            "pass trust=True, or --trust, for files whose origin you trust",
        )
    check_environment(env)
    archive = Archive.read(Path(source))
    algorithm = archive.algorithm()
    values, unread = _keywords(algorithm, archive, keywords)
    networks = _rename(algorithm, archive)
    trainer_type = load_trainer(ALGORITHMS[algorithm])
    count = archive.data.get("n_envs")
    num_envs = count if type(count) is int and count > 0 else 1
    settings = trainer_settings(algorithm, values, num_envs)
    settings["net_arch"] = _hidden_layers(networks, "q_net" if algorithm == "dqn" else "actor")
    statistics = None if vecnormalize is None else read_statistics(Path(vecnormalize))
    if statistics is not None:
        settings |= _normalizer_settings(statistics, settings["gamma"])
    with trainer_type(env, values["seed"], backend=backend, runs_dir=None, **settings) as trainer:
        _check_spaces(archive, trainer.env)
        _load(trainer, networks, statistics)
        trainer.save(path)
        return Converted(algorithm, trainer.learner.backend, os.fspath(path), unread)


@dataclass(frozen=True)
class Archive:
    """Content of a zip, without its pickles."""

    data: dict[str, Any]
    """Settings from JSON; pickled settings are described by strings."""
    weights: Arrays
    """Parameters of the policy."""
    variables: Arrays
    """Other tensors, such as the logarithm of SAC's temperature."""

    @staticmethod
    def read(file: Path) -> "Archive":
        """Read a zip that `model.save` of Stable-Baselines3 wrote."""
        _check_torch()
        if not file.is_file():
            raise FileNotFoundError(f"source: {file} is not a file; pass the path of a zip of Stable-Baselines3")
        member = "data"
        try:
            with zipfile.ZipFile(file) as opened:
                data = dict(json.loads(opened.read(member)))
                member = "policy.pth"
                weights = _tensors(opened, member)
                member = "pytorch_variables.pth"
                variables = _tensors(opened, member) if member in opened.namelist() else {}
        except MemoryError:
            raise
        except Exception as error:  # zipfile, decompressors, JSON and torch raise many types
            raise _damaged(file, error, "Stable-Baselines3", member) from error
        return Archive(data, weights, variables)

    def texts(self, name: str) -> dict[str, Any]:
        """Return the description of a pickled value, or a dict from JSON; {} for other values."""
        value = self.data.get(name)
        return value if isinstance(value, dict) else {}

    def algorithm(self) -> str:
        """Return the name of the algorithm.

        Raises:
            ArgumentError: The algorithm or the policy class is not supported.
        """
        found = next((name for key, name in _ALGORITHMS.items() if key in self.data), None)
        module = str(self.texts("policy_class").get("__module__", ""))
        if found is None or not module.startswith("stable_baselines3."):
            got = module or ", ".join(sorted(self.data)[:5]) or "no settings"
            raise ArgumentError(
                "data",
                "PPO, A2C, DQN, SAC or TD3 with a policy of Stable-Baselines3",
                got,
                "use a zip of one of these models",
            )
        return found

    def schedule(self, name: str) -> float | Callable[[float], float] | None:
        """Return a constant, a function that decreases linearly to 0, or None if unknown."""
        value = self.data.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        text = str(self.texts(name).get("value_schedule", ""))
        with suppress(ValueError):  # the patterns also match some invalid numbers
            if found := _CONSTANT.fullmatch(text):
                return float(found[1])
            if (found := _LINEAR.fullmatch(text)) and (float(found[2]), float(found[3])) == (0, 1):
                first = float(found[1])
                return lambda remaining: first * remaining
        return None


def _check_torch() -> None:
    """Check that `torch.load(weights_only=True)` executes no code (CVE-2025-32434)."""
    check_torch("the zip stores weights as torch tensors")
    import torch

    version = str(torch.__version__)
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < (2, 6):
        raise RuntimeError(
            "torch: expected version 2.6 or newer, because older versions can execute code of a "
            f"file, got {version}; run pip install --upgrade torch"
        )


def _tensors(opened: zipfile.ZipFile, member: str) -> Arrays:
    """Return float tensors by name."""
    import torch

    arrays: Arrays = {}
    loaded = torch.load(io.BytesIO(opened.read(member)), map_location="cpu", weights_only=True)
    for name, tensor in (loaded or {}).items():
        array = np.ascontiguousarray(tensor.detach().float().numpy())
        if not np.isfinite(array).all():
            raise NonFiniteError(str(name), "finite numbers", "NaN or infinity")
        arrays[str(name)] = array
    return arrays


def _damaged(file: Path, error: Exception, writer: str, section: str | None = None) -> CorruptFileError:
    expected, got = f"a file that {writer} wrote", one_line(error)[:200]
    return CorruptFileError(str(file), expected, got, "use another copy", section=section)


def _keywords(algorithm: str, archive: Archive, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keywords of the zip, and the names of keywords that it stores only as pickles."""
    keywords: dict[str, Any] = {"policy_kwargs": _policy_kwargs(archive)}
    unread = []
    for name in DEFAULTS[algorithm]:
        if name in _SEPARATE or name in overrides or name not in archive.data:
            continue
        if _PICKLED in archive.texts(name):
            unread.append(name)
        else:
            keywords[name] = archive.data[name]
    for name, other in (("learning_rate", "lr_schedule"), ("clip_range", "clip_range")):
        if name in DEFAULTS[algorithm] and name not in overrides:
            value = archive.schedule(name)
            value = archive.schedule(other) if value is None else value
            if value is None:
                unread.append(name)
            else:
                keywords[name] = value
    seed = archive.data.get("seed")
    if type(seed) is int and seed >= 0:
        keywords["seed"] = seed
    if algorithm == "a2c":
        keywords["use_rms_prop"] = "optimizer_class" in keywords["policy_kwargs"]
    return all_keywords("convert", algorithm, (), {**keywords, **overrides}), tuple(unread)


def _policy_kwargs(archive: Archive) -> dict[str, Any]:
    """Return `policy_kwargs` without `net_arch`, and with names instead of classes."""
    is_a2c = archive.algorithm() == "a2c"
    keywords: dict[str, Any] = {}
    for name, value in archive.texts("policy_kwargs").items():
        found = _CLASS.fullmatch(value) if isinstance(value, str) else None
        if name.startswith("optimizer_"):  # only A2C supports several optimizers
            if is_a2c:
                keywords[name] = found[1] if found else _without_defaults(value)
        elif not (name.startswith(":") or name == "net_arch"):
            keywords[name] = found[1] if found else value
    if keywords.get("features_extractor_class") == "FlattenExtractor":
        del keywords["features_extractor_class"]
    return keywords


def _without_defaults(keywords: object) -> object:
    """Return an optimizer's keywords without the keywords that equal torch's defaults."""
    defaults = {"alpha": 0.99, "weight_decay": 0}
    if not isinstance(keywords, dict):
        return keywords
    return {k: x for k, x in keywords.items() if k not in defaults or x != defaults[k]}


def _rename(algorithm: str, archive: Archive) -> Arrays:
    """Return the parameters with the names of rlox's networks."""
    nets, rest, networks = _NETS[algorithm], dict(archive.weights), Arrays()
    for name in archive.weights:
        found = _LAYER.fullmatch(name)
        if found and found[1] in nets:
            networks[f"{nets[found[1]]}.{found[2]}.{found[3]}"] = rest.pop(name)
    layers = [name.rpartition(".")[0].rpartition(".")[0] for name in networks if "weight" in name]
    end = {net: 2 * layers.count(net) for net in ("actor", "critic")}  # activations also have numbers
    for part in ("weight", "bias"):
        # SAC's last layer outputs mean and log_std; with gSDE, only the mean, before a clipping layer.
        last = [f"actor.mu.{part}", f"actor.log_std.{part}"]
        last = last if last[0] in rest else [f"actor.mu.0.{part}"]
        heads = [(f"action_net.{part}",), (f"value_net.{part}",)]
        for net, names in zip(end, heads if algorithm in ("ppo", "a2c") else [last], strict=False):
            if all(name in rest for name in names):
                array = np.concatenate([rest.pop(name) for name in names])
                networks[f"{net}.{end[net]}.{part}"] = array
    for name in ("log_std", "actor.log_std"):
        if name in rest and algorithm in ("ppo", "a2c", "sac"):
            networks["log_std"] = rest.pop(name)
    if rest:
        raise ArgumentError(
            "policy.pth",
            f"the parameters of {algorithm.upper()}'s MlpPolicy",
            f"the additional parameter {min(rest)!r}",
            "convert a model with MlpPolicy",
        )
    if algorithm == "sac" and "log_ent_coef" in archive.variables:
        networks["log_alpha"] = archive.variables["log_ent_coef"].reshape(1)
    elif algorithm == "sac" and "ent_coef_tensor" in archive.variables:
        with np.errstate(divide="ignore"):
            networks["log_alpha"] = np.log(archive.variables["ent_coef_tensor"].reshape(1))
    return networks


def _hidden_layers(networks: Arrays, net: str) -> tuple[int, ...]:
    """Return the sizes of the hidden layers of a network."""
    layers = ((_LAYER.fullmatch(name), len(array)) for name, array in networks.items())
    widths = {int(x[2]): n for x, n in layers if x and x[1] == net and x[3] == "weight"}
    return tuple(widths[layer] for layer in sorted(widths))[:-1]


def _load(trainer: Trainer, networks: Arrays, statistics: Mapping[str, Any] | None) -> None:
    """Load networks and statistics into the trainer."""
    state = trainer.learner.state()
    expected, found = state.networks, dict(networks)
    if "log_alpha" in expected:
        found.setdefault("log_alpha", expected["log_alpha"])
    else:
        found.pop("log_alpha", None)
    for name in sorted({*expected, *found}):
        shapes = [tuple(x[name].shape) if name in x else None for x in (expected, found)]
        if shapes[0] != shapes[1]:
            raise ArgumentError(
                "policy.pth",
                f"{name} of shape {shapes[0]}",
                str(shapes[1]),
                "convert a model with equal hidden layers in actor and critic, and two critics",
            )
    normalizer = dict(state.normalizer)
    for name, old in normalizer.items():
        part, _, statistic = name.partition("_")
        new = np.atleast_1d((statistics or {}).get(part, {}).get(statistic, old))
        if new.size != old.size:
            raise ArgumentError(
                "vecnormalize",
                f"{name} of shape {old.shape}",
                str(new.shape),
                "pass the statistics of this environment",
            )
        normalizer[name] = new.reshape(old.shape)
    arrays = {name: found[name].astype(x.dtype) for name, x in expected.items()}
    trainer.learner.load_state(dataclasses.replace(state, networks=arrays, normalizer=normalizer))


def _check_spaces(archive: Archive, env: RolloutEnv) -> None:
    """Check that the spaces of the environment match their descriptions in the zip."""
    for name in ("observation", "action"):
        is_obs = name == "observation"
        space = env.single_observation_space if is_obs else env.single_action_space
        texts = archive.texts(f"{name}_space")
        cls, shape = _CLASS.fullmatch(str(texts.get(":type:", ""))), texts.get("_shape")
        differs = cls is not None and cls[1] != type(space).__name__
        differs |= isinstance(shape, list) and tuple(shape) != tuple(space.shape or ())
        parts = (part for part in ("n", "low", "high") if part in texts and hasattr(space, part))
        differs |= not all(_agrees(str(texts[part]), getattr(space, part)) for part in parts)
        if differs:
            description = {k: texts[k] for k in (":type:", "_shape", "n", "low", "high") if k in texts}
            raise ArgumentError(
                "env",
                f"the {name} space of the model, {description}",
                str(space),
                "pass the environment in which the model was trained",
            )


def _agrees(text: str, array: npt.ArrayLike) -> bool:
    """Return whether NumPy's string of an array matches `array`; True if it cannot be parsed."""
    try:
        numbers = [float(word) for word in text.replace("[", " ").replace("]", " ").split()]
    except ValueError:  # "..." or other text
        return True
    flat = np.ravel(array)
    return len(numbers) == len(flat) and bool(np.allclose(numbers, flat, rtol=1e-5, equal_nan=True))


def _normalizer_settings(statistics: Mapping[str, Any], gamma: float) -> dict[str, Any]:
    """Return the settings of a trainer that normalizes in the same way."""
    checked = {"epsilon": NORMALIZER_EPS}
    if statistics["norm_obs"]:
        checked["clip_obs"] = NORMALIZER_CLIP
    if statistics["norm_reward"]:
        checked |= {"clip_reward": NORMALIZER_CLIP, "gamma": gamma}
    for name, value in checked.items():
        if statistics[name] != value:
            raise ArgumentError(
                "vecnormalize",
                f"{name} = {value:g}, because trainers support no other value",
                f"{statistics[name]:g}",
                "normalize in an environment wrapper",
            )
    return {"normalize_obs": statistics["norm_obs"], "normalize_reward": statistics["norm_reward"]}


def read_statistics(file: Path) -> dict[str, Any]:
    """Return the settings of a saved VecNormalize, and the statistics "obs" and "return".

    Raises:
        FileNotFoundError: The file does not exist.
        ArgumentError: The file is not a complete pickle.
        CorruptFileError: The file has other content, such as statistics of Dict observations.
    """
    if not file.is_file():
        raise FileNotFoundError(f"vecnormalize: {file} is not a file; pass the file that VecNormalize.save wrote")
    saved = read_pickle(file.read_bytes())
    try:
        state = saved.state
        result: dict[str, Any] = {name: state[name] for name in ("norm_obs", "norm_reward")}
        for name in ("clip_obs", "clip_reward", "gamma", "epsilon"):
            result[name] = float(as_array(state[name]))
        for name, rms in (("obs", "obs_rms"), ("return", "ret_rms")):
            if result["norm_obs"] or name == "return":
                statistics = state[rms].state
                result[name] = {x: as_array(statistics[x]) for x in ("mean", "var", "count")}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _damaged(file, error, "VecNormalize.save") from error
    return result


class PickleStub:
    """Placeholder for an object in a pickle, with the class name, arguments and state."""

    qualified_name = ""
    args: tuple[Any, ...]
    state: Any

    def __new__(cls, *args: object, **keywords: object) -> "PickleStub":
        """Store the arguments."""
        stub = super().__new__(cls)
        stub.args, stub.state = args, None
        return stub

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[PickleStub]:
        """Return a stub class without importing anything."""
        return type("PickleStub", (PickleStub,), {"qualified_name": f"{module}.{name}"})


def read_pickle(data: bytes) -> Any:
    """Return the content of a pickle, with a stub instead of each class instance.

    Raises:
        ArgumentError: The pickle is damaged.

    >>> import fractions
    >>> stub = read_pickle(pickle.dumps({"half": fractions.Fraction(1, 2)}))["half"]
    >>> stub.qualified_name, stub.args
    ('fractions.Fraction', (1, 2))
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # damaged pickles raise many types
        expected = "a complete pickle"
        raise ArgumentError("pickle", expected, one_line(error), "use another copy") from error


def as_array(value: Any) -> npt.NDArray[np.float64]:
    """Convert a number, or the stub of a float32 or float64 array, to a float64 array.

    Raises:
        ArgumentError: `value` is something else.

    >>> as_array(read_pickle(pickle.dumps(np.array([1.0, 2.5]))))
    array([1. , 2.5])
    """
    if isinstance(value, int | float):
        return np.array(value, np.float64)
    try:
        order: Literal["C", "F"] = "C"
        match value.qualified_name.rpartition(".")[2]:
            case "_reconstruct":
                _, shape, dtype, fortran, data = value.state
                order = "F" if fortran else "C"
            case "_frombuffer":
                data, dtype, shape, order = value.args
            case _:  # "scalar"
                (dtype, data), shape = value.args, ()
        scalar_type = {"f4": np.float32, "f8": np.float64}[dtype.args[0]]
        numbers = np.frombuffer(bytes(data), np.dtype(scalar_type).newbyteorder(dtype.state[1]))
        array: npt.NDArray[np.float64] = numbers.reshape(shape, order=order).astype(np.float64)
    except (AttributeError, TypeError, ValueError, LookupError) as error:
        expected = "an array of float32 or float64"
        raise ArgumentError("pickle", expected, one_line(error), "use another copy") from error
    return array


def main(args: Sequence[str] | None = None) -> int:
    """Convert a zip, and return the exit code: 0, or 1 after an error message."""
    description = "Convert a zip of Stable-Baselines3 to a checkpoint of rlox."
    parser = argparse.ArgumentParser("python -m rlox.sb3.convert", description=description)
    parser.add_argument("source", metavar="IN", help="zip of Stable-Baselines3")
    parser.add_argument("path", metavar="OUT", help="checkpoint to write, a folder")
    parser.add_argument("--env", required=True, help="id of the model's environment")
    parser.add_argument("--trust", action="store_true", help="trust the origin of the files")
    parser.add_argument("--vecnormalize", help="file that VecNormalize.save wrote")
    parser.add_argument("--backend", default="auto", help="backend, such as native or torch (default: auto)")
    options = parser.parse_args(args)
    try:
        result = convert(**vars(options))
    except (ValueError, TypeError, OSError, ImportError, RuntimeError, MemoryError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(f"wrote {result.path}: {result.algorithm} for the {result.backend} backend\n")
    if result.unread:
        unread = ", ".join(result.unread)
        sys.stdout.write(f"set to defaults, because the zip has only pickles: {unread}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
