"""Native environments in Gymnasium's registry, such as `rlox/CartPole-v1`.

Importing `rlox` registers the ids for `gymnasium.make` and `gymnasium.make_vec`:

>>> import gymnasium as gym
>>> gym.make("rlox/CartPole-v1").reset(seed=42)[0]
array([ 0.0273956 , -0.00611216,  0.03585979,  0.0197368 ], dtype=float32)
>>> gym.make_vec("rlox:rlox/Pendulum-v1", 64)
VecEnv(rlox/Pendulum-v1, num_envs=64)
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rlox import _rng, _spaces
from rlox._errors import ArgumentError, ArgumentTypeError, rename_arguments
from rlox._rlox import NativeVectorEnv, env_ids
from rlox._types import Floats
from rlox._validation import check_int, check_seed, check_str
from rlox.envs._attributes import GymnasiumAttributes, check_has_state, to_gymnasium_state, to_native_state
from rlox.envs._autoreset import split_options
from rlox.envs._ids import PLUGINS, Renderer, check_render_mode, frames_per_second, render_modes
from rlox.envs._masks import mask_infos
from rlox.envs.vec_env import VecEnv


class NativeEnv(GymnasiumAttributes, gym.Env[Floats, Any]):
    """Single native environment; `gymnasium.make` adds the time limit.

    All random numbers come from `np_random`, as in Gymnasium's environment of the same id.

    Args:
        env_id: A native id such as "CartPole-v1", or an id from `rlox.register_env`.
        render_mode: None, "human" or "rgb_array". Rendering needs pygame, and is not available for
            environments from `rlox.register_env`. Default: None.
        **env_kwargs: Arguments of the environment, as for `VecEnv`.

    Raises:
        ArgumentError: The id, the mode or an argument is unknown, or a number is out of range.
        ArgumentTypeError: An argument has a wrong type.

    >>> env = NativeEnv("Pendulum-v1", g=9.81)
    >>> obs, info = env.reset(seed=1)
    >>> obs, reward, terminated, truncated, info = env.step(np.array([0.5]))
    >>> terminated, truncated
    (False, False)
    """

    metadata: dict[str, Any] = {"render_modes": ["human", "rgb_array"]}  # noqa: RUF012  # Gymnasium's declaration

    def __init__(self, env_id: str, render_mode: str | None = None, **env_kwargs: float) -> None:
        env_id = check_str("env_id", env_id)
        modes = ["human", *render_modes(env_id)] if render_modes(env_id) else []
        check_render_mode(render_mode, modes)
        source = PLUGINS.get(env_id, env_id)
        self._native = NativeVectorEnv(source, 1, None, "Disabled", -1, env_kwargs, single=True)
        self._has_reset = False
        spec = self._native.spec()
        self.observation_space = _spaces.from_native(spec["observation"])
        self.action_space = _spaces.from_native(spec["action"])
        self._masked = spec["has_action_masks"]
        self.metadata = {"render_modes": modes, "render_fps": frames_per_second(env_id)}
        self.render_mode = render_mode
        self._renderer = None if render_mode is None else Renderer(env_id, render_mode)
        # Of rlox's own environments, only Acrobot with torque noise draws numbers in `step`.
        noisy = env_kwargs.get("torque_noise_max", 0.0) > 0.0
        self._steps_draw = noisy or env_id in PLUGINS
        self._freeze(env_kwargs)

    @property
    def state(self) -> npt.NDArray[Any] | None:
        """Gymnasium's `state` as a read-only array; None before the first reset.

        After an assignment, the episode continues from the new state, even if the episode was over.
        A state of another dtype than Gymnasium's is converted to float64.

        >>> env = NativeEnv("CartPole-v1")
        >>> env.state = [0.0, 0.0, 0.1, 0.0]
        >>> env.state
        array([0. , 0. , 0.1, 0. ])
        """
        check_has_state(self._native.env_id)
        if not self._has_reset:
            return None
        state = to_gymnasium_state(self._native.env_id, self._native.states()[0])
        state.flags.writeable = False
        return state

    @state.setter
    def state(self, value: npt.ArrayLike) -> None:
        check_has_state(self._native.env_id)
        state = to_native_state(self._native.env_id, value)
        zero = np.zeros(1)
        streams = self._native.rng_states()
        episode = {"episode_returns": zero, "episode_steps": zero.astype(int), "finished": zero}
        self._native.set_state({"states": state[None], "streams": streams, **episode})
        self._has_reset = True

    def set_wrapper_attr(self, name: str, value: object, *, force: bool = True) -> bool:
        """Set an attribute; wrappers call this method for names that they do not have.

        Without this method, Gymnasium would set the attribute on the outermost wrapper.

        Raises:
            AttributeError: The name is unknown, or the attribute is a constant.
        """
        setattr(self, name, value)
        return True

    def _copy_stream_to_native(self) -> None:
        self._native.set_rng_states(_rng.state_for_native(self.np_random)[None])

    def _copy_stream_from_native(self) -> None:
        (stream,) = self._native.rng_states()
        self.np_random.bit_generator.state = _rng.state_for_numpy(stream)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of `np_random`. Default: `np_random` continues.
            options: Options of the environment, as for `VecEnv.reset`.

        Returns:
            The observation, float32 (d,), and the info. If the environment has action masks,
            `info["action_mask"]` is int8 (k,).

        Raises:
            ArgumentError: The seed is negative, or an option is unknown or out of range. The
                environment is not changed.
        """
        seed = None if seed is None else check_seed(seed)
        before = self._np_random, self._np_random_seed
        try:
            super().reset(seed=seed)
            self._copy_stream_to_native()
            obs = self._native.reset(None, *split_options(options, 1))
        except BaseException:
            self._np_random, self._np_random_seed = before
            raise
        self._copy_stream_from_native()
        self._has_reset = True
        if self.render_mode == "human":
            self.render()
        return obs[0], self._infos()

    def step(self, action: npt.ArrayLike) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Step the environment.

        Raises:
            ArgumentError: The action is outside of the space, or the episode is over or has not
                started.
            ArgumentTypeError: The action has a wrong dtype.
        """
        shape = self.action_space.shape
        if np.shape(action) != shape:
            raise ArgumentError("action", f"shape {shape}", str(np.shape(action)), "pass one action")
        if self._steps_draw:
            self._copy_stream_to_native()
        obs, rewards, terminated, truncated, _ = self._native.step(np.asarray(action)[None])
        if self._steps_draw:
            self._copy_stream_from_native()
        if self.render_mode == "human":
            self.render()
        cut = truncated & ~terminated
        return obs[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), self._infos(cut)

    def _infos(self, cut: npt.NDArray[np.bool_] | None = None) -> dict[str, Any]:
        if not self._masked:
            return {}
        return {"action_mask": mask_infos(self._native, cut)["action_mask"][0]}

    def render(self) -> npt.NDArray[np.uint8] | None:
        """Return a frame, uint8 (height, width, 3); None in "human" mode or without a mode."""
        if self._renderer is None:
            gym.logger.warn("render() needs a render mode; pass render_mode='rgb_array'.")
            return None
        frame: npt.NDArray[np.uint8] | None = self._renderer.draw(self._native.states()[0])
        return frame

    def close(self) -> None:
        """Free the environment. Later calls raise `ClosedError`, but `close` can be repeated."""
        self._native.close()
        if self._renderer is not None:
            self._renderer.close()


def make_native_vec(
    num_envs: int = 1, *, env_id: str, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP, **kwargs: Any
) -> VecEnv:
    """Create a `VecEnv` with Gymnasium's default autoreset mode, for `gymnasium.make_vec`.

    >>> make_native_vec(2, env_id="CartPole-v1").metadata["autoreset_mode"].name
    'NEXT_STEP'
    """
    num_envs = check_int("num_envs", num_envs, 1, fix="pass the number of environments")
    with rename_arguments({"n": "num_envs"}):
        return VecEnv(num_envs, None, env_id, autoreset_mode=autoreset_mode, **kwargs)


def register_env(plugin: object) -> str:
    """Register an environment of another extension module as a native environment.

    Afterwards, `VecEnv`, `make_vec`, trainers, `gymnasium.make` and `gymnasium.make_vec` accept
    the id. If a module calls this function when it is imported, the id "module:id" imports the
    module and creates the environment.

    Args:
        plugin: A capsule with an `EnvPlugin` of the Rust crate `rlox-core`. Its environment must
            have a default for every argument.

    Returns:
        The id in the `EnvSpec` of the environment.

    Raises:
        ArgumentTypeError: `plugin` is not such a capsule, or its module was compiled against
            another version of `rlox-core`.
        ArgumentError: The id has a prefix, is not in Gymnasium's format, or belongs to another
            environment.
    """
    if type(plugin).__name__ != "PyCapsule":
        fix = "pass the capsule that docs/environments.md describes"
        raise ArgumentTypeError("plugin", "a capsule of an EnvPlugin", repr(plugin), fix)
    probe = NativeVectorEnv(plugin, 1)
    spec = probe.spec()
    probe.close()
    env_id = str(spec["id"])
    if env_id.startswith("rlox/") or ":" in env_id:
        raise ArgumentError("plugin", "an id without a prefix", repr(env_id), "rename it in its EnvSpec")
    if env_id in PLUGINS:
        gym.registry.pop(env_id, None)
    elif env_id in env_ids() or env_id in gym.registry:
        raise ArgumentError("plugin", "an id that no other environment has", repr(env_id), "rename it in its EnvSpec")
    try:
        _register(env_id, env_id, max_episode_steps=spec["max_episode_steps"])
    except gym.error.Error as error:
        expected = "an id in Gymnasium's format, such as 'Name-v0'"
        raise ArgumentError("plugin", expected, f"{env_id!r} ({error})", "rename it in its EnvSpec") from error
    PLUGINS[env_id] = plugin
    return env_id


def _register(registered_id: str, env_id: str, **spec_kwargs: Any) -> None:
    gym.register(
        registered_id,
        entry_point="rlox.envs.native:NativeEnv",
        vector_entry_point="rlox.envs.native:make_native_vec",
        kwargs={"env_id": env_id},
        **spec_kwargs,
    )


def register() -> None:
    """Register `rlox/ID` in Gymnasium for every native id that is not registered yet."""
    for env_id in env_ids():
        if f"rlox/{env_id}" in gym.registry:
            continue
        spec = gym.spec(env_id)
        limits = {"max_episode_steps": spec.max_episode_steps, "reward_threshold": spec.reward_threshold}
        _register(f"rlox/{env_id}", env_id, **limits)


register()
