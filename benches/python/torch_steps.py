"""Gradient steps and actions of small networks as PyTorch programs write them, in three ways.

The losses do not use `torch.distributions`, which is slower. "eager" uses the default Adam, "fused"
uses the fused Adam, and "compile" also compiles the loss. Nothing is logged.
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from side_by_side import Repeated
from torch import Tensor, nn

# This rate is too small to change the networks, so that the work stays the same.
RATE = 1e-6
CLIP, VF_COEF, ENT_COEF, MAX_GRAD_NORM, ADAM_EPS = 0.2, 0.5, 0.01, 0.5, 1e-5
GAMMA = 0.99
OBS, CHOICES = 4, 2  # sizes of CartPole
STATE, ACTION = 17, 6  # sizes of HalfCheetah
MINIBATCHES = 16  # minibatches of an epoch


def mlp(inputs: int, sizes: Sequence[int], outputs: int, activation: type[nn.Module]) -> Any:
    """Return a multilayer perceptron."""
    layers: list[nn.Module] = []
    for before, after in zip((inputs, *sizes), sizes, strict=False):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


def actor_critic(sizes: Sequence[int]) -> nn.ModuleDict:
    """Return the networks of PPO with rlox's parameter names."""
    actor, critic = (mlp(OBS, sizes, outputs, nn.Tanh) for outputs in (CHOICES, 1))
    return nn.ModuleDict({"actor": actor, "critic": critic})


def ppo_loss(nets: Any, obs: Tensor, actions: Tensor, old: Tensor, advantages: Tensor, returns: Tensor) -> Tensor:
    """Return the clipped loss of a minibatch with value loss and entropy."""
    std, mean = torch.std_mean(advantages)
    advantages = (advantages - mean) / (std + 1e-8)
    log_probs = F.log_softmax(nets["actor"](obs), -1)
    ratio = (log_probs.gather(-1, actions[:, None])[:, 0] - old).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    policy = -torch.min(ratio * advantages, clipped * advantages).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    value = F.mse_loss(nets["critic"](obs)[:, 0], returns)
    return policy + VF_COEF * value - ENT_COEF * entropy


def dqn_loss(nets: Any, obs: Tensor, actions: Tensor, rewards: Tensor, following: Tensor, alive: Tensor) -> Tensor:
    """Return the Huber loss between action values and targets from the target network."""
    with torch.no_grad():
        targets = rewards + GAMMA * alive * nets["target"](following).amax(-1)
    return F.smooth_l1_loss(nets["online"](obs).gather(-1, actions[:, None])[:, 0], targets)


def critic_loss(nets: Any, obs: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of action values."""
    return F.mse_loss(nets["critic"](torch.cat((obs, actions), -1))[:, 0], targets)


def act(nets: Any, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return sampled actions of a categorical policy, their log-probabilities and values."""
    log_probs = F.log_softmax(nets["actor"](obs), -1)
    # The argmax of log p plus Gumbel noise is a sample of p. `multinomial` is slower.
    actions = (log_probs - torch.empty_like(log_probs).exponential_().log()).argmax(-1)
    chosen = log_probs.gather(-1, actions[:, None])[:, 0]
    return actions, chosen, nets["critic"](obs)[:, 0]


def predict(nets: Any, obs: Tensor) -> Tensor:
    """Return the most likely actions."""
    return nets["actor"](obs).argmax(-1)


def sample_squashed(nets: Any, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Return SAC's tanh-squashed actions and their log-probabilities."""
    mean, log_std = nets["actor"](obs).chunk(2, -1)
    log_std = log_std.clamp(-20, 2)
    noise = torch.randn_like(mean)
    raw = mean + log_std.exp() * noise
    normal = -0.5 * noise * noise - log_std - 0.5 * math.log(2 * math.pi)
    squash = 2 * (math.log(2) - raw - F.softplus(-2 * raw))
    return raw.tanh(), (normal - squash).sum(-1)


def gradients(loss: Callable[..., Tensor], nets: nn.Module, batch: Sequence[Tensor]) -> list[Any]:
    """Return the gradients of all parameters of the loss."""
    nets.zero_grad()
    loss(nets, *batch).backward()
    return [p.grad.clone() for p in nets.parameters() if p.grad is not None]


class Step:
    """Gradient step in one of three ways: "eager", "fused" or "compile".

    The gradients of a compiled loss are checked against those of the eager loss.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        nets: nn.Module,
        way: str,
        batch: Sequence[Tensor],
        max_grad_norm: float | None = None,
        rate: float = RATE,
    ) -> None:
        self.loss, self.nets, self.max_grad_norm = loss, nets, max_grad_norm
        if way == "compile":
            self.loss = torch.compile(loss, dynamic=False)
            pair = (gradients(function, nets, batch) for function in (self.loss, loss))
            for got, expected in zip(*pair, strict=True):
                torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-5)
        fused = {"fused": True} if way != "eager" else {}
        self.parameters = [p for name, p in nets.named_parameters() if "target" not in name]
        self.optimizer = torch.optim.Adam(self.parameters, rate, eps=ADAM_EPS, **fused)

    def __call__(self, *batch: Tensor) -> None:
        self.optimizer.zero_grad()
        self.loss(self.nets, *batch).backward()
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm)
        self.optimizer.step()


def epoch(step: Step, rows: Sequence[Tensor], batch: int) -> None:
    """Make one pass over a rollout in random minibatches. All rows are shuffled in one call."""
    permutation = torch.randperm(len(rows[0]))
    for minibatch in zip(*(column[permutation].split(batch) for column in rows), strict=True):
        step(*minibatch)


def ppo(sizes: Sequence[int], batch: int, way: str) -> timeit.Timer:
    """Time a minibatch of a PPO epoch."""
    n = MINIBATCHES * batch
    rows = [torch.randn(n, OBS), torch.randint(CHOICES, (n,)), torch.full((n,), -math.log(CHOICES))]
    rows += [torch.randn(n), torch.randn(n)]
    first = [column[:batch] for column in rows]
    step = Step(ppo_loss, actor_critic(sizes), way, first, MAX_GRAD_NORM)
    names = {"epoch": epoch, "step": step, "rows": rows, "batch": batch}
    return Repeated("epoch(step, rows, batch)", names, MINIBATCHES)


def dqn(sizes: Sequence[int], batch: int, way: str) -> timeit.Timer:
    """Time one DQN step on a batch of transitions."""
    nets = {name: mlp(OBS, sizes, CHOICES, nn.ReLU) for name in ("online", "target")}
    obs, following, rewards = torch.randn(batch, OBS), torch.randn(batch, OBS), torch.randn(batch)
    alive = (torch.arange(batch) % 16 != 0).float()
    arrays = [obs, torch.randint(CHOICES, (batch,)), rewards, following, alive]
    step = Step(dqn_loss, nn.ModuleDict(nets), way, arrays, 10.0)
    return timeit.Timer("step(*arrays)", globals={"step": step, "arrays": arrays})


def critic(sizes: Sequence[int], batch: int, way: str) -> timeit.Timer:
    """Time one step of one critic with fixed targets."""
    nets = nn.ModuleDict({"critic": mlp(STATE + ACTION, sizes, 1, nn.ReLU)})
    arrays = [torch.randn(batch, STATE), torch.randn(batch, ACTION), torch.randn(batch)]
    step = Step(critic_loss, nets, way, arrays)
    return timeit.Timer("step(*arrays)", globals={"step": step, "arrays": arrays})


def time_forward(function: Callable[..., Any], nets: nn.Module, obs: Tensor, way: str) -> timeit.Timer:
    """Time a forward pass from an observation array to output arrays."""

    @torch.inference_mode()
    def call(array: Any) -> Any:
        outputs = forward(nets, torch.from_numpy(array))
        return [output.numpy() for output in outputs] if isinstance(outputs, tuple) else outputs.numpy()

    forward = torch.compile(function, dynamic=False) if way == "compile" else function
    assert len(call(obs.numpy())) >= 1
    return timeit.Timer("call(obs)", globals={"call": call, "obs": obs.numpy()})


def acting(sizes: Sequence[int], batch: int, way: str) -> timeit.Timer:
    """Time actor and critic on one step of `batch` environments."""
    return time_forward(act, actor_critic(sizes), torch.randn(batch, OBS), way)


def predicting(sizes: Sequence[int], batch: int, way: str) -> timeit.Timer:
    """Time the most likely actions of the actor."""
    return time_forward(predict, actor_critic(sizes), torch.randn(batch, OBS), way)


def sampling(sizes: Sequence[int], batch: int, way: str) -> timeit.Timer:
    """Time samples of SAC's actor."""
    nets = nn.ModuleDict({"actor": mlp(STATE, sizes, 2 * ACTION, nn.ReLU)})
    return time_forward(sample_squashed, nets, torch.randn(batch, STATE), way)


TIMERS: dict[str, Callable[[Sequence[int], int, str], timeit.Timer]] = {
    "ppo": ppo,
    "dqn": dqn,
    "critic": critic,
    "sac": sampling,
    "act": acting,
    "predict": predicting,
}
