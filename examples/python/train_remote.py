"""Start two workers, train IMPALA on CartPole-v1 with their rollouts, and evaluate the policy.

Run it with `python examples/python/train_remote.py`.

To use other machines, start `rlox worker` with TLS and a token on each machine. Then pass the
addresses of these workers after `grpcs://` in `actors=`.
"""

import subprocess
import sys
from contextlib import ExitStack

from rlox.trainers import IMPALATrainer

with ExitStack() as stack:
    addresses = []
    for _ in range(2):
        command = [sys.executable, "-m", "rlox", "worker"]
        worker = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(worker.terminate)
        assert worker.stdout is not None
        addresses.append(worker.stdout.readline().split()[3].removeprefix("http://"))
    print(f"workers         {', '.join(addresses)}")

    actors = f"grpc://{','.join(addresses)}"
    with IMPALATrainer("CartPole-v1", seed=1, num_envs=16, num_actors=2, actors=actors, runs_dir=None) as trainer:
        result = trainer.train(total_timesteps=500_000)
        score = trainer.evaluate(n_episodes=30)
    print(f"steps           {result['timesteps']:,} in {result['seconds']:.1f} s")
    print(f"score           {score['mean_reward']:.1f} +- {score['std_reward']:.1f}")
