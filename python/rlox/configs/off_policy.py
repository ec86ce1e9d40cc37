"""Settings of DQN, SAC and TD3."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rlox import settings
from rlox._errors import ArgumentError
from rlox.noise import ActionNoise, as_noise


@dataclass(frozen=True)
class ReplayConfig:
    """What the settings of DQN, SAC and TD3 have in common."""

    num_envs: int = 1  # environments stepped together
    buffer_size: int = 1_000_000  # transitions that are kept
    learning_starts: int = 100  # steps with random actions; learning begins after them
    # Transitions in a minibatch, drawn with replacement; while there are fewer, as many as those.
    batch_size: int = 256
    # Steps of each environment in an iteration; (1, "episode"): one environment's whole episodes.
    train_freq: int | tuple[int, str] = 1
    gradient_steps: int = 1  # minibatches in an iteration; -1: as many as transitions came in
    utd_ratio: float | None = None  # minibatches for each transition, in place of gradient_steps
    n_steps: int = 1  # steps that a transition spans
    gamma: float = 0.99  # discount
    tau: float = 0.005  # share by which target networks follow; 1 copies
    frame_stack: int | None = None  # frames an observation stacks; None: as its wrapper says
    her: Literal["future", "final", "episode"] | None = None  # goals in hindsight, for goal spaces
    n_sampled_goal: int = 4  # relabelled transitions for each real one
    learning_rate: float = 3e-4  # of Adam, for all that learns
    lr_schedule: Literal["constant", "linear"] = "constant"  # "linear": falls towards 0
    normalize_obs: bool = False  # by running mean and variance, clipped to [-10, 10], on sampling
    # By the discounted return's standard deviation, clipped alike; of n_steps their sum.
    normalize_reward: bool = False
    net_arch: tuple[int, ...] | None = None  # hidden layers; None: as the algorithm's class says
    activation: str = "relu"  # or "tanh", "elu", "gelu", "silu"
    compile: bool = False  # the losses by torch.compile, which takes its time first
    device: str = "cpu"  # of the networks: "cpu", "cuda", "cuda:1", "mps"

    def __post_init__(self) -> None:
        check = partial(settings.settle, self)
        check(settings.whole, ("num_envs", "buffer_size", "batch_size", "n_steps"), 1)
        self._expect_room_for_batches()
        check(_train_freq, ("train_freq",))
        if isinstance(self.train_freq, tuple) and self.num_envs != 1:
            raise ArgumentError(
                "train_freq",
                f"steps beside num_envs = {self.num_envs}, as episodes end at different times",
                str(self.train_freq),
                "pass an integer, or num_envs=1",
            )
        check(settings.whole, ("n_sampled_goal", "frame_stack"), 1)
        check(settings.whole, ("learning_starts",), 0)
        check(settings.whole, ("gradient_steps",), 1, -1)
        check(settings.whole_numbers, ("net_arch",))
        check(settings.number, ("gamma", "tau"), 0, 1)
        check(settings.number, ("learning_rate", "utd_ratio"), 0, 1e30)
        check(settings.flag, settings.flags_of(self))
        check(settings.text, ("lr_schedule",), ("constant", "linear"))
        check(settings.text, ("her",), ("future", "final", "episode"))
        check(settings.text, ("activation",), settings.ACTIVATIONS)
        check(settings.text, ("device",))
        if self.utd_ratio is not None and self.gradient_steps != 1:
            raise ArgumentError(
                "utd_ratio",
                f"None beside gradient_steps = {self.gradient_steps}",
                str(self.utd_ratio),
                "give one of them",
            )
        if self.her is not None and self.n_steps != 1:
            raise ArgumentError(
                "n_steps", f"1 beside her = {self.her!r}", str(self.n_steps), "leave one out"
            )

    def _expect_room_for_batches(self) -> None:
        """Refuses minibatches that the buffer never has enough for.

        Raises:
            ValueError: They are larger than the buffer, in whole rows of all environments.
        """
        rows = max(self.buffer_size // self.num_envs, 1)
        if self.batch_size > (kept := rows * self.num_envs):
            raise ArgumentError(
                "batch_size",
                f"at most {kept}, as many as buffer_size = {self.buffer_size} keeps with num_envs "
                f"= {self.num_envs}",
                str(self.batch_size),
                "make it smaller, or buffer_size larger",
            )


@dataclass(frozen=True)
class DQNConfig(ReplayConfig):
    """Settings of DQN, beside those of `ReplayConfig`. The defaults are Stable-Baselines3's.

    Without `net_arch` there are hidden layers of (64, 64), behind a NatureCNN none.
    """

    batch_size: int = 32
    train_freq: int | tuple[int, str] = 4
    tau: float = 1.0
    learning_rate: float = 1e-4
    target_update_interval: int = 10_000  # environment steps between two moves of the target
    double: bool = False  # the online network chooses the next action (van Hasselt et al. 2016)
    dueling: bool = False  # value and advantages apart (Wang et al. 2016)
    prioritized: bool = False  # sample by TD error (Schaul et al. 2016)
    priority_alpha: float = 0.6  # from uniform (0) to proportional (1)
    priority_beta: float = 0.4  # importance weights' exponent in the beginning, 1 in the end
    max_grad_norm: float = 10.0  # the gradient is cut to this norm
    exploration_fraction: float = 0.1  # share of the run in which random actions become rarer
    exploration_initial_eps: float = 1.0  # share of random actions in the beginning
    exploration_final_eps: float = 0.05  # and from then on
    action_masks: bool = False  # learn and act by what the environments say is allowed

    def __post_init__(self) -> None:
        super().__post_init__()
        check = partial(settings.settle, self)
        check(settings.whole, ("target_update_interval",), 1)
        shares = ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps")
        check(settings.number, (*shares, "priority_alpha", "priority_beta"), 0, 1)
        check(settings.number, ("max_grad_norm",), 0, 1e30)


@dataclass(frozen=True)
class SACConfig(ReplayConfig):
    """Settings of SAC, beside those of `ReplayConfig`. The defaults are Stable-Baselines3's.

    Without `net_arch`, actor and critics have hidden layers of (256, 256).
    """

    target_update_interval: int = 1  # minibatches between two moves of the targets
    ent_coef: float | str = "auto"  # what entropy is worth; "auto": learned; "auto_0.1": from 0.1
    target_entropy: float | Literal["auto"] = "auto"  # "auto": minus the number of action numbers
    action_noise: ActionNoise | None = None  # beside the policy's own
    use_sde: bool = False  # state-dependent exploration (gSDE)
    sde_sample_freq: int = -1  # steps until a new noise matrix; -1: once in an iteration
    use_sde_at_warmup: bool = False  # gSDE rather than random actions in the beginning
    log_std_init: float = -3.0  # initial logarithm of gSDE's standard deviations

    def __post_init__(self) -> None:
        super().__post_init__()
        check = partial(settings.settle, self)
        check(settings.whole, ("target_update_interval",), 1)
        check(_ent_coef, ("ent_coef",))
        check(_target_entropy, ("target_entropy",))
        check(settings.whole, ("sde_sample_freq",), 1, -1)
        check(settings.number, ("log_std_init",), -20, 20)
        check(as_noise, ("action_noise",))
        if self.use_sde_at_warmup and not self.use_sde:
            raise ArgumentError(
                "use_sde_at_warmup", "False without use_sde", "True", "set use_sde=True"
            )


@dataclass(frozen=True)
class TD3Config(ReplayConfig):
    """Settings of TD3, beside those of `ReplayConfig`. The defaults are Stable-Baselines3's.

    Without `net_arch`, actor and critics have hidden layers of (400, 300), behind a NatureCNN
    (256, 256).
    """

    learning_rate: float = 1e-3
    policy_delay: int = 2  # minibatches between two steps of the actor, and moves of the targets
    target_policy_noise: float = 0.2  # deviation of the noise on next actions
    target_noise_clip: float = 0.5  # what that noise is cut to
    action_noise: ActionNoise | None = None  # what explores after the random actions

    def __post_init__(self) -> None:
        super().__post_init__()
        check = partial(settings.settle, self)
        check(settings.whole, ("policy_delay",), 1)
        check(settings.number, ("target_policy_noise", "target_noise_clip"), 0, 1e30)
        check(as_noise, ("action_noise",))


def _train_freq(name: str, value: Any) -> int | tuple[int, str]:
    """A count of steps, or a count and its unit, "step" or "episode"; steps are a plain count.

    >>> _train_freq("train_freq", [4, "step"]), _train_freq("train_freq", [1, "episode"])
    (4, (1, 'episode'))
    """
    if not isinstance(value, tuple | list):
        return settings.whole(name, value, 1)
    try:
        count, unit = value
        plain = settings.whole(name, count, 1), settings.text(name, unit, ("step", "episode"))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            name,
            "an integer of at least 1, or such a one with 'step' or 'episode'",
            settings.shown(value),
            "pass 4 or (1, 'episode') for example",
        ) from error
    return plain if plain[1] == "episode" else plain[0]


def _target_entropy(name: str, value: Any) -> float | str:
    """A number, or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    return settings.number(name, value)


def _ent_coef(name: str, value: Any) -> float | str:
    """A number of at least 0, "auto", or "auto_" and a number above 0."""
    if not isinstance(value, str):
        return settings.number(name, value, 0, 1e30)
    try:
        kind, _, begin = value.partition("_")
        if kind == "auto" and (value == kind or 0 < float(begin) < 1e30):
            return str(value)
    except ValueError:
        pass
    raise ArgumentError(
        name,
        "a number, 'auto' or 'auto_0.1' for one that begins with 0.1",
        repr(value),
        "change the setting",
    )
