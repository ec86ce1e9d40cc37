"""Settings of all tests: threads, signals, a dummy video driver and Hypothesis profiles."""

import os
import signal

import hypothesis

# Workers of pytest-xdist share the cores. Libraries read these variables when they are imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for threads in ("OMP", "MKL", "RAYON", "RLOX"):
        os.environ[f"{threads}_NUM_THREADS"] = "1"

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

# A shell's background jobs inherit an ignored SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest-timeout limits the time. Derandomised examples repeat a failure.
# `pytest --hypothesis-profile thorough` chooses the second profile.
for profile, examples in {"quick": 20, "thorough": 100}.items():
    hypothesis.settings.register_profile(profile, deadline=None, derandomize=True, max_examples=examples)
hypothesis.settings.load_profile("quick")
