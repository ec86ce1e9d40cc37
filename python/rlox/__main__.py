"""`python -m rlox`: the command line, as `rlox`."""

import sys

from rlox.cli import main

if __name__ == "__main__":
    sys.exit(main())
