"""`collect_rollout`: what a policy did, what came back, and what it was worth."""

import gymnasium as gym
import numpy as np
import pytest

from rlox import RolloutBatch, RolloutBuffer, VecEnv, collect_rollout, make_vec

torch = pytest.importorskip("torch")


def reference_advantages(batch, last_values, final_values, gamma, lam):
    """The one formula, slowly; final_values (T, N) are read where an episode was truncated."""
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
    """Value and action from fixed weights, no randomness."""

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
def test_advantages_bootstrap_exactly_where_the_formula_says(env_id):
    """Truncations, terminations and the rollout's end; values that tell observations apart."""
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


def test_the_batch_is_views_of_one_buffer():
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


def test_every_kind_of_policy_is_stored_as_it_spoke():
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
def test_random_rollouts_are_seeded_and_know_their_log_probability(env_id, log_prob):
    first, again, other = (collect_rollout(VecEnv(4, seed, env_id), None, 30) for seed in (0, 0, 1))
    assert np.allclose(first.log_probs, log_prob)
    assert (first.values == 0).all()
    assert np.array_equal(first.actions, again.actions)
    assert np.array_equal(first.advantages, again.advantages)
    assert not np.array_equal(first.actions, other.actions)


def test_rollouts_go_on_where_the_last_ended_and_old_batches_stay_whole():
    env, twin = VecEnv(2, 0), VecEnv(2, 0)

    def policy(obs):
        return (obs[:, 3] > 0).astype(np.int64)

    first = collect_rollout(env, policy, 30)
    kept = first.obs.copy()
    second = collect_rollout(env, policy, 30)
    whole = twin.collect_n_steps(60, policy)["obs"]
    assert np.array_equal(np.concatenate([first.obs, second.obs]), whole)
    assert np.array_equal(first.obs, kept)


def test_foreign_environments_roll_out_too_from_their_seed():
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


def test_a_truncated_time_limit_is_worth_its_bootstrap():
    """Constant reward and values of 1 / (1 - gamma): every advantage is 0, time limits or not."""
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
def test_what_is_wrong_is_said_before_the_environments_move(kwargs, error, words):
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


def test_a_buffers_own_fields_may_be_passed_back_to_it():
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


def test_a_policy_that_writes_to_its_observations_changes_no_rollout():
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
