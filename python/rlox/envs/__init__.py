"""Native and Gymnasium environments, and the vector environments for rollouts."""

from rlox.envs._make import make_vec
from rlox.envs._rollout_env import RolloutEnv
from rlox.envs.gymnasium import GymVecEnv
from rlox.envs.native import NativeEnv, register_env
from rlox.envs.vec_env import VecEnv

__all__ = ["GymVecEnv", "NativeEnv", "RolloutEnv", "VecEnv", "make_vec", "register_env"]
