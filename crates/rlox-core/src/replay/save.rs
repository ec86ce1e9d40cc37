//! Replay buffers as states, and in the folders of checkpoints.

use std::path::Path;

use serde_json::{Map, Value};

use super::buffer::{Replay, Sampler, Uniform};
use super::described::count;
use super::layout::Layout;
use super::n_step::NStep;
use super::prioritized::Prioritized;
use super::state::{Kept, copy_rows, key, number, number_field, unfit};
use super::storage::ReplayStorage;
use crate::{Checkpoint, DType, Error, Field, FieldData, Result};

/// The member of a checkpoint that holds a buffer, and the manifest's entry that says how to make it.
const MEMBER: &str = "replay";
/// The field of a random stream, which callers may put beside a buffer's own.
const STREAM: &str = "stream";

/// How to make a buffer, as entries of a manifest.
pub type Description = Map<String, Value>;

/// A sampler that files can tell how to make.
pub trait Saved: Sampler + Sized {
    /// Its name, as `sampler`, and its settings.
    fn describe(&self) -> Description;

    /// The sampler of a description.
    ///
    /// # Errors
    /// [`Error::Config`] if it is another's, or makes no sense.
    fn described(about: &Description, storage: &ReplayStorage) -> Result<Self>;
}

/// Checks that a description is of the sampler of this name.
pub(super) fn expect_sampler(about: &Description, name: &str) -> Result<()> {
    let got = about.get("sampler").and_then(Value::as_str).unwrap_or("none");
    if got == name { Ok(()) } else { Err(Error::config("sampler", name, got, "load it as what it was")) }
}

/// A number of a description.
pub(super) fn float(about: &Description, name: &'static str) -> Result<f64> {
    let entry = about.get(name);
    entry
        .and_then(Value::as_f64)
        .ok_or_else(|| Error::config(name, "a number", format!("{entry:?}"), "use another copy"))
}

impl Saved for Uniform {
    fn describe(&self) -> Description {
        Description::from_iter([("sampler".to_owned(), "uniform".into())])
    }

    fn described(about: &Description, _: &ReplayStorage) -> Result<Self> {
        expect_sampler(about, "uniform").map(|()| Self)
    }
}

impl Saved for Prioritized {
    fn describe(&self) -> Description {
        let shares = [("alpha", self.alpha()), ("beta", self.beta())];
        let shares = shares.map(|(name, share)| (name.to_owned(), f64::from(share).into()));
        shares.into_iter().chain([("sampler".to_owned(), "prioritized".into())]).collect()
    }

    fn described(about: &Description, storage: &ReplayStorage) -> Result<Self> {
        expect_sampler(about, "prioritized")?;
        Self::new(storage, float(about, "alpha")? as f32, float(about, "beta")? as f32)
    }
}

/// What the caller said of steps: a single one where nothing was, which is 0 in a state.
fn steps_said(n: usize) -> String {
    match n {
        0 => "1".to_owned(),
        1 => "1 with discounts".to_owned(),
        n => n.to_string(),
    }
}

impl<S: Sampler> Replay<S> {
    /// Everything that the buffer holds, as fields: transitions in the order of pushing, what says how the next pushes go
    /// on, and what the sampler knows. Only what is stored is among them, whatever the capacity.
    ///
    /// ```
    /// use rlox_core::replay::{ReplayBuffer, SampledBatch};
    ///
    /// let mut buffer = ReplayBuffer::new(1000, 1, 1)?;
    /// for i in 0..10 {
    ///     buffer.push_slices(&[i as f32], &[i as f32 + 1.0], &[0.0], 1.0, false, i == 9)?;
    /// }
    /// let mut copy = ReplayBuffer::new(1000, 1, 1)?;
    /// copy.load_state(&buffer.state()?)?;
    /// let (mut batch, mut again) = (SampledBatch::default(), SampledBatch::default());
    /// buffer.sample_into(&mut batch, 4, 7)?;
    /// copy.sample_into(&mut again, 4, 7)?;
    /// assert_eq!(batch.f32s("obs"), again.f32s("obs"));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Memory`] if there is no room for it.
    pub fn state(&self) -> Result<Vec<Field>> {
        let mut fields = self.storage().state()?;
        fields.extend(self.settings()?);
        Ok(fields)
    }

    /// What a state has beside the storage's fields.
    fn settings(&self) -> Result<Vec<Field>> {
        let mut fields = Vec::new();
        let (n, gamma) = self.n_step().map_or((0, 0.0), |steps| (steps.n, steps.gamma));
        fields.push(number_field("n_step", n)?);
        let mut field = Kept::new("gamma", &[], DType::F64, 1).field()?;
        field.put(0, FieldData::F64(&[gamma]));
        fields.push(field);
        fields.extend(self.sampler().state(self.storage())?);
        Ok(fields)
    }

    /// Goes back to a state of a buffer that was made with the same arguments: samples and pushes go on exactly as there.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Space`] or [`Error::Shape`] naming the array that is missing, too many, another
    /// buffer's or makes no sense, [`Error::Memory`] if there is no room for it. Nothing has changed then.
    /// [`Error::Interrupted`] if it was told to stop: nothing has changed while the state was checked, and the buffer is
    /// empty after that.
    pub fn load_state(&mut self, state: &[Field]) -> Result<()> {
        let checked = self.storage().check_state(state)?;
        let (n, gamma) = self.n_step().map_or((0, 0.0), |steps| (steps.n, steps.gamma));
        let got = number(state, "n_step")?;
        if got != n {
            return Err(unfit("n_step", steps_said(n), steps_said(got)));
        }
        if let FieldData::F64(&[got]) = Kept::new("gamma", &[], DType::F64, 1).of(state)?
            && got != gamma
        {
            return Err(unfit("gamma", gamma, got));
        }
        let mut names = self.sampler().check_state(checked.sampled(self.storage().num_envs()), state)?;
        names.extend(["n_step", "gamma"].map(str::to_owned));
        names.extend_from_slice(checked.names());
        if let Some(field) = state.iter().find(|field| !names.iter().any(|name| name == field.name())) {
            let fix = "pass what a buffer made with the same arguments gave";
            return Err(Error::config(key(field.name()), "no such array", "one", fix));
        }
        let (storage, sampler) = self.all_mut();
        storage.reserve_state(state, &checked)?;
        storage.clear();
        sampler.clear()?;
        let put = storage.put_state(state, checked).and_then(|()| sampler.load_state(storage, state));
        if put.is_err() {
            storage.clear();
            sampler.clear()?;
        }
        put
    }
}

impl<S: Saved> Replay<S> {
    /// How to make a buffer that takes this one's state: sizes, layout, the number of steps, the sampler's settings.
    pub fn describe(&self) -> Description {
        let mut about = self.storage().layout().text();
        about.insert("capacity".into(), self.storage().capacity().into());
        about.insert("num_envs".into(), self.storage().num_envs().into());
        if let Some(steps) = self.n_step() {
            about.insert("n_step".into(), steps.n.into());
            about.insert("gamma".into(), steps.gamma.into());
        }
        about.extend(self.sampler().describe());
        about
    }

    /// An empty buffer of a description.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Shape`] for what is none, [`Error::Memory`] if it does not fit into memory.
    pub fn described(about: &Description) -> Result<Self> {
        let wrong = |got: String| Error::config("replay", "the description of a buffer", got, "use another copy");
        let number = |key| count(about, key).map_err(wrong);
        let layout = Layout::of_text(about).map_err(wrong)?;
        let storage = ReplayStorage::new(number("capacity")?, number("num_envs")?, layout)?;
        let sampler = S::described(about, &storage)?;
        let buffer = Self::with(storage, sampler)?;
        if about.contains_key("n_step") {
            return buffer.with_n_step(NStep { n: number("n_step")?, gamma: float(about, "gamma")? });
        }
        Ok(buffer)
    }

    /// Puts the buffer, and further fields of the caller's, into a checkpoint, whose copy of it is the only one.
    ///
    /// # Errors
    /// Those of [`Replay::state`].
    pub fn put_into(&self, checkpoint: &mut Checkpoint, beside: Vec<Field>) -> Result<()> {
        let mut fields = self.storage().counters()?;
        fields.extend(self.settings()?);
        fields.extend(beside);
        let (kept, rows): (Vec<_>, Vec<_>) = self.storage().rows().into_iter().unzip();
        let shape = |rows: usize, row: &[usize]| [&[rows], row].concat();
        let shapes: Vec<_> = fields.iter().map(|field| shape(field.rows(), field.shape())).collect();
        let each = fields.iter().zip(&shapes);
        let mut named: Vec<_> = each.map(|(field, shape)| (field.name(), &shape[..], field.dtype())).collect();
        let kept_shapes: Vec<_> = kept.iter().flatten().map(|kept| shape(kept.rows, &kept.shape)).collect();
        let each = kept.iter().flatten().zip(&kept_shapes);
        named.extend(each.map(|(kept, shape)| (kept.name.as_str(), &shape[..], kept.dtype)));
        checkpoint.put_filled(MEMBER, &named, |mut memory| {
            let mut kept_memory = memory.split_off(fields.len());
            memory.into_iter().zip(&fields).for_each(|(to, field)| to.copy_from_slice(field.data().bytes()));
            for (kept, rows) in kept.iter().zip(rows) {
                let rest = kept_memory.split_off(kept.len());
                copy_rows(kept, rows, std::mem::replace(&mut kept_memory, rest))?;
            }
            Ok(())
        })?;
        checkpoint.manifest.insert(MEMBER.into(), self.describe().into());
        Ok(())
    }

    /// The buffer of a checkpoint, and the fields that are not its own but among `beside`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the file and the section that is none of a buffer, [`Error::Config`] for another
    /// sampler, [`Error::Memory`] if it does not fit into memory.
    pub fn of_checkpoint(checkpoint: &Checkpoint, beside: &[&str]) -> Result<(Self, Vec<Field>)> {
        let wrong = |error: Error| match error {
            Error::Config(wrong) if wrong.argument == "sampler" => Error::Config(wrong),
            other => checkpoint.damaged(MEMBER, other),
        };
        let mut buffer = Self::described(checkpoint.object(MEMBER)?).map_err(wrong)?;
        let fields = checkpoint.fields(MEMBER)?;
        let (others, state): (Vec<_>, Vec<_>) = fields.into_iter().partition(|field| beside.contains(&field.name()));
        buffer.load_state(&state).map_err(wrong)?;
        Ok((buffer, others))
    }

    /// Writes the folder `path` as [`Checkpoint::write`] does: `manifest.json`, and the member `replay` with what is
    /// stored.
    ///
    /// ```
    /// use rlox_core::replay::ReplayBuffer;
    ///
    /// let folder = std::env::temp_dir().join(format!("rlox-buffer-{}", std::process::id()));
    /// let mut buffer = ReplayBuffer::new(1000, 1, 1)?;
    /// buffer.push_slices(&[0.0], &[1.0], &[0.5], 1.0, true, false)?;
    /// buffer.save(&folder)?;
    /// assert_eq!(ReplayBuffer::load(&folder)?.len(), 1);
    /// # std::fs::remove_dir_all(folder).unwrap();
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if something else is at `path` or the system refuses; what was there stays. [`Error::Memory`] if there
    /// is no room for a copy.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut checkpoint = Checkpoint::default();
        self.put_into(&mut checkpoint, Vec::new())?;
        checkpoint.write(path)
    }

    /// The buffer that [`Replay::save`] wrote, or the Python package's.
    ///
    /// # Errors
    /// Those of [`Checkpoint::read`] and [`Replay::of_checkpoint`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self::of_checkpoint(&Checkpoint::read(path)?, &[STREAM])?.0)
    }
}
