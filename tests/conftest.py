"""What all tests share: no window for pygame, and one Hypothesis profile."""

import os

import hypothesis

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

# Time limits are pytest's affair, and a failure found once shall be found again.
hypothesis.settings.register_profile("rlox", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("rlox")
