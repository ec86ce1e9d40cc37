"""`collect_rollout`: actions, targets, seeds, action masks and errors."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from rlox import RolloutBatch, RolloutBuffer, VecEnv, collect_rollout, make_vec
from rlox.masks import as_masks, mask_parameter, random_allowed
from rlox.policies import MlpPolicy, acting, evaluating_actions, sampled
from support.masked_envs import Doors, Locks, Method, Switches


def reference_advantages(batch, last_values, final_values, gamma, lam):
    """Compute the formula slowly; final_values (T, N) are used where an episode was truncated."""
    steps, n = batch.rewards.shape
    advantages = np.zeros((steps, n))
    for i in range(n):
        running = 0.0
        for t in reversed(range(steps)):
            following = last_values[i] if t == steps - 1 else float(batch.values[t + 1, i])
            if batch.truncated[t, i]:
                following = final_values[t, i]
            alive = 1.0 - batch.terminated[t, i]
            delta = batch.rewards[t, i] + gamma * alive * following - batch.values[t, i]
            done = batch.terminated[t, i] or batch.truncated[t, i]
            running = delta + gamma * lam * (1.0 - done) * running
            advantages[t, i] = running
    return advantages


class Linear(torch.nn.Module):
    """A deterministic policy with fixed weights."""

    def __init__(self, box=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))
        self.box = box

    def get_action_and_logprob(self, obs, mask=None):
        # Column by column, so that the number of rows cannot change a bit.
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
    value = {"final": np.zeros((50, 3)), "last": worth(policy, steps["last_obs"])}
    value["final"].flat[steps["final_index"]] = worth(policy, steps["final_obs"])
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


def worth(module, obs):
    return module.get_value(torch.from_numpy(obs)).detach().numpy()


def test_the_batch_has_views_of_one_buffer():
    batch = collect_rollout(VecEnv(2, 0), None, 6)
    assert isinstance(batch, RolloutBatch)
    assert batch.action_masks is None
    names = [name for name in batch.__dataclass_fields__ if name != "action_masks"]
    shapes = {name: getattr(batch, name).shape for name in names}
    assert shapes.pop("obs") == (6, 2, 4)
    assert set(shapes.values()) == {(6, 2)}
    dtypes = {name: getattr(batch, name).dtype.name for name in names}
    assert dtypes.pop("actions") == "int64"
    assert {dtypes.pop(name) for name in ("terminated", "truncated", "valid")} == {"bool"}
    assert set(dtypes.values()) == {"float32"}
    for name in names:
        array = getattr(batch, name)
        assert not array.flags.owndata, name
        tensor = torch.from_numpy(array)
        tensor.flatten()[0] = 1
        assert array.flat[0] == 1, name


def test_every_kind_of_policy_is_stored():
    module = Linear()

    def triple(obs):
        rows = torch.from_numpy(obs)
        actions, log_probs = module.get_action_and_logprob(rows)
        return actions, log_probs.detach(), module.get_value(rows).numpy()

    def alone(obs):
        return act(module, obs)

    fused = Linear()
    fused.act = lambda obs: (*module.get_action_and_logprob(obs), module.get_value(obs))
    fused.get_action_and_logprob = None
    policies = (module, triple, alone, fused)
    batches = [collect_rollout(VecEnv(3, 1), policy, 40) for policy in policies]
    for batch in (batches[0], batches[1], batches[3]):
        rows = torch.from_numpy(batch.obs.reshape(-1, 4))
        assert np.array_equal(batch.actions.ravel(), act(module, rows.numpy()))
        assert np.allclose(batch.values.ravel(), worth(module, rows.numpy()), atol=1e-6)
        log_probs = module.get_action_and_logprob(rows)[1].detach()
        assert np.allclose(batch.log_probs.ravel(), log_probs, atol=1e-6)
        assert np.array_equal(batch.advantages, batches[0].advantages)
    assert np.array_equal(batches[2].actions, batches[0].actions)
    assert (batches[2].values == 0).all()
    assert (batches[2].log_probs == 0).all()
    assert not any(tensor.grad_fn for tensor in module.parameters())


@pytest.mark.parametrize(
    ("env_id", "log_prob"), [("CartPole-v1", np.log(0.5)), ("Pendulum-v1", np.log(0.25))]
)
def test_random_rollouts_are_seeded_and_have_log_probabilities(env_id, log_prob):
    first, again, other = (collect_rollout(VecEnv(4, seed, env_id), None, 30) for seed in (0, 0, 1))
    assert np.allclose(first.log_probs, log_prob)
    assert (first.values == 0).all()
    assert np.array_equal(first.actions, again.actions)
    assert np.array_equal(first.advantages, again.advantages)
    assert not np.array_equal(first.actions, other.actions)


def test_rollouts_continue_where_the_last_one_ended():
    env, twin = VecEnv(2, 0), VecEnv(2, 0)

    def policy(obs):
        return (obs[:, 3] > 0).astype(np.int64)

    first = collect_rollout(env, policy, 30)
    kept = first.obs.copy()
    second = collect_rollout(env, policy, 30)
    whole = twin.collect_n_steps(60, policy)["obs"]
    assert np.array_equal(np.concatenate([first.obs, second.obs]), whole)
    assert np.array_equal(first.obs, kept)


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
    # Values are 0, so that the rewards still to come are all there is.
    assert np.allclose(batches[0].advantages[:, 0], 2 - 2 * 0.5 ** np.arange(20, 0, -1))


def test_time_limits_bootstrap():
    # Constant rewards, and values of 1 / (1 - gamma): every advantage is 0.
    env = VecEnv(2, 0, max_episode_steps=4)

    def policy(obs):
        n = len(obs)
        return (obs[:, 2] + obs[:, 3] > 0).astype(int), np.zeros(n), np.full(n, 10.0)

    batch = collect_rollout(env, policy, 21, gamma=0.9)
    assert batch.truncated.sum() == 10
    assert not batch.terminated.any()
    assert np.allclose(batch.advantages, 0, atol=1e-5)


@pytest.mark.parametrize(
    ("kwargs", "error", "words"),
    [
        ({"gamma": 1.5}, ValueError, "gamma: .*1.5"),
        ({"gamma": float("nan")}, ValueError, "gamma: .*nan"),
        ({"gae_lambda": -0.1}, ValueError, "gae_lambda: .*-0.1"),
        ({"n_steps": 0}, ValueError, "n_steps"),
        ({"n_steps": -1}, ValueError, "n_steps"),
        ({"n_steps": 2**61}, MemoryError, "n_steps"),
        ({"n_steps": 1.5}, TypeError, "n_steps"),
        ({"env": gym.make("CartPole-v1")}, TypeError, "env: .*make_vec"),
        ({"policy": lambda obs: np.zeros(1)}, (TypeError, ValueError), "actions"),
        ({"policy": lambda obs: np.full(2, 2)}, ValueError, "actions"),
        ({"policy": lambda obs: (np.zeros(2, int), np.zeros(3), np.zeros(2))}, ValueError, "log_p"),
        (
            {"policy": lambda obs: (np.zeros(2, int), np.zeros(2), np.zeros(1))},
            ValueError,
            "values",
        ),
    ],
)
def test_invalid_arguments_are_rejected_before_environments_move(kwargs, error, words):
    env, twin = VecEnv(2, 0), VecEnv(2, 0)
    env.reset(), twin.reset()
    with pytest.raises(error, match=words):
        collect_rollout(**{"env": env, "policy": None, "n_steps": 3, **kwargs})
    assert np.array_equal(env.step([0, 1])[0], twin.step([0, 1])[0])


def test_an_unbounded_action_space_needs_a_policy():
    class Unbounded(gym.Env):
        observation_space = gym.spaces.Box(0, 1, (1,))
        action_space = gym.spaces.Box(-np.inf, np.inf, (1,))

    with pytest.raises(ValueError, match=r"policy: .*bounds"):
        collect_rollout(make_vec(Unbounded), None, 3)


def test_fields_of_a_buffer_may_be_passed_to_the_buffer():
    env, twin = (VecEnv(n=4, seed=0, env_id="Pendulum-v1", max_episode_steps=3) for _ in range(2))
    buffers = [RolloutBuffer(6, 4, (3,), (1,), action_dtype="float32") for _ in range(2)]
    own, apart = buffers
    for e, buffer in ((env, own), (twin, apart)):
        e.begin_rollout(buffer)
    for buffer in buffers:
        buffer.actions[:] = np.arange(24, dtype=np.float32).reshape(6, 4, 1) / 24
        buffer.values[:] = 0.5
    for t in range(6):
        env.step_rollout(own, t, own.actions[5 - t], own.values[t], own.values[t])
        said = apart.actions[5 - t].copy(), apart.values[t].copy(), apart.values[t].copy()
        twin.step_rollout(apart, t, *said)
    finals = np.arange(len(own.final_index), dtype=np.float32)
    own.final_values.ravel()[: len(finals)] = finals
    own.finish(own.values[0], 0.9, 0.9, own.final_values.ravel()[: len(finals)])
    apart.finish(apart.values[0].copy(), 0.9, 0.9, finals)
    for name in ("obs", "actions", "values", "final_values", "advantages", "returns"):
        assert np.array_equal(getattr(own, name), getattr(apart, name)), name


def test_extra_fields_that_do_not_fit_beside_the_others_are_refused():
    with pytest.raises(MemoryError, match="extra"):
        RolloutBuffer(1000, 100, (4,), extra={"frames": ((2**20, 2), "float64")})


def test_a_policy_that_writes_to_its_observations_does_not_change_the_rollout():
    def spoil(obs):
        obs[...] = 7
        return np.zeros(len(obs), np.int64)

    class Spoils(torch.nn.Module):
        def get_action_and_logprob(self, obs):
            obs.fill_(7)
            return torch.zeros(len(obs), dtype=torch.long), torch.zeros(len(obs)), obs[:, 0]

        def get_value(self, obs):
            return obs.fill_(7)[:, 0]

    rollouts = [
        collect_rollout(VecEnv(2, seed=0), policy, 4).obs
        for policy in (lambda obs: np.zeros(len(obs), np.int64), spoil, Spoils())
    ]
    assert np.array_equal(rollouts[0], rollouts[1])
    assert np.array_equal(rollouts[0], rollouts[2])


MODES = list(AutoresetMode)


class Late(Doors):
    """Says what is allowed from the second step of an episode on; in the first, all is."""

    def step(self, action):
        if self.at == 0:
            self.open[:] = True
        return super().step(action)

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {}


def allowed_first(obs, action_masks):
    """The first action that is allowed."""
    return 10 + action_masks.argmax(1)


@pytest.mark.parametrize("policy", [None, allowed_first])
@pytest.mark.parametrize("env", [Doors, Method, Late])
@pytest.mark.parametrize(
    ("mode", "how"), [*((mode, "sync") for mode in MODES), (AutoresetMode.NEXT_STEP, "async")]
)
def test_only_allowed_actions_are_taken_in_rollouts(mode, how, env, policy):
    made = make_vec(env, 3, seed=1, vectorization_mode=how, autoreset_mode=mode)
    # A policy that needs masks gets none before some are said.
    policy = None if env is Late else policy
    for _ in range(2):
        batch = collect_rollout(made, policy, 13)
        masks, done = batch.action_masks, batch.actions
        assert masks.shape == (13, 3, 6)
        assert masks.dtype == bool
        assert np.take_along_axis(masks, done[..., None], 2).all()
        said = np.all(masks == batch.obs, axis=2)
        assert (said[batch.valid] | (env is Late)).all()
        assert masks[~batch.valid].all()
        if policy is None:
            assert np.allclose(batch.log_probs, -np.log(masks.sum(2)))
    made.close()


@pytest.mark.parametrize("mode", MODES)
def test_random_multi_binary_actions_are_allowed(mode):
    made = make_vec(Switches, 2, seed=1, autoreset_mode=mode)
    batch = collect_rollout(made, None, 40)
    assert batch.action_masks.shape == (40, 2, 8)
    flags = batch.action_masks.reshape(40, 2, 4, 2)
    assert np.take_along_axis(flags, batch.actions.reshape(40, 2, 4, 1), 3).all()
    assert batch.actions.shape == (40, 2, 2, 2)
    assert np.allclose(batch.log_probs, -np.log(2) * flags.all(3).sum(2))


@pytest.mark.parametrize("mode", MODES)
def test_random_multi_discrete_actions_are_allowed(mode):
    batch = collect_rollout(make_vec(Locks, 2, seed=1, autoreset_mode=mode), None, 12)
    assert batch.action_masks.shape == (12, 2, 5)
    counts = batch.action_masks[..., :2].sum(2) * batch.action_masks[..., 2:].sum(2)
    assert np.allclose(batch.log_probs, -np.log(counts))


def test_a_masked_reset_does_not_change_the_masks_of_other_environments():
    disabled = {"autoreset_mode": AutoresetMode.DISABLED}
    fates = [lambda: Late(), lambda: gym.wrappers.TimeLimit(Late(), 3)]
    env = make_vec(gym.vector.SyncVectorEnv(fates, **disabled), seed=0)
    batch = collect_rollout(env, None, 40)
    said = ~batch.action_masks.all(2)
    # Of five steps, and of three, all but the first.
    assert said[:, 0].tolist() == [t % 5 > 0 for t in range(40)]
    assert said[:, 1].tolist() == [t % 3 > 0 for t in range(40)]


def test_wrappers_hide_neither_method_nor_infos():
    made = gym.vector.SyncVectorEnv([Method] * 2)
    assert collect_rollout(make_vec(RecordEpisodeStatistics(made)), None, 7).action_masks.any()
    listed = DictInfoToList(gym.vector.SyncVectorEnv([Doors] * 2))
    assert collect_rollout(make_vec(listed), None, 7).action_masks.any()


@pytest.mark.parametrize("how", ["sync", "async"])
def test_environments_without_masks_have_none(how):
    made = make_vec("CartPole-v1", 2, seed=0, vectorization_mode=how)
    given = []
    batch = collect_rollout(made, lambda obs, mask: [given.append(mask), [0, 1]][1], 4)
    assert batch.action_masks is None
    assert set(given) == {None}
    collect_rollout(made, lambda obs, mask=3: [given.append(mask), [0, 1]][1], 1)
    assert given[-1] == 3
    assert collect_rollout(made, None, 4).action_masks is None
    made.close()


def test_a_policy_without_a_mask_parameter_gets_observations_only():
    made = make_vec(Doors, 2, seed=0)
    batch = collect_rollout(made, lambda obs, sign=1: 10 + (sign * obs).argmax(1), 8)
    assert batch.action_masks.any()


def test_values_of_last_observations_are_computed_without_masks():
    seen = []

    def policy(obs, mask):
        seen.append(mask)
        zeros = np.zeros(len(obs))
        return 10 + mask.argmax(1), zeros, zeros

    collect_rollout(make_vec(Doors, 2, seed=0), policy, 8)
    finals, last = seen[8:]
    assert [len(finals), len(last)] == [2, 2]
    assert finals.all()
    assert last.all()
    assert not any(mask.all() for mask in seen[:8])


@pytest.mark.parametrize("said", [[-np.inf, 0, 0], [np.nan, 1, 0], [0, 2, 0], ["a", "b", "c"]])
def test_masks_that_are_no_flags_are_rejected(said):
    class Odd(gym.Env):
        observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {"action_mask": np.array(said)}

        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, {"action_mask": np.array(said)}

    with pytest.raises((TypeError, ValueError), match=r"^action_mask: expected flags"):
        collect_rollout(make_vec(Odd, 2), None, 3)


def test_masks_of_other_spaces_and_masks_that_allow_nothing_are_rejected():
    class Levers(Doors):
        action_space = spaces.Box(0, 1, (6,))

    class Closed(Doors):
        def _state(self):
            return super()._state()[0], {"action_mask": np.zeros(6, np.int8)}

    with pytest.raises(ValueError, match=r"action_masks: expected a Discrete, .* or give no masks"):
        collect_rollout(make_vec(Levers, 2), None, 3)
    with pytest.raises(ValueError, match=r"^action_mask: .* in environment 0"):
        collect_rollout(make_vec(Closed, 2), None, 3)


def test_random_actions_are_uniform_among_the_allowed():
    masks = np.tile([True, False, True, True], (30_000, 1))
    said, log_probs = random_allowed(spaces.Discrete(4), np.random.default_rng(0), masks)
    counts = np.bincount(said)
    assert counts[1] == 0
    # Standard deviation of a count: sqrt(30,000 * 1/3 * 2/3) = 82.
    assert np.abs(counts[[0, 2, 3]] - 10_000).max() < 400
    assert np.allclose(log_probs, -np.log(3))


def test_the_mask_parameter_is_found_by_its_name():
    assert mask_parameter(lambda obs, action_mask=None: 0).name == "action_mask"
    assert mask_parameter(lambda obs, rng: 0) is None
    assert mask_parameter(max) is None


def test_a_component_without_allowed_values_is_rejected():
    with pytest.raises(ValueError, match=r"action_masks: .*of each component.*none in row 0"):
        as_masks([[True, True, False, False, False]], spaces.MultiDiscrete([2, 3]), 1)


class Uniform(torch.nn.Module):
    """Choose uniformly among the allowed actions; there is no `act`."""

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
    """A policy without a parameter for masks."""

    def get_action_and_logprob(self, obs):
        return obs.argmax(1), torch.zeros(len(obs))

    def get_value(self, obs):
        return torch.zeros(len(obs))


@pytest.mark.parametrize("kind", ["built-in", "custom"])
@pytest.mark.parametrize("mode", MODES)
def test_torch_policies_get_masks(mode, kind):
    built_in = MlpPolicy(Doors.observation_space, Doors.action_space)
    policy = built_in if kind == "built-in" else Uniform()
    made = make_vec(Doors, 3, seed=0, autoreset_mode=mode)
    batch = collect_rollout(made, policy, 20)
    assert np.take_along_axis(batch.action_masks, batch.actions[..., None], 2).all()
    # Two or three doors of about the same probability.
    assert (np.exp(batch.log_probs[batch.valid]) > 0.25).all()


@pytest.mark.parametrize("name", ["mask", "action_mask", "action_masks"])
@pytest.mark.parametrize("order", ["action=None, {}=None", "*, {}=None, action=None"])
def test_torch_policies_get_masks_by_name(order, name):
    scope = {}
    # So that the parameter's name and place are the case's own.
    code = (
        f"def decide(self, obs, {order.format(name)}): return super_of(self, obs, {name}, action)"
    )
    exec(code, {"super_of": Uniform.get_action_and_logprob}, scope)
    kind = type("Named", (Uniform,), {"get_action_and_logprob": scope["decide"]})
    batch = collect_rollout(make_vec(Doors, 3, seed=0), kind(), 10)
    assert np.take_along_axis(batch.action_masks, batch.actions[..., None], 2).all()

    mask = torch.eye(6, dtype=torch.bool)
    assert sampled(kind(), torch.zeros(6, 6), mask).tolist() == [0, 1, 2, 3, 4, 5]
    log_probs, _, _ = evaluating_actions(kind())(torch.zeros(6, 6), torch.arange(6), mask)
    assert log_probs.tolist() == [0.0] * 6


@pytest.mark.parametrize("order", ["obs, sure=True, mask=None", "obs, *, mask=None", "obs, mask"])
def test_act_gets_masks_by_name(order):

    said = "None if mask is None else mask.float().argmax(1), 1.0, 2.0"
    kind = type("Acts", (Uniform,), {"act": eval(f"lambda self, {order}: ({said})")})
    act, mask = acting(kind()), torch.eye(6, dtype=torch.bool)
    assert act(torch.zeros(6, 6), mask)[0].tolist() == [0, 1, 2, 3, 4, 5]
    if order != "obs, mask":
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
    assert acting(Blind())(obs)[0].tolist() == [5, 5]
    assert acting(Blind())(obs, torch.eye(6, dtype=torch.bool)[:2])[0].tolist() == [0, 1]
    evaluate = evaluating_actions(Blind())
    assert evaluate(obs, last)[0].tolist() == [7.0, 7.0]
    only = torch.eye(6, dtype=torch.bool)[[5, 5]]
    assert evaluate(obs, last, only)[0].tolist() == [0.0, 0.0]


def test_policies_without_a_mask_parameter_are_rejected_with_masks():

    with pytest.raises(TypeError, match=r"policy: expected .*Plain.get_action.* a parameter mask"):
        acting(Plain())(torch.zeros(1, 6), torch.ones(1, 6, dtype=torch.bool))


def test_torch_policies_that_take_no_masks_get_none():
    assert collect_rollout(make_vec(Doors, 2, seed=0), Plain(), 6).action_masks.any()


@pytest.mark.parametrize("shape", [list, tuple, np.asarray])
def test_masks_of_vector_environments_may_be_lists(shape):
    class Listed(gym.vector.VectorEnv):
        """Two environments, of episodes of two and three steps; says its masks as a list."""

        num_envs = 2
        metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
        single_observation_space, single_action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(3)
        at = np.zeros(2)

        def _state(self):
            rows = [at == np.arange(3) for at in self.at]
            return self.at[:, None].astype(np.float32), {"action_mask": shape(rows)}

        def reset(self, *, seed=None, options=None):
            which = (options or {}).get("reset_mask", np.ones(2, bool))
            self.at = np.where(which, 0, self.at)
            obs, infos = self._state()
            # Of those that are not reset nothing is said that holds.
            return obs, {
                "action_mask": shape(
                    [row & w for row, w in zip(infos["action_mask"], which, strict=True)]
                )
            }

        def step(self, actions):
            assert (actions == self.at).all()
            self.at = self.at + 1
            obs, infos = self._state()
            over = self.at == [2, 3]
            return obs, np.ones(2), over, np.zeros(2, bool), infos

    batch = collect_rollout(make_vec(Listed(), seed=0), None, 12)
    assert batch.actions[:, 0].tolist() == [0, 1] * 6
    assert batch.actions[:, 1].tolist() == [0, 1, 2] * 4
