"""A program that trains many for long, in a process group of its own."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import rlox.machine

PROGRAM = """
    import json, sys
    import rlox

    if __name__ == "__main__":
        processes = sys.argv[1] == "True"
        about = dict(backend="native", processes=processes, workers=2)
        results = rlox.train_many("ppo", "CartPole-v1", range(4), 10**9, **about)
        print(json.dumps([[x["interrupted"], x["timesteps"], x["run_dir"]] for x in results]))
"""


def begun(folder, processes):
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    if processes:  # which import the program
        (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
        program = [sys.executable, "program.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    run = subprocess.Popen([*program, str(processes)], cwd=folder, start_new_session=True, **pipes)
    until = time.monotonic() + 60
    try:
        while len([*folder.rglob("metrics.csv")]) < rlox.machine.threads() and run.poll() is None:
            assert time.monotonic() < until
            time.sleep(0.05)
    except BaseException:
        os.killpg(run.pid, signal.SIGKILL)
        raise
    return run
