"""Train PPO on CartPole-v1 and evaluate the policy in 30 episodes of Gymnasium's CartPole."""

import logging
import sys
from pathlib import Path

from rlox.trainers import PPOTrainer

logging.basicConfig(format="%(message)s")

trainer = PPOTrainer(env="CartPole-v1", seed=42)
result = trainer.train(total_timesteps=100_000, progress_bar=True)
score = trainer.evaluate(n_episodes=30)

run = Path(result["run_dir"] or ".")
print(f"steps           {result['timesteps']:,} in {result['seconds']:.1f} s")
mean, std = score["mean_reward"], score["std_reward"]
print(f"score           {mean:.1f} +- {std:.1f} (30 episodes, at most 500)")
print(f"run folder      {run}")
print(f"learning curve  {run / 'curve.png'}")
if result["interrupted"]:
    sys.exit(130)
