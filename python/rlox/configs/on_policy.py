"""Settings of PPO, A2C and IMPALA."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rlox import settings
from rlox._errors import ArgumentError
from rlox.worker_addresses import worker_addresses

# Of the optimisers on every backend: decays of Adam's means and of RMSprop's, as torch has them;
# what is added to roots, as Stable-Baselines3 does.
BETAS = (0.9, 0.999)
ALPHA = 0.99
EPS = 1e-5
# The settings that choose and shape a built-in policy.
SHAPE_SETTINGS = (
    "use_sde",
    "net_arch",
    "shared_trunk",
    "activation",
    "ortho_init",
    "log_std_init",
    "full_std",
)


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO. The defaults are Stable-Baselines3's."""

    num_envs: int = 1  # environments stepped together
    n_steps: int = 2048  # steps from each environment in an iteration
    batch_size: int | None = None  # steps in a minibatch, at most those of an iteration; None: 64
    n_epochs: int = 10  # passes over the steps of an iteration
    gamma: float = 0.99  # discount
    gae_lambda: float = 0.95  # from one-step advantages (0) to Monte Carlo (1)
    learning_rate: float = 3e-4  # of Adam
    lr_schedule: Literal["constant", "linear"] = "constant"  # "linear": falls towards 0
    clip_coef: float = 0.2  # how far the ratio of new to old probability may pay off
    clip_schedule: Literal["constant", "linear"] = "constant"  # "linear": falls towards 0
    clip_coef_vf: float | None = None  # how far values may move in the value loss; None: any way
    normalize_advantage: bool = True  # to mean 0 and standard deviation 1 in each minibatch
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # the gradient of all parameters together is cut to this norm
    target_kl: float | None = None  # updates end where a minibatch's KL is above 1.5 times this
    action_masks: bool = False  # learn and act by what the environments say is allowed
    normalize_obs: bool = False  # by running mean and variance, clipped to [-10, 10]
    normalize_reward: bool = False  # by the discounted return's standard deviation, clipped alike
    use_sde: bool = False  # state-dependent exploration (gSDE), for Box actions
    sde_sample_freq: int = -1  # steps until a new noise matrix; -1: once in an iteration
    full_std: bool = True  # gSDE: a deviation for each hidden unit and action, not only each unit
    log_std_init: float = 0.0  # initial logarithm of the standard deviation, for Box actions
    ortho_init: bool = True  # orthogonal initial weights
    net_arch: tuple[int, ...] | None = None  # hidden layers; None: (64, 64), or () behind a CNN
    shared_trunk: bool = False  # whether actor and critic have them in common
    activation: str = "tanh"  # or "relu", "elu", "gelu", "silu"
    compile: bool = False  # the loss by torch.compile, which takes its time first
    device: str = "cpu"  # of the networks: "cpu", "cuda", "cuda:1", "mps"
    async_collect: bool = False  # actors collect while the learner learns
    num_actors: int = 1  # those that collect, which share the environments
    actors: str = "auto"  # where: "threads", "processes", "ray", "grpc://host:port,host:port"
    max_lag: int | None = None  # updates that a rollout's policy may be behind; None: `num_actors`
    lockstep: bool = False  # repeatable runs: every rollout is `max_lag` behind, who is fast waits

    def __post_init__(self) -> None:
        weights = ("learning_rate", "clip_coef", "ent_coef", "vf_coef", "max_grad_norm")
        check = partial(settings.settle, self)
        check(settings.whole, ("num_envs", "n_steps", "batch_size", "n_epochs", "num_actors"), 1)
        check(settings.whole, ("max_lag",), 0)
        rollout = self.num_envs // self.num_actors * self.n_steps
        if self.batch_size is None:
            object.__setattr__(self, "batch_size", max(1, min(64, rollout)))
        check(settings.whole, ("sde_sample_freq",), 1, -1)
        check(settings.whole_numbers, ("net_arch",))
        check(settings.number, ("gamma", "gae_lambda"), 0, 1)
        check(settings.number, (*weights, "clip_coef_vf", "target_kl"), 0, 1e30)
        check(settings.number, ("log_std_init",), -20, 20)
        check(settings.flag, settings.flags_of(self))
        check(settings.text, ("lr_schedule", "clip_schedule"), ("constant", "linear"))
        check(settings.text, ("activation",), settings.ACTIVATIONS)
        check(settings.text, ("device",))
        check(_places, ("actors",))
        _expect_ahead(self)
        if self.batch_size is not None and self.batch_size > rollout:
            shared = " / num_actors" if self.num_actors > 1 else ""
            raise ArgumentError(
                "batch_size",
                f"at most num_envs{shared} * n_steps = {rollout} steps",
                str(self.batch_size),
                "lower it, or raise n_steps",
            )


@dataclass(frozen=True)
class A2CConfig:
    """Settings of A2C. The defaults are Stable-Baselines3's."""

    num_envs: int = 1  # environments stepped together
    n_steps: int = 5  # steps from each environment in an iteration
    gamma: float = 0.99  # discount
    gae_lambda: float = 1.0  # from one-step advantages (0) to Monte Carlo (1)
    learning_rate: float = 7e-4  # of the optimiser
    lr_schedule: Literal["constant", "linear"] = "constant"  # "linear": falls towards 0
    optimizer: Literal["rmsprop", "rmsprop_tf", "adam"] = "rmsprop"  # "rmsprop_tf": TensorFlow's
    optimizer_eps: float = EPS  # what keeps the optimiser's divisor above 0
    normalize_advantage: bool = False  # to mean 0 and standard deviation 1 in each iteration
    ent_coef: float = 0.0  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # the gradient of all parameters together is cut to this norm
    action_masks: bool = False  # learn and act by what the environments say is allowed
    normalize_obs: bool = False  # by running mean and variance, clipped to [-10, 10]
    normalize_reward: bool = False  # by the discounted return's standard deviation, clipped alike
    use_sde: bool = False  # state-dependent exploration (gSDE), for Box actions
    sde_sample_freq: int = -1  # steps until a new noise matrix; -1: once in an iteration
    full_std: bool = True  # gSDE: a deviation for each hidden unit and action, not only each unit
    log_std_init: float = 0.0  # initial logarithm of the standard deviation, for Box actions
    ortho_init: bool = True  # orthogonal initial weights
    net_arch: tuple[int, ...] | None = None  # hidden layers; None: (64, 64), or () behind a CNN
    shared_trunk: bool = False  # whether actor and critic have them in common
    activation: str = "tanh"  # or "relu", "elu", "gelu", "silu"
    device: str = "cpu"  # of the networks: "cpu", "cuda", "cuda:1", "mps"
    async_collect: bool = False  # actors collect while the learner learns
    num_actors: int = 1  # those that collect, which share the environments
    actors: str = "auto"  # where: "threads", "processes", "ray", "grpc://host:port,host:port"
    max_lag: int | None = None  # updates that a rollout's policy may be behind; None: `num_actors`
    lockstep: bool = False  # repeatable runs: every rollout is `max_lag` behind, who is fast waits

    def __post_init__(self) -> None:
        weights = ("learning_rate", "optimizer_eps", "ent_coef", "vf_coef", "max_grad_norm")
        check = partial(settings.settle, self)
        check(settings.whole, ("num_envs", "n_steps", "num_actors"), 1)
        check(settings.whole, ("max_lag",), 0)
        check(settings.whole, ("sde_sample_freq",), 1, -1)
        check(settings.whole_numbers, ("net_arch",))
        check(settings.number, ("gamma", "gae_lambda"), 0, 1)
        check(settings.number, weights, 0, 1e30)
        check(settings.number, ("log_std_init",), -20, 20)
        check(settings.flag, settings.flags_of(self))
        check(settings.text, ("lr_schedule",), ("constant", "linear"))
        check(settings.text, ("optimizer",), ("rmsprop", "rmsprop_tf", "adam"))
        check(settings.text, ("activation",), settings.ACTIVATIONS)
        check(settings.text, ("device",))
        check(_places, ("actors",))
        _expect_ahead(self)


@dataclass(frozen=True)
class IMPALAConfig:
    """Settings of IMPALA: the paper's V-trace, in means where it sums, and A2C's optimiser."""

    num_envs: int = 8  # environments of all actors together
    n_steps: int = 5  # steps from each environment in a rollout
    num_actors: int = 1  # those that collect, which share the environments
    actors: str = "auto"  # where: "threads", "processes", "ray", "grpc://host:port,host:port"
    max_lag: int | None = None  # updates that a rollout's policy may be behind; None: `num_actors`
    lockstep: bool = False  # repeatable runs: every rollout is `max_lag` behind, who is fast waits
    gamma: float = 0.99  # discount
    vtrace_lambda: float = 1.0  # what V-trace's traces are multiplied by
    rho_bar: float = 1.0  # ratios of new to old probability are at most this in the differences
    c_bar: float = 1.0  # at most this in the traces
    learning_rate: float = 7e-4  # of the optimiser
    lr_schedule: Literal["constant", "linear"] = "linear"  # "linear": falls towards 0
    optimizer: Literal["rmsprop", "rmsprop_tf", "adam"] = "rmsprop"  # "rmsprop_tf": TensorFlow's
    optimizer_eps: float = EPS  # what keeps the optimiser's divisor above 0
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # the gradient of all parameters together is cut to this norm
    action_masks: bool = False  # learn and act by what the environments say is allowed
    normalize_obs: bool = False  # by running mean and variance, clipped to [-10, 10]
    normalize_reward: bool = False  # by the discounted return's standard deviation, clipped alike
    use_sde: bool = False  # state-dependent exploration (gSDE), for Box actions
    sde_sample_freq: int = -1  # steps until a new noise matrix; -1: once in a rollout
    full_std: bool = True  # gSDE: a deviation for each hidden unit and action, not only each unit
    log_std_init: float = 0.0  # initial logarithm of the standard deviation, for Box actions
    ortho_init: bool = True  # orthogonal initial weights
    net_arch: tuple[int, ...] | None = None  # hidden layers; None: (64, 64), or () behind a CNN
    shared_trunk: bool = False  # whether actor and critic have them in common
    activation: str = "tanh"  # or "relu", "elu", "gelu", "silu"
    device: str = "cpu"  # of the networks: "cpu", "cuda", "cuda:1", "mps"

    def __post_init__(self) -> None:
        weights = ("learning_rate", "optimizer_eps", "ent_coef", "vf_coef", "max_grad_norm")
        check = partial(settings.settle, self)
        check(settings.whole, ("num_envs", "n_steps", "num_actors"), 1)
        check(settings.whole, ("max_lag",), 0)
        check(settings.whole, ("sde_sample_freq",), 1, -1)
        check(settings.whole_numbers, ("net_arch",))
        check(settings.number, ("gamma", "vtrace_lambda"), 0, 1)
        check(settings.number, (*weights, "rho_bar", "c_bar"), 0, 1e30)
        check(settings.number, ("log_std_init",), -20, 20)
        check(settings.flag, settings.flags_of(self))
        check(settings.text, ("lr_schedule",), ("constant", "linear"))
        check(settings.text, ("optimizer",), ("rmsprop", "rmsprop_tf", "adam"))
        check(settings.text, ("activation",), settings.ACTIVATIONS)
        check(settings.text, ("device",))
        check(_places, ("actors",))
        _expect_ahead(self)


def _places(name: str, value: object) -> str:
    """Where actors work.

    Raises:
        TypeError: No str.
        ValueError: None of the names, and no workers, or waits that cannot be set.
    """
    where = settings.text(name, value)
    if where not in ("auto", "threads", "processes", "ray") and worker_addresses(where) is None:
        raise ArgumentError(
            name,
            "'auto', 'threads', 'processes', 'ray', or workers such as "
            "'grpc://host:50051,host:50052'",
            repr(where),
            "pass one of them",
        )
    return where


# What is said of actors where there are none.
_WITHOUT: dict[str, Any] = {
    "num_actors": 1,
    "actors": "auto",
    "max_lag": None,
    "lockstep": False,
}


def _expect_ahead(config: Any) -> None:
    """The actors of a config can share its environments, and work within its bound.

    Raises:
        ValueError: They cannot.
    """
    envs, actors, lag = config.num_envs, config.num_actors, config.max_lag
    if not getattr(config, "async_collect", True):
        for name, alone in _WITHOUT.items():
            if (got := getattr(config, name)) != alone:
                raise ArgumentError(
                    name, f"{alone!r} without actors", repr(got), "set async_collect=True"
                )
        return
    if envs % actors:
        raise ArgumentError(
            "num_actors",
            f"a divisor of num_envs = {envs}",
            str(actors),
            "actors share the environments evenly: change one of the two",
        )
    if config.lockstep and lag == 0 and actors == 1 and config.actors != "auto":
        raise ArgumentError(
            "actors",
            "'auto' where actor and learner take turns",
            repr(config.actors),
            "raise max_lag, or leave it out",
        )
    workers = config.actors.count(",") + 1
    if "://" in config.actors and workers > actors:
        raise ArgumentError(
            "num_actors",
            f"at least {workers}, one for each worker",
            str(actors),
            "raise it, or name fewer",
        )
    if lag is None or config.lockstep or lag >= actors:
        return
    if lag == 0:
        raise ArgumentError(
            "max_lag",
            "at least 1 where actors do not wait for the learner",
            "0",
            "raise it, or set lockstep=True, with which actors and learner may take turns",
        )
    raise ArgumentError(
        "max_lag",
        f"at least num_actors = {actors}",
        str(lag),
        "raise it, or take fewer actors: with less, some would always wait",
    )
