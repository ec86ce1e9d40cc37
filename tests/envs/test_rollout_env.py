"""`collect_rollout`: actions, targets, seeds, action masks and errors."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from rlox import (
    ArgumentError,
    ArgumentTypeError,
    OutOfMemoryError,
    RolloutBatch,
    RolloutBuffer,
    VecEnv,
    collect_rollout,
    make_vec,
)
from rlox.envs._masks import as_masks, random_allowed
from rlox.policies import MlpPolicy, get_act_fn, get_evaluate_fn, sample_actions
from support.masked_envs import Doors, Locks, Method, Switches
from support.rejections import Rejection, expect_rejection, rejections


def reference_advantages(batch, last_values, final_values, gamma, lam):
    """Return GAE from a slow loop; `final_values` (T, N) replace the values after truncations."""
    steps, n = batch.rewards.shape
    advantages = np.zeros((steps, n))
    for i in range(n):
        running = 0.0
        for t in reversed(range(steps)):
            next_value = last_values[i] if t == steps - 1 else float(batch.values[t + 1, i])
            if batch.truncated[t, i]:
                next_value = final_values[t, i]
            alive = 1.0 - batch.terminated[t, i]
            delta = batch.rewards[t, i] + gamma * alive * next_value - batch.values[t, i]
            done = batch.terminated[t, i] or batch.truncated[t, i]
            running = delta + gamma * lam * (1.0 - done) * running
            advantages[t, i] = running
    return advantages


class Linear(torch.nn.Module):
    """Deterministic policy with fixed weights."""

    def __init__(self, box=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.box = box

    def get_action_and_logprob(self, obs, mask=None):
        # A matrix product may round differently for other numbers of rows.
        score = sum(obs[:, i] * self.weight[i] for i in range(3))
        actions = score[:, None] if self.box else (torch.sin(1000 * score) > 0).long()
        return actions, -score.abs()

    def get_value(self, obs):
        return (obs[:, :3] * 3).sum(1)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_advantages_equal_a_slow_reference(env_id):
    policy = Linear(box=env_id == "Pendulum-v1")
    env, twin = (VecEnv(3, 4, env_id, max_episode_steps=15) for _ in "ab")
    batch = collect_rollout(env, policy, 50, gamma=0.9, gae_lambda=0.7)
    steps = twin.collect_n_steps(50, lambda obs: act(policy, obs))
    value = {"final": np.zeros((50, 3)), "last": value_of_obs(policy, steps["last_obs"])}
    value["final"].flat[steps["final_index"]] = value_of_obs(policy, steps["final_obs"])
    assert batch.truncated.any()
    assert batch.terminated.any() == (env_id == "CartPole-v1")
    expected = reference_advantages(batch, value["last"], value["final"], 0.9, 0.7)
    assert np.allclose(batch.advantages, expected, rtol=1e-4, atol=1e-4)
    assert np.allclose(batch.returns, expected + batch.values, rtol=1e-4, atol=1e-4)
    for name in ("obs", "terminated", "truncated"):
        assert np.array_equal(getattr(batch, name), steps[name])
    assert np.array_equal(batch.rewards, steps["rewards"].astype(np.float32))


def act(module, obs):
    actions = module.get_action_and_logprob(torch.from_numpy(obs))[0].detach().numpy()
    return actions.clip(-2, 2) if module.box else actions


def value_of_obs(module, obs):
    return module.get_value(torch.from_numpy(obs)).detach().numpy()


def test_the_batch_has_views_of_one_buffer():
    batch = collect_rollout(VecEnv(2, 0), None, 6)
    assert isinstance(batch, RolloutBatch)
    assert batch.action_masks is None
    arrays = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
    del arrays["action_masks"]
    types = {"obs": (6, 2, 4, "float32"), "actions": (6, 2, "int64")}
    types |= dict.fromkeys(("terminated", "truncated", "valid"), (6, 2, "bool"))
    for name, array in arrays.items():
        assert (*array.shape, array.dtype.name) == types.get(name, (6, 2, "float32")), name
        assert not array.flags.owndata, name
        torch.from_numpy(array).flatten()[0] = 1
        assert array.flat[0] == 1, name


def test_rollouts_of_every_policy_interface_are_equal():
    module = Linear()

    def act_with_log_probs_and_values(obs):
        rows = torch.from_numpy(obs)
        actions, log_probs = module.get_action_and_logprob(rows)
        return actions, log_probs.detach(), module.get_value(rows).numpy()

    def act_only(obs):
        return act(module, obs)

    fused = Linear()
    fused.act = lambda obs: (*module.get_action_and_logprob(obs), module.get_value(obs))
    fused.get_action_and_logprob = None
    policies = (module, act_with_log_probs_and_values, act_only, fused)
    batches = [collect_rollout(VecEnv(3, 1), policy, 40) for policy in policies]
    for batch in (batches[0], batches[1], batches[3]):
        rows = torch.from_numpy(batch.obs.reshape(-1, 4))
        assert np.array_equal(batch.actions.ravel(), act(module, rows.numpy()))
        assert np.allclose(batch.values.ravel(), value_of_obs(module, rows.numpy()), atol=1e-6)
        log_probs = module.get_action_and_logprob(rows)[1].detach()
        assert np.allclose(batch.log_probs.ravel(), log_probs, atol=1e-6)
        assert np.array_equal(batch.advantages, batches[0].advantages)
    assert np.array_equal(batches[2].actions, batches[0].actions)
    assert (batches[2].values == 0).all()
    assert (batches[2].log_probs == 0).all()
    assert not any(tensor.grad_fn for tensor in module.parameters())


@pytest.mark.parametrize(("env_id", "log_prob"), [("CartPole-v1", np.log(0.5)), ("Pendulum-v1", np.log(0.25))])
def test_random_rollouts_are_seeded_and_have_log_probabilities(env_id, log_prob):
    first, again, other = (collect_rollout(VecEnv(4, seed, env_id), None, 30) for seed in (0, 0, 1))
    assert np.allclose(first.log_probs, log_prob)
    assert (first.values == 0).all()
    assert np.array_equal(first.actions, again.actions)
    assert np.array_equal(first.advantages, again.advantages)
    assert not np.array_equal(first.actions, other.actions)


def test_rollouts_continue_the_last_rollout():
    env, twin = VecEnv(2, 0), VecEnv(2, 0)

    def policy(obs):
        return (obs[:, 3] > 0).astype(np.int64)

    first = collect_rollout(env, policy, 30)
    first_obs = first.obs.copy()
    second = collect_rollout(env, policy, 30)
    expected = twin.collect_n_steps(60, policy)["obs"]
    assert np.array_equal(np.concatenate([first.obs, second.obs]), expected)
    assert np.array_equal(first.obs, first_obs)


def test_rollouts_of_gymnasium_environments_are_seeded():
    class Discounted(gym.Env):
        observation_space = gym.spaces.Box(0, 1, (1,))
        action_space = gym.spaces.Discrete(2, start=3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, np.float32), {}

        def step(self, action):
            assert action in (3, 4)
            return np.zeros(1, np.float32), 1.0, False, False, {}

    batches = [collect_rollout(make_vec(Discounted, 2, seed=7), None, 20, 0.5, 1.0) for _ in "ab"]
    assert np.array_equal(batches[0].actions, batches[1].actions)
    assert set(batches[0].actions.ravel()) == {0, 1}
    # The values are 0, so advantages are discounted sums of the remaining rewards.
    assert np.allclose(batches[0].advantages[:, 0], 2 - 2 * 0.5 ** np.arange(20, 0, -1))


def test_truncated_episodes_bootstrap_from_the_final_value():
    # With constant rewards and values of 1 / (1 - gamma), every advantage is 0.
    env = VecEnv(2, 0, max_episode_steps=4)

    def policy(obs):
        n = len(obs)
        return (obs[:, 2] + obs[:, 3] > 0).astype(int), np.zeros(n), np.full(n, 10.0)

    batch = collect_rollout(env, policy, 21, gamma=0.9)
    assert batch.truncated.sum() == 10
    assert not batch.terminated.any()
    assert np.allclose(batch.advantages, 0, atol=1e-5)


class Unbounded(gym.Env):
    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Box(-np.inf, np.inf, (1,))


INT, TWO, THREE = np.zeros(2, int), np.zeros(2), np.zeros(3)


@rejections(
    ({"gamma": 1.5}, ArgumentError, "gamma"),
    ({"gamma": float("nan")}, ArgumentError, "gamma"),
    ({"gae_lambda": -0.1}, ArgumentError, "gae_lambda"),
    ({"n_steps": 0}, ArgumentError, "n_steps"),
    ({"n_steps": -1}, ArgumentError, "n_steps"),
    ({"n_steps": 2**61}, OutOfMemoryError, "n_steps"),
    ({"n_steps": 1.5}, ArgumentTypeError, "n_steps"),
    ({"env": gym.make("CartPole-v1")}, ArgumentTypeError, "env", "make_vec"),
    ({"env": make_vec(Unbounded)}, ArgumentError, "policy"),
    ({"policy": lambda obs: TWO}, ArgumentTypeError, "actions"),
    ({"policy": lambda obs: INT + 2}, ArgumentError, "actions"),
    ({"policy": lambda obs: (INT, THREE, TWO)}, ArgumentError, "log_probs"),
    ({"policy": lambda obs: (INT, TWO, THREE)}, ArgumentError, "values"),
)
def test_invalid_arguments_are_rejected_before_any_step(rejection):
    env, twin = VecEnv(2, 0), VecEnv(2, 0)
    env.reset(), twin.reset()
    arguments = {"env": env, "policy": None, "n_steps": 3, **rejection.call}
    expect_rejection(rejection._replace(call=lambda: collect_rollout(**arguments)))
    assert np.array_equal(env.step([0, 1])[0], twin.step([0, 1])[0])


def test_fields_of_a_buffer_may_be_passed_to_the_buffer():
    def run(copy):
        env = VecEnv(n=4, seed=0, env_id="Pendulum-v1", max_episode_steps=3)
        buffer = RolloutBuffer(6, 4, (3,), (1,), action_dtype="float32")
        env.begin_rollout(buffer)
        buffer.actions[:] = np.arange(24, dtype=np.float32).reshape(6, 4, 1) / 24
        buffer.values[:] = 0.5
        for t in range(6):
            fields = buffer.actions[5 - t], buffer.values[t], buffer.values[t]
            env.step_rollout(buffer, t, *map(copy, fields))
        finals = buffer.final_values.ravel()[: len(buffer.final_index)]
        finals[:] = np.arange(len(finals))
        buffer.finish(copy(buffer.values[0]), 0.9, 0.9, copy(finals))
        return buffer

    with_views, with_copies = run(lambda field: field), run(np.copy)
    for name in ("obs", "actions", "values", "final_values", "advantages", "returns"):
        assert np.array_equal(getattr(with_views, name), getattr(with_copies, name)), name


def test_a_policy_that_writes_to_its_observations_does_not_change_the_rollout():
    def overwrite(obs):
        obs[...] = 7
        return np.zeros(len(obs), np.int64)

    class Overwriting(torch.nn.Module):
        def get_action_and_logprob(self, obs):
            obs.fill_(7)
            return torch.zeros(len(obs), dtype=torch.long), torch.zeros(len(obs)), obs[:, 0]

        def get_value(self, obs):
            return obs.fill_(7)[:, 0]

    rollouts = [
        collect_rollout(VecEnv(2, seed=0), policy, 4).obs
        for policy in (lambda obs: np.zeros(len(obs), np.int64), overwrite, Overwriting())
    ]
    assert np.array_equal(rollouts[0], rollouts[1])
    assert np.array_equal(rollouts[0], rollouts[2])


MODES = list(AutoresetMode)


class Late(Doors):
    """`Doors` without a mask in the first step, in which all actions are allowed."""

    def step(self, action):
        if self.at == 0:
            self.open[:] = True
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {}


def first_allowed(obs, action_masks):
    return 10 + action_masks.argmax(1)


@pytest.mark.parametrize("policy", [None, first_allowed])
@pytest.mark.parametrize("env", [Doors, Method, Late])
@pytest.mark.parametrize(
    ("mode", "vectorization"), [*((mode, "sync") for mode in MODES), (AutoresetMode.NEXT_STEP, "async")]
)
def test_rollouts_contain_allowed_actions_only(mode, vectorization, env, policy):
    envs = make_vec(env, 3, seed=1, vectorization_mode=vectorization, autoreset_mode=mode)
    # `Late` has no mask for the first call of the policy.
    policy = None if env is Late else policy
    for _ in range(2):
        batch = collect_rollout(envs, policy, 13)
        masks = batch.action_masks
        assert masks.shape == (13, 3, 6)
        assert masks.dtype == bool
        assert np.take_along_axis(masks, batch.actions[..., None], 2).all()
        reported = np.all(masks == batch.obs, axis=2)
        assert (reported[batch.valid] | (env is Late)).all()
        assert masks[~batch.valid].all()
        if policy is None:
            assert np.allclose(batch.log_probs, -np.log(masks.sum(2)))
    envs.close()


@pytest.mark.parametrize("mode", MODES)
def test_random_actions_of_several_components_are_allowed(mode):
    batch = collect_rollout(make_vec(Switches, 2, seed=1, autoreset_mode=mode), None, 40)
    assert batch.action_masks.shape == (40, 2, 8)
    assert batch.actions.shape == (40, 2, 2, 2)
    flags = batch.action_masks.reshape(40, 2, 4, 2)
    assert np.take_along_axis(flags, batch.actions.reshape(40, 2, 4, 1), 3).all()
    assert np.allclose(batch.log_probs, -np.log(2) * flags.all(3).sum(2))

    batch = collect_rollout(make_vec(Locks, 2, seed=1, autoreset_mode=mode), None, 12)
    assert batch.action_masks.shape == (12, 2, 5)
    counts = batch.action_masks[..., :2].sum(2) * batch.action_masks[..., 2:].sum(2)
    assert np.allclose(batch.log_probs, -np.log(counts))


def test_a_masked_reset_does_not_change_the_masks_of_other_environments():
    disabled = {"autoreset_mode": AutoresetMode.DISABLED}
    envs = [lambda: Late(), lambda: gym.wrappers.TimeLimit(Late(), 3)]
    env = make_vec(gym.vector.SyncVectorEnv(envs, **disabled), seed=0)
    reported = ~collect_rollout(env, None, 40).action_masks.all(2)
    # Masks are reported from the second step of episodes of five and three steps.
    assert reported[:, 0].tolist() == [t % 5 > 0 for t in range(40)]
    assert reported[:, 1].tolist() == [t % 3 > 0 for t in range(40)]


def test_wrappers_hide_neither_method_nor_infos():
    method, infos = (gym.vector.SyncVectorEnv([env] * 2) for env in (Method, Doors))
    for env in (RecordEpisodeStatistics(method), DictInfoToList(infos)):
        assert collect_rollout(make_vec(env), None, 7).action_masks.any()


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_policies_of_environments_without_masks_get_none(vectorization):
    env, masks = make_vec("CartPole-v1", 2, seed=0, vectorization_mode=vectorization), []
    batch = collect_rollout(env, lambda obs, mask: [masks.append(mask), [0, 1]][1], 4)
    assert batch.action_masks is None
    assert set(masks) == {None}
    collect_rollout(env, lambda obs, mask=3: [masks.append(mask), [0, 1]][1], 1)
    assert masks[-1] == 3
    assert collect_rollout(env, None, 4).action_masks is None
    env.close()


def test_values_of_last_observations_are_computed_without_masks():
    masks = []

    def policy(obs, mask):
        masks.append(mask)
        return 10 + mask.argmax(1), np.zeros(len(obs)), np.zeros(len(obs))

    collect_rollout(make_vec(Doors, 2, seed=0), policy, 8)
    assert [mask.all() for mask in masks] == [False] * 8 + [True] * 2
    assert [len(mask) for mask in masks[8:]] == [2, 2]  # final and last observations


class Masked(Doors):
    """`Doors` that report a fixed mask in every step."""

    def __init__(self, mask, space=Doors.action_space):
        self.mask, self.action_space = mask, space

    def _state(self):
        return super()._state()[0], {"action_mask": np.array(self.mask)}


@rejections(
    (lambda: Masked([-np.inf] * 6), ArgumentError, "action_mask"),
    (lambda: Masked([np.nan] * 6), ArgumentError, "action_mask"),
    (lambda: Masked([2] * 6), ArgumentError, "action_mask"),
    (lambda: Masked(["a"] * 6), ArgumentTypeError, "action_mask"),
    (lambda: Masked([0] * 6), ArgumentError, "action_mask"),
    (lambda: Masked([-np.inf, 1, 1, 1, 1, 1]), ArgumentError, "action_mask", "pass True or False"),
    (lambda: Masked([np.nan, 1, 1, 1, 1, 1]), ArgumentError, "action_mask", "pass True or False"),
    (lambda: Masked([0, 2, 1, 1, 1, 1]), ArgumentError, "action_mask", "pass True or False"),
    (lambda: Masked([1] * 6, spaces.Box(0, 1, (6,))), ArgumentError, "action_masks"),
)
def test_invalid_masks_are_rejected(rejection):
    expect_rejection(rejection._replace(call=collect_rollout), make_vec(rejection.call, 2), None, 3)


def test_a_component_without_allowed_values_is_rejected():
    mask, space = [[True, True, False, False, False]], spaces.MultiDiscrete([2, 3])
    expect_rejection(Rejection(as_masks, ArgumentError, "action_masks"), mask, space, 1)


def test_random_actions_are_uniform_over_allowed_actions():
    masks = np.tile([True, False, True, True], (30_000, 1))
    actions, log_probs = random_allowed(spaces.Discrete(4), np.random.default_rng(0), masks)
    counts = np.bincount(actions)
    assert counts[1] == 0
    # Standard deviation of a count: sqrt(30,000 * 1/3 * 2/3) = 82.
    assert np.abs(counts[[0, 2, 3]] - 10_000).max() < 400
    assert np.allclose(log_probs, -np.log(3))


class Uniform(torch.nn.Module):
    """Uniform policy over the allowed actions, without a method `act`."""

    def get_action_and_logprob(self, obs, mask=None, action=None):
        logits = torch.zeros(len(obs), 6)
        if mask is not None:
            logits = logits.masked_fill(~mask, -1e9)
        choice = torch.distributions.Categorical(logits=logits)
        action = choice.sample() if action is None else action
        return action, choice.log_prob(action), choice.entropy()

    def get_value(self, obs):
        return torch.zeros(len(obs))


class Plain(torch.nn.Module):
    """Policy without a parameter for masks."""

    def get_action_and_logprob(self, obs):
        return obs.argmax(1), torch.zeros(len(obs))

    def get_value(self, obs):
        return torch.zeros(len(obs))


@pytest.mark.parametrize("policy", ["built-in", "custom"])
@pytest.mark.parametrize("mode", MODES)
def test_torch_policies_get_masks(mode, policy):
    built_in = MlpPolicy(Doors.observation_space, Doors.action_space)
    policy = built_in if policy == "built-in" else Uniform()
    batch = collect_rollout(make_vec(Doors, 3, seed=0, autoreset_mode=mode), policy, 20)
    assert np.take_along_axis(batch.action_masks, batch.actions[..., None], 2).all()
    # Two or three doors have about the same probability.
    assert (np.exp(batch.log_probs[batch.valid]) > 0.25).all()


@pytest.mark.parametrize("name", ["mask", "action_mask", "action_masks"])
@pytest.mark.parametrize("parameters", ["action=None, {}=None", "*, {}=None, action=None"])
def test_torch_policies_get_masks_by_name(parameters, name):
    code = f"lambda self, obs, {parameters.format(name)}: parent(self, obs, {name}, action)"
    method = eval(code, {"parent": Uniform.get_action_and_logprob})
    cls = type("Named", (Uniform,), {"get_action_and_logprob": method})
    batch = collect_rollout(make_vec(Doors, 3, seed=0), cls(), 10)
    assert np.take_along_axis(batch.action_masks, batch.actions[..., None], 2).all()

    mask = torch.eye(6, dtype=torch.bool)
    assert sample_actions(cls(), torch.zeros(6, 6), mask).tolist() == [0, 1, 2, 3, 4, 5]
    log_probs, _, _ = get_evaluate_fn(cls())(torch.zeros(6, 6), torch.arange(6), mask)
    assert log_probs.tolist() == [0.0] * 6


@pytest.mark.parametrize("parameters", ["obs, deterministic=True, mask=None", "obs, *, mask=None", "obs, mask"])
def test_act_gets_masks_by_name(parameters):
    result = "None if mask is None else mask.float().argmax(1), 1.0, 2.0"
    cls = type("Acts", (Uniform,), {"act": eval(f"lambda self, {parameters}: ({result})")})
    act, mask = get_act_fn(cls()), torch.eye(6, dtype=torch.bool)
    assert act(torch.zeros(6, 6), mask)[0].tolist() == [0, 1, 2, 3, 4, 5]
    if parameters != "obs, mask":
        assert act(torch.zeros(6, 6)) == (None, 1.0, 2.0)


def test_act_without_a_mask_parameter_is_not_used_with_masks():
    class Blind(Uniform):
        def act(self, obs):
            return torch.full((len(obs),), 5), torch.zeros(len(obs)), torch.zeros(len(obs))

        def evaluate_actions(self, obs, action):
            return (torch.full((len(obs),), 7.0),) * 3

    batch = collect_rollout(make_vec(Doors, 3, seed=0), Blind(), 10)
    assert np.take_along_axis(batch.action_masks, batch.actions[..., None], 2).all()

    obs, last = torch.zeros(2, 6), torch.full((2,), 5)
    assert get_act_fn(Blind())(obs)[0].tolist() == [5, 5]
    assert get_act_fn(Blind())(obs, torch.eye(6, dtype=torch.bool)[:2])[0].tolist() == [0, 1]
    evaluate = get_evaluate_fn(Blind())
    assert evaluate(obs, last)[0].tolist() == [7.0, 7.0]
    only = torch.eye(6, dtype=torch.bool)[[5, 5]]
    assert evaluate(obs, last, only)[0].tolist() == [0.0, 0.0]


def test_policies_without_a_mask_parameter_are_rejected_with_masks():
    arguments = torch.zeros(1, 6), torch.ones(1, 6, dtype=torch.bool)
    expect_rejection(Rejection(get_act_fn(Plain()), ArgumentTypeError, "policy"), *arguments)


def test_policies_without_a_mask_parameter_get_observations_only():
    for policy in (Plain(), lambda obs, sign=1: 10 + (sign * obs).argmax(1)):
        assert collect_rollout(make_vec(Doors, 2, seed=0), policy, 8).action_masks.any()


@pytest.mark.parametrize("shape", [list, tuple, np.asarray])
def test_masks_of_vector_environments_may_be_lists(shape):
    class Listed(gym.vector.VectorEnv):
        """Vector environment whose step t allows action t, with episodes of 2 and 3 steps."""

        num_envs = 2
        metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
        single_observation_space, single_action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(3)
        at = np.zeros(2)

        def _state(self, reported):
            rows = [(at == np.arange(3)) & x for at, x in zip(self.at, reported, strict=True)]
            return self.at[:, None].astype(np.float32), {"action_mask": shape(rows)}

        def reset(self, *, seed=None, options=None):
            reset = (options or {}).get("reset_mask", np.ones(2, bool))
            self.at = np.where(reset, 0, self.at)
            return self._state(reset)  # masks of other environments are all False

        def step(self, actions):
            assert (actions == self.at).all()
            self.at = self.at + 1
            obs, infos = self._state(np.ones(2, bool))
            return obs, np.ones(2), self.at == [2, 3], np.zeros(2, bool), infos

    batch = collect_rollout(make_vec(Listed(), seed=0), None, 12)
    assert batch.actions[:, 0].tolist() == [0, 1] * 6
    assert batch.actions[:, 1].tolist() == [0, 1, 2] * 4
