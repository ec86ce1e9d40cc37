"""What cannot fit into memory raises MemoryError; the system does not end the process for it."""

import pytest

import rlox
from rlox._rlox import available_memory

torch = pytest.importorskip("torch")

from rlox.networks import mlp  # noqa: E402
from rlox.trainers import A2CTrainer, PPOTrainer  # noqa: E402

FREE = available_memory()


@pytest.mark.skipif(FREE is None, reason="the system does not tell how much memory is free")
def test_free_memory_is_less_than_there_is():
    assert 2**20 < FREE < 2**50


@pytest.mark.parametrize("kind", [PPOTrainer, A2CTrainer])
@pytest.mark.parametrize("widths", [(10**9,), (10**6, 10**6), (2**62,), (2**31, 2**31)])
def test_networks_that_do_not_fit_are_refused(kind, widths):
    with pytest.raises(MemoryError, match=f"net_arch: .*{widths[0]}.*ask for less"):
        kind("CartPole-v1", net_arch=widths, runs_dir=None)


@pytest.mark.skipif(FREE is None, reason="the system does not tell how much memory is free")
def test_what_training_needs_counts_not_only_the_weights():
    width = FREE // 16  # one layer of so many weights alone would fit
    with pytest.raises(MemoryError, match="net_arch"):
        mlp([1, width], torch.nn.Tanh, 1.0, ortho_init=False)


@pytest.mark.parametrize("policy", [None, lambda obs: [0] * len(obs)])
def test_steps_that_do_not_fit_together_are_refused(policy):
    env = rlox.VecEnv(n=2, seed=0)
    n = (2**45 if FREE is None else FREE) // 80  # every array alone would fit
    with pytest.raises(MemoryError, match=f"n: expected .*got {n}"):
        env.collect_n_steps(n, policy)
    assert env.collect_n_steps(3)["obs"].shape == (3, 2, 4)
