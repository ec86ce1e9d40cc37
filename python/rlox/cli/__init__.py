"""The command `rlox`: what a day around training needs, from a terminal. `docs/cli.md` shows it.

Needs the extra `rlox[cli]`; a module is a command, and is imported when it is called.
"""

from rlox.cli.commands import main

__all__ = ["main"]
