"""Run all benchmarks one after the other.

    python benches/python/make_peers.py                   # once: the libraries to compare with
    python benches/python/run_all.py                      # everything, about an hour
    python benches/python/run_all.py --quick --no-peers   # a check, under a minute

Measurements are saved in benchmark_results/. The exit code is 1 if rlox failed.
"""

from __future__ import annotations

import sys

import bench_a2c_cartpole
import bench_buffer_ops
import bench_distributed
import bench_e2e_rollout
import bench_env_stepping
import bench_gae
import bench_llm_ops
import bench_many_learners
import bench_nn_backends
import bench_off_policy
import bench_ppo_cartpole
import bench_ppo_pendulum
import bench_returns
import bench_trainer_overhead
import bench_trl_comparison
import bench_vtrace
from side_by_side import arguments, run

BENCHMARKS = [
    bench.BENCHMARK
    for bench in (
        bench_gae,
        bench_vtrace,
        bench_returns,
        bench_env_stepping,
        bench_e2e_rollout,
        bench_buffer_ops,
        bench_llm_ops,
        bench_trl_comparison,
        bench_nn_backends,
        bench_ppo_cartpole,
        bench_a2c_cartpole,
        bench_ppo_pendulum,
        bench_off_policy,
        bench_many_learners,
        bench_trainer_overhead,
        bench_distributed,
    )
]


def main() -> int:
    """Run the benchmarks with the options of the command line."""
    options = arguments("Measures rlox against its peers.").parse_args()
    return max([run(benchmark, options) for benchmark in BENCHMARKS])


if __name__ == "__main__":
    sys.exit(main())
