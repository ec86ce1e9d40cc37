"""Entry point of `python -m rlox`, which is the same as the command `rlox`."""

import sys

from rlox.cli import main

if __name__ == "__main__":
    sys.exit(main())
