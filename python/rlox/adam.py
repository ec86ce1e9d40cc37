"""Adam over all parameters of a module, as one vector."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rlox.configs import BETAS, EPS
from rlox.optimizer import VectorOptimizer


class Adam(VectorOptimizer):
    """Adam (Kingma and Ba 2015) for the trainable parameters of a module.

    Args:
        module, parts: As for `VectorOptimizer`.
        betas: Decay of the running means of the gradient and of its square.
        eps: Added to the root of the latter.

    Raises:
        ValueError: Parameters of several dtypes or devices, or none.

    >>> module = nn.Linear(2, 1, bias=False)
    >>> adam = Adam(module)
    >>> before = module.weight.detach().clone()
    >>> adam.step(adam.gradient(module(torch.ones(1, 2)).sum()), learning_rate=0.5)
    >>> (before - module.weight.detach()).round(decimals=3)
    tensor([[0.5000, 0.5000]])
    """

    kept = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        module: nn.Module,
        betas: tuple[float, float] = BETAS,
        eps: float = EPS,
        parts: Sequence[str] | None = None,
    ) -> None:
        super().__init__(module, parts)
        self.betas, self.eps = betas, eps
        # One pass over the numbers in place of seven, where torch has it.
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
