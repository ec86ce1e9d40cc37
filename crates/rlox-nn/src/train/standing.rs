//! Where environments stand: taken from them, put back, written and read.

use rlox_core::{Checkpoint, Error, FieldMut, Pcg64, Pcg64State, Progress, Result, VectorEnv};

const MEMBER: &str = "environment";
/// 64-bit words of a stream: its state and its number, high half first, and NumPy's buffered half draw.
const WORDS: usize = 6;

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
        let words: Vec<_> = self.streams.iter().flat_map(words_of).collect();
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
        let streams = words.chunks_exact(WORDS).map(|words| stream_of(words).ok_or_else(|| wrong(words)));
        Ok(Some(Self { width, states, progress, streams: streams.collect::<Result<Vec<_>>>()? }))
    }
}

fn words_of(rng: &Pcg64) -> [i64; WORDS] {
    let Pcg64State { state, inc, has_uint32, uinteger } = rng.state();
    let [a, b, c, d] = [state >> 64, state, inc >> 64, inc].map(|half| half as i64);
    [a, b, c, d, has_uint32.into(), uinteger.into()]
}

fn stream_of(words: &[i64]) -> Option<Pcg64> {
    let &[a, b, c, d, has_uint32 @ (0 | 1), uinteger] = words else { return None };
    let [state, inc] = [(a, b), (c, d)].map(|(high, low)| u128::from(high as u64) << 64 | u128::from(low as u64));
    let uinteger = u32::try_from(uinteger).ok()?;
    Pcg64::from_state(Pcg64State { state, inc, has_uint32: has_uint32 == 1, uinteger }).ok()
}
