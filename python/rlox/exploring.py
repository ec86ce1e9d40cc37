"""`Explorer`: a learner that acts in environments and remembers what came of it."""

from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from rlox import finite, learner, spaces
from rlox._errors import ArgumentError
from rlox.action_spaces import expect_actions_for
from rlox.base_learner import BaseLearner
from rlox.crossing import as_on_torch
from rlox.frames import check_frame_stack
from rlox.goals import goal_functions
from rlox.masks import random_allowed
from rlox.noise import NoiseProcess
from rlox.phases import enter
from rlox.replaying import Replay
from rlox.rollout import RolloutEnv, make_buffer
from rlox.stepping import Step, Stepper
from rlox.uniform import random_actions

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]


class Explorer(BaseLearner):
    """Collects transitions: random actions first, then those of a policy, with noise.

    Box actions are stored in [-1, 1], whatever the bounds are, Discrete ones counted from 0.

    Args:
        env: Environments ready for rollouts, as `rlox.make_vec` makes them.
        config: An off-policy algorithm's settings.
        seed: Decides everything random.
        device: Where minibatches are wanted.

    Raises:
        ValueError: An action space that the algorithm does not do, or settings that do not fit.
        MemoryError: The buffer does not fit into memory.
    """

    algorithm: str
    # Beside the others: what explores, and which transitions are sampled.
    stream_names = (*BaseLearner.stream_names, "actions", "minibatches")

    def __init__(self, env: RolloutEnv, config: Any, seed: int, device: "torch.device") -> None:
        name = type(self).__name__
        super().__init__(env, config, seed, name)
        expect_actions_for(self.algorithm, self.spaces[1])
        self.stopping, self.owed, self.progress = False, 0.0, 0.0
        self.ended = 0  # episodes
        # What updates said last, by name.
        self.last: dict[str, float] = {}
        self.width = self._mask_width()
        self.stepper = Stepper(env, masked=self.width is not None)
        alone = self.stepper.mode is AutoresetMode.NEXT_STEP and config.num_envs > 1
        for setting, usual in (("n_steps", 1), ("her", None), ("frame_stack", None)):
            got = getattr(config, setting)
            if alone and got not in (usual, 1):
                raise ArgumentError(
                    setting,
                    f"{usual} beside several environments in autoreset mode NEXT_STEP",
                    repr(got),
                    "make them with autoreset_mode='SameStep'",
                )
        # Where some only reset, the others' rows are pushed without theirs, and follow no others.
        streams = 1 if alone else config.num_envs
        frames = check_frame_stack(env.single_observation_space, config.frame_stack)
        goals = None if config.her is None else goal_functions(env)
        about = (self.layout, self.spaces[1], config, streams, device, self.width, goals, frames)
        self.replay = Replay(*about)
        self._statistics = make_buffer(env, 1, normalize_obs=config.normalize_obs)
        self._fresh = self._looked = False
        self._scale(self.spaces[1])
        noise = getattr(config, "action_noise", None)
        shape = (config.num_envs, len(self.low))
        self.noise = None if noise is None else NoiseProcess(noise, *shape)

    def explore(self, rows: Array, masks: Array | None) -> Array:
        """The policy's actions for raw observations, as they are stored, before noise."""
        raise NotImplementedError

    def begin(self) -> None:
        """Before the first step of an iteration that the policy decides on."""

    def stepped(self, before: int) -> None:
        """After a step of all environments, which had made `before` steps together."""

    def _parameters(self) -> learner.Arrays:
        """The parameters of the policy, to name one that is NaN."""
        raise NotImplementedError

    def _scale(self, space: gym.Space[Any]) -> None:
        """Notes the bounds of Box actions, (k,) each; of others there are none."""
        self.low = self.high = np.empty(0, np.float32)
        if isinstance(space, gym.spaces.Box):
            self.low, self.high = (
                side.astype(np.float32).ravel() for side in (space.low, space.high)
            )

    def sent(self, actions: Array) -> Array:
        """Actions as they are stored, (n,) or (n, k), as environments take them.

        Raises:
            ValueError: They are not finite.
        """
        space = self.spaces[1]
        if isinstance(space, gym.spaces.Box):
            # The halves cannot overflow; the bounds themselves come out as they are.
            actions = (0.5 - 0.5 * actions) * self.low + (0.5 + 0.5 * actions) * self.high
            actions = actions.reshape(len(actions), *space.shape)
        return spaces.sent_actions(space, actions, len(actions))

    def random(self) -> Array:
        """Uniformly random actions, as they are stored: of what is allowed."""
        space, stream, n = self.spaces[1], self.streams["actions"], self.config.num_envs
        if isinstance(space, gym.spaces.Box):
            return stream.uniform(-1, 1, (n, len(self.low))).astype(np.float32)
        if self.stepper.masks is not None:
            return random_allowed(space, stream, self.stepper.masks)[0]
        return random_actions(space, stream, (n,))

    def collect(self, progress: float) -> int:
        """Makes `train_freq` steps of each environment, or episodes, until `stopping` ends them.

        Returns:
            How many transitions came in.
        """
        enter("env_step")
        self._start()
        enter("inference")
        self.begin()
        wanted, first = self.config.train_freq, self.ended
        made = steps = 0
        while not self.stopping:
            episodes = isinstance(wanted, tuple)
            done, all_of = (self.ended - first, wanted[0]) if episodes else (steps, wanted)
            if done >= all_of:
                break
            self.progress = min(progress + made * self.growth, 1.0)
            came = self.step(steps)
            made += came
            steps += came > 0  # what only resets is no step
        return made

    def step(self, t: int) -> int:
        """One step of all environments, the iteration's step `t`; how many transitions came in."""
        stepper, before = self.stepper, self.timesteps
        enter("inference")
        obs, actions = stepper.obs, self.choose(t)
        try:
            sent = self.sent(actions)
        except ValueError:
            # NaN from the policy is refused by what meets it first; here it gets its name.
            made = before // self.config.num_envs
            finite.refuse_nan_policy([actions], self._parameters(), made)
            raise
        self.started = False  # what fails in the middle of it ends all episodes
        enter("env_step")
        step = stepper.step(sent)
        enter("buffer")
        self.replay.push(obs, actions, step)
        if self.normalizer is not None:
            self._count(obs, step)
        self.started = True
        over = step.terminated | step.truncated
        self.ended += int(over.sum())
        if self.noise is not None:
            # What was added where an environment only reset is none of its new episode's.
            self.noise.end_episodes(over if step.valid is None else over | ~step.valid)
        came = self.config.num_envs if step.valid is None else int(step.valid.sum())
        self.timesteps += came
        self.stepped(before)
        return came

    def choose(self, t: int) -> Array:
        """Actions for where environments stand: in the beginning any, then those of the policy."""
        config = self.config
        early = self.timesteps < config.learning_starts
        every = getattr(config, "sde_sample_freq", -1)
        if t > 0 and every > 0 and t % every == 0:
            self.begin()
        if early and not getattr(config, "use_sde_at_warmup", False):
            actions = self.random()
        else:
            actions = self.explore(self.stepper.obs, self.stepper.masks)
        if self.noise is not None:
            actions = self.noise.add(actions, self.streams["actions"])
        return actions

    def _start(self) -> None:
        """Starts episodes everywhere, if that was not done."""
        if self.started and self._looked:
            return
        seed = self.first_seed()
        self.stepper.start(seed)
        self._fresh = seed is not None
        if self._fresh and self.noise is not None:
            self.noise.begin()
        self.started = self._looked = True

    def _count(self, obs: Array, step: Step) -> None:
        """Has the normaliser's statistics follow, as in a rollout of one step."""
        row, n = self._statistics, self.config.num_envs
        zeros = np.zeros(n, np.float32)
        pausing = self.stepper.mode is AutoresetMode.NEXT_STEP
        idle = None
        if pausing:  # which is told apart by this, whether one pauses or not
            idle = np.zeros(n, np.bool_) if step.valid is None else ~step.valid
        row.begin(obs, self._fresh, self.normalizer, idle)
        flags = (step.terminated, step.truncated)
        final = step.next_obs if not pausing and any(x.any() for x in flags) else None
        about = (np.zeros_like(row.actions[0]), zeros, zeros, self.stepper.obs, step.rewards)
        row.record(0, *about, *flags, final, self.normalizer)
        self._fresh = False

    def minibatches(self, made: int) -> int:
        """How many minibatches are due, after so many new transitions.

        Where they are counted by transitions, `owed` has those that are due until they are learned
        from, also those of iterations that were stopped.
        """
        config = self.config
        if (each := self._each()) is None:
            return int(config.gradient_steps)
        self.owed += made * each
        return int(self.owed + 1e-9)

    def _paid(self, updates: int) -> None:
        """Notes that so many minibatches are owed no more."""
        if self._each() is not None:
            self.owed = max(self.owed - updates, 0.0)

    def _each(self) -> float | None:
        """Minibatches for each transition; None where they are counted by iterations."""
        config = self.config
        if config.utd_ratio is not None:
            return float(config.utd_ratio)
        return 1.0 if config.gradient_steps == -1 else None

    def state(self, replay: bool = True) -> learner.LearnerState:
        """A copy of all that is needed to go on; see `Learner`."""
        state = super().state(replay)
        state.replay = self.replay.state() if replay else None
        walk = [] if self.noise is None else self.noise.state.ravel().tolist()
        last = learner.told_numbers(self.last.values())
        told = {"owed": self.owed, "progress": self.progress, "noise": walk, "last": last}
        state.counters |= told
        return state

    def load_state(self, state: learner.LearnerState) -> None:
        """Goes back to a state, whole or not at all; see `BaseLearner.load_state`."""
        learner.expect_state(state)
        state = as_on_torch(state, self.layout, self.algorithm, self.replay.empty)
        walk = 0 if self.noise is None else self.noise.state.size
        wanted = {"owed": 1, "progress": 1, "noise": walk, "last": len(self.last)}
        owed, progress, noise, last = (
            learner.numbers_from_state(state.counters, name, count)
            for name, count in wanted.items()
        )
        (timesteps,), _ = learner.counts_from_state(state.counters, ("timesteps",))
        # Sums are rounded, and of other settings less than one minibatch can be due.
        limit = (self._each() or 0.0) * timesteps * (1 + 1e-9) + 1
        if not 0 <= owed[0] <= limit:
            raise ArgumentError(
                "counters",
                f"0 to {limit:g} minibatches that are due",
                str(owed[0]),
                "use what `state` gave",
            )
        super().load_state(state)
        self.owed, self.progress, self._looked = owed[0], progress[0], False
        self.last = dict(zip(self.last, last, strict=True))
        if self.noise is not None:
            self.noise.state = np.reshape(noise, self.noise.state.shape)

    def _restore(self, state: learner.LearnerState) -> bool:
        """Takes environments and buffer; see `BaseLearner._restore`."""
        self._looked = False
        load_replay = partial(self.replay.load_state, state.replay)
        return self._restore_environment(state.environment, load_replay)
