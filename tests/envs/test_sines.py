"""The float32 sines and cosines of Acrobot's first observation equal NumPy's."""

import numpy as np
import pytest

from rlox import VecEnv

CPU = np._core._multiarray_umath.__cpu_features__


@pytest.mark.skipif(
    not (CPU.get("FMA3") or CPU.get("NEON_VFPV4")), reason="NumPy uses libm for float32 sines on processors without FMA"
)
@pytest.mark.parametrize("bound", [0.1, np.pi, 1000.0, 80_000.0, 1e30])
def test_acrobot_starts_with_numpys_float32_sines(bound):
    env = VecEnv(100_000, env_id="Acrobot-v1", seed=0)
    obs, _ = env.reset(options={"low": -bound, "high": bound})
    state = env._native.states()[:, :2].astype(np.float32)
    assert np.array_equal(obs[:, [0, 2]], np.cos(state))
    assert np.array_equal(obs[:, [1, 3]], np.sin(state))
