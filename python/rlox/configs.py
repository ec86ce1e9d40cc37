"""Settings of the algorithms: one dataclass per algorithm, for all backends."""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from rlox import _validation
from rlox._errors import ArgumentError
from rlox._validation import Settings, setting, worker_addresses
from rlox.noise import ActionNoise, as_noise


def local_config(config: Any, num_envs: int) -> Any:
    """Return the config of a single actor: `num_envs` environments, synchronous collection.

    >>> from rlox.configs import IMPALAConfig, PPOConfig
    >>> from rlox.learners._actors import is_synchronous
    >>> ppo = local_config(PPOConfig(num_envs=8, num_actors=2, async_collect=True), 4)
    >>> ppo.num_envs, is_synchronous(ppo), is_synchronous(local_config(IMPALAConfig(), 8))
    (4, True, True)
    """
    # An actor does not update its policy, so use the cheapest settings.
    changes: dict[str, Any] = {"num_envs": num_envs, **_WITHOUT_ACTORS, "device": "cpu"}
    if isinstance(config, _GAEConfig):
        changes["async_collect"] = False
    else:
        changes |= {"max_staleness": 0, "deterministic": True}
    if isinstance(config, PPOConfig):
        changes |= {"compile": False, "batch_size": None}
    return replace(config, **changes)


def scheduled(value: float, schedule: str, progress: float) -> float:
    """Return a scheduled setting: `value`, or for "linear" `value * (1 - progress)`.

    >>> scheduled(0.5, "linear", progress=0.25), scheduled(0.5, "constant", progress=0.25)
    (0.375, 0.5)
    """
    return value * (1.0 - progress) if schedule == "linear" else value


__all__ = ["A2CConfig", "DQNConfig", "IMPALAConfig", "PPOConfig", "SACConfig", "TD3Config"]
Activation = Literal["tanh", "relu", "elu", "gelu", "silu"]
ACTIVATIONS: tuple[str, ...] = get_args(Activation)
Schedule = Literal["constant", "linear"]
# Decay rates of Adam (BETAS) and RMSprop (ALPHA), as in PyTorch; EPS is Stable-Baselines3's.
BETAS = (0.9, 0.999)
ALPHA = 0.99
EPS = 1e-5
# Settings of the built-in policies, which cannot be passed with a custom policy.
SHAPE_SETTINGS = ("use_sde", "net_arch", "shared_trunk", "activation", "ortho_init", "log_std_init", "full_std")


def _train_freq(name: str, value: object) -> int | tuple[int, str]:
    """Return a number of steps, or a pair (number of episodes, "episode").

    >>> _train_freq("train_freq", [4, "step"]), _train_freq("train_freq", [1, "episode"])
    (4, (1, 'episode'))
    """
    if not isinstance(value, tuple | list):
        return _validation.check_int(name, value, 1)
    try:
        count, unit = value
        plain = (_validation.check_int(name, count, 1), _validation.check_str(name, unit, ("step", "episode")))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            name,
            "an int >= 1, or a pair of an int >= 1 and 'step' or 'episode'",
            _validation.short_repr(value),
            "pass for example 4 or (1, 'episode')",
        ) from error
    return plain if plain[1] == "episode" else plain[0]


def _target_entropy(name: str, value: object) -> float | str:
    """Return a number or "auto"."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    return _validation.check_float(name, value)


def _ent_coef(name: str, value: object) -> float | str:
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
            "'auto', 'threads', 'processes', 'ray', or addresses of workers such as 'grpc://host:50051,host:50052'",
            repr(actors),
            "pass 'auto'",
        )
    return actors


# Values of the actor settings with async_collect=False.
_WITHOUT_ACTORS: dict[str, Any] = {"num_actors": 1, "actors": "auto", "max_staleness": None, "deterministic": False}


def _check_actors(config: "OnPolicyConfig") -> None:
    """Check that the actor settings agree with each other and with num_envs."""
    envs, actors, staleness = config.num_envs, config.num_actors, config.max_staleness
    if not config.async_collect:
        for name, default in _WITHOUT_ACTORS.items():
            if (got := getattr(config, name)) != default:
                raise ArgumentError(name, f"{default!r} with async_collect=False", repr(got), "set async_collect=True")
        return
    if envs % actors:
        raise ArgumentError(
            "num_actors",
            f"a divisor of num_envs = {envs}",
            str(actors),
            "change num_actors or num_envs, as actors share the environments evenly",
        )
    if config.deterministic and staleness == 0 and actors == 1 and config.actors != "auto":
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
    if staleness is None or config.deterministic or staleness >= actors:
        return
    raise ArgumentError(
        "max_staleness",
        f"at least num_actors = {actors} with deterministic=False, else some actors always wait",
        str(staleness),
        "raise max_staleness, lower num_actors, or set deterministic=True",
    )


class AlgorithmConfig(Settings):
    """Base of the configs. The attributes are the values for algorithms without these settings."""

    action_masks: bool = False
    action_noise: ActionNoise | None = None
    async_collect: bool = False
    batch_size: int | None = None
    gae_lambda: float = 1.0
    prioritized: bool = False
    sde_sample_freq: int = -1
    use_sde: bool = False
    use_sde_at_warmup: bool = False


@dataclass(frozen=True, kw_only=True)
class OnPolicyConfig(AlgorithmConfig):
    """Settings that PPO, A2C and IMPALA share."""

    num_envs: int = setting(1, "number of environments", low=1)
    n_steps: int = setting(5, "steps of each environment per rollout", low=1)
    gamma: float = setting(0.99, "discount factor", low=0, high=1)
    learning_rate: float = setting(7e-4, "learning rate of the optimizer", low=0)
    lr_schedule: Schedule = setting("constant", 'learning rate schedule; "linear" decays to 0')
    ent_coef: float = setting(0.0, "weight of the entropy bonus", low=0)
    vf_coef: float = setting(0.5, "weight of the value loss", low=0)
    max_grad_norm: float = setting(0.5, "maximum norm of the gradient of all parameters", low=0)
    action_masks: bool = setting(False, "use the action masks that the environments report")
    normalize_obs: bool = setting(False, "normalize observations by running mean and variance, clipped to [-10, 10]")
    normalize_reward: bool = setting(
        False, "divide rewards by the standard deviation of discounted returns, clip to [-10, 10]"
    )
    use_sde: bool = setting(False, "state-dependent exploration (gSDE); Box actions only")
    sde_sample_freq: int = setting(-1, "steps between draws of gSDE noise; -1: once per rollout", low=1, extra=-1)
    full_std: bool = setting(True, "gSDE: one standard deviation per hidden unit and action; False: per hidden unit")
    log_std_init: float = setting(0.0, "initial log standard deviation; Box actions only", low=-20, high=20)
    ortho_init: bool = setting(True, "initialize weights orthogonally")
    net_arch: tuple[int, ...] | None = setting(None, "sizes of the hidden layers; None: (64, 64), or () after a CNN")
    shared_trunk: bool = setting(False, "share hidden layers between actor and critic")
    activation: Activation = setting("tanh", "activation of the hidden layers")
    device: str = setting("cpu", 'torch device: "cpu", "cuda", "cuda:1", "mps"')
    num_actors: int = setting(1, "number of actors; they share the environments evenly", low=1)
    actors: str = setting(
        "auto",
        'where actors run: "auto", "threads", "processes", "ray" or "grpc://host:port,host:port"',
        convert=_actors,
    )
    max_staleness: int | None = setting(None, "maximum age of a rollout's policy in updates; None: num_actors", low=0)
    deterministic: bool = setting(
        False, "deterministic runs: every rollout's policy is exactly max_staleness updates old"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_actors(self)


@dataclass(frozen=True, kw_only=True)
class _GAEConfig(OnPolicyConfig):
    """Settings that PPO and A2C share."""

    gae_lambda: float = setting(0.95, "GAE lambda; 0: one-step TD, 1: Monte Carlo", low=0, high=1)
    async_collect: bool = setting(False, "collect rollouts while the learner updates")


@dataclass(frozen=True, kw_only=True)
class PPOConfig(_GAEConfig):
    """Settings of PPO. The defaults are Stable-Baselines3's."""

    n_steps: int = 2048
    batch_size: int | None = setting(None, "steps per minibatch, at most those of a rollout; None: 64", low=1)
    n_epochs: int = setting(10, "passes over each rollout", low=1)
    learning_rate: float = 3e-4
    clip_coef: float = setting(0.2, "clip range of the probability ratio, 1 +/- clip_coef", low=0)
    clip_schedule: Schedule = setting("constant", 'schedule of clip_coef; "linear" decays to 0')
    clip_coef_vf: float | None = setting(
        None, "clip range of the change of values in the value loss; None: no clipping", low=0
    )
    normalize_advantage: bool = setting(
        True, "scale the advantages of each minibatch to mean 0 and standard deviation 1"
    )
    target_kl: float | None = setting(
        None, "end the update when a minibatch's KL divergence exceeds 1.5 times this value", low=0
    )
    compile: bool = setting(False, "compile the loss with torch.compile")

    def __post_init__(self) -> None:
        super().__post_init__()
        rollout = self.rollout_steps
        if self.batch_size is None:
            object.__setattr__(self, "batch_size", min(64, rollout))
        elif self.batch_size > rollout:
            shared = " / num_actors" if self.num_actors > 1 else ""
            raise ArgumentError(
                "batch_size",
                f"at most num_envs{shared} * n_steps = {rollout} steps",
                str(self.batch_size),
                "lower batch_size, or raise n_steps",
            )

    @property
    def rollout_steps(self) -> int:
        """Number of environment steps in a rollout."""
        return self.num_envs // self.num_actors * self.n_steps


@dataclass(frozen=True, kw_only=True)
class _RMSpropConfig(OnPolicyConfig):
    """Settings that A2C and IMPALA share."""

    optimizer: Literal["rmsprop", "rmsprop_tf", "adam"] = setting(
        "rmsprop", 'optimizer; "rmsprop_tf" is TensorFlow\'s variant of RMSprop'
    )
    optimizer_eps: float = setting(EPS, "epsilon of the optimizer", low=0)


@dataclass(frozen=True, kw_only=True)
class A2CConfig(_GAEConfig, _RMSpropConfig):
    """Settings of A2C. The defaults are Stable-Baselines3's."""

    gae_lambda: float = 1.0
    normalize_advantage: bool = setting(
        False, "scale the advantages of each rollout to mean 0 and standard deviation 1"
    )


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(_RMSpropConfig):
    """Settings of IMPALA. Losses are means, not sums as in the paper; the optimizer is that of A2C."""

    async_collect = True  # not a setting
    num_envs: int = 8
    vtrace_lambda: float = setting(1.0, "factor of the trace coefficients of V-trace", low=0, high=1)
    rho_bar: float = setting(1.0, "upper limit of the importance ratios in the TD errors", low=0)
    c_bar: float = setting(1.0, "upper limit of the importance ratios in the traces", low=0)
    lr_schedule: Schedule = "linear"
    ent_coef: float = 0.01


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(AlgorithmConfig):
    """Settings that DQN, SAC and TD3 share."""

    num_envs: int = setting(1, "number of environments", low=1)
    buffer_size: int = setting(1_000_000, "capacity of the replay buffer in transitions", low=1)
    learning_starts: int = setting(100, "steps with random actions before the first update", low=0)
    batch_size: int = setting(
        256, "transitions per minibatch, at most those in the buffer; sampled with replacement", low=1
    )
    train_freq: int | tuple[int, str] = setting(
        1, 'steps of each environment per iteration; (n, "episode"): n full episodes (num_envs=1)', convert=_train_freq
    )
    gradient_steps: int = setting(1, "minibatches per iteration; -1: as many as new transitions", low=1, extra=-1)
    utd_ratio: float | None = setting(None, "minibatches per new transition; replaces gradient_steps", low=0)
    n_steps: int = setting(1, "steps of the n-step return", low=1)
    gamma: float = setting(0.99, "discount factor", low=0, high=1)
    tau: float = setting(0.005, "soft update coefficient of target networks; 1 copies the weights", low=0, high=1)
    frame_stack: int | None = setting(
        None, "frames per stacked observation, each stored once; None: no frame stack", low=1
    )
    her: Literal["future", "final", "episode"] | None = setting(None, "strategy of hindsight replay; None: off")
    n_sampled_goal: int = setting(4, "relabelled transitions per real transition", low=1)
    learning_rate: float = setting(3e-4, "learning rate of Adam for all networks", low=0)
    lr_schedule: Schedule = setting("constant", 'learning rate schedule; "linear" decays to 0')
    normalize_obs: bool = setting(
        False, "normalize sampled observations by running mean and variance, clipped to [-10, 10]"
    )
    normalize_reward: bool = setting(
        False, "divide rewards (n-step: their sum) by the standard deviation of discounted returns"
    )
    net_arch: tuple[int, ...] | None = setting(None, "sizes of the hidden layers; None: the default of the algorithm")
    activation: Activation = setting("relu", "activation of the hidden layers")
    compile: bool = setting(False, "compile the losses with torch.compile")
    device: str = setting("cpu", 'torch device: "cpu", "cuda", "cuda:1", "mps"')

    def __post_init__(self) -> None:
        super().__post_init__()
        # The buffer stores the same number of transitions of each environment.
        capacity = max(self.buffer_size // self.num_envs, 1) * self.num_envs
        if self.batch_size > capacity:
            raise ArgumentError(
                "batch_size",
                f"at most {capacity}, the capacity of buffer_size = {self.buffer_size} with num_envs = {self.num_envs}",
                str(self.batch_size),
                "lower batch_size, or raise buffer_size",
            )
        if isinstance(self.train_freq, tuple) and self.num_envs != 1:
            raise ArgumentError(
                "train_freq",
                f"a number of steps, because num_envs = {self.num_envs} is not 1",
                str(self.train_freq),
                "pass an int, or set num_envs=1",
            )
        if self.utd_ratio is not None and self.gradient_steps != 1:
            raise ArgumentError(
                "utd_ratio",
                f"None, because gradient_steps = {self.gradient_steps} is set",
                str(self.utd_ratio),
                "set utd_ratio or gradient_steps, not both",
            )
        if self.her is not None and self.n_steps != 1:
            raise ArgumentError(
                "n_steps", f"1, because her = {self.her!r} is set", str(self.n_steps), "set n_steps=1 or her=None"
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
    target_update_interval: int = setting(10_000, "environment steps between target updates", low=1)
    double: bool = setting(
        False, "double Q-learning: the online network selects the next action (van Hasselt et al., 2016)"
    )
    dueling: bool = setting(False, "dueling network: separate value and advantage streams (Wang et al., 2016)")
    prioritized: bool = setting(False, "prioritized replay by TD error (Schaul et al., 2016)")
    priority_alpha: float = setting(0.6, "prioritization exponent: 0 is uniform, 1 is proportional", low=0, high=1)
    priority_beta: float = setting(
        0.4, "initial exponent of the importance weights; rises to 1 at the end of the run", low=0, high=1
    )
    max_grad_norm: float = setting(10.0, "maximum norm of the gradient of all parameters", low=0)
    exploration_fraction: float = setting(0.1, "fraction of the run over which epsilon decays", low=0, high=1)
    exploration_initial_eps: float = setting(1.0, "initial epsilon (probability of a random action)", low=0, high=1)
    exploration_final_eps: float = setting(0.05, "final epsilon", low=0, high=1)
    action_masks: bool = setting(False, "use the action masks that the environments report")


@dataclass(frozen=True, kw_only=True)
class _BoxConfig(OffPolicyConfig):
    """Settings that SAC and TD3 share."""

    action_noise: ActionNoise | None = setting(None, "noise added to the actions of the policy", convert=as_noise)


@dataclass(frozen=True, kw_only=True)
class SACConfig(_BoxConfig):
    """Settings of SAC. The defaults are Stable-Baselines3's.

    With `net_arch=None`, the hidden layers of actor and critics are (256, 256).
    """

    target_update_interval: int = setting(1, "minibatches between target updates", low=1)
    ent_coef: float | str = setting(
        "auto", 'entropy coefficient; "auto": learned; "auto_0.1": learned, initially 0.1', convert=_ent_coef
    )
    target_entropy: float | Literal["auto"] = setting(
        "auto", 'target entropy; "auto": minus the number of action dimensions', convert=_target_entropy
    )
    use_sde: bool = setting(False, "state-dependent exploration (gSDE)")
    sde_sample_freq: int = setting(-1, "steps between draws of gSDE noise; -1: once per iteration", low=1, extra=-1)
    use_sde_at_warmup: bool = setting(False, "sample the actions before learning_starts with gSDE, not uniformly")
    log_std_init: float = setting(-3.0, "initial log standard deviation of gSDE", low=-20, high=20)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_sde_at_warmup and not self.use_sde:
            raise ArgumentError("use_sde_at_warmup", "False with use_sde=False", "True", "set use_sde=True")


@dataclass(frozen=True, kw_only=True)
class TD3Config(_BoxConfig):
    """Settings of TD3. The defaults are Stable-Baselines3's.

    With `net_arch=None`, the hidden layers of actor and critics are (400, 300), or (256, 256) after
    a NatureCNN.
    """

    learning_rate: float = 1e-3
    policy_delay: int = setting(2, "critic updates per update of actor and target networks", low=1)
    target_policy_noise: float = setting(0.2, "standard deviation of the noise on target actions", low=0)
    target_noise_clip: float = setting(0.5, "clip range of the noise on target actions", low=0)


def make_config(config_type: type[Any], settings: dict[str, Any], config_sources: dict[str, str]) -> Any:
    """Return the config of resolved settings (see `rlox._validation.resolve`).

    The batch size of a preset is limited to the number of steps in a rollout.

    Raises:
        ArgumentError, ArgumentTypeError: A setting is invalid.
    """
    if config_sources.get("batch_size") == "rl-zoo3" and config_type is PPOConfig:
        other = config_type(**settings | {"batch_size": None})
        settings = settings | {"batch_size": min(settings["batch_size"], other.rollout_steps)}
    return config_type(**settings)
