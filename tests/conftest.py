"""What all tests share: no window for pygame, Ctrl-C, and one Hypothesis profile."""

import os
import signal

import hypothesis

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

# A shell's background job, and all that it starts, is born with interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Time limits are pytest's affair, and a failure found once shall be found again.
hypothesis.settings.register_profile("rlox", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("rlox")
