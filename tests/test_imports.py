"""What is imported when: torch where it is asked for, its compiler not at all."""

import subprocess
import sys

PROGRAM = """
import sys
import rlox
assert "torch" not in sys.modules and "matplotlib" not in sys.modules and "rich" not in sys.modules
from rlox.trainers import PPOTrainer
trainer = PPOTrainer(env="CartPole-v1", seed=0, backend="torch", runs_dir=None)
trainer.train(1)
trainer.evaluate(1)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules])
"""


def test_training_starts_without_torchs_compiler():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert run.stdout == "[]\n"
