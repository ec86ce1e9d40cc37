"""`rlox plot`: runs become lines, seeds bands."""

import json

import pytest


def run(folder, values, env="CartPole-v1", elapsed=None, **settings):
    folder.mkdir(parents=True)
    about = {"algorithm": "ppo", "env": env, "backend": "native"}
    about |= {"settings": settings, "env_kwargs": {}}
    (folder / "config.json").write_text(json.dumps(about))
    rows = ["time/total_timesteps,time/time_elapsed,rollout/ep_rew_mean"]
    times = elapsed or range(1, len(values) + 1)
    rows += [f"{64 * i},{t},{x}" for i, (t, x) in enumerate(zip(times, values, strict=True), 1)]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")


@pytest.fixture
def runs(tmp_path):
    for seed in range(3):
        run(tmp_path / "runs" / f"a-{seed}", ["", 1.0 + seed, 2.0 + seed], gamma=0.9)
    run(tmp_path / "runs" / "b", [5.0, 6.0], gamma=0.8)
    return tmp_path / "runs"


def test_seeds_of_the_same_settings_are_one_line(rlox, runs, tmp_path):
    said = rlox("plot", runs, "--json")
    assert (said.code, said.err) == (0, "")
    assert said.json["lines"] == [
        "ppo CartPole-v1 native, gamma 0.9 (3 runs)",
        "ppo CartPole-v1 native, gamma 0.8",
    ]
    assert said.json["image"] == "curves.png"
    assert (tmp_path / "curves.png").read_bytes()[1:4] == b"PNG"


def test_a_diagnosis_is_no_run_of_its_own(rlox, runs):
    run(runs / "a-0" / "diagnosis", ["", 1.0, 2.0], gamma=0.9)
    assert (
        "ppo CartPole-v1 native, gamma 0.9 (3 runs)" in rlox("plot", runs, "--json").json["lines"]
    )
    said = rlox("plot", runs / "a-0" / "diagnosis", "--json")
    assert said.json["lines"] == ["ppo CartPole-v1 native"]


def test_without_bands_every_run_is_a_line(rlox, runs):
    assert len(rlox("plot", runs, "--no-bands", "--json").json["lines"]) == 4


def test_a_run_named_twice_is_drawn_once(rlox, runs):
    assert len(rlox("plot", runs / "b", runs, "--json").json["runs"]) == 4


def test_one_run_gets_its_picture_beside_it(rlox, runs):
    said = rlox("plot", runs / "b", "--x", "time", "--smooth", "2")
    assert said.out.splitlines() == ["ppo CartPole-v1 native", f"drawn into {runs / 'b'}/curve.png"]
    assert (runs / "b" / "curve.png").exists()


def test_the_ending_says_what_the_picture_is(rlox, runs, tmp_path):
    assert rlox("plot", runs, "--out", "a.svg", "--title", "Ours").code == 0
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_a_run_of_this_package_is_drawn(rlox, copied):
    assert rlox("plot", copied, "--metric", "time/fps").code == 0
