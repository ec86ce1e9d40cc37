"""What scripts import of Stable-Baselines3 that is not here, and how it is done instead."""

_VECTOR = "rlox.make_vec(id, n) makes many environments, and models take Gymnasium's, too"
_NORMALIZE = "rlox.trainers have normalize_obs and normalize_reward"
_FUNCTION = "learn() takes a function of (trainer, metrics), or a class of rlox.callbacks"
_HINDSIGHT = "pass her='future' to rlox.trainers.DQNTrainer, SACTrainer or TD3Trainer"

INSTEAD = {
    "make_vec_env": _VECTOR,
    "make_atari_env": f"wrap them with Gymnasium's AtariPreprocessing; {_VECTOR}",
    "DummyVecEnv": _VECTOR,
    "SubprocVecEnv": _VECTOR,
    "VecEnv": _VECTOR,
    "VecMonitor": "returns and lengths of episodes are counted anyway; leave it out",
    "Monitor": "returns and lengths of episodes are counted anyway; leave it out",
    "VecNormalize": _NORMALIZE,
    "VecFrameStack": "wrap environments in gymnasium.wrappers.FrameStackObservation",
    "VecVideoRecorder": "rlox.callbacks.VideoRecordingCallback records episodes",
    "EvalCallback": "rlox.callbacks.EvalCallback(every=...) counts steps of all environments",
    "CheckpointCallback": "rlox.callbacks.CheckpointCallback(every=...) counts steps of all "
    "environments",
    "BaseCallback": _FUNCTION,
    "CallbackList": "learn() takes a list of callbacks",
    "ProgressBarCallback": "pass progress_bar=True to learn()",
    "StopTrainingOnRewardThreshold": "rlox.callbacks.EvalCallback has reward_threshold=",
    "StopTrainingOnNoModelImprovement": "rlox.callbacks.EarlyStoppingCallback(patience=...)",
    "StopTrainingOnMaxEpisodes": _FUNCTION,
    "HerReplayBuffer": _HINDSIGHT,
    "DDPG": "TD3 is what became of it",
    "configure": "pass tensorboard_log= to the model, or loggers= to a trainer's train()",
    "set_random_seed": "pass seed= to the model",
    "check_env": "gymnasium.utils.env_checker.check_env does it",
    "load_results": "rlox.trainers leave metrics.csv in their run folders, and rlox plot draws it",
}
