"""RMSprop over all parameters of a module, as one vector."""

import torch
from torch import Tensor, nn

from rlox.configs import ALPHA, EPS
from rlox.optimizer import VectorOptimizer


class RMSprop(VectorOptimizer):
    """RMSprop (Tieleman and Hinton 2012) without momentum, for the parameters of a module.

    A step divides the gradient by the root of the running mean of its square. As in PyTorch, the
    mean starts at 0 and `eps` is added to the root; with `tf_like`, as in TensorFlow, the mean
    starts at 1 and `eps` is added under the root, so that the first steps are small.

    Args:
        module: Its parameters have one dtype and one device.
        alpha: Decay of the running mean.
        eps: What keeps the divisor above 0.
        tf_like: TensorFlow's form, Stable-Baselines3's `RMSpropTFLike`.

    Raises:
        ValueError: Parameters of several dtypes or devices, or none.

    >>> module = nn.Linear(2, 1, bias=False)
    >>> rmsprop = RMSprop(module, alpha=0.75)
    >>> before = module.weight.detach().clone()
    >>> rmsprop.step(rmsprop.gradient(module(torch.ones(1, 2)).sum()), learning_rate=0.5)
    >>> (before - module.weight.detach()).round(decimals=3)
    tensor([[1., 1.]])
    """

    kept = ("exp_avg_sq",)

    def __init__(
        self, module: nn.Module, alpha: float = ALPHA, eps: float = EPS, tf_like: bool = False
    ) -> None:
        super().__init__(module)
        self.alpha, self.eps, self.tf_like = alpha, eps, tf_like
        self.exp_avg_sq = torch.full_like(self.vector, float(tf_like))

    def _move(self, gradient: Tensor, learning_rate: float) -> None:
        self.exp_avg_sq.mul_(self.alpha).addcmul_(gradient, gradient, value=1 - self.alpha)
        if self.tf_like:
            root = self.exp_avg_sq.add(self.eps).sqrt_()
        else:
            root = self.exp_avg_sq.sqrt().add_(self.eps)
        self.vector.addcdiv_(gradient, root, value=-learning_rate)
