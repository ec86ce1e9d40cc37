//! Where environments stand: taken from them, put back, written and read.

use rlox_core::{Checkpoint, Error, FieldMut, Pcg64, Progress, Result, VectorEnv};

const MEMBER: &str = "environment";
/// Words of a stream.
const WORDS: usize = Pcg64::WORDS;

/// What all environments remember, `width` numbers each, where they are in their episodes, and their random streams.
pub(super) struct Standing {
    width: usize,
    states: Vec<f64>,
    progress: Vec<Progress>,
    streams: Vec<Pcg64>,
}

impl Standing {
    /// Where environments that have been reset stand; `None` if they cannot tell, or not alike.
    pub(super) fn of(env: &dyn VectorEnv) -> Result<Option<Self>> {
        let states: Option<Vec<_>> = (0..env.num_envs()).map(|i| env.state(i)).collect();
        let progress: Option<Vec<_>> = (0..env.num_envs()).map(|i| env.progress(i)).collect();
        let (Some(states), Some(progress)) = (states, progress) else { return Ok(None) };
        let width = states.first().map_or(0, Vec::len);
        let alike = states.iter().all(|state| state.len() == width);
        Ok(alike.then_some(Self { width, states: states.concat(), progress, streams: env.rngs()? }))
    }

    /// Refuses what is not the environments'.
    pub(super) fn check(&self, env: &dyn VectorEnv) -> Result<()> {
        let known = env.state(0).ok_or_else(|| {
            let id = env.spec().id.clone();
            Error::config("states", "environments that can be restored", id, "load it into those it was saved from")
        })?;
        if known.len() != self.width {
            let (expected, got) = (format!("{} numbers an environment", known.len()), self.width.to_string());
            return Err(Error::shape("states", expected, got, "load it into those it was saved from"));
        }
        self.rows().enumerate().try_for_each(|(i, (state, progress))| env.check_state(i, state, progress))
    }

    /// Puts the environments there. What [`Standing::check`] has accepted is refused only by environments that break
    /// their word; some may have moved then.
    pub(super) fn put(&self, env: &mut dyn VectorEnv) -> Result<()> {
        for (i, (state, progress)) in self.rows().enumerate() {
            env.set_state(i, state)?;
            env.set_progress(i, progress)?;
        }
        env.set_rngs(&self.streams)
    }

    fn rows(&self) -> impl Iterator<Item = (&[f64], Progress)> {
        let states = (0..self.progress.len()).map(|i| &self.states[i * self.width..(i + 1) * self.width]);
        states.zip(self.progress.iter().copied())
    }

    pub(super) fn write(&self, checkpoint: &mut Checkpoint) -> Result<()> {
        let n = self.progress.len();
        let returns: Vec<_> = self.progress.iter().map(|progress| progress.episode_return).collect();
        let steps: Vec<_> = self.progress.iter().map(|progress| i64::from(progress.steps)).collect();
        let finished: Vec<_> = self.progress.iter().map(|progress| progress.finished).collect();
        let words: Vec<_> = self.streams.iter().flat_map(Pcg64::to_words).collect();
        checkpoint.put(
            MEMBER,
            &[
                ("states", &[n, self.width], self.states[..].into()),
                ("episode_returns", &[n], returns[..].into()),
                ("episode_steps", &[n], steps[..].into()),
                ("finished", &[n], finished[..].into()),
                ("streams", &[n, WORDS], words[..].into()),
            ],
        )
    }

    /// Where so many environments stood; `None` if they could not tell.
    pub(super) fn read(checkpoint: &Checkpoint, n: usize) -> Result<Option<Self>> {
        if checkpoint.safetensors(MEMBER).is_none() {
            return Ok(None);
        }
        let shapes = checkpoint.shapes(MEMBER)?;
        let of_states = shapes.iter().find(|(name, _)| name == "states").map(|(_, shape)| &shape[..]);
        let Some(&[rows, width]) = of_states.filter(|shape| shape.first() == Some(&n)) else {
            return Err(checkpoint.corrupt(MEMBER, format!("states of {shapes:?} instead of {n} environments")));
        };
        let (mut states, mut returns) = (vec![0.0; rows * width], vec![0.0; n]);
        let (mut steps, mut finished, mut words) = (vec![0; n], vec![0; n], vec![0; n * WORDS]);
        checkpoint.array(MEMBER, "states", &[n, width], FieldMut::F64(&mut states))?;
        checkpoint.array(MEMBER, "episode_returns", &[n], FieldMut::F64(&mut returns))?;
        checkpoint.array(MEMBER, "episode_steps", &[n], FieldMut::I64(&mut steps))?;
        checkpoint.array(MEMBER, "finished", &[n], FieldMut::Bool(&mut finished))?;
        checkpoint.array(MEMBER, "streams", &[n, WORDS], FieldMut::I64(&mut words))?;
        let progress = returns.into_iter().zip(steps).zip(finished).map(|((episode_return, steps), finished)| {
            let wrong = |_| checkpoint.corrupt(MEMBER, format!("{steps} steps of an episode"));
            Ok(Progress { steps: u32::try_from(steps).map_err(wrong)?, episode_return, finished: finished != 0 })
        });
        let progress = progress.collect::<Result<Vec<_>>>()?;
        let wrong = |words: &[i64]| checkpoint.corrupt(MEMBER, format!("{words:?} as a stream"));
        let streams = words.chunks_exact(WORDS).map(|words| Pcg64::from_words(words).map_err(|_| wrong(words)));
        Ok(Some(Self { width, states, progress, streams: streams.collect::<Result<Vec<_>>>()? }))
    }
}
