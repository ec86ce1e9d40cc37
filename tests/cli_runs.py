"""What tests of the command line share: settings of a small run, and what a command said."""

import json
from typing import NamedTuple

SMALL = ["--num-envs", "2", "--n-steps", "16", "--batch-size", "16", "--n-epochs", "2"]


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)
