"""Train PPO on the courier, a custom environment in Rust.

    pip install ./examples/rust/env_plugin
    python examples/rust/env_plugin/train.py

The id `courier_env:Courier-v0` names the module that registers the environment. Action masks keep
the courier inside its square.
"""

from rlox.trainers import PPOTrainer


def main() -> None:
    """Train PPO and evaluate 100 episodes."""
    with PPOTrainer(
        "courier_env:Courier-v0",
        seed=1,
        num_envs=16,
        n_steps=128,
        batch_size=256,
        learning_rate=1e-3,
        action_masks=True,
        runs_dir=None,
    ) as trainer:
        before = trainer.evaluate(100, deterministic=False)["mean_reward"]
        trainer.train(total_timesteps=100_000)
        after = trainer.evaluate(100)["mean_reward"]
    print(f"mean return before {before:.2f}, after {after:.2f}, of about 1.7 at best")


if __name__ == "__main__":
    main()
