"""Logs of `learn` for TensorBoard, in folders that are named and counted as there."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlox.logger import Logger, TensorBoardLogger
from rlox.settings import path_or_none, text


class _Log(TensorBoardLogger):
    """Counts steps as the rows do, from 0 where `learn` does."""

    def write(self, metrics: Mapping[str, float], timesteps: int) -> None:
        """Writes scalars."""
        super().write(metrics, int(metrics["time/total_timesteps"]))


def log_folder(path: Any) -> str | None:
    """Where logs go; None: nowhere.

    Raises:
        TypeError, ValueError: It is no path.
    """
    folder = path_or_none("tensorboard_log", path)
    return None if folder is None else os.fspath(folder)


def as_rlox_loggers(folder: str | None, name: str, *, new: bool) -> list[Logger]:
    """The log of a call of `learn`, which is none where no folder is said.

    Args:
        folder: In which it is made.
        name: Of the log, before its number.
        new: Whether it has the number after the last one's, or that one's.

    Raises:
        TypeError: The name is no str.
        ModuleNotFoundError: TensorBoard is not installed.
    """
    text("tb_log_name", name)
    if folder is None:
        return []
    numbered = (re.fullmatch(rf"{re.escape(name)}_(\d+)", file.name) for file in _inside(folder))
    last = max((int(found[1]) for found in numbered if found), default=0)
    return [_Log(Path(folder) / f"{name}_{last + 1 if new else max(last, 1)}")]


def _inside(folder: str) -> list[Path]:
    return [*Path(folder).iterdir()] if Path(folder).is_dir() else []
