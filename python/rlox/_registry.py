"""Registry of the algorithms. Every list of algorithms in rlox derives from `ALGORITHMS`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym

from rlox import configs

if TYPE_CHECKING:
    from torch import nn

# Default sizes of the hidden layers.
NET_ARCH = (64, 64)
# Bound of the means of gSDE in SAC, as in Stable-Baselines3.
SDE_CLIP_MEAN = 2.0
# Epsilon of Adam in off-policy algorithms: torch's default, which Stable-Baselines3 uses for them.
_OFF_POLICY_EPS = 1e-8


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """Classes, names and defaults of one algorithm.

    Classes and objects are written as "module:name" and imported when they are needed.

    Attributes:
        name: Name on the command line, in files and in messages in lower case.
        config: Dataclass of the settings.
        torch_learner: Learner in PyTorch.
        native_learner: Learner in Rust; None if there is none.
        trainer: `rlox.trainers.Trainer` subclass; None: a subclass made from this object.
        ddp_trainer: Trainer of several processes; None if the algorithm has none.
        search_space: Default search space of `rlox.experiments.Sweep`; None if there is none.
        has_env: True if the algorithm learns from environments.
        actions: Supported action spaces: all, only Discrete, or only Box.
        policy_network: Name of the network that computes greedy actions.
        net_arch: Default sizes of the hidden layers for flat observations.
        image_net_arch: Default sizes of the hidden layers after a `NatureCNN`.
        adam_eps: Epsilon of Adam.
        update_metrics: Metric names by the names of the native learner's update statistics.
    """

    name: str
    config: type[Any]
    torch_learner: str
    native_learner: str | None = None
    trainer: str | None = None
    ddp_trainer: str | None = None
    search_space: str | None = None
    has_env: bool = True
    actions: Literal["any", "discrete", "box"] = "any"
    policy_network: str = "actor"
    net_arch: tuple[int, ...] = NET_ARCH
    image_net_arch: tuple[int, ...] = ()
    adam_eps: float = configs.EPS
    update_metrics: Mapping[str, str] = field(default_factory=dict)


def _spec(name: str, config: type[Any], native_module: str, **facts: Any) -> AlgorithmSpec:
    """Return the specification of an algorithm whose classes are named after it."""
    upper = name.upper()
    return AlgorithmSpec(
        name=name,
        config=config,
        trainer=f"rlox.trainers:{upper}Trainer",
        torch_learner=f"rlox.algorithms.{name}:{upper}",
        native_learner=f"rlox.learners.{native_module}:Native{upper}",
        search_space=f"rlox.experiments.space:{upper}",
        **facts,
    )


_CRITIC_METRICS = {"actor_loss": "train/actor_loss", "critic_loss": "train/critic_loss"}
_SPECS = (
    _spec("ppo", configs.PPOConfig, "native_on_policy", ddp_trainer="rlox.distributed.ddp:PPOTrainer"),
    _spec("a2c", configs.A2CConfig, "native_on_policy", ddp_trainer="rlox.distributed.ddp:A2CTrainer"),
    _spec("impala", configs.IMPALAConfig, "native_on_policy"),
    _spec(
        "dqn",
        configs.DQNConfig,
        "native_off_policy",
        actions="discrete",
        adam_eps=_OFF_POLICY_EPS,
        policy_network="q_net",
        update_metrics={"exploration_rate": "rollout/exploration_rate", "critic_loss": "train/loss"},
    ),
    _spec(
        "sac",
        configs.SACConfig,
        "native_off_policy",
        ddp_trainer="rlox.distributed.ddp:SACTrainer",
        actions="box",
        net_arch=(256, 256),
        image_net_arch=(256, 256),
        adam_eps=_OFF_POLICY_EPS,
        update_metrics={**_CRITIC_METRICS, "ent_coef": "train/ent_coef", "ent_coef_loss": "train/ent_coef_loss"},
    ),
    _spec(
        "td3",
        configs.TD3Config,
        "native_off_policy",
        actions="box",
        net_arch=(400, 300),
        image_net_arch=(256, 256),
        adam_eps=_OFF_POLICY_EPS,
        update_metrics=_CRITIC_METRICS,
    ),
)
ALGORITHMS: dict[str, AlgorithmSpec] = {spec.name: spec for spec in _SPECS}
# Custom encoders of observations by the type of the space; see `rlox.features.register_encoder`.
ENCODERS: "dict[type[gym.Space[Any]], Callable[[gym.Space[Any]], nn.Module]]" = {}


def find_encoder(space: gym.Space[Any]) -> "Callable[[gym.Space[Any]], nn.Module] | None":
    """Return the custom encoder of a space; None if the encoders of rlox apply."""
    return next((ENCODERS[cls] for cls in type(space).__mro__ if cls in ENCODERS), None)


def has_encoder(space: gym.Space[Any]) -> bool:
    """Return whether a custom encoder applies to a space or to a part of the space."""
    parts: Iterable[gym.Space[Any]] = ()
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        parts = space.values() if isinstance(space, gym.spaces.Dict) else space.spaces
    return find_encoder(space) is not None or any(has_encoder(part) for part in parts)
