"""What rlox offers, found by introspection: callables by name, with their parameters."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import rlox

# Modules that users do not call, and what stands for them here.
INNER = {
    "rlox.actor_critic": "rlox.policies offers it",
    "rlox.action_spaces": "asked by learners: test_off_policy_bounds.py and others",
    "rlox.actor_processes": "serves learners: test_actor_processes.py has refusals",
    "rlox.actors": "serves learners: test_actors.py has refusals",
    "rlox.collector": "serves rlox.actor_processes",
    "rlox.adam": "optimisers of the learners: tensors of their own making",
    "rlox.algorithms.a2c": "rlox.algorithms offers what users call; the loss takes tensors",
    "rlox.algorithms.dqn": "rlox.algorithms offers what users call; the loss takes tensors",
    "rlox.algorithms.impala": "rlox.algorithms offers what users call; the loss takes tensors",
    "rlox.algorithms.ppo": "rlox.algorithms offers what users call; the loss takes tensors",
    "rlox.algorithms.sac": "rlox.algorithms offers what users call; the loss takes tensors",
    "rlox.algorithms.td3": "rlox.algorithms offers what users call; the loss takes tensors",
    "rlox.backends": "serves trainers: test_backends.py",
    "rlox.base_learner": "rlox.native and rlox.algorithms offer what users call",
    "rlox.batches": "tensors that learners take from their buffers",
    "rlox.callbacks.base": "rlox.callbacks offers it",
    "rlox.callbacks.checkpointing": "rlox.callbacks offers it",
    "rlox.callbacks.evaluating": "rlox.callbacks offers it",
    "rlox.callbacks.progress": "rlox.callbacks offers it",
    "rlox.callbacks.saving": "serves rlox.callbacks",
    "rlox.callbacks.states": "serves checkpoints: tests/callbacks/test_states.py",
    "rlox.callbacks.stopping": "rlox.callbacks offers it",
    "rlox.callbacks.timing": "rlox.callbacks offers it",
    "rlox.callbacks.video": "rlox.callbacks offers it",
    "rlox.cli": "takes words: tests/cli/test_errors.py",
    "rlox.collecting": "serves VecEnv.collect_n_steps",
    "rlox.configs": "rlox.algorithms offers what users call",
    "rlox.contract": "serves make_vec, ForeignVecEnv and evaluate: test_foreign.py",
    "rlox.critics": "serves off-policy learners",
    "rlox.crossing": "serves off-policy learners: Trainer.load",
    "rlox.diagnosis": "writes files: test_diagnosis.py",
    "rlox.distributions": "tensors that policies give",
    "rlox.distributed.ray": "needs a cluster: tests/distributed/test_ray.py has refusals",
    "rlox.distributed.ray_actors": "serves learners: tests/distributed/test_ray.py",
    "rlox.distributed.remote": "needs workers: tests/distributed/test_remote.py has refusals",
    "rlox.every": "rlox.callbacks offers it",
    "rlox.exploring": "rlox.algorithms offers what users call",
    "rlox.extras": "serves what needs packages of its own",
    "rlox.files": "serves checkpoints: tests/test_crowded_checkpoints.py",
    "rlox.exporting": "takes trained policies: test_exporting.py has refusals",
    "rlox.featured": "serves off-policy learners",
    "rlox.features": "MlpPolicy makes its features of any space",
    "rlox.finite": "looks at what was collected",
    "rlox.foreign": "rlox.vector offers it",
    "rlox.frames": "serves off-policy learners",
    "rlox.goals": "serves off-policy learners",
    "rlox.hindsight": "rlox offers it",
    "rlox.ids": "serves VecEnv and make_vec",
    "rlox.keywords": "serves whatever takes keywords",
    "rlox.learner": "states of learners: Trainer.load",
    "rlox.loading": "takes a checkpoint: test_loading.py has refusals",
    "rlox.layouts": "serves ForeignVecEnv, collect_rollout and Trainer.predict",
    "rlox.logger": "files and services: tests/logger has refusals",
    "rlox.logger.base": "rlox.logger offers it",
    "rlox.logger.console": "rlox.logger offers it",
    "rlox.logger.csv_file": "rlox.logger offers it",
    "rlox.logger.json_lines": "rlox.logger offers it",
    "rlox.logger.mlflow": "rlox.logger offers it",
    "rlox.logger.run_folder": "rlox.logger offers it",
    "rlox.logger.tensorboard": "rlox.logger offers it",
    "rlox.logger.wandb": "rlox.logger offers it",
    "rlox.loop": "serves Trainer.train: test_loop.py",
    "rlox.machine": "serves the command line and train_many",
    "rlox.many": "trains for seconds: test_many.py has refusals",
    "rlox.many.arguments": "serves train_many: test_many.py has refusals",
    "rlox.many.in_processes": "serves train_many",
    "rlox.many.in_threads": "serves train_many",
    "rlox.many.together": "rlox.many offers it",
    "rlox.manifest": "serves Trainer.save and Trainer.load",
    "rlox.mask_source": "serves ForeignVecEnv and evaluate: test_mask_source.py",
    "rlox.masks": "serves learners",
    "rlox.members": "serves write_checkpoint: test_members.py",
    "rlox.memory": "serves VecEnv, make_vec and collect_n_steps",
    "rlox.metrics": "reads files: test_plotting.py has refusals",
    "rlox.native_learner": "rlox.native offers what users call",
    "rlox.native_shapes": "serves native learners",
    "rlox.native_state": "serves native learners",
    "rlox.networks": "serves policies",
    "rlox.noise": "settings: TD3Trainer's action_noise; the process serves learners",
    "rlox.on_policy_learner": "serves learners, which are called",
    "rlox.observations": "serves Trainer.predict",
    "rlox.off_policy_learner": "rlox.algorithms offers what users call",
    "rlox.own_networks": "the caller's networks: test_off_policy_learning.py has refusals",
    "rlox.optimizer": "optimisers of the learners: tensors of their own making",
    "rlox.phases": "serves learners and TimingCallback",
    "rlox.plain": "serves Trainer.save and Trainer.load: test_snapshots.py has refusals",
    "rlox.plotting": "draws files that RunFolder wrote: test_plotting.py has refusals",
    "rlox.presets": "serves trainers",
    "rlox.replaying": "serves off-policy learners",
    "rlox.attributes": "serves VecEnv and NativeEnv",
    "rlox.rendering": "serves VecEnv.render and NativeEnv.render",
    "rlox.worker_addresses": "asked by settings: distributed/test_remote.py has refusals",
    "rlox.recipes": "serves learners: test_actor_processes.py has refusals",
    "rlox.registered": "serves make_vec",
    "rlox.resets": "serves VecEnv, NativeEnv and make_vec",
    "rlox.restoring": "serves Trainer.save and Trainer.load",
    "rlox.results": "types of dicts",
    "rlox.rmsprop": "optimisers of the learners: tensors of their own making",
    "rlox.rotation": "serves callbacks: tests/callbacks/test_checkpointing.py",
    "rlox.rollout": "rlox and rlox.vector offer what users call",
    "rlox.sb3": "around trainers: tests/sb3/test_errors.py",
    "rlox.scores": "test_scores.py has refusals",
    "rlox.settings": "serves every constructor in Python",
    "rlox.snapshots": "serves ForeignVecEnv: test_snapshots.py has refusals",
    "rlox.spaces": "serves environments",
    "rlox.squashed": "serves off-policy learners",
    "rlox.standing": "serves ForeignVecEnv: test_snapshots.py has refusals",
    "rlox.stepping": "serves off-policy learners",
    "rlox.streams": "serves environments",
    "rlox.storage": "serves ForeignVecEnv",
    "rlox.told_spaces": "serves rlox.load: test_loading.py has refusals",
    "rlox.torch_learner": "rlox.algorithms offers what users call",
    "rlox.torch_state": "serves learners",
    "rlox.transitions": "serves off-policy learners",
    "rlox.trainer": "rlox.trainers offers it",
    "rlox.uniform": "serves collect_rollout and collect_n_steps",
    "rlox.vec_env": "rlox offers it",
    "rlox.warning": "serves all others: tests/test_warning.py",
    "rlox.workers": "serves ForeignVecEnv",
}
INNER |= {f"rlox.presets.{name}": "data" for name in ("a2c", "dqn", "ppo", "sac", "td3")}
_COMMANDS = ("_args", "doctor", "inspect", "sweep", "train", "worker")
INNER |= {f"rlox.cli.{name}": "serves rlox.cli.main" for name in _COMMANDS}
_SB3 = "callbacks convert evaluation kwargs models zoo"
INNER |= {f"rlox.sb3.{name}": "serves rlox.sb3: tests/sb3/test_errors.py" for name in _SB3.split()}
_DDP = ("alike", "ddp", "groups", "learners", "meeting", "merging", "peers", "place", "ranks")
_DDP += ("shares", "states", "trainers")
INNER |= {f"rlox.distributed.{name}": "needs torchrun: tests/distributed" for name in _DDP}
for _name in ("", ".space", ".study", ".worker"):
    INNER[f"rlox.sweep{_name}"] = "serves rlox.cli.main: tests/cli/test_sweep.py"
# Modules that do without torch and have all that the groups but training call.
WITHOUT_TORCH = (
    "rlox",
    "rlox._rlox",
    "rlox.envs",
    "rlox.native",
    "rlox.native_off_policy",
    "rlox.vector",
)
# Callables that are not called here: a class stands for all of its methods.
LEFT_OUT = {
    "ArgumentError": "an exception",
    "ArgumentTypeError": "an exception",
    "ClosedError": "an exception",
    "CorruptFileError": "an exception",
    "NonFiniteError": "an exception",
    "OutOfMemoryError": "an exception",
    "RolloutBatch": "a dataclass of results, without code: collect_rollout makes it",
    "Checkpoint": "a dataclass of results, without code: read_checkpoint makes it",
    "TrainResult": "only a type of dicts: Trainer.train gives one",
    "ActorCritic": "a protocol: describes what others do",
    "RolloutEnv": "a protocol: describes what others do",
    "Predictor": "a protocol: describes what others do",
    "Trainer": "has no algorithm: PPOTrainer and others, which have one, are called",
    "ReplayConfig": "has no algorithm: DQNConfig and others, which have one, are called",
    "make_policy": "serves learners, whose `policy` it is: test_policies.py has refusals",
    "acting": "serves learners, of modules that check_policy accepted",
    "evaluating_actions": "serves learners, of modules that check_policy accepted",
    "greedy": "serves learners, of modules that check_policy accepted",
    "sampled": "serves learners, of modules that check_policy accepted",
    "VideoRecordingCallback": "needs a package of its own: tests/callbacks/test_video.py",
    "Every.start": "serves callbacks, which give it their trainer's timesteps",
    "Every.due": "serves callbacks, which give it their trainer's timesteps",
    "environment_of": "serves Trainer.evaluate and callbacks: tests/callbacks has refusals",
    "expect_maker": "serves evaluate and callbacks: tests/callbacks has refusals",
    "corrupt": "serves read_checkpoint, and makes an exception of texts",
    "expect_keys": "serves read_checkpoint: test_checkpoint.py has damaged files",
    "ForeignVecEnv.action_masks": "takes nothing: test_masked_rollouts.py",
    "ForeignVecEnv.final_action_masks": "serves learners: test_mask_source.py",
    "ForeignVecEnv.get_state": "takes nothing: test_snapshots.py",
    "ForeignVecEnv.set_state": "takes what get_state gave: test_snapshots.py has refusals",
    "train_many": "trains for seconds: test_many.py has refusals",
    "load": "takes a checkpoint: test_loading.py has refusals",
    "VecEnv.action_masks": "refuses all without masks, else NativeVectorEnv's: test_env_plugin.py",
    "VecEnv.final_action_masks": "serves learners: test_env_plugin.py",
    "NativeVectorEnv.final_action_masks": "takes nothing: test_env_plugin.py",
    "register_env": "takes a capsule of another module: test_env_plugin.py",
    "check_normalizer": "serves ForeignVecEnv: test_foreign.py",
    "check_step": "serves ForeignVecEnv: test_foreign.py",
    "GoalReplayBuffer": "HindsightReplayBuffer is called",
    "HindsightReplayBuffer.load": "takes a function beside a path: test_hindsight.py",
    "from_arrow": "takes a table of another library, which may be missing: test_interchange.py",
    "from_minari": "takes a data set of another library, which may be missing: test_interchange.py",
    "to_arrow": "takes a buffer, and needs another library: test_interchange.py",
    "MmapReplayBuffer.load_state": "takes only what is of its own file: test_replay_state.py",
    "MmapReplayBuffer.close": "takes nothing, and leaves nothing to look at: test_mmap_replay.py",
    "remote_actors": "needs workers: tests/distributed/test_remote.py",
    "remote_env": "needs workers: tests/distributed/test_remote.py",
    "run_worker": "lasts: tests/distributed/test_remote.py has refusals",
    "NativeActors.calling": "calls what it is given: test_actor_processes.py",
    "NativeActors.publish_object": "takes anything, for actors in Python: test_actor_processes.py",
    "NativeActors.close": "takes nothing, and leaves nothing to look at: test_actors.py",
    "SdePolicy.reset_noise": "serves learners, which know how many rows there are",
}
for _kind in ("PPO", "A2C", "IMPALA", "NativePPO", "NativeA2C", "NativeIMPALA"):
    for _name in ("gather", "take"):
        LEFT_OUT[f"{_kind}.{_name}"] = "serves `Collector`: test_actor_processes.py"
for _kind in ("NativePPO", "NativeA2C", "NativeIMPALA"):
    for _name in ("collect", "update", "learn", "first_seed"):
        LEFT_OUT[f"{_kind}.{_name}"] = "a step of `iterate`"
    for _name in ("state", "load_state"):
        LEFT_OUT[f"{_kind}.{_name}"] = "Trainer.save and load"
    LEFT_OUT[f"{_kind}.to_torch"] = "takes nothing"
    LEFT_OUT[f"{_kind}.load_torch"] = "takes a torch module, whose tensors NativePolicy.load takes"
for _kind in ("NativeDQN", "NativeSAC", "NativeTD3"):
    LEFT_OUT[f"{_kind}.first_seed"] = "a step of `iterate`"
    for _name in ("state", "load_state"):
        LEFT_OUT[f"{_kind}.{_name}"] = "takes what the other gave: test_native_off_policy.py"
for _name in ("batches", "divergence", "metrics"):
    LEFT_OUT[f"PPO.{_name}"] = "a step of `iterate`"
for _kind in ("PPO", "A2C", "IMPALA"):
    for _name in ("collect", "update"):
        LEFT_OUT[f"{_kind}.{_name}"] = "a step of `iterate`"
    for _name in ("seeded", "first_seed", "allowed", "observed", "unpacked", "values"):
        LEFT_OUT[f"{_kind}.{_name}"] = "serves `iterate` and `predict`"
_STEPS = ("begin", "choose", "collect", "descend", "explore", "first_seed", "greedy", "learn")
_STEPS += ("make_optimizers", "make_policy", "make_rest", "minibatches", "observed", "random")
_STEPS += ("rates", "sampled", "sampling", "seeded", "sent", "step", "stepped", "tell", "update")
_STEPS += ("computes", "explored")
for _kind in ("DQN", "SAC", "TD3"):
    LEFT_OUT |= {f"{_kind}.{name}": "serves the constructor and `iterate`" for name in _STEPS}
LEFT_OUT["DQN.exploration_rate"] = "serves `iterate`"
_CALLBACKS = ("ProgressBar", "EvalCallback", "CheckpointCallback", "EarlyStoppingCallback")
_CALLBACKS += ("TimingCallback",)
for _kind in _CALLBACKS:
    for _name in ("on_train_start", "on_iteration", "on_row_logged", "on_train_end"):
        LEFT_OUT[f"{_kind}.{_name}"] = "reads the trainer that calls it: Trainer.train's callbacks"
for _kind in ("Callback", "FunctionCallback", *_CALLBACKS):
    for _name in ("state", "load_state"):
        LEFT_OUT[f"{_kind}.{_name}"] = "serves checkpoints: tests/callbacks/test_states.py"
LEFT_OUT["IMPALA.correct"] = "a step of `iterate`"
for _kind in ("PPO", "A2C", "IMPALA", "DQN", "SAC", "TD3"):
    LEFT_OUT[f"{_kind}Trainer.halted"] = "serves evaluations while it trains"
    LEFT_OUT[f"{_kind}.stop_actors"] = LEFT_OUT[f"Native{_kind}.stop_actors"] = "takes nothing"


def modules() -> Iterator[str]:
    """Names of all modules that are not private, and of the extension."""
    yield "rlox"
    yield "rlox._rlox"
    for module in pkgutil.walk_packages(rlox.__path__, "rlox."):
        if not any(part.startswith("_") for part in module.name.split(".")):
            yield module.name


def offered(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The names a module offers: `__all__`, or what it defines."""
    given = getattr(module, "__all__", None)
    for name in sorted(given or vars(module)):
        thing = getattr(module, name)
        if name.startswith("_") or not callable(thing):
            continue
        home = str(getattr(thing, "__module__", ""))
        if home == module.__name__ or (given and home.partition(".")[0] in ("rlox", "builtins")):
            yield name, thing


def ours(kind: type) -> dict[str, Any]:
    """The public attributes that rlox gives a class, the bases of its own included."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] in ("rlox", "builtins") and base is not object:
            found |= vars(base)
    if hasattr(kind, "close"):
        found["close"] = kind.close
    return {name: thing for name, thing in found.items() if not name.startswith("_")}


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    """The public methods of a class, without self."""
    plain = {}
    for name, thing in ours(kind).items():
        if isinstance(thing, classmethod | staticmethod):
            plain[name] = getattr(kind, name)
        elif callable(thing) and not isinstance(thing, type):
            plain[name] = thing
    return plain


def properties(kind: type) -> list[str]:
    """The names that are only read."""
    return [
        name
        for name, thing in ours(kind).items()
        if inspect.isgetsetdescriptor(thing) or (isinstance(thing, property) and not thing.fset)
    ]


def classes(torch: bool = True) -> dict[str, type]:
    """The classes that are made and used here, by name."""
    return {
        name: thing
        for name, thing in things(torch).items()
        if inspect.isclass(thing) and name not in LEFT_OUT
    }


def things(torch: bool = True) -> dict[str, Any]:
    """Functions and classes, by name."""
    found: dict[str, Any] = {}
    for module in modules():
        if module not in INNER and (torch or module in WITHOUT_TORCH):
            for name, thing in offered(importlib.import_module(module)):
                assert found.setdefault(name, thing) is thing, f"two things are called {name}"
    return found


def callables(all_of_them: bool = False, torch: bool = True) -> dict[str, Callable[..., Any]]:
    """What is called here, `compute_gae`, `VecEnv`, `VecEnv.step`; or also what is left out.

    Without `torch`, only what does not need it: it takes seconds to import.
    """
    found = things(torch)
    for name, kind in classes(torch).items():
        for method, function in methods(kind).items():
            found[f"{name}.{method}"] = function
    return {name: x for name, x in found.items() if all_of_them or name not in LEFT_OUT}


def home(function: Callable[..., Any]) -> Any:
    """What an inherited method is in the class that it comes from."""
    return getattr(function, "__func__", function)


def parameters(function: Callable[..., Any]) -> tuple[set[str], bool]:
    """The names of the parameters, and whether there are more."""
    named, more = set(), False
    for name, parameter in inspect.signature(function).parameters.items():
        match parameter.kind:
            case inspect.Parameter.VAR_KEYWORD:
                more = True
            case inspect.Parameter.VAR_POSITIONAL:
                pass
            case _:
                named.add(name)
    return named - {"self"}, more
