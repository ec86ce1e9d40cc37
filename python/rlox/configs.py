"""Settings of the algorithms: one dataclass per algorithm, for all backends."""

from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

from rlox import _validation
from rlox._errors import ArgumentError
from rlox._validation import ACTIVATIONS, worker_addresses
from rlox.noise import ActionNoise, as_noise


def local_config(config: Any, num_envs: int) -> Any:
    """Return a config of synchronous collection with `num_envs` environments, for a single actor.

    >>> from rlox.configs import IMPALAConfig, PPOConfig
    >>> from rlox.learners._actors import is_synchronous
    >>> ppo = local_config(PPOConfig(num_envs=8, num_actors=2, async_collect=True), 4)
    >>> ppo.num_envs, is_synchronous(ppo), is_synchronous(local_config(IMPALAConfig(), 8))
    (4, True, True)
    """
    changes: dict[str, Any] = {
        "num_envs": num_envs,
        "num_actors": 1,
        "actors": "auto",
        "max_staleness": 0,
        "deterministic": True,
    }
    if hasattr(config, "async_collect"):
        changes |= {"async_collect": False, "max_staleness": None, "deterministic": False}
    # An actor does not update its policy, so use the cheapest settings.
    for name, cheap in {"compile": False, "device": "cpu", "batch_size": None}.items():
        if hasattr(config, name):
            changes[name] = cheap
    return replace(config, **changes)


def scheduled(value: float, schedule: str, progress: float) -> float:
    """Return a scheduled setting: `value`, or for "linear" `value * (1 - progress)`.

    >>> scheduled(0.5, "linear", progress=0.25), scheduled(0.5, "constant", progress=0.25)
    (0.375, 0.5)
    """
    return value * (1.0 - progress) if schedule == "linear" else value


__all__ = [
    "ACTIVATIONS",
    "ALPHA",
    "BETAS",
    "EPS",
    "SHAPE_SETTINGS",
    "A2CConfig",
    "DQNConfig",
    "IMPALAConfig",
    "PPOConfig",
    "SACConfig",
    "TD3Config",
    "make_config",
    "scheduled",
    "setting_docs",
]
# Decay rates of Adam (BETAS) and RMSprop (ALPHA), as in PyTorch; EPS is Stable-Baselines3's.
BETAS = (0.9, 0.999)
ALPHA = 0.99
EPS = 1e-5
# Settings of the built-in policies, which a custom policy excludes.
SHAPE_SETTINGS = (
    "use_sde",
    "net_arch",
    "shared_trunk",
    "activation",
    "ortho_init",
    "log_std_init",
    "full_std",
)


def _setting(default: Any, doc: str) -> Any:
    """Return a dataclass field whose metadata has the setting's one-line documentation."""
    return field(default=default, metadata={"doc": doc})


def setting_docs(config_type: type[Any]) -> dict[str, str]:
    """Return the one-line documentation of each setting of a config class, by name.

    A subclass that only changes a default inherits the documentation.

    >>> setting_docs(PPOConfig)["gamma"]
    'discount factor'
    """
    docs: dict[str, str] = {}
    for base in reversed(config_type.__mro__):
        for name, declared in vars(base).get("__dataclass_fields__", {}).items():
            docs[name] = declared.metadata.get("doc", docs.get(name))
    return {field.name: docs[field.name] for field in fields(config_type)}


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig:
    """Settings that PPO, A2C and IMPALA share."""

    num_envs: int = _setting(1, "number of environments")
    n_steps: int = _setting(5, "steps of each environment per rollout")
    gamma: float = _setting(0.99, "discount factor")
    learning_rate: float = _setting(7e-4, "learning rate of the optimizer")
    lr_schedule: Literal["constant", "linear"] = _setting(
        "constant", 'learning rate schedule; "linear" decays to 0 at the end of the run'
    )
    ent_coef: float = _setting(0.0, "weight of the entropy bonus")
    vf_coef: float = _setting(0.5, "weight of the value loss")
    max_grad_norm: float = _setting(0.5, "maximum norm of the gradient of all parameters")
    action_masks: bool = _setting(False, "use the action masks that the environments report")
    normalize_obs: bool = _setting(
        False, "normalize observations by running mean and variance, clipped to [-10, 10]"
    )
    normalize_reward: bool = _setting(
        False, "divide rewards by the standard deviation of discounted returns, clip to [-10, 10]"
    )
    use_sde: bool = _setting(False, "state-dependent exploration (gSDE); Box actions only")
    sde_sample_freq: int = _setting(-1, "steps between gSDE noise matrices; -1: once per rollout")
    full_std: bool = _setting(
        True, "gSDE: one standard deviation per hidden unit and action, not only per hidden unit"
    )
    log_std_init: float = _setting(0.0, "initial log standard deviation; Box actions only")
    ortho_init: bool = _setting(True, "initialize weights orthogonally")
    net_arch: tuple[int, ...] | None = _setting(
        None, "sizes of the hidden layers; None: (64, 64), or () after a CNN"
    )
    shared_trunk: bool = _setting(False, "share hidden layers between actor and critic")
    activation: str = _setting("tanh", 'activation: "tanh", "relu", "elu", "gelu" or "silu"')
    device: str = _setting("cpu", 'torch device: "cpu", "cuda", "cuda:1", "mps"')
    num_actors: int = _setting(1, "number of actors; they share the environments evenly")
    actors: str = _setting(
        "auto",
        'where actors run: "auto", "threads", "processes", "ray" or "grpc://host:port,host:port"',
    )
    max_staleness: int | None = _setting(
        None, "maximum age of a rollout's policy in updates; None: num_actors"
    )
    deterministic: bool = _setting(
        False, "deterministic runs: every rollout's policy is exactly max_staleness updates old"
    )

    def __post_init__(self) -> None:
        check = partial(_validation.check_fields, self)
        check(_validation.check_int, ("num_envs", "n_steps", "num_actors"), 1)
        check(_validation.check_int, ("max_staleness",), 0)
        check(_validation.check_int, ("sde_sample_freq",), 1, -1)
        check(_validation.check_int_tuple, ("net_arch",))
        check(_validation.check_float, ("gamma",), 0, 1)
        check(
            _validation.check_float,
            ("learning_rate", "ent_coef", "vf_coef", "max_grad_norm"),
            0,
            1e30,
        )
        check(_validation.check_float, ("log_std_init",), -20, 20)
        check(_validation.check_bool, _validation.get_bool_fields(self))
        check(_validation.check_str, ("lr_schedule",), ("constant", "linear"))
        check(_validation.check_str, ("activation",), _validation.ACTIVATIONS)
        check(_validation.check_str, ("device",))
        check(_actors, ("actors",))
        _check_actors(self)


@dataclass(frozen=True, kw_only=True)
class PPOConfig(OnPolicyConfig):
    """Settings of PPO. The defaults are Stable-Baselines3's."""

    n_steps: int = 2048
    batch_size: int | None = _setting(
        None, "steps per minibatch, at most those of a rollout; None: 64"
    )
    n_epochs: int = _setting(10, "passes over each rollout")
    gae_lambda: float = _setting(0.95, "GAE lambda: 0 is one-step TD, 1 is Monte Carlo")
    learning_rate: float = 3e-4
    clip_coef: float = _setting(0.2, "clip range of the probability ratio, 1 +/- clip_coef")
    clip_schedule: Literal["constant", "linear"] = _setting(
        "constant", 'schedule of clip_coef; "linear" decays to 0 at the end of the run'
    )
    clip_coef_vf: float | None = _setting(
        None, "clip range of the change of values in the value loss; None: no clipping"
    )
    normalize_advantage: bool = _setting(
        True, "scale the advantages of each minibatch to mean 0 and standard deviation 1"
    )
    target_kl: float | None = _setting(
        None, "end the update when a minibatch's KL divergence exceeds 1.5 times this value"
    )
    compile: bool = _setting(False, "compile the loss with torch.compile")
    async_collect: bool = _setting(False, "collect rollouts while the learner updates")

    def __post_init__(self) -> None:
        check = partial(_validation.check_fields, self)
        check(
            _validation.check_int,
            ("num_envs", "n_steps", "batch_size", "n_epochs", "num_actors"),
            1,
        )
        rollout = self.num_envs // self.num_actors * self.n_steps
        if self.batch_size is None:
            object.__setattr__(self, "batch_size", max(1, min(64, rollout)))
        check(_validation.check_float, ("gae_lambda",), 0, 1)
        check(_validation.check_float, ("clip_coef", "clip_coef_vf", "target_kl"), 0, 1e30)
        check(_validation.check_str, ("clip_schedule",), ("constant", "linear"))
        super().__post_init__()
        if self.batch_size is not None and self.batch_size > rollout:
            shared = " / num_actors" if self.num_actors > 1 else ""
            raise ArgumentError(
                "batch_size",
                f"at most num_envs{shared} * n_steps = {rollout} steps",
                str(self.batch_size),
                "lower batch_size, or raise n_steps",
            )


@dataclass(frozen=True, kw_only=True)
class _RMSpropConfig(OnPolicyConfig):
    """Settings that A2C and IMPALA share."""

    optimizer: Literal["rmsprop", "rmsprop_tf", "adam"] = _setting(
        "rmsprop", 'optimizer; "rmsprop_tf" is TensorFlow\'s variant of RMSprop'
    )
    optimizer_eps: float = _setting(EPS, "epsilon of the optimizer")

    def __post_init__(self) -> None:
        check = partial(_validation.check_fields, self)
        check(_validation.check_float, ("optimizer_eps",), 0, 1e30)
        check(_validation.check_str, ("optimizer",), ("rmsprop", "rmsprop_tf", "adam"))
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class A2CConfig(_RMSpropConfig):
    """Settings of A2C. The defaults are Stable-Baselines3's."""

    gae_lambda: float = _setting(1.0, "GAE lambda: 0 is one-step TD, 1 is Monte Carlo")
    normalize_advantage: bool = _setting(
        False, "scale the advantages of each rollout to mean 0 and standard deviation 1"
    )
    async_collect: bool = _setting(False, "collect rollouts while the learner updates")

    def __post_init__(self) -> None:
        _validation.check_fields(self, _validation.check_float, ("gae_lambda",), 0, 1)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(_RMSpropConfig):
    """Settings of IMPALA, with V-trace, mean instead of summed losses and A2C's optimizer."""

    num_envs: int = 8
    vtrace_lambda: float = _setting(1.0, "lambda of V-trace")
    rho_bar: float = _setting(1.0, "upper limit of the importance ratios in the TD errors")
    c_bar: float = _setting(1.0, "upper limit of the importance ratios in the traces")
    lr_schedule: Literal["constant", "linear"] = "linear"
    ent_coef: float = 0.01

    def __post_init__(self) -> None:
        _validation.check_fields(self, _validation.check_float, ("vtrace_lambda",), 0, 1)
        _validation.check_fields(self, _validation.check_float, ("rho_bar", "c_bar"), 0, 1e30)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """Settings that DQN, SAC and TD3 share."""

    num_envs: int = _setting(1, "number of environments")
    buffer_size: int = _setting(1_000_000, "capacity of the replay buffer in transitions")
    learning_starts: int = _setting(100, "steps with random actions before the first update")
    batch_size: int = _setting(
        256, "transitions per minibatch, at most those in the buffer; sampled with replacement"
    )
    train_freq: int | tuple[int, str] = _setting(
        1, 'steps of each environment per iteration; (n, "episode"): n full episodes (num_envs=1)'
    )
    gradient_steps: int = _setting(1, "minibatches per iteration; -1: as many as new transitions")
    utd_ratio: float | None = _setting(
        None, "minibatches per new transition; replaces gradient_steps"
    )
    n_steps: int = _setting(1, "steps of the n-step return")
    gamma: float = _setting(0.99, "discount factor")
    tau: float = _setting(0.005, "soft update coefficient of target networks; 1 copies the weights")
    frame_stack: int | None = _setting(
        None, "frames per stacked observation, each stored once; None: no frame stack"
    )
    her: Literal["future", "final", "episode"] | None = _setting(
        None, "hindsight goal strategy, for goal environments"
    )
    n_sampled_goal: int = _setting(4, "relabelled transitions per real transition")
    learning_rate: float = _setting(3e-4, "learning rate of Adam for all networks")
    lr_schedule: Literal["constant", "linear"] = _setting(
        "constant", 'learning rate schedule; "linear" decays to 0 at the end of the run'
    )
    normalize_obs: bool = _setting(
        False, "normalize sampled observations by running mean and variance, clipped to [-10, 10]"
    )
    normalize_reward: bool = _setting(
        False, "divide rewards (n-step: their sum) by the standard deviation of discounted returns"
    )
    net_arch: tuple[int, ...] | None = _setting(
        None, "sizes of the hidden layers; None: the default of the algorithm"
    )
    activation: str = _setting("relu", 'activation: "relu", "tanh", "elu", "gelu" or "silu"')
    compile: bool = _setting(False, "compile the losses with torch.compile")
    device: str = _setting("cpu", 'torch device: "cpu", "cuda", "cuda:1", "mps"')

    def __post_init__(self) -> None:
        check = partial(_validation.check_fields, self)
        check(_validation.check_int, ("num_envs", "buffer_size", "batch_size", "n_steps"), 1)
        self._check_batch_size()
        check(_train_freq, ("train_freq",))
        if isinstance(self.train_freq, tuple) and self.num_envs != 1:
            raise ArgumentError(
                "train_freq",
                f"a number of steps, because num_envs = {self.num_envs} is not 1",
                str(self.train_freq),
                "pass an int, or set num_envs=1",
            )
        check(_validation.check_int, ("n_sampled_goal", "frame_stack"), 1)
        check(_validation.check_int, ("learning_starts",), 0)
        check(_validation.check_int, ("gradient_steps",), 1, -1)
        check(_validation.check_int_tuple, ("net_arch",))
        check(_validation.check_float, ("gamma", "tau"), 0, 1)
        check(_validation.check_float, ("learning_rate", "utd_ratio"), 0, 1e30)
        check(_validation.check_bool, _validation.get_bool_fields(self))
        check(_validation.check_str, ("lr_schedule",), ("constant", "linear"))
        check(_validation.check_str, ("her",), ("future", "final", "episode"))
        check(_validation.check_str, ("activation",), _validation.ACTIVATIONS)
        check(_validation.check_str, ("device",))
        if self.utd_ratio is not None and self.gradient_steps != 1:
            raise ArgumentError(
                "utd_ratio",
                f"None, because gradient_steps = {self.gradient_steps} is set",
                str(self.utd_ratio),
                "set utd_ratio or gradient_steps, not both",
            )
        if self.her is not None and self.n_steps != 1:
            raise ArgumentError(
                "n_steps",
                f"1, because her = {self.her!r} is set",
                str(self.n_steps),
                "set n_steps=1 or her=None",
            )

    def _check_batch_size(self) -> None:
        """Check that a minibatch fits into the buffer, which has rows of all environments."""
        rows = max(self.buffer_size // self.num_envs, 1)
        if self.batch_size > (capacity := rows * self.num_envs):
            raise ArgumentError(
                "batch_size",
                f"at most {capacity}, the capacity of buffer_size = {self.buffer_size} with "
                f"num_envs = {self.num_envs}",
                str(self.batch_size),
                "lower batch_size, or raise buffer_size",
            )


@dataclass(frozen=True, kw_only=True)
class DQNConfig(OffPolicyConfig):
    """Settings of DQN. The defaults are Stable-Baselines3's.

    With `net_arch=None`, the hidden layers are (64, 64), or () after a NatureCNN.
    """

    batch_size: int = 32
    train_freq: int | tuple[int, str] = 4
    tau: float = 1.0
    learning_rate: float = 1e-4
    target_update_interval: int = _setting(10_000, "environment steps between target updates")
    double: bool = _setting(
        False,
        "double Q-learning: the online network selects the next action (van Hasselt et al., 2016)",
    )
    dueling: bool = _setting(
        False, "dueling network: separate value and advantage streams (Wang et al., 2016)"
    )
    prioritized: bool = _setting(
        False, "prioritized experience replay by TD error (Schaul et al., 2016)"
    )
    priority_alpha: float = _setting(
        0.6, "prioritization exponent: 0 is uniform, 1 is proportional"
    )
    priority_beta: float = _setting(
        0.4, "initial exponent of the importance weights; rises to 1 at the end of the run"
    )
    max_grad_norm: float = _setting(10.0, "maximum norm of the gradient of all parameters")
    exploration_fraction: float = _setting(0.1, "fraction of the run over which epsilon decays")
    exploration_initial_eps: float = _setting(
        1.0, "initial epsilon (probability of a random action)"
    )
    exploration_final_eps: float = _setting(0.05, "final epsilon")
    action_masks: bool = _setting(False, "use the action masks that the environments report")

    def __post_init__(self) -> None:
        super().__post_init__()
        check = partial(_validation.check_fields, self)
        check(_validation.check_int, ("target_update_interval",), 1)
        shares = ("exploration_fraction", "exploration_initial_eps", "exploration_final_eps")
        check(_validation.check_float, (*shares, "priority_alpha", "priority_beta"), 0, 1)
        check(_validation.check_float, ("max_grad_norm",), 0, 1e30)


@dataclass(frozen=True, kw_only=True)
class SACConfig(OffPolicyConfig):
    """Settings of SAC. The defaults are Stable-Baselines3's.

    With `net_arch=None`, the hidden layers of actor and critics are (256, 256).
    """

    target_update_interval: int = _setting(1, "minibatches between target updates")
    ent_coef: float | str = _setting(
        "auto", 'entropy coefficient; "auto": learned; "auto_0.1": learned, initially 0.1'
    )
    target_entropy: float | Literal["auto"] = _setting(
        "auto", 'target entropy; "auto": minus the number of action dimensions'
    )
    action_noise: ActionNoise | None = _setting(  # noqa: RUF009  # a frozen field specifier
        None, "noise added to the actions of the policy"
    )
    use_sde: bool = _setting(False, "state-dependent exploration (gSDE)")
    sde_sample_freq: int = _setting(-1, "steps between gSDE noise matrices; -1: once per iteration")
    use_sde_at_warmup: bool = _setting(
        False, "sample warm-up actions with gSDE instead of uniformly"
    )
    log_std_init: float = _setting(-3.0, "initial log standard deviation of gSDE")

    def __post_init__(self) -> None:
        super().__post_init__()
        check = partial(_validation.check_fields, self)
        check(_validation.check_int, ("target_update_interval",), 1)
        check(_ent_coef, ("ent_coef",))
        check(_target_entropy, ("target_entropy",))
        check(_validation.check_int, ("sde_sample_freq",), 1, -1)
        check(_validation.check_float, ("log_std_init",), -20, 20)
        check(as_noise, ("action_noise",))
        if self.use_sde_at_warmup and not self.use_sde:
            raise ArgumentError(
                "use_sde_at_warmup", "False with use_sde=False", "True", "set use_sde=True"
            )


@dataclass(frozen=True, kw_only=True)
class TD3Config(OffPolicyConfig):
    """Settings of TD3. The defaults are Stable-Baselines3's.

    With `net_arch=None`, the hidden layers of actor and critics are (400, 300), or (256, 256) after
    a NatureCNN.
    """

    learning_rate: float = 1e-3
    policy_delay: int = _setting(2, "critic updates per actor and target update")
    target_policy_noise: float = _setting(0.2, "standard deviation of the noise on target actions")
    target_noise_clip: float = _setting(0.5, "clip range of the noise on target actions")
    action_noise: ActionNoise | None = _setting(  # noqa: RUF009  # a frozen field specifier
        None, "noise added to the actions of the policy"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check = partial(_validation.check_fields, self)
        check(_validation.check_int, ("policy_delay",), 1)
        check(_validation.check_float, ("target_policy_noise", "target_noise_clip"), 0, 1e30)
        check(as_noise, ("action_noise",))


def _train_freq(name: str, value: Any) -> int | tuple[int, str]:
    """Return a number of steps, or a pair (number of episodes, "episode").

    >>> _train_freq("train_freq", [4, "step"]), _train_freq("train_freq", [1, "episode"])
    (4, (1, 'episode'))
    """
    if not isinstance(value, tuple | list):
        return _validation.check_int(name, value, 1)
    try:
        count, unit = value
        plain = (
            _validation.check_int(name, count, 1),
            _validation.check_str(name, unit, ("step", "episode")),
        )
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            name,
            "an int >= 1, or a pair of an int >= 1 and 'step' or 'episode'",
            _validation.short_repr(value),
            "pass for example 4 or (1, 'episode')",
        ) from error
    return plain if plain[1] == "episode" else plain[0]


def _target_entropy(name: str, value: Any) -> float | str:
    """Return a number or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    return _validation.check_float(name, value)


def _ent_coef(name: str, value: Any) -> float | str:
    """Return a number >= 0, "auto", or "auto_" with a number > 0."""
    if not isinstance(value, str):
        return _validation.check_float(name, value, 0, 1e30)
    try:
        prefix, _, initial = value.partition("_")
        if prefix == "auto" and (value == prefix or 0 < float(initial) < 1e30):
            return str(value)
    except ValueError:
        pass
    raise ArgumentError(
        name,
        "a number, 'auto', or 'auto_' and an initial value > 0",
        repr(value),
        "pass for example 0.1, 'auto' or 'auto_0.1'",
    )


def _actors(name: str, value: object) -> str:
    """Return a valid value of the setting `actors`."""
    actors = _validation.check_str(name, value)
    if actors not in ("auto", "threads", "processes", "ray") and worker_addresses(actors) is None:
        raise ArgumentError(
            name,
            "'auto', 'threads', 'processes', 'ray', or addresses of workers such as "
            "'grpc://host:50051,host:50052'",
            repr(actors),
            "pass 'auto'",
        )
    return actors


# Values of the actor settings with async_collect=False.
_WITHOUT_ACTORS: dict[str, Any] = {
    "num_actors": 1,
    "actors": "auto",
    "max_staleness": None,
    "deterministic": False,
}


def _check_actors(config: Any) -> None:
    """Check that the actor settings agree with each other and with num_envs."""
    envs, actors, lag = config.num_envs, config.num_actors, config.max_staleness
    if not getattr(config, "async_collect", True):
        for name, default in _WITHOUT_ACTORS.items():
            if (got := getattr(config, name)) != default:
                raise ArgumentError(
                    name,
                    f"{default!r} with async_collect=False",
                    repr(got),
                    "set async_collect=True",
                )
        return
    if envs % actors:
        raise ArgumentError(
            "num_actors",
            f"a divisor of num_envs = {envs}",
            str(actors),
            "change num_actors or num_envs, as actors share the environments evenly",
        )
    if config.deterministic and lag == 0 and actors == 1 and config.actors != "auto":
        raise ArgumentError(
            "actors",
            "'auto' with deterministic=True, max_staleness=0 and num_actors=1",
            repr(config.actors),
            "raise max_staleness, or omit actors",
        )
    workers = config.actors.count(",") + 1
    if "://" in config.actors and workers > actors:
        raise ArgumentError(
            "num_actors",
            f"at least {workers}, one actor per worker",
            str(actors),
            "raise num_actors, or name fewer workers",
        )
    if lag is None or config.deterministic or lag >= actors:
        return
    if lag == 0:
        raise ArgumentError(
            "max_staleness",
            "at least 1 with deterministic=False",
            "0",
            "raise max_staleness, or set deterministic=True",
        )
    raise ArgumentError(
        "max_staleness",
        f"at least num_actors = {actors}",
        str(lag),
        "raise max_staleness or lower num_actors, else some actors always wait",
    )


def make_config(
    config_type: type[Any], settings: dict[str, Any], config_sources: dict[str, str]
) -> Any:
    """Return the config of resolved settings (see `rlox._validation.resolve`).

    The batch size of a preset is limited to the number of steps in a rollout.

    Raises:
        ArgumentError, ArgumentTypeError: A setting is invalid.
    """
    if config_sources.get("batch_size") == "rl-zoo3" and config_type is PPOConfig:
        other = config_type(**settings | {"batch_size": None})
        size = min(settings["batch_size"], other.num_envs * other.n_steps)
        settings = settings | {"batch_size": size}
    return config_type(**settings)
