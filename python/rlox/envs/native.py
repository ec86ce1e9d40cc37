"""The native environments as Gymnasium's registry knows them: `rlox/CartPole-v1` and so on.

Importing `rlox` registers them, for `gymnasium.make` as well as `gymnasium.make_vec`:

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
from rlox._validation import check_int, check_seed, check_str
from rlox.envs._attributes import (
    GymnasiumAttributes,
    check_has_state,
    to_gymnasium_state,
    to_native_state,
)
from rlox.envs._autoreset import split_options
from rlox.envs._ids import (
    PLUGINS,
    Renderer,
    check_render_mode,
    frames_per_second,
    native_ids,
    render_modes,
    source_of,
)
from rlox.envs._masks import mask_infos
from rlox.envs.vec_env import VecEnv

Obs = npt.NDArray[np.float32]


class NativeEnv(GymnasiumAttributes, gym.Env[Obs, Any]):
    """One native environment as a `gymnasium.Env`; `gymnasium.make` adds the time limit.

    All its randomness comes from `np_random`, as in Gymnasium's environment of the same id.

    Args:
        env_id: A native id, such as "CartPole-v1", or one that `rlox.register_env` gave.
        render_mode: None, "human" or "rgb_array" (needs pygame; not for registered ones).
        **env_kwargs: The environment's own arguments.

    Raises:
        ValueError: Unknown id, mode or argument.

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
        self._native = NativeVectorEnv(
            source_of(env_id), 1, None, "Disabled", -1, env_kwargs, single=True
        )
        self._has_reset = False
        spec = self._native.spec()
        self.observation_space = _spaces.from_native(spec["observation"])
        self.action_space = _spaces.from_native(spec["action"])
        self._masked = spec["has_action_masks"]
        self.metadata = {"render_modes": modes, "render_fps": frames_per_second(env_id)}
        self.render_mode = render_mode
        self._renderer = None if render_mode is None else Renderer(env_id, render_mode)
        # Of rlox's own environments only a noisy Acrobot draws when it is stepped.
        noisy = env_kwargs.get("torque_noise_max", 0.0) > 0.0
        self._steps_draw = noisy or env_id in PLUGINS
        self._freeze(env_kwargs)

    @property
    def state(self) -> npt.NDArray[Any] | None:
        """Gymnasium's `state`, as a read-only array; None before the first reset.

        A state that is set continues the episode, also one that is over. States of other dtypes
        than Gymnasium's are converted to float64.

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
        zero, streams = np.zeros(1), self._native.rng_states()
        episode = {"episode_returns": zero, "episode_steps": zero.astype(int), "finished": zero}
        self._native.set_state({"states": state[None], "streams": streams, **episode})
        self._has_reset = True

    def set_wrapper_attr(self, name: str, value: object, *, force: bool = True) -> bool:
        """Set an attribute; wrappers call this method for names that they do not have.

        Raises:
            AttributeError: The name is unknown, or a constant's. Without this method, the outermost
                wrapper would get an attribute that nobody reads.
        """
        setattr(self, name, value)
        return True

    def _copy_stream_to_native(self) -> None:
        self._native.set_rng_states(_rng.state_for_native(self.np_random)[None])

    def _copy_stream_from_native(self) -> None:
        (stream,) = self._native.rng_states()
        self.np_random.bit_generator.state = _rng.state_for_numpy(stream)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, dict[str, Any]]:
        """Starts an episode; `options` are the environment's own numbers.

        An environment that masks actions says in `info["action_mask"]` which are allowed.

        Raises:
            ValueError: A seed below 0, unknown or senseless options. Nothing has changed then.
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

    def step(self, action: npt.ArrayLike) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Takes one step.

        Raises:
            ValueError: An action outside the space, or an episode that is over or was never begun.
            TypeError: An action of another kind.
        """
        shape = self.action_space.shape
        if np.shape(action) != shape:
            raise ArgumentError(
                "action", f"shape {shape}", str(np.shape(action)), "pass one action"
            )
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
        """A frame (height, width, 3) uint8 by Gymnasium's renderer; None in "human" mode."""
        if self._renderer is None:
            gym.logger.warn("render() needs a render mode: make the environment with 'rgb_array'.")
            return None
        return self._renderer.draw(self._native.states()[0])

    def close(self) -> None:
        """Frees the environment; later calls raise `rlox.ClosedError`. Closing twice is allowed."""
        self._native.close()
        if self._renderer is not None:
            self._renderer.close()


def make_native_vec(
    num_envs: int = 1,
    *,
    env_id: str,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    **kwargs: Any,
) -> VecEnv:
    """What `gymnasium.make_vec` calls: a `VecEnv` with Gymnasium's default autoreset mode.

    >>> make_native_vec(2, env_id="CartPole-v1").metadata["autoreset_mode"].name
    'NEXT_STEP'
    """
    num_envs = check_int("num_envs", num_envs, 1, fix="say how many to make")
    with rename_arguments({"n": "num_envs"}):
        return VecEnv(num_envs, None, env_id, autoreset_mode=autoreset_mode, **kwargs)


def register_env(plugin: object) -> str:
    """Makes an environment of another extension module a native one.

    Its id is from then on one for `VecEnv`, `make_vec`, trainers, `gymnasium.make` and
    `gymnasium.make_vec`. Usually the module registers itself when it is imported, so that
    "module:id" imports and makes it.

    Args:
        plugin: A capsule that holds an `EnvPlugin` of the Rust crate `rlox-core`. Its environment
            can be made without arguments of its own.

    Returns:
        The id, which its `EnvSpec` says.

    Raises:
        TypeError: Anything else, or a module compiled against another rlox-core.
        ValueError: An id that is another environment's already, or that Gymnasium does not take.
    """
    if type(plugin).__name__ != "PyCapsule":
        raise ArgumentTypeError(
            "plugin", "a capsule of an EnvPlugin", repr(plugin), "see docs/environments.md"
        )
    probe = NativeVectorEnv(plugin, 1)
    spec = probe.spec()
    probe.close()
    env_id = str(spec["id"])
    if env_id.startswith("rlox/") or ":" in env_id:
        raise ArgumentError(
            "plugin", "an id without a prefix", repr(env_id), "rename it in its EnvSpec"
        )
    is_known = env_id in PLUGINS
    if not is_known and (env_id in native_ids() or env_id in gym.registry):
        raise ArgumentError(
            "plugin",
            "an id of its own",
            f"{env_id!r}, which is another environment's",
            "rename it in its EnvSpec",
        )
    if is_known:
        gym.registry.pop(env_id, None)
    try:
        _register(env_id, env_id, max_episode_steps=spec["max_episode_steps"])
    except gym.error.Error as error:
        raise ArgumentError(
            "plugin",
            "an id as Gymnasium writes them, such as 'Name-v0'",
            f"{env_id!r} ({error})",
            "rename it in its EnvSpec",
        ) from error
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
    """Registers `rlox/ID` for every native id that is not registered yet."""
    for env_id in env_ids():
        if f"rlox/{env_id}" in gym.registry:
            continue
        original = gym.spec(env_id)
        steps, threshold = original.max_episode_steps, original.reward_threshold
        _register(f"rlox/{env_id}", env_id, max_episode_steps=steps, reward_threshold=threshold)


register()
