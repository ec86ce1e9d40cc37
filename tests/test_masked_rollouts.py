"""Rollouts keep to what environments allow, whoever decides on the actions."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from masked_envs import Doors, Locks, Method, Switches
from rlox import collect_rollout, make_vec
from rlox.masks import as_masks, mask_parameter, random_allowed

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
def test_only_unlocked_doors_are_opened(mode, how, env, policy):
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
def test_random_switches_are_those_that_can_be_thrown(mode):
    made = make_vec(Switches, 2, seed=1, autoreset_mode=mode)
    batch = collect_rollout(made, None, 40)
    assert batch.action_masks.shape == (40, 2, 8)
    flags = batch.action_masks.reshape(40, 2, 4, 2)
    assert np.take_along_axis(flags, batch.actions.reshape(40, 2, 4, 1), 3).all()
    assert batch.actions.shape == (40, 2, 2, 2)
    assert np.allclose(batch.log_probs, -np.log(2) * flags.all(3).sum(2))


@pytest.mark.parametrize("mode", MODES)
def test_random_keys_fit_all_locks(mode):
    batch = collect_rollout(make_vec(Locks, 2, seed=1, autoreset_mode=mode), None, 12)
    assert batch.action_masks.shape == (12, 2, 5)
    counts = batch.action_masks[..., :2].sum(2) * batch.action_masks[..., 2:].sum(2)
    assert np.allclose(batch.log_probs, -np.log(counts))


def test_a_reset_of_some_that_says_nothing_leaves_the_masks_of_the_others():
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
def test_environments_without_masks_have_none_and_stay_as_they_are(how):
    made = make_vec("CartPole-v1", 2, seed=0, vectorization_mode=how)
    given = []
    batch = collect_rollout(made, lambda obs, mask: [given.append(mask), [0, 1]][1], 4)
    assert batch.action_masks is None
    assert set(given) == {None}
    collect_rollout(made, lambda obs, mask=3: [given.append(mask), [0, 1]][1], 1)
    assert given[-1] == 3
    assert collect_rollout(made, None, 4).action_masks is None
    made.close()


def test_a_policy_without_such_a_parameter_gets_observations_alone():
    made = make_vec(Doors, 2, seed=0)
    batch = collect_rollout(made, lambda obs, sign=1: 10 + (sign * obs).argmax(1), 8)
    assert batch.action_masks.any()


def test_values_of_last_observations_are_asked_for_where_all_is_allowed():
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
def test_masks_that_are_no_flags_are_refused(said):
    class Odd(gym.Env):
        observation_space, action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {"action_mask": np.array(said)}

        def step(self, action):
            return np.zeros(1, np.float32), 0.0, False, False, {"action_mask": np.array(said)}

    with pytest.raises((TypeError, ValueError), match=r"^action_mask: expected flags"):
        collect_rollout(make_vec(Odd, 2), None, 3)


def test_masks_of_other_actions_and_masks_that_allow_nothing_are_refused():
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


def test_the_parameter_for_masks_is_found_by_its_name():
    assert mask_parameter(lambda obs, action_mask=None: 0).name == "action_mask"
    assert mask_parameter(lambda obs, rng: 0) is None
    assert mask_parameter(max) is None


def test_a_component_that_is_allowed_nothing_is_refused():
    with pytest.raises(ValueError, match=r"action_masks: .*of each component.*none in row 0"):
        as_masks([[True, True, False, False, False]], spaces.MultiDiscrete([2, 3]), 1)


def policies():
    torch = pytest.importorskip("torch")
    from rlox.policies import MlpPolicy

    class Own(torch.nn.Module):
        """Opens what the mask allows, uniformly; does without `act`."""

        def get_action_and_logprob(self, obs, mask=None, action=None):
            logits = torch.zeros(len(obs), 6)
            if mask is not None:
                logits = logits.masked_fill(~mask, -1e9)
            choice = torch.distributions.Categorical(logits=logits)
            action = choice.sample() if action is None else action
            return action, choice.log_prob(action), choice.entropy()

        def get_value(self, obs):
            return torch.zeros(len(obs))

    return [MlpPolicy(Doors.observation_space, Doors.action_space), Own()]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_torch_policies_get_the_masks_as_trainers_give_them(mode, which):
    policy = policies()[which]
    made = make_vec(Doors, 3, seed=0, autoreset_mode=mode)
    batch = collect_rollout(made, policy, 20)
    assert np.take_along_axis(batch.action_masks, batch.actions[..., None], 2).all()
    # Two or three doors of about the same probability.
    assert (np.exp(batch.log_probs[batch.valid]) > 0.25).all()


@pytest.mark.parametrize("name", ["mask", "action_mask", "action_masks"])
@pytest.mark.parametrize("order", ["action=None, {}=None", "*, {}=None, action=None"])
def test_torch_policies_get_masks_by_name_wherever_they_take_them(order, name):
    torch = pytest.importorskip("torch")
    own = type(policies()[1])
    scope = {}
    # So that the parameter's name and place are the case's own.
    code = (
        f"def decide(self, obs, {order.format(name)}): return super_of(self, obs, {name}, action)"
    )
    exec(code, {"super_of": own.get_action_and_logprob}, scope)
    kind = type("Named", (own,), {"get_action_and_logprob": scope["decide"]})
    batch = collect_rollout(make_vec(Doors, 3, seed=0), kind(), 10)
    assert np.take_along_axis(batch.action_masks, batch.actions[..., None], 2).all()

    from rlox.policies import evaluating_actions, sampled

    mask = torch.eye(6, dtype=torch.bool)
    assert sampled(kind(), torch.zeros(6, 6), mask).tolist() == [0, 1, 2, 3, 4, 5]
    log_probs, _, _ = evaluating_actions(kind())(torch.zeros(6, 6), torch.arange(6), mask)
    assert log_probs.tolist() == [0.0] * 6


@pytest.mark.parametrize("order", ["obs, sure=True, mask=None", "obs, *, mask=None", "obs, mask"])
def test_an_act_gets_masks_by_name_wherever_it_takes_them(order):
    torch = pytest.importorskip("torch")
    from rlox.policies import acting

    said = "None if mask is None else mask.float().argmax(1), 1.0, 2.0"
    kind = type("Acts", (type(policies()[1]),), {"act": eval(f"lambda self, {order}: ({said})")})
    act, mask = acting(kind()), torch.eye(6, dtype=torch.bool)
    assert act(torch.zeros(6, 6), mask)[0].tolist() == [0, 1, 2, 3, 4, 5]
    if order != "obs, mask":
        assert act(torch.zeros(6, 6)) == (None, 1.0, 2.0)


def test_an_act_that_takes_no_masks_is_passed_over():
    torch = pytest.importorskip("torch")

    class Blind(type(policies()[1])):
        def act(self, obs):
            return torch.full((len(obs),), 5), torch.zeros(len(obs)), torch.zeros(len(obs))

        def evaluate_actions(self, obs, action):
            return (torch.full((len(obs),), 7.0),) * 3

    batch = collect_rollout(make_vec(Doors, 3, seed=0), Blind(), 10)
    assert np.take_along_axis(batch.action_masks, batch.actions[..., None], 2).all()

    from rlox.policies import acting, evaluating_actions

    obs, last = torch.zeros(2, 6), torch.full((2,), 5)
    assert acting(Blind())(obs)[0].tolist() == [5, 5]
    assert acting(Blind())(obs, torch.eye(6, dtype=torch.bool)[:2])[0].tolist() == [0, 1]
    evaluate = evaluating_actions(Blind())
    assert evaluate(obs, last)[0].tolist() == [7.0, 7.0]
    only = torch.eye(6, dtype=torch.bool)[[5, 5]]
    assert evaluate(obs, last, only)[0].tolist() == [0.0, 0.0]


def test_masks_that_nobody_takes_are_not_dropped_where_they_must_be_kept_to():
    torch = pytest.importorskip("torch")
    from rlox.policies import acting

    class Plain(torch.nn.Module):
        def get_action_and_logprob(self, obs):
            return obs.argmax(1), torch.zeros(len(obs))

    with pytest.raises(TypeError, match=r"policy: expected .*Plain.get_action.* a parameter mask"):
        acting(Plain())(torch.zeros(1, 6), torch.ones(1, 6, dtype=torch.bool))


def test_torch_policies_that_take_no_masks_get_none():
    torch = pytest.importorskip("torch")

    class Plain(torch.nn.Module):
        def get_action_and_logprob(self, obs):
            return obs.argmax(1), torch.zeros(len(obs))

        def get_value(self, obs):
            return torch.zeros(len(obs))

    assert collect_rollout(make_vec(Doors, 2, seed=0), Plain(), 6).action_masks.any()


@pytest.mark.parametrize("shape", [list, tuple, np.asarray])
def test_masks_of_environments_that_reset_by_mask_may_be_lists(shape):
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
