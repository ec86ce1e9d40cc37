"""Export of trained policies as a torch `state_dict`, safetensors or ONNX.

Each function takes a policy from `rlox.load` or a trainer. The files contain no Python code.
"""

import os
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import safetensors.numpy

from rlox._errors import ArgumentError, ArgumentTypeError
from rlox._files import write_file
from rlox._layout import is_image
from rlox._optional import load_extra
from rlox._registry import ALGORITHMS, SDE_CLIP_MEAN
from rlox._types import Arrays
from rlox.learners import NORMALIZER_CLIP, NORMALIZER_EPS, EnvLearner
from rlox.learners._backends import check_torch

__all__ = ["save_onnx", "save_safetensors", "state_dict"]

# Names of the arrays in a normalizer's state that normalize observations.
_STATISTICS = ("obs_mean", "obs_var", "obs_count")
_OPSET, _FORMAT = 20, 9  # ONNX operator set and file version


@runtime_checkable
class HasLearner(Protocol):
    """Protocol of trainers and of policies from `rlox.load`."""

    @property
    def learner(self) -> EnvLearner:
        """Learner that computes the actions."""


def state_dict(policy: HasLearner) -> dict[str, Any]:
    """Return copies of all networks, including critics and targets, as torch tensors by name.

    Args:
        policy: Policy from `rlox.load`, or a trainer.

    Raises:
        ArgumentTypeError: `policy` is neither a policy nor a trainer.
        ModuleNotFoundError: torch is not installed.

    >>> import rlox
    >>> trainer = rlox.trainers.PPOTrainer("CartPole-v1", seed=1, runs_dir=None)
    >>> state_dict(trainer)["actor.0.weight"].shape
    torch.Size([64, 4])
    """
    networks, _ = _arrays(policy)
    check_torch("state_dict returns torch tensors")
    import torch

    return {name: torch.from_numpy(np.array(x)) for name, x in networks.items()}


def save_safetensors(policy: HasLearner, path: str | os.PathLike[str]) -> None:
    """Write all networks to a safetensors file.

    If training normalized observations, the file also has "normalizer.obs_mean",
    "normalizer.obs_var" and "normalizer.obs_count".

    Args:
        policy: Policy from `rlox.load`, or a trainer.
        path: Path of the file. An existing file is replaced.

    Raises:
        ArgumentTypeError: `policy` is neither a policy nor a trainer.
        OSError: The file cannot be written.
    """
    networks, normalizer = _arrays(policy)
    statistics = {f"normalizer.{name}": x for name, x in normalizer.items()}
    data = safetensors.numpy.save({n: np.ascontiguousarray(x) for n, x in (networks | statistics).items()})
    write_file(Path(path), data)


def save_onnx(policy: HasLearner, path: str | os.PathLike[str]) -> None:
    """Write an ONNX model that maps raw observations to greedy actions.

    The input "obs" has the shape (n, *obs_shape) and the dtype int64 for Discrete and MultiDiscrete
    spaces, otherwise float32. The output "action" has the shape (n, *action_shape) and the dtype of
    the action space. The model includes the normalization of observations.

    Args:
        policy: Policy from `rlox.load`, or a trainer, with a built-in MLP. Use `torch.onnx` for
            other networks.
        path: Path of the file. An existing file is replaced.

    Raises:
        ArgumentTypeError: `policy` is neither a policy nor a trainer.
        ArgumentError: The networks are not a built-in MLP, observations are images, dicts or
            tuples, the action space is an integer Box, or the policy uses action masks.
        ModuleNotFoundError: The package onnx is not installed.
        OSError: The file cannot be written.
    """
    networks, normalizer = _arrays(policy)
    onnx = load_extra("onnx", "onnx", "save_onnx")
    write_file(Path(path), _Graph(policy.learner, networks, normalizer, onnx).serialize())


def _arrays(policy: object) -> tuple[Arrays, Arrays]:
    """Return the networks and the statistics of observations; {} if they are not normalized."""
    if not isinstance(policy, HasLearner):
        raise ArgumentTypeError("policy", "a policy or a trainer", type(policy).__name__, "pass rlox.load(path)")
    state = policy.learner.state(replay=False)
    normalize_obs = policy.learner.config.normalize_obs
    normalizer = {name: state.normalizer[name] for name in _STATISTICS} if normalize_obs else {}
    return state.networks, normalizer


class _Graph:
    """Builder of an ONNX graph, whose operators are appended in order."""

    def __init__(self, learner: EnvLearner, networks: Arrays, normalizer: Arrays, onnx: ModuleType) -> None:
        self.learner, self.networks, self.normalizer = learner, networks, normalizer
        self.onnx, self.spec = onnx, ALGORITHMS[learner.algorithm]
        self.observation_space, self.action_space = learner.spaces
        if not learner.built_in or any(name.startswith("features.") for name in networks):
            raise ArgumentError(
                "policy",
                "a built-in MLP",
                "a custom network or a network for images",
                "export the torch module with torch.onnx",
            )
        if learner.config.action_masks:
            expected = "a policy without action masks, which ONNX models do not contain"
            raise ArgumentError("policy", expected, "action_masks=True", "export the torch module with torch.onnx")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def serialize(self) -> bytes:
        """Build and check the model, and return its serialized bytes."""
        onnx = self.onnx
        helper = onnx.helper
        integers = isinstance(self.observation_space, gym.spaces.Discrete | gym.spaces.MultiDiscrete)
        obs_dtype = onnx.TensorProto.INT64 if integers else onnx.TensorProto.FLOAT
        action = self._actions(self._outputs(self._rows()))
        self.nodes.append(helper.make_node("Identity", [action], ["action"]))
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(self.action_space.dtype))
        obs_shape, action_shape = (space.shape or () for space in (self.observation_space, self.action_space))
        graph = helper.make_graph(
            self.nodes,
            f"rlox-{self.learner.algorithm}",
            [helper.make_tensor_value_info("obs", obs_dtype, ["n", *obs_shape])],
            [helper.make_tensor_value_info("action", dtype, ["n", *action_shape])],
            self.constants,
        )
        opset = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opset, producer_name="rlox")
        model.ir_version = _FORMAT
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())

    def op(self, op_type: str, *inputs: str | npt.NDArray[Any], **attributes: int) -> str:
        """Append an operator, and return the name of its output."""
        names = []
        for value in inputs:
            if not isinstance(value, str):
                constant = self.onnx.numpy_helper.from_array(np.array(value), f"c{len(self.constants)}")
                self.constants.append(constant)
                names.append(constant.name)
            else:
                names.append(value)
        name = f"x{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op_type, names, [name], **attributes))
        return name

    def cast(self, x: str, dtype: npt.DTypeLike) -> str:
        """Append a cast of `x` to another dtype."""
        onnx_dtype = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.op("Cast", x, to=onnx_dtype)

    def _rows(self) -> str:
        """Append the conversion of observations to network inputs, (n, k) float32."""
        space = self.observation_space
        match space:
            case gym.spaces.Discrete():
                return self._one_hot("obs", [int(space.n)], np.array([space.start]))
            case gym.spaces.MultiDiscrete():
                return self._one_hot("obs", space.nvec.ravel().tolist(), space.start.ravel())
            case gym.spaces.Box() | gym.spaces.MultiBinary() if not is_image(space):
                rows = self.op("Reshape", "obs", np.array([-1, int(np.prod(space.shape))]))
                return self._normalized(rows) if self.normalizer else rows
        raise ArgumentError(
            "observation space",
            "a Box without images, Discrete, MultiDiscrete or MultiBinary",
            str(space),
            "export the torch module with torch.onnx",
        )

    def _one_hot(self, x: str, counts: list[int], start: npt.NDArray[Any]) -> str:
        indices = self.op("Reshape", x, np.array([-1, len(counts)]))
        indices = self.op("Sub", indices, start.astype(np.int64))
        parts = []
        for i, count in enumerate(counts):
            column = self.op("Gather", indices, np.array(i), axis=1)
            parts.append(self.op("OneHot", column, np.array(count), np.array([0, 1], np.float32)))
        return self.op("Concat", *parts, axis=1)

    def _normalized(self, rows: str) -> str:
        mean, var = (self.normalizer[name].ravel() for name in _STATISTICS[:2])
        centred = self.op("Sub", self.cast(rows, np.float64), mean)
        scaled = self.op("Div", centred, np.sqrt(var + NORMALIZER_EPS))
        clipped = self.op("Clip", scaled, np.array(-NORMALIZER_CLIP), np.array(NORMALIZER_CLIP))
        return self.cast(clipped, np.float32)

    def _outputs(self, x: str) -> str:
        """Append the policy network, including a shared trunk."""
        x = self._mlp(x, "trunk")
        if any(name.startswith("trunk.") for name in self.networks):
            x = self._activated(x)
        return self._mlp(x, self.spec.policy_network)

    def _mlp(self, x: str, name: str) -> str:
        """Append linear layers with activations between them; return `x` if there are no layers."""
        i = 0
        while f"{name}.{i}.weight" in self.networks:
            x = self._activated(x) if i else x
            x = self.op("Gemm", x, self.networks[f"{name}.{i}.weight"], self.networks[f"{name}.{i}.bias"], transB=1)
            i += 2
        return x

    def _activated(self, x: str) -> str:
        activation = self.learner.config.activation
        if activation == "silu":
            return self.op("Mul", x, self.op("Sigmoid", x))
        return self.op({"tanh": "Tanh", "relu": "Relu", "elu": "Elu", "gelu": "Gelu"}[activation], x)

    def _actions(self, out: str) -> str:
        """Append the conversion of network outputs to greedy actions of the action space."""
        space, shape = self.action_space, np.array([-1, *(self.action_space.shape or ())])
        match space:
            case gym.spaces.Discrete():
                chosen = self._best(out, 0, int(space.n))
                actions = self.op("Add", chosen, np.array([space.start], np.int64))
                return self.cast(self.op("Reshape", actions, np.array([-1])), space.dtype)
            case gym.spaces.MultiDiscrete():
                ends = np.cumsum(space.nvec.ravel()).tolist()
                pairs = zip([0, *ends], ends, strict=False)
                chosen = self.op("Concat", *(self._best(out, *pair) for pair in pairs), axis=1)
                actions = self.op("Add", chosen, space.start.ravel().astype(np.int64))
                return self.cast(self.op("Reshape", actions, shape), space.dtype)
            case gym.spaces.MultiBinary():
                flags = self.op("Greater", out, np.array(0, np.float32))
                return self.cast(self.op("Reshape", flags, shape), space.dtype)
        assert isinstance(space, gym.spaces.Box)
        if space.dtype.kind != "f":
            raise ArgumentError(
                "action space",
                "a floating-point Box",
                str(space),
                "train with a float32 action space, and round the actions in a wrapper",
            )
        low, high = (side.astype(np.float32).ravel() for side in (space.low, space.high))
        if self.spec.actions == "box":
            out = self._squashed(out, low, high)
        bounded = self.op("Min", self.op("Max", out, low), high)
        return self.cast(self.op("Reshape", bounded, shape), space.dtype)

    def _best(self, out: str, begin: int, end: int) -> str:
        """Append the argmax of the outputs `begin` to `end`, (n, 1)."""
        bounds = (np.array([x]) for x in (begin, end, 1))
        part = self.op("Slice", out, *bounds)
        return self.op("ArgMax", part, axis=1, keepdims=1)

    def _squashed(self, out: str, low: npt.NDArray[Any], high: npt.NDArray[Any]) -> str:
        """Append the squashing of the means of SAC or TD3 to the bounds; omit other outputs."""
        begin, end, axis = (np.array([x]) for x in (0, len(low), 1))
        mean = self.op("Slice", out, begin, end, axis)
        if self.learner.config.use_sde:
            bounds = (np.array(x, np.float32) for x in (-SDE_CLIP_MEAN, SDE_CLIP_MEAN))
            mean = self.op("Clip", mean, *bounds)
        half = self.op("Mul", self.op("Tanh", mean), np.array(0.5, np.float32))
        up = self.op("Add", half, np.array(0.5, np.float32))
        down = self.op("Sub", np.array(0.5, np.float32), half)
        return self.op("Add", self.op("Mul", down, low), self.op("Mul", up, high))
