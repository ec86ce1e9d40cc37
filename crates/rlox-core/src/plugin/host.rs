//! Host side of a plugin: environments of another library as a [`VectorEnv`].

use super::abi::{Call, EnvHandle, method, request, unreadable};
use super::codec::{self, Reader};
use crate::envs::MakeOptions;
use crate::vector::{EpisodeProgress, validate};
use crate::{
    Actions, AutoresetMode, EnvSpec, EpisodeLog, Error, Pcg64, ResetOptions, Result, Seeds, StepOut, VectorEnv,
    error::check_len,
};

pub(super) struct Hosted {
    handle: EnvHandle,
    num_envs: usize,
    mode: AutoresetMode,
    masks: bool,
    spec: EnvSpec,
    log: EpisodeLog,
}

// SAFETY: `handle` points to a `VectorEnv`, which is `Send`. `Hosted` is not `Sync`.
unsafe impl Send for Hosted {}

impl Drop for Hosted {
    fn drop(&mut self) {
        // SAFETY: the handle provides the function, and the environments are not used afterwards.
        unsafe { (self.handle.free)(self.handle.env) }
    }
}

impl Hosted {
    /// Creates the host side for the environments of `handle`, which a library has created.
    ///
    /// # Errors
    /// The errors of [`super::EnvPlugin::make`].
    pub(super) fn new(handle: EnvHandle, options: &MakeOptions<'_>) -> Result<Self> {
        let spec = EnvSpec {
            id: String::new(),
            observation: crate::Space::discrete(1),
            action: crate::Space::discrete(1),
            max_episode_steps: None,
        };
        let (num_envs, mode) = (options.num_envs, options.autoreset_mode);
        let mut hosted = Self { handle, num_envs, mode, masks: false, spec, log: EpisodeLog::default() };
        let words = hosted.request(&mut Call { method: method::DESCRIBE, ..Call::default() })?;
        let (num_envs, mode, masks, spec) = codec::decode_description(&words).ok_or_else(unreadable)?;
        if (num_envs, mode) != (options.num_envs, options.autoreset_mode) {
            let expected = format!("{} environments in {:?} mode", options.num_envs, options.autoreset_mode);
            let got = format!("{num_envs} in {mode:?} mode from the library");
            return Err(Error::config("make", expected, got, "follow the options in the function of EnvPlugin::new"));
        }
        spec.observation.validate("observation space")?;
        spec.action.validate("action space")?;
        validate::check_maskable(masks, &spec)?;
        (hosted.masks, hosted.spec) = (masks, spec);
        Ok(hosted)
    }

    fn request(&self, call: &mut Call<'_>) -> Result<Vec<u64>> {
        // SAFETY: the handle provides both environment and function. `self` is not `Sync`, so no other call is running.
        request(|reply| unsafe { (self.handle.call)(self.handle.env, call, reply) })
    }

    fn request_masks(&self, method: u32, masks: &mut [bool]) -> Result<()> {
        check_len("masks", masks.len(), self.num_envs * validate::masked_actions(&self.spec.action))?;
        self.request(&mut Call { method, action_masks: masks.into(), ..Call::default() }).map(drop)
    }

    fn request_words(&self, method: u32, words: &[u64]) -> Result<Vec<u64>> {
        self.request(&mut Call { method, words: words.into(), ..Call::default() })
    }
}

fn with_numbers(words: impl IntoIterator<Item = u64>, numbers: &[f64]) -> Vec<u64> {
    words.into_iter().chain(numbers.iter().map(|x| x.to_bits())).collect()
}

impl VectorEnv for Hosted {
    fn num_envs(&self) -> usize {
        self.num_envs
    }

    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn autoreset_mode(&self) -> AutoresetMode {
        self.mode
    }

    fn reset(
        &mut self,
        seeds: Seeds<'_>,
        mask: Option<&[bool]>,
        options: &ResetOptions,
        obs: &mut [f32],
    ) -> Result<()> {
        check_len("obs", obs.len(), self.num_envs * self.spec.observation.dim())?;
        let words = codec::encode_reset(seeds, mask.is_some(), options);
        let (words, mask) = (words.as_slice().into(), mask.unwrap_or(&[]).into());
        self.request(&mut Call { method: method::RESET, words, mask, obs: obs.into(), ..Call::default() }).map(drop)
    }

    fn step(&mut self, actions: Actions<'_>, out: StepOut<'_>) -> Result<()> {
        out.check(self.num_envs, self.spec.observation.dim())?;
        let StepOut { obs, reward, terminated, truncated, final_obs } = out;
        let mut call = Call {
            obs: obs.into(),
            reward: reward.into(),
            terminated: terminated.into(),
            truncated: truncated.into(),
            final_obs: final_obs.into(),
            ..Call::default()
        };
        match actions {
            Actions::Discrete(actions) => (call.method, call.discrete) = (method::STEP_DISCRETE, actions.into()),
            Actions::Continuous(actions) => (call.method, call.continuous) = (method::STEP_CONTINUOUS, actions.into()),
        }
        self.request(&mut call).map(drop)
    }

    fn has_action_masks(&self) -> bool {
        self.masks
    }

    fn action_masks(&self, masks: &mut [bool]) -> Result<()> {
        self.request_masks(method::ACTION_MASKS, masks)
    }

    fn final_action_masks(&self, masks: &mut [bool]) -> Result<()> {
        self.request_masks(method::FINAL_ACTION_MASKS, masks)
    }

    fn observe(&self, obs: &mut [f32]) -> Result<()> {
        check_len("obs", obs.len(), self.num_envs * self.spec.observation.dim())?;
        self.request(&mut Call { method: method::OBSERVE, obs: obs.into(), ..Call::default() }).map(drop)
    }

    fn episodes(&mut self) -> &mut EpisodeLog {
        // After a panic of an environment, the request is an error, and no episodes are added.
        let words = self.request_words(method::EPISODES, &[]).unwrap_or_default();
        if let Some((total, pairs)) = words.split_first() {
            let known = self.log.total() + pairs.len() as u64 / 2;
            self.log.discard(total.saturating_sub(known));
            for pair in pairs.chunks_exact(2) {
                self.log.push(f64::from_bits(pair[0]), pair[1] as u32);
            }
        }
        &mut self.log
    }

    fn state(&self, index: usize) -> Option<Vec<f64>> {
        let words = self.request_words(method::STATE, &[index as u64]).ok()?;
        let (there, numbers) = words.split_first()?;
        (*there != 0).then(|| numbers.iter().map(|word| f64::from_bits(*word)).collect())
    }

    fn check_state(&self, index: usize, state: &[f64], progress: EpisodeProgress) -> Result<()> {
        let words = std::iter::once(index as u64).chain(codec::encode_progress(progress));
        self.request_words(method::CHECK_STATE, &with_numbers(words, state)).map(drop)
    }

    fn set_state(&mut self, index: usize, state: &[f64]) -> Result<()> {
        self.request_words(method::SET_STATE, &with_numbers([index as u64], state)).map(drop)
    }

    fn progress(&self, index: usize) -> Option<EpisodeProgress> {
        Reader(&self.request_words(method::PROGRESS, &[index as u64]).ok()?).progress()
    }

    fn set_progress(&mut self, index: usize, progress: EpisodeProgress) -> Result<()> {
        let words: Vec<_> = std::iter::once(index as u64).chain(codec::encode_progress(progress)).collect();
        self.request_words(method::SET_PROGRESS, &words).map(drop)
    }

    fn rngs(&self) -> Result<Vec<Pcg64>> {
        codec::decode_rngs(&self.request_words(method::RNGS, &[])?)?.ok_or_else(unreadable)
    }

    fn set_rngs(&mut self, rngs: &[Pcg64]) -> Result<()> {
        self.request_words(method::SET_RNGS, &codec::encode_rngs(rngs)?).map(drop)
    }
}
