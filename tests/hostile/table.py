"""Public callables, found by introspection, and valid calls of each of them."""

import dataclasses
import importlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from hostile.arguments import Argument

# Modules whose callables are called here; tests of other modules contain their refusals.
PUBLIC = (
    "rlox",
    "rlox._rlox",
    "rlox.algorithms",
    "rlox.callbacks",
    "rlox.checkpoint",
    "rlox.distributed",
    "rlox.envs",
    "rlox.evaluation",
    "rlox.interchange",
    "rlox.native",
    "rlox.native_off_policy",
    "rlox.policies",
    "rlox.trainers",
    "rlox.vector",
)
# Modules that do without torch and have all that the groups but training call.
WITHOUT_TORCH = (
    "rlox",
    "rlox._rlox",
    "rlox.envs",
    "rlox.native",
    "rlox.native_off_policy",
    "rlox.vector",
)
# Callables that are not called here, by reason: a class stands for all of its methods.
_NOT_CALLED = {
    "an exception": (
        "ArgumentError ArgumentTypeError ClosedError CorruptFileError NonFiniteError "
        "OutOfMemoryError PeerError"
    ),
    "a dataclass of results, without code: collect_rollout makes it": "RolloutBatch",
    "a dataclass of results, without code: read_checkpoint makes it": "Checkpoint",
    "only a type of dicts: Trainer.train gives one": "TrainResult",
    "a protocol: describes what others do": "ActorCritic RolloutEnv Predictor",
    "has no algorithm: PPOTrainer and others, which have one, are called": "Trainer",
    "serves learners, whose `policy` it is: test_policies.py has refusals": "make_policy",
    "serves learners, of modules that check_policy accepted": (
        "acting evaluating_actions greedy sampled"
    ),
    "needs a package of its own: tests/callbacks/test_video.py": "VideoRecordingCallback",
    "serves callbacks, which give it their trainer's timesteps": "Every.start Every.due",
    "serves Trainer.evaluate and callbacks: tests/callbacks has refusals": "environment_of",
    "serves evaluate and callbacks: tests/callbacks has refusals": "expect_maker",
    "serves read_checkpoint, and makes an exception of texts": "corrupt",
    "serves read_checkpoint: test_checkpoint.py has damaged files": "expect_keys",
    "takes nothing: test_rollout.py": "ForeignVecEnv.action_masks",
    "serves learners: test_mask_source.py": "ForeignVecEnv.final_action_masks",
    "takes nothing: test_snapshots.py": "ForeignVecEnv.get_state",
    "takes what get_state gave: test_snapshots.py has refusals": "ForeignVecEnv.set_state",
    "trains for seconds: test_many.py has refusals": "train_many",
    "takes a checkpoint: test_loading.py has refusals": "load",
    "refuses all without masks, else NativeVectorEnv's: test_env_plugin.py": "VecEnv.action_masks",
    "serves learners: test_env_plugin.py": "VecEnv.final_action_masks",
    "takes nothing: test_env_plugin.py": "NativeVectorEnv.final_action_masks",
    "takes a capsule of another module: test_env_plugin.py": "register_env",
    "serves ForeignVecEnv: test_foreign.py": "check_normalizer check_step",
    "HindsightReplayBuffer is called": "GoalReplayBuffer",
    "takes a function beside a path: test_hindsight.py": "HindsightReplayBuffer.load",
    "takes a table of another library, which may be missing: test_interchange.py": "from_arrow",
    "takes a data set of another library, which may be missing: test_interchange.py": "from_minari",
    "takes a buffer, and needs another library: test_interchange.py": "to_arrow",
    "takes only what is of its own file: test_replay_buffer.py": "MmapReplayBuffer.load_state",
    "takes nothing, and leaves nothing to look at: test_mmap_replay.py": "MmapReplayBuffer.close",
    "needs workers: tests/distributed/test_remote.py": "remote_actors remote_env",
    "lasts: tests/distributed/test_remote.py has refusals": "run_worker",
    "calls what it is given: test_actor_processes.py": "NativeActors.calling",
    "takes anything, for actors in Python: test_actor_processes.py": "NativeActors.publish_object",
    "takes nothing, and leaves nothing to look at: test_actors.py": "NativeActors.close",
    "serves learners, which know how many rows there are": "SdePolicy.reset_noise",
    "serves `Collector`: test_actor_processes.py": (
        "PPO.gather PPO.take A2C.gather A2C.take IMPALA.gather IMPALA.take NativePPO.gather "
        "NativePPO.take NativeA2C.gather NativeA2C.take NativeIMPALA.gather NativeIMPALA.take"
    ),
    "a step of `iterate`": (
        "NativePPO.collect NativePPO.update NativePPO.learn NativePPO.first_seed "
        "NativeA2C.collect NativeA2C.update NativeA2C.learn NativeA2C.first_seed "
        "NativeIMPALA.collect NativeIMPALA.update NativeIMPALA.learn NativeIMPALA.first_seed "
        "NativeDQN.first_seed NativeSAC.first_seed NativeTD3.first_seed PPO.batches "
        "PPO.divergence PPO.metrics PPO.collect PPO.update A2C.collect A2C.update IMPALA.collect "
        "IMPALA.update IMPALA.correct"
    ),
    "Trainer.save and load": (
        "NativePPO.state NativePPO.load_state NativeA2C.state NativeA2C.load_state "
        "NativeIMPALA.state NativeIMPALA.load_state"
    ),
    "takes nothing": (
        "NativePPO.to_torch NativeA2C.to_torch NativeIMPALA.to_torch PPO.stop_actors "
        "NativePPO.stop_actors A2C.stop_actors NativeA2C.stop_actors IMPALA.stop_actors "
        "NativeIMPALA.stop_actors DQN.stop_actors NativeDQN.stop_actors SAC.stop_actors "
        "NativeSAC.stop_actors TD3.stop_actors NativeTD3.stop_actors"
    ),
    "takes a torch module, whose tensors NativePolicy.load takes": (
        "NativePPO.load_torch NativeA2C.load_torch NativeIMPALA.load_torch"
    ),
    "takes what the other gave: test_off_policy.py": (
        "NativeDQN.state NativeDQN.load_state NativeSAC.state NativeSAC.load_state "
        "NativeTD3.state NativeTD3.load_state"
    ),
    "serves `iterate` and `predict`": (
        "PPO.seeded PPO.first_seed PPO.allowed PPO.observed PPO.unpacked PPO.values A2C.seeded "
        "A2C.first_seed A2C.allowed A2C.observed A2C.unpacked A2C.values IMPALA.seeded "
        "IMPALA.first_seed IMPALA.allowed IMPALA.observed IMPALA.unpacked IMPALA.values"
    ),
    "serves the constructor and `iterate`": (
        "DQN.begin DQN.choose DQN.collect DQN.descend DQN.explore DQN.first_seed DQN.greedy "
        "DQN.learn DQN.make_optimizers DQN.make_policy DQN.make_rest DQN.minibatches DQN.observed "
        "DQN.random DQN.rates DQN.sampled DQN.sampling DQN.seeded DQN.sent DQN.step DQN.stepped "
        "DQN.tell DQN.update DQN.computes DQN.explored SAC.begin SAC.choose SAC.collect "
        "SAC.descend SAC.explore SAC.first_seed SAC.greedy SAC.learn SAC.make_optimizers "
        "SAC.make_policy SAC.make_rest SAC.minibatches SAC.observed SAC.random SAC.rates "
        "SAC.sampled SAC.sampling SAC.seeded SAC.sent SAC.step SAC.stepped SAC.tell SAC.update "
        "SAC.computes SAC.explored TD3.begin TD3.choose TD3.collect TD3.descend TD3.explore "
        "TD3.first_seed TD3.greedy TD3.learn TD3.make_optimizers TD3.make_policy TD3.make_rest "
        "TD3.minibatches TD3.observed TD3.random TD3.rates TD3.sampled TD3.sampling TD3.seeded "
        "TD3.sent TD3.step TD3.stepped TD3.tell TD3.update TD3.computes TD3.explored"
    ),
    "serves `iterate`": "DQN.exploration_rate",
    "reads the trainer that calls it: Trainer.train's callbacks": (
        "ProgressBar.on_train_start ProgressBar.on_iteration ProgressBar.on_row_logged "
        "ProgressBar.on_train_end EvalCallback.on_train_start EvalCallback.on_iteration "
        "EvalCallback.on_row_logged EvalCallback.on_train_end CheckpointCallback.on_train_start "
        "CheckpointCallback.on_iteration CheckpointCallback.on_row_logged "
        "CheckpointCallback.on_train_end EarlyStoppingCallback.on_train_start "
        "EarlyStoppingCallback.on_iteration EarlyStoppingCallback.on_row_logged "
        "EarlyStoppingCallback.on_train_end TimingCallback.on_train_start "
        "TimingCallback.on_iteration TimingCallback.on_row_logged TimingCallback.on_train_end"
    ),
    "serves checkpoints: tests/callbacks/test_states.py": (
        "Callback.state Callback.load_state FunctionCallback.state FunctionCallback.load_state "
        "ProgressBar.state ProgressBar.load_state EvalCallback.state EvalCallback.load_state "
        "CheckpointCallback.state CheckpointCallback.load_state EarlyStoppingCallback.state "
        "EarlyStoppingCallback.load_state TimingCallback.state TimingCallback.load_state"
    ),
    "serves evaluations while it trains": (
        "PPOTrainer.halted A2CTrainer.halted IMPALATrainer.halted DQNTrainer.halted "
        "SACTrainer.halted TD3Trainer.halted"
    ),
}
LEFT_OUT = {name for names in _NOT_CALLED.values() for name in names.split()}


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
    for module in PUBLIC:
        if torch or module in WITHOUT_TORCH:
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


# The module of each group of calls. Each group is called in a separate process.
GROUPS = {
    "kernels": "hostile.kernels",
    "objects": "hostile.objects",
    "training": "hostile.training",
    "networks": "hostile.networks",
}


class Call(NamedTuple):
    """A right call; of a method, where there is a dot in the name."""

    name: str
    arguments: dict[str, Argument]
    raises: tuple[type[Exception], ...] = ()  # documented errors of other kinds
    at: int = 0  # how many steps the object has made before
    through: Callable[..., Any] | None = None  # what is called instead, and calls it
    shared: bool = False  # one object does for all calls, as none of them changes it


class Subject(NamedTuple):
    """An object whose methods are called."""

    make: Callable[[int], Any]  # after so many steps
    state: Callable[[Any], Any]  # what a refused call leaves as it is
    # Errors of calls that meet those of other threads.
    meets: tuple[type[Exception], ...] = ()
    forks: bool = True  # also while threads use it


KNOWN: dict[str, Subject] = {}


def call(
    name: str,
    /,
    *,
    raises: tuple[type[Exception], ...] = (),
    at: int = 0,
    through: Callable[..., Any] | None = None,
    shared: bool = False,
    **arguments: Argument,
) -> Call:
    return Call(name, arguments, raises, at, through, shared)


def calls(group: str) -> list[Call]:
    """The right calls of a group."""
    return importlib.import_module(GROUPS[group]).CALLS


def subjects(group: str) -> dict[str, Subject]:
    """How to make the objects of a group, by class; from now on answers are told by them, too."""
    KNOWN.update(getattr(importlib.import_module(GROUPS[group]), "SUBJECTS", {}))
    return KNOWN


def plain(x: Any) -> Any:
    """An answer as what can be kept and compared: the numbers in it, not the objects."""
    match x:
        case None | bool() | int() | float() | str() | bytes() | type():
            return x
        case np.ndarray() if x.dtype == object:
            return ["objects", *map(plain, x.ravel())]
        case np.generic():
            return x.item()
        case np.ndarray() if x.size > 1_000_000:
            return x.shape
        case np.ndarray():
            return np.array(x)
        case np.random.Generator():
            return plain(x.bit_generator.state)
        case Mapping():
            return {key: plain(value) for key, value in x.items()}
        case list() | tuple() | set() | deque():
            return [plain(value) for value in x]
    if dataclasses.is_dataclass(x):
        return {f.name: plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    return described(x)


def described(x: Any) -> Any:
    """What an object of a class that has a subject holds, else only what it is."""
    name = type(x).__name__
    return [name, plain(KNOWN[name].state(x))] if name in KNOWN else name


def equal(a: Any, b: Any, exactly: bool = True) -> bool:
    """Whether two answers are the same; not exactly: but for dtypes and what they round."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape or (exactly and a.dtype != b.dtype):
            return False
        if a.dtype.kind in "fc" and a.dtype != b.dtype:
            return np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM")
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k], exactly) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(equal(x, y, exactly) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        near = np.isclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True) and not exactly
        return a == b or (a != a and b != b) or bool(near)
    return type(a) is type(b) and bool(a == b)
