"""Optimizers that store the parameters of a module as one vector."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rlox._errors import ArgumentError
from rlox._types import Arrays
from rlox.configs import ALPHA, BETAS, EPS

MEANS = ("exp_avg", "exp_avg_sq")
# Placeholder for "qf0", "qf1" and so on in the name of a tensor that several critics share.
EACH = "qf*"


class VectorOptimizer:
    """Base class of optimizers that update all trainable parameters as one vector.

    The parameters become views of the vector. The number of operations per step then does not
    depend on the number of parameters, which matters for small networks. Parameters that move to
    other memory (`module.to`) are joined again at the next step.

    `torch.optim` is not used because its first use imports torch's compiler, which takes seconds.

    Args:
        module: Module whose parameters have one dtype and one device.
        parts: First components of the names of the parameters to train; None: all parameters.

    Raises:
        ArgumentError: There are no trainable parameters, or several dtypes or devices.
    """

    moments: ClassVar[tuple[str, ...]]
    """Names in `MEANS` of the optimizer's running means, which are attributes shaped like `vector`."""

    def __init__(self, module: nn.Module, parts: Sequence[str] | None = None) -> None:
        self.named = {
            name: p
            for name, p in module.named_parameters()
            if p.requires_grad and (parts is None or name.partition(".")[0] in parts)
        }
        self._parameters = list(self.named.values())
        kinds = {(p.dtype, p.device) for p in self._parameters}
        if len(kinds) != 1:
            got = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "none"
            raise ArgumentError(
                "policy",
                "trainable parameters of one dtype on one device",
                str(got),
                "convert the module with module.to(...)",
            )
        self._join()
        self.steps = 0
        # Averages a gradient over the processes of distributed training; None: a single process.
        self.average: Callable[[Tensor], Tensor] | None = None

    @torch.no_grad()
    def _join(self) -> None:
        self.vector = torch.cat([p.reshape(-1) for p in self._parameters])
        for parameter, part in zip(self._parameters, self._parts(self.vector), strict=True):
            parameter.data = part
        self._addresses = [p.data_ptr() for p in self._parameters]

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Split a vector into views in the shapes of the parameters."""
        parts = vector.split([p.numel() for p in self._parameters])
        return [part.view_as(p) for part, p in zip(parts, self._parameters, strict=True)]

    def _named_parts(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Iterate over the named views of a vector; stacked critics are listed separately."""
        for name, part in zip(self.named, self._parts(vector), strict=True):
            if EACH in name:
                for i, critic_part in enumerate(part.unbind()):
                    yield name.replace(EACH, f"qf{i}"), critic_part
            else:
                yield name, part

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient of a loss as a vector, 0 for parameters that the loss does not use."""
        grads = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
        joined = torch.cat([grad.reshape(-1) for grad in grads])
        return joined if self.average is None else self.average(joined)

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: float) -> None:
        """Update the parameters in place with a vector from `gradient`."""
        if [p.data_ptr() for p in self._parameters] != self._addresses:
            self._join()
        self.steps += 1
        self._move(gradient, learning_rate)

    def _move(self, gradient: Tensor, learning_rate: float) -> None:
        """Update `vector` and the moments in place."""
        raise NotImplementedError

    def state(self) -> Arrays:
        """Return copies of the optimizer state, with the same names for every backend.

        "actor.0.weight.exp_avg" and "actor.0.weight.exp_avg_sq" are the running means of the
        gradient and of its square. A mean that the optimizer does not have is 0. "actor.step" counts
        the optimizer steps.
        """
        arrays: Arrays = {}
        for kind in MEANS:
            mean = getattr(self, kind) if kind in self.moments else torch.zeros_like(self.vector)
            for name, part in self._named_parts(mean):
                arrays[f"{name}.{kind}"] = np.array(part.numpy(force=True))
        parts = {_step_key(name) for name, _ in self._named_parts(self.vector)}
        if "trunk" in parts:  # "trunk.step" also counts the steps of the heads
            parts -= {"actor", "critic"}
        return arrays | {f"{part}.step": np.array(self.steps, np.float32) for part in sorted(parts)}

    def check_state(self, arrays: Arrays) -> None:
        """Check that `load_state` can load a state.

        Raises:
            ArgumentError: The state belongs to other parameters or another optimizer, or has
                invalid values.
        """
        expected, got = ({name: (a.shape, a.dtype) for name, a in x.items()} for x in (self.state(), arrays))
        if got != expected:
            names = sorted(name for name in {*got, *expected} if got.get(name) != expected.get(name))
            raise ArgumentError(
                "optimizer",
                "the optimizer state of these parameters",
                f"a state that differs in {names[0]}",
                "create the policy with the saved settings",
            )
        first = next(a for name, a in arrays.items() if name.endswith(".step"))
        for name, array in arrays.items():
            kind = name.rpartition(".")[2]
            if kind == "step":
                wanted, fits = "equal int step counts >= 0", array == first >= 0 and array % 1 == 0
            elif kind not in self.moments:
                wanted, fits = "zeros, which this optimizer does not use", array == 0
            elif kind == "exp_avg_sq":
                wanted, fits = "finite numbers >= 0", (array >= 0) & np.isfinite(array)
            else:
                wanted, fits = "finite numbers", np.isfinite(array)
            if not np.all(fits):
                got = array[np.logical_not(fits)].flat[0]
                raise ArgumentError("optimizer", f"{wanted} in {name}", str(got), "load an unmodified saved state")
        nonzero = {name.rpartition(".")[2] for name, array in arrays.items() if array.any()}
        if "exp_avg" in self.moments and "exp_avg_sq" in nonzero and "exp_avg" not in nonzero:
            raise ArgumentError(
                "optimizer",
                "nonzero exp_avg, because exp_avg_sq is nonzero",
                "zeros, as in the state of another optimizer",
                "load a state of the same optimizer",
            )

    def load_state(self, arrays: Arrays) -> None:
        """Load the result of `state`.

        Raises:
            ArgumentError: As `check_state`, before anything changes.
        """
        self.check_state(arrays)
        self.steps = int(next(a for name, a in arrays.items() if name.endswith(".step")))
        for kind in self.moments:
            for name, part in self._named_parts(getattr(self, kind)):
                part.copy_(torch.from_numpy(np.array(arrays[f"{name}.{kind}"])))


def _step_key(name: str) -> str:
    """Return the name of a parameter's step count, such as "actor" or "critic.qf0"."""
    first, second, *_ = (*name.split("."), "")
    return f"{first}.{second}" if second.startswith("qf") else first


def clip_norm_(gradient: Tensor, max_norm: float) -> Tensor:
    """Clip a gradient in place to a norm of at most `max_norm`; return the norm before clipping."""
    norm: Tensor = gradient.norm()
    gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
    return norm


class Adam(VectorOptimizer):
    """Adam (Kingma and Ba 2015) for the trainable parameters of a module.

    Args:
        module, parts: As for `VectorOptimizer`.
        betas: Decay rates of the running means of the gradient and of its square.
        eps: Number that is added to the root of the mean square.

    Raises:
        ArgumentError: As for `VectorOptimizer`.

    >>> module = nn.Linear(2, 1, bias=False)
    >>> adam = Adam(module)
    >>> before = module.weight.detach().clone()
    >>> adam.step(adam.gradient(module(torch.ones(1, 2)).sum()), learning_rate=0.5)
    >>> (before - module.weight.detach()).round(decimals=3)
    tensor([[0.5000, 0.5000]])
    """

    moments = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        module: nn.Module,
        betas: tuple[float, float] = BETAS,
        eps: float = EPS,
        parts: Sequence[str] | None = None,
    ) -> None:
        super().__init__(module, parts)
        self.betas, self.eps = betas, eps
        # torch's fused kernel makes one pass over memory instead of seven.
        kind = self.vector.device.type, self.vector.dtype
        self._fused = kind in (("cpu", torch.float32), ("cuda", torch.float32))
        self.exp_avg, self.exp_avg_sq = (torch.zeros_like(self.vector) for _ in range(2))

    def _move(self, gradient: Tensor, learning_rate: float) -> None:
        beta1, beta2 = self.betas
        if self._fused:
            torch._fused_adam_(
                [self.vector],
                [gradient],
                [self.exp_avg],
                [self.exp_avg_sq],
                [],
                [torch.full((), float(self.steps), device=self.vector.device)],
                lr=learning_rate,
                beta1=beta1,
                beta2=beta2,
                weight_decay=0.0,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )
            return
        self.exp_avg.lerp_(gradient, 1 - beta1)
        self.exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = self.exp_avg_sq.sqrt().div_((1 - beta2**self.steps) ** 0.5).add_(self.eps)
        self.vector.addcdiv_(self.exp_avg, root, value=-learning_rate / (1 - beta1**self.steps))


class RMSprop(VectorOptimizer):
    """RMSprop (Tieleman and Hinton 2012) without momentum, for the parameters of a module.

    A step divides the gradient by the root of the running mean of its square. By default, as in
    PyTorch, the mean starts at 0 and `eps` is added to the root. With `tf_like`, as in TensorFlow,
    the mean starts at 1 and `eps` is added under the root, so that the first steps are small.

    Args:
        module: As for `VectorOptimizer`.
        alpha: Decay rate of the running mean.
        eps: Number that keeps the divisor above 0.
        tf_like: Use TensorFlow's form, as Stable-Baselines3's `RMSpropTFLike` does.

    Raises:
        ArgumentError: As for `VectorOptimizer`.

    >>> module = nn.Linear(2, 1, bias=False)
    >>> rmsprop = RMSprop(module, alpha=0.75)
    >>> before = module.weight.detach().clone()
    >>> rmsprop.step(rmsprop.gradient(module(torch.ones(1, 2)).sum()), learning_rate=0.5)
    >>> (before - module.weight.detach()).round(decimals=3)
    tensor([[1., 1.]])
    """

    moments = ("exp_avg_sq",)

    def __init__(self, module: nn.Module, alpha: float = ALPHA, eps: float = EPS, tf_like: bool = False) -> None:
        super().__init__(module)
        self.alpha, self.eps, self.tf_like = alpha, eps, tf_like
        self.exp_avg_sq = torch.full_like(self.vector, float(tf_like))

    def _move(self, gradient: Tensor, learning_rate: float) -> None:
        self.exp_avg_sq.mul_(self.alpha).addcmul_(gradient, gradient, value=1 - self.alpha)
        root = self.exp_avg_sq.add(self.eps).sqrt_() if self.tf_like else self.exp_avg_sq.sqrt().add_(self.eps)
        self.vector.addcdiv_(gradient, root, value=-learning_rate)
