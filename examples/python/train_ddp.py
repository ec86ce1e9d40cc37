"""Train PPO on CartPole-v1 in several processes and evaluate the policy.

Run it with `torchrun --nproc-per-node 2 examples/python/train_ddp.py`.
"""

import logging
from pathlib import Path

from rlox.distributed import ddp

logging.basicConfig(format="%(message)s")

with ddp.group() as group:
    # Settings are totals over all processes; each process steps its share of the environments.
    trainer = group.trainer("ppo", "CartPole-v1", seed=42)
    result = trainer.train(total_timesteps=100_000)
    if group.rank == 0:
        score = trainer.evaluate(n_episodes=30)
        print(f"processes       {group.size}, {trainer.config.num_envs} environments")
        print(f"steps           {result['timesteps']:,} in {result['seconds']:.1f} s")
        print(f"score           {score['mean_reward']:.1f} +- {score['std_reward']:.1f}")
        print(f"run folder      {Path(result['run_dir'] or '.')}")
