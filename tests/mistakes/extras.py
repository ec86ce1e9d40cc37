"""Packages that are not installed: the extra that has them is said."""

from mistakes.row import Mistake, small, without
from rlox import exporting, interchange, plotting
from rlox.callbacks import ProgressBar, VideoRecordingCallback
from rlox.sweep import Plan, Range, Sweep
from rlox.trainers import PPOTrainer

PLAN = Plan("ppo", "CartPole-v1", {"gamma": Range(0.9, 1.0)}, 9, 9)

ROWS = [
    Mistake(
        "torch, which is not there",
        ModuleNotFoundError,
        "torch",
        "PyTorch, as backend is 'torch'",
        "none",
        "pip install 'rlox[torch]'",
        lambda here: without("torch", PPOTrainer, "CartPole-v1", backend="torch", runs_dir=None),
    ),
    Mistake(
        "torch tensors without torch",
        ModuleNotFoundError,
        "torch",
        "PyTorch, as state_dict gives its tensors",
        "none",
        "pip install 'rlox[torch]'",
        lambda here: without("torch", exporting.state_dict, small(here)),
    ),
    Mistake(
        "ONNX without onnx",
        ModuleNotFoundError,
        "onnx",
        "the package onnx",
        "none",
        "pip install 'rlox[onnx]'",
        lambda here: without("onnx", exporting.save_onnx, small(here), here.path / "a.onnx"),
    ),
    Mistake(
        "a progress bar without rich",
        ModuleNotFoundError,
        "ProgressBar",
        "the package rich",
        "none",
        "pip install 'rlox[progress]'",
        lambda here: without("rich.console", ProgressBar),
    ),
    Mistake(
        "a curve without matplotlib",
        ModuleNotFoundError,
        "matplotlib",
        "the package, for the learning curve",
        "none",
        "pip install 'rlox[plot]'",
        lambda here: without("matplotlib.figure", plotting._figure),
    ),
    Mistake(
        "TensorBoard, which is not there",
        ModuleNotFoundError,
        "TensorBoardLogger",
        "the package tensorboard",
        "none",
        "pip install 'rlox[tensorboard]'",
        lambda here: without(
            "torch.utils.tensorboard tensorboard tensorboard.summary.writer.event_file_writer",
            small(here, here.path).train,
            64,
            loggers=["tensorboard"],
        ),
    ),
    Mistake(
        "Weights & Biases, which is not there",
        ModuleNotFoundError,
        "WandbLogger",
        "the package wandb",
        "none",
        "pip install 'rlox[wandb]'",
        lambda here: without("wandb", small(here, here.path).train, 64, loggers=["wandb"]),
    ),
    Mistake(
        "MLflow, which is not there",
        ModuleNotFoundError,
        "MLflowLogger",
        "the package mlflow",
        "none",
        "pip install 'rlox[mlflow]'",
        lambda here: without("mlflow", small(here, here.path).train, 64, loggers=["mlflow"]),
    ),
    Mistake(
        "videos without MoviePy",
        ModuleNotFoundError,
        "VideoRecordingCallback",
        "the package moviepy",
        "none",
        "pip install 'rlox[video]'",
        lambda here: without("moviepy", VideoRecordingCallback, 100),
    ),
    Mistake(
        "tables without pyarrow",
        ImportError,
        "pyarrow",
        "it to be installed",
        "none",
        "pip install 'rlox[arrow]'",
        lambda here: without("pyarrow", interchange._library, "pyarrow", "arrow"),
    ),
    Mistake(
        "data sets without Minari",
        ImportError,
        "minari",
        "it to be installed",
        "none",
        "pip install 'rlox[minari]'",
        lambda here: without("minari", interchange._library, "minari", "minari"),
    ),
    Mistake(
        "a sweep without Optuna",
        ModuleNotFoundError,
        "rlox sweep",
        "the package optuna",
        "none",
        "pip install 'rlox[sweep]'",
        lambda here: without("optuna", Sweep, PLAN),
    ),
]
