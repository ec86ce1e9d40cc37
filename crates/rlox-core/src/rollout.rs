//! Fixed-size storage for one rollout, `[T, N, ...]` time-major, and the loop that fills it.

use crate::advantage::{Ends, compute_gae_time_major};
use crate::{
    Actions, ActionsMut, AutoresetMode, DType, Error, Field, FieldData, Normalizer, Pcg64, Policy, PolicyOut,
    ResetOptions, Result, Seeds, Space, StepOut, VectorEnv, check_len, memory,
};

/// What a policy said about a batch of observations, to be stored.
#[derive(Clone, Copy, Debug)]
pub struct PolicySaid<'a> {
    /// The actions, `[N, a]`; Discrete ones counted from 0.
    pub actions: Actions<'a>,
    /// Their log-probabilities, `[N]`.
    pub log_probs: &'a [f32],
    /// The values of the observations, `[N]`.
    pub values: &'a [f32],
}

/// What environments outside this crate answered to a step, raw.
#[derive(Clone, Copy, Debug)]
pub struct Transition<'a> {
    /// The observations to act on next, `[N, d]`.
    pub next_obs: &'a [f32],
    /// The rewards, `[N]`.
    pub rewards: &'a [f64],
    /// The task itself ended, `[N]`.
    pub terminated: &'a [bool],
    /// The episode was cut, `[N]`.
    pub truncated: &'a [bool],
    /// The true last observations, `[N, d]`; only rows truncated and not terminated are read. May be empty without any.
    pub final_obs: &'a [f32],
}

/// One rollout of `n_steps` steps in `num_envs` environments.
///
/// Row `t * num_envs + n` of a field belongs to step t of environment n. `obs` has one time step more than the rest:
/// its last is what the next rollout starts from. Rewards are kept as f32 after normalisation, if there is any.
/// `terminated` and `truncated` are never merged; where an episode was truncated, its true last observation is kept
/// aside ([`RolloutBuffer::final_obs`]) so that its value can be bootstrapped.
#[derive(Debug)]
pub struct RolloutBuffer {
    n_steps: usize,
    num_envs: usize,
    obs: Field,
    actions: Field,
    log_probs: Field,
    values: Field,
    rewards: Field,
    terminated: Field,
    truncated: Field,
    final_values: Field,
    advantages: Field,
    returns: Field,
    extra: Vec<Field>,
    next_step: usize,
    begun: bool,
    final_index: Vec<usize>,
    final_obs: Vec<f32>,
    step_rewards: Vec<f64>,
    step_final_obs: Vec<f32>,
    sent: Vec<f32>,
    sent_discrete: Vec<i64>,
}

fn f32s(field: &Field) -> &[f32] {
    let FieldData::F32(data) = field.data() else { return &[] };
    data
}

fn f32s_mut(field: &mut Field) -> &mut [f32] {
    let FieldData::F32(data) = field.data_mut() else { return &mut [] };
    data
}

fn bools(field: &Field) -> &[bool] {
    let FieldData::Bool(data) = field.data() else { return &[] };
    data
}

fn bools_mut(field: &mut Field) -> &mut [bool] {
    let FieldData::Bool(data) = field.data_mut() else { return &mut [] };
    data
}

impl RolloutBuffer {
    /// A buffer for observations and actions of the given row shapes and dtypes.
    ///
    /// ```
    /// use rlox_core::{DType, RolloutBuffer};
    ///
    /// let buffer = RolloutBuffer::new(128, 8, (&[4], DType::F32), (&[], DType::I64))?;
    /// assert_eq!(buffer.field("obs").unwrap().rows(), 129 * 8);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] if `n_steps` or `num_envs` is 0, [`Error::Space`] if actions are neither i64 nor f32,
    /// [`Error::Memory`] if it does not fit into memory.
    pub fn new(n_steps: usize, num_envs: usize, obs: (&[usize], DType), action: (&[usize], DType)) -> Result<Self> {
        for (name, value) in [("n_steps", n_steps), ("num_envs", num_envs)] {
            if value == 0 {
                return Err(Error::config(name, "at least 1", "0", "pass a positive number"));
            }
        }
        if !matches!(action.1, DType::F32 | DType::I64) {
            let got = format!("{:?}", action.1);
            return Err(Error::space(
                "action dtype",
                "i64 or f32",
                got,
                "store discrete actions as i64, others as f32",
            ));
        }
        let rows = n_steps.saturating_mul(num_envs);
        memory::check("n_steps * num_envs", rows, 26)?;
        let scalar = |name: &str, dtype| Field::new(name, rows, &[], dtype);
        let width: usize = obs.0.iter().product();
        let sent = if action.1 == DType::F32 { action.0.iter().product::<usize>() * num_envs } else { 0 };
        Ok(Self {
            n_steps,
            num_envs,
            obs: Field::new("obs", rows.saturating_add(num_envs), obs.0, obs.1)?,
            actions: Field::new("actions", rows, action.0, action.1)?,
            log_probs: scalar("log_probs", DType::F32)?,
            values: scalar("values", DType::F32)?,
            rewards: scalar("rewards", DType::F32)?,
            terminated: scalar("terminated", DType::Bool)?,
            truncated: scalar("truncated", DType::Bool)?,
            final_values: scalar("final_values", DType::F32)?,
            advantages: scalar("advantages", DType::F32)?,
            returns: scalar("returns", DType::F32)?,
            extra: Vec::new(),
            next_step: 0,
            begun: false,
            final_index: Vec::with_capacity(num_envs),
            final_obs: Vec::with_capacity(if obs.1 == DType::F32 { width * num_envs } else { 0 }),
            step_rewards: vec![0.0; num_envs],
            step_final_obs: vec![0.0; if obs.1 == DType::F32 { width * num_envs } else { 0 }],
            sent: vec![0.0; sent],
            sent_discrete: vec![
                0;
                if action.1 == DType::I64 { action.0.iter().product::<usize>() * num_envs } else { 0 }
            ],
        })
    }

    /// A buffer that fits an environment's spaces.
    ///
    /// # Errors
    /// Those of [`RolloutBuffer::new`].
    pub fn for_env(n_steps: usize, env: &dyn VectorEnv) -> Result<Self> {
        let spec = env.spec();
        let dtype = if matches!(spec.action, Space::Box { .. }) { DType::F32 } else { DType::I64 };
        let obs = spec.observation.shape();
        Self::new(n_steps, env.num_envs(), (&obs, DType::F32), (&spec.action.shape(), dtype))
    }

    /// Adds a field of the caller's own, one row per step and environment.
    ///
    /// # Errors
    /// [`Error::Config`] if the name is taken, and those of [`Field::new`].
    pub fn with_field(mut self, name: &str, shape: &[usize], dtype: DType) -> Result<Self> {
        if self.field(name).is_some() {
            return Err(Error::config("name", "a new field name", format!("{name:?}"), "choose another"));
        }
        self.extra.push(Field::new(name, self.n_steps * self.num_envs, shape, dtype)?);
        Ok(self)
    }

    /// The number of steps T.
    pub fn n_steps(&self) -> usize {
        self.n_steps
    }

    /// The number of environments N.
    pub fn num_envs(&self) -> usize {
        self.num_envs
    }

    /// The step that is due, counted from 0; T for a full rollout.
    pub fn next_step(&self) -> usize {
        self.next_step
    }

    /// All fields: `obs` (T + 1 steps), `actions`, `log_probs`, `values`, `rewards`, `terminated`, `truncated`,
    /// `final_values`, `advantages`, `returns`, and the caller's own.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        let fixed = [&self.obs, &self.actions, &self.log_probs, &self.values, &self.rewards, &self.terminated];
        let more = [&self.truncated, &self.final_values, &self.advantages, &self.returns];
        fixed.into_iter().chain(more).chain(&self.extra)
    }

    /// One field by its name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields().find(|field| field.name() == name)
    }

    /// The rows `t * N + n` whose episode was truncated and not terminated, in the order of collection.
    pub fn final_index(&self) -> &[usize] {
        &self.final_index
    }

    /// Their true last observations, `[K, d]`, normalised as `obs` is.
    pub fn final_obs(&self) -> &[f32] {
        &self.final_obs
    }

    /// Starts a rollout: the first observations come from a reset (the first time, or where `seeds` are given), else
    /// from where the environments stand.
    ///
    /// # Errors
    /// [`Error::Config`] unless the environments reset in the same step, [`Error::Shape`] if they do not fit the
    /// buffer, and those of [`VectorEnv::reset`].
    pub fn begin(
        &mut self,
        env: &mut dyn VectorEnv,
        seeds: Seeds<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.check_fits(env)?;
        self.check_normalizer(normalizer.as_deref())?;
        let first = self.num_envs * self.obs.width();
        let row = &mut f32s_mut(&mut self.obs)[..first];
        let fresh = !matches!(seeds, Seeds::Keep) || env.observe(row).is_err();
        if fresh {
            env.reset(seeds, None, &ResetOptions::default(), row)?;
        }
        self.open(fresh, normalizer)
    }

    /// Starts a rollout from observations that the caller has, `[N, d]`. `fresh` says that they come from a reset, so
    /// that the normaliser has not seen them.
    ///
    /// # Errors
    /// [`Error::Shape`] for a wrong length or a buffer whose observations are not f32.
    pub fn begin_with(&mut self, obs: &[f32], fresh: bool, normalizer: Option<&mut Normalizer>) -> Result<()> {
        self.check_f32()?;
        self.check_normalizer(normalizer.as_deref())?;
        check_len("obs", obs.len(), self.num_envs * self.obs.width())?;
        f32s_mut(&mut self.obs)[..obs.len()].copy_from_slice(obs);
        self.open(fresh, normalizer)
    }

    fn open(&mut self, fresh: bool, normalizer: Option<&mut Normalizer>) -> Result<()> {
        let first = self.num_envs * self.obs.width();
        if let Some(normalizer) = normalizer {
            let row = &mut f32s_mut(&mut self.obs)[..first];
            if fresh {
                normalizer.update_obs(row)?;
            }
            normalizer.normalize_obs(row)?;
        }
        (self.next_step, self.begun) = (0, true);
        self.final_index.clear();
        self.final_obs.clear();
        Ok(())
    }

    fn check_normalizer(&self, normalizer: Option<&Normalizer>) -> Result<()> {
        let Some(normalizer) = normalizer else { return Ok(()) };
        check_len("normalizer's obs_shape", normalizer.obs().mean().len(), self.obs.width())?;
        check_len("normalizer's num_envs", normalizer.returns().len(), self.num_envs)
    }

    fn check_f32(&self) -> Result<()> {
        if self.obs.dtype() == DType::F32 {
            return Ok(());
        }
        Err(Error::shape("obs dtype", "F32", format!("{:?}", self.obs.dtype()), "make the buffer with F32"))
    }

    fn check_fits(&self, env: &dyn VectorEnv) -> Result<()> {
        if env.autoreset_mode() != AutoresetMode::SameStep {
            let got = format!("{:?}", env.autoreset_mode());
            return Err(Error::config("autoreset_mode", "SameStep", got, "make the environments with SameStep"));
        }
        check_len("num_envs", env.num_envs(), self.num_envs)?;
        check_len("observation", env.spec().observation.dim(), self.obs.width())?;
        check_len("action", env.spec().action.dim(), self.actions.width())?;
        self.check_f32()
    }

    /// Stores row `t` of what a policy said and steps the environments with its actions.
    ///
    /// Actions of a Box space are stored as they are and clipped to the bounds on their way to the environment;
    /// Discrete actions are counted from 0, and the space's `start` is added on the way.
    ///
    /// # Errors
    /// [`Error::Config`] if `t` is not the next step, [`Error::Shape`] for wrong lengths, [`Error::Action`] for actions
    /// that the environment refuses. The environments have not been stepped then.
    pub fn step(
        &mut self,
        t: usize,
        env: &mut dyn VectorEnv,
        said: PolicySaid<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        self.check_fits(env)?;
        self.check_normalizer(normalizer.as_deref())?;
        self.store(t, said)?;
        self.advance(env, normalizer)
    }

    /// Stores row `t` of what a policy said and of what environments elsewhere answered, all of it raw.
    ///
    /// # Errors
    /// [`Error::Config`] if `t` is not the next step, [`Error::Shape`] for wrong lengths. The row is not taken then.
    pub fn record(
        &mut self,
        t: usize,
        said: PolicySaid<'_>,
        answered: Transition<'_>,
        normalizer: Option<&mut Normalizer>,
    ) -> Result<()> {
        let (n, d) = (self.num_envs, self.obs.width());
        self.check_f32()?;
        self.check_normalizer(normalizer.as_deref())?;
        check_len("next_obs", answered.next_obs.len(), n * d)?;
        check_len("rewards", answered.rewards.len(), n)?;
        check_len("terminated", answered.terminated.len(), n)?;
        check_len("truncated", answered.truncated.len(), n)?;
        let cut = |i: usize| answered.truncated[i] && !answered.terminated[i];
        if (0..n).any(cut) || !answered.final_obs.is_empty() {
            check_len("final_obs", answered.final_obs.len(), n * d)?;
        }
        self.store(t, said)?;
        for i in (0..n).filter(|i| cut(*i)) {
            self.step_final_obs[i * d..][..d].copy_from_slice(&answered.final_obs[i * d..][..d]);
        }
        f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d].copy_from_slice(answered.next_obs);
        self.step_rewards.copy_from_slice(answered.rewards);
        bools_mut(&mut self.terminated)[t * n..][..n].copy_from_slice(answered.terminated);
        bools_mut(&mut self.truncated)[t * n..][..n].copy_from_slice(answered.truncated);
        self.commit(normalizer)
    }

    /// Writes what the policy said into row `t`, which must be the next.
    fn store(&mut self, t: usize, said: PolicySaid<'_>) -> Result<()> {
        self.check_turn(t)?;
        let n = self.num_envs;
        check_len("log_probs", said.log_probs.len(), n)?;
        check_len("values", said.values.len(), n)?;
        let width = n * self.actions.width();
        match (self.actions.data_mut(), said.actions) {
            (FieldData::I64(stored), Actions::Discrete(given)) => {
                check_len("actions", given.len(), width)?;
                stored[t * width..][..width].copy_from_slice(given);
            }
            (FieldData::F32(stored), Actions::Continuous(given)) => {
                check_len("actions", given.len(), width)?;
                stored[t * width..][..width].copy_from_slice(given);
            }
            (stored, _) => {
                let expected = if matches!(stored, FieldData::I64(_)) { "integer actions" } else { "f32 actions" };
                return Err(Error::space("actions", expected, "the other kind", "pass the buffer's action dtype"));
            }
        }
        f32s_mut(&mut self.log_probs)[t * n..][..n].copy_from_slice(said.log_probs);
        f32s_mut(&mut self.values)[t * n..][..n].copy_from_slice(said.values);
        Ok(())
    }

    fn check_turn(&self, t: usize) -> Result<()> {
        if self.begun && t == self.next_step && t < self.n_steps {
            return Ok(());
        }
        let expected = match (self.begun, self.next_step) {
            (false, _) => "a rollout that was begun".into(),
            (true, next) if next < self.n_steps => format!("{next}, the next step"),
            _ => "no further step, the rollout is full".into(),
        };
        Err(Error::config("t", expected, t.to_string(), "call begin before a rollout and step with t = 0, 1, ..."))
    }

    /// Steps the environments with the actions stored in the next row and takes in what comes back.
    fn advance(&mut self, env: &mut dyn VectorEnv, normalizer: Option<&mut Normalizer>) -> Result<()> {
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        let actions = sent(&self.actions, t * n, n, &env.spec().action, &mut self.sent, &mut self.sent_discrete);
        let out = StepOut {
            obs: &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d],
            reward: &mut self.step_rewards,
            terminated: &mut bools_mut(&mut self.terminated)[t * n..][..n],
            truncated: &mut bools_mut(&mut self.truncated)[t * n..][..n],
            final_obs: &mut self.step_final_obs,
        };
        env.step(actions, out)?;
        self.commit(normalizer)
    }

    /// Normalises the row just written, keeps the final observations of truncated episodes, and goes on.
    fn commit(&mut self, normalizer: Option<&mut Normalizer>) -> Result<()> {
        let (t, n, d) = (self.next_step, self.num_envs, self.obs.width());
        let terminated = &bools(&self.terminated)[t * n..][..n];
        let truncated = &bools(&self.truncated)[t * n..][..n];
        let cut = |i: &usize| truncated[*i] && !terminated[*i];
        if let Some(normalizer) = normalizer {
            let next_obs = &mut f32s_mut(&mut self.obs)[(t + 1) * n * d..][..n * d];
            normalizer.update_obs(next_obs)?;
            normalizer.normalize_obs(next_obs)?;
            for i in (0..n).filter(cut) {
                normalizer.normalize_obs(&mut self.step_final_obs[i * d..][..d])?;
            }
            normalizer.step_rewards(&mut self.step_rewards, terminated, truncated)?;
        }
        for i in (0..n).filter(cut) {
            self.final_index.push(t * n + i);
            self.final_obs.extend_from_slice(&self.step_final_obs[i * d..][..d]);
        }
        for (stored, reward) in f32s_mut(&mut self.rewards)[t * n..].iter_mut().zip(&self.step_rewards) {
            *stored = *reward as f32;
        }
        self.next_step += 1;
        Ok(())
    }

    /// Computes `advantages` and `returns` of a full rollout by DESIGN's one formula
    /// ([`crate::compute_gae`]).
    ///
    /// `last_values`, `[N]`, are the values of the last observations; `final_values`, `[K]`, those of
    /// [`RolloutBuffer::final_obs`].
    ///
    /// # Errors
    /// [`Error::Shape`] for wrong lengths, [`Error::Config`] if the rollout is not full or a factor is outside [0, 1].
    pub fn finish(&mut self, last_values: &[f32], final_values: &[f32], gamma: f64, gae_lambda: f64) -> Result<()> {
        if self.next_step < self.n_steps {
            let got = format!("{} of {} steps", self.next_step, self.n_steps);
            return Err(Error::config("finish", "a full rollout", got, "step until the rollout is full"));
        }
        check_len("final_values", final_values.len(), self.final_index.len())?;
        let scattered = f32s_mut(&mut self.final_values);
        scattered.fill(0.0);
        for (row, value) in self.final_index.iter().zip(final_values) {
            scattered[*row] = *value;
        }
        let ends = Ends {
            terminated: bools(&self.terminated),
            truncated: Some(bools(&self.truncated)),
            final_values: Some(f32s(&self.final_values)),
        };
        compute_gae_time_major(
            f32s(&self.rewards),
            f32s(&self.values),
            ends,
            self.num_envs,
            last_values,
            gamma,
            gae_lambda,
            f32s_mut(&mut self.advantages),
            f32s_mut(&mut self.returns),
        )
    }
}

/// The actions as the environment wants them: Box clipped to its bounds, Discrete counted from `start`.
fn sent<'a>(
    actions: &'a Field,
    from: usize,
    rows: usize,
    space: &Space,
    clipped: &'a mut [f32],
    shifted: &'a mut [i64],
) -> Actions<'a> {
    let width = actions.width();
    match (actions.data(), space) {
        (FieldData::F32(data), Space::Box { low, high, .. }) => {
            let data = &data[from * width..][..rows * width];
            for (row, out) in data.chunks_exact(width).zip(clipped.chunks_exact_mut(width)) {
                for ((x, out), (low, high)) in row.iter().zip(out).zip(low.iter().zip(high)) {
                    *out = x.clamp(*low, *high);
                }
            }
            Actions::Continuous(clipped)
        }
        (FieldData::I64(data), Space::Discrete { start, .. }) if *start != 0 => {
            for (out, action) in shifted.iter_mut().zip(&data[from * width..]) {
                *out = action.wrapping_add(*start);
            }
            Actions::Discrete(shifted)
        }
        (FieldData::I64(data), _) => Actions::Discrete(&data[from * width..][..rows * width]),
        _ => Actions::Continuous(&[]),
    }
}

/// Fills a rollout with a Rust policy in one call: T steps, the values of the last and of the final observations, and
/// the advantages. After the first call nothing is allocated.
///
/// `rngs`, one per environment, are the policy's streams.
///
/// ```
/// use rlox_core::{AutoresetMode, FieldData, RandomPolicy, Pcg64, RolloutBuffer, VecEnv, VectorEnv, collect, envs::CartPole};
///
/// let mut env = VecEnv::new(8, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let mut policy = RandomPolicy::new(&env.spec().action)?;
/// let mut buffer = RolloutBuffer::for_env(32, &env)?;
/// let mut rngs: Vec<_> = (0..8).map(Pcg64::seed_from).collect();
/// collect(&mut env, &mut policy, &mut rngs, &mut buffer, None, 0.99, 0.95)?;
/// let FieldData::F32(rewards) = buffer.field("rewards").unwrap().data() else { unreachable!() };
/// assert!(rewards.iter().all(|r| *r == 1.0));
/// # Ok::<(), rlox_core::Error>(())
/// ```
///
/// # Errors
/// Those of [`RolloutBuffer::begin`], [`RolloutBuffer::step`], [`RolloutBuffer::finish`] and of the policy.
pub fn collect(
    env: &mut dyn VectorEnv,
    policy: &mut dyn Policy,
    rngs: &mut [Pcg64],
    buffer: &mut RolloutBuffer,
    mut normalizer: Option<&mut Normalizer>,
    gamma: f64,
    gae_lambda: f64,
) -> Result<()> {
    check_len("rngs", rngs.len(), buffer.num_envs)?;
    buffer.begin(env, Seeds::Keep, normalizer.as_deref_mut())?;
    let (n, d, a) = (buffer.num_envs, buffer.obs.width(), buffer.actions.width());
    for t in 0..buffer.n_steps {
        let actions = match buffer.actions.data_mut() {
            FieldData::I64(data) => ActionsMut::Discrete(&mut data[t * n * a..][..n * a]),
            FieldData::F32(data) => ActionsMut::Continuous(&mut data[t * n * a..][..n * a]),
            _ => ActionsMut::Discrete(&mut []),
        };
        let out = PolicyOut {
            actions,
            log_probs: &mut f32s_mut(&mut buffer.log_probs)[t * n..][..n],
            values: &mut f32s_mut(&mut buffer.values)[t * n..][..n],
        };
        policy.act(&f32s(&buffer.obs)[t * n * d..][..n * d], rngs, out)?;
        buffer.advance(env, normalizer.as_deref_mut())?;
    }
    let finals = buffer.final_index.len();
    let mut values = std::mem::take(&mut buffer.step_final_obs);
    values.resize((n * d).max(n + finals), 0.0);
    let (last, rest) = values.split_at_mut(n);
    policy.value(&f32s(&buffer.obs)[buffer.n_steps * n * d..], last)?;
    policy.value(&buffer.final_obs, &mut rest[..finals])?;
    let finished = buffer.finish(last, &rest[..finals], gamma, gae_lambda);
    values.resize(n * d, 0.0);
    buffer.step_final_obs = values;
    finished
}
