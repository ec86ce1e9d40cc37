"""Settings of a small training run, and the result of a command."""

import json
from typing import NamedTuple

SMALL = ["--num-envs", "2", "--n-steps", "16", "--batch-size", "16", "--n-epochs", "2"]
SETTINGS = {"num_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 2}  # `SMALL` as keywords


class Result(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)
