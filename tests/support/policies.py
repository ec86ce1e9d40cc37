"""Minimal policies."""

from torch import nn
from torch.distributions import Categorical


class Coin(nn.Module):
    """Policy with the required methods only, which samples with torch's global generator."""

    def __init__(self, observation_space, action_space):
        super().__init__()
        self.actor = nn.Linear(observation_space.shape[0], int(action_space.n))
        self.critic = nn.Linear(observation_space.shape[0], 1)

    def get_action_and_logprob(self, obs, mask=None, action=None):
        pi = Categorical(logits=self.actor(obs))
        action = pi.sample() if action is None else action
        return action, pi.log_prob(action), pi.entropy()

    def get_value(self, obs):
        return self.critic(obs)[:, 0]
