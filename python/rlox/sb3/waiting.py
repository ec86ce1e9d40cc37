"""`Waiting`: what `load` gives a model whose environments are not there yet; it predicts."""

import os
from pathlib import Path
from typing import Any

import gymnasium as gym

from rlox._errors import ArgumentError
from rlox.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from rlox.loading import load
from rlox.trainer import EnvLike, Trainer


class Waiting:
    """A saved policy, until there is an environment to go on learning in.

    Args:
        kind: The trainer that it will be.
        path: Of the checkpoint, which stays where it is until then.
        device: Where the networks shall live; None: where they were.

    Raises:
        FileNotFoundError, rlox.CorruptFileError, ValueError, ModuleNotFoundError: As `rlox.load`.
    """

    def __init__(
        self, kind: type[Trainer], path: str | os.PathLike[str], device: str | None
    ) -> None:
        self.policy = load(path, device=device)
        self._kind, self._path, self._device = kind, Path(path).absolute(), device
        policy = self.policy
        self.spaces: tuple[gym.Space[Any], gym.Space[Any]]
        self.spaces = policy.observation_space, policy.action_space
        self.saved = self.policy.manifest
        self.config: Any = kind.config_type(**self.saved["settings"])

    def trainer(self, env: EnvLike) -> Trainer:
        """The trainer that was saved, in this environment.

        Raises:
            FileNotFoundError, ValueError: The checkpoint has gone, or is another one now; the
                environment does not fit it.
        """
        self._read()
        made = self._kind.load(self._path, env=env, device=self._device, runs_dir=None)
        # That others begin new episodes is what whoever sets them asks for.
        made.forgot = [what for what in made.forgot if not what.startswith("environment: ")]
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the checkpoint as it was.

        Raises:
            FileNotFoundError, ValueError: As `trainer`.
            FileExistsError, OSError: As `rlox.checkpoint.write_checkpoint`.
        """
        checkpoint = self._read()
        write_checkpoint(path, checkpoint.manifest, checkpoint.members)

    def _read(self) -> Checkpoint:
        checkpoint = read_checkpoint(self._path)
        told = {name: checkpoint.manifest.get(name) for name in ("counters", "streams", "seed")}
        if told != {name: self.saved.get(name) for name in told}:
            raise ArgumentError(
                "path",
                "the checkpoint that was loaded",
                f"another one at {self._path} by now",
                "load it again, with env=",
            )
        return checkpoint


def found(
    path: str | os.PathLike[str],
) -> str | os.PathLike[str]:
    """The path, or the one with or without ".zip" where only that is there.

    Raises:
        ValueError: It is a file.
    """
    given = Path(path)
    other = given.with_suffix("") if given.suffix == ".zip" else Path(f"{given}.zip")
    for folder in (given, other):
        if folder.is_dir():
            return folder
    for file in (given, other):
        if file.is_file():
            raise ArgumentError(
                "path",
                "a checkpoint of rlox, which is a folder",
                f"the file {file}",
                "python -m rlox.sb3.convert makes one of a zip of Stable-Baselines3's",
            )
    return path
