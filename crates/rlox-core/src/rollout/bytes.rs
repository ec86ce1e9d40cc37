//! Encoding of rollouts as bytes, for transfer between machines.

use super::record::flags_mut;
use super::{RolloutBuffer, RolloutState};
use crate::{
    Error, Result, alloc,
    field::{Field, FieldData},
};

const HINT: &str = "send the bytes of RolloutBuffer::to_bytes from a buffer of the same sizes";
/// Size of an encoded count or row index in bytes.
const WORD: usize = 8;

impl RolloutBuffer {
    /// Appends the encoded bytes of a finished rollout to `out`.
    ///
    /// The encoding is the concatenation of all [`RolloutBuffer::fields`] in order, the number K of
    /// final observations, their K row indices, and the K final observations. Numbers are
    /// little-endian. Counts and row indices have 8 bytes.
    ///
    /// # Errors
    /// [`Error::Config`] if the rollout is not finished, [`Error::Memory`] if the bytes do not fit into memory.
    ///
    /// ```
    /// use rlox_core::{AutoresetMode, Pcg64, RandomPolicy, RolloutBuffer, VecEnv, VectorEnv, collect, envs::CartPole};
    ///
    /// let mut env = VecEnv::new(1, Some(0), AutoresetMode::SameStep, CartPole::default)?;
    /// let mut policy = RandomPolicy::new(&env.spec().action)?;
    /// let mut buffer = RolloutBuffer::for_env(4, &env)?;
    /// collect(&mut env, &mut policy, &mut [Pcg64::seed_from(0)], &mut buffer, None, 0.99, 0.95)?;
    /// let (mut bytes, mut copy) = (Vec::new(), RolloutBuffer::for_env(4, &env)?);
    /// buffer.to_bytes(&mut bytes)?;
    /// copy.load_bytes(&bytes)?;
    /// assert!(copy.fields().eq(buffer.fields()));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn to_bytes(&self, out: &mut Vec<u8>) -> Result<()> {
        if self.state != RolloutState::Finished {
            let got = format!("an unfinished one with {} of {} steps", self.next_step, self.n_steps);
            return Err(Error::config("buffer", "a finished rollout", got, "call finish first"));
        }
        alloc::try_reserve("n_steps", out, self.encoded_len(self.final_index.len()))?;
        for field in self.fields() {
            write(field, out);
        }
        out.extend((self.final_index.len() as u64).to_le_bytes());
        out.extend(self.final_index.iter().flat_map(|row| (*row as u64).to_le_bytes()));
        write(&self.final_obs, out);
        Ok(())
    }

    /// Returns the number of bytes that [`RolloutBuffer::to_bytes`] appends for a rollout with
    /// `finals` final observations.
    pub fn encoded_len(&self, finals: usize) -> usize {
        let fields: usize = self.fields().map(|field| field.rows().saturating_mul(row_bytes(field))).sum();
        fields.saturating_add(WORD).saturating_add(finals.saturating_mul(WORD + row_bytes(&self.final_obs)))
    }

    /// Replaces the contents by a rollout that [`RolloutBuffer::to_bytes`] encoded.
    ///
    /// The encoded rollout must have the sizes and fields of this buffer.
    ///
    /// # Errors
    /// [`Error::Shape`] if the bytes do not match the sizes of this buffer. [`Error::NotFinite`] if
    /// a number is NaN or infinite. [`Error::Memory`] if the final observations do not fit into
    /// memory. The buffer is unchanged after an error.
    pub fn load_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let shape_error = |expected: String, got: String| Error::shape("rollout", expected, got, HINT);
        let fixed = self.encoded_len(0);
        if bytes.len() < fixed {
            return Err(shape_error(format!("at least {fixed} bytes"), bytes.len().to_string()));
        }
        let count = word(&bytes[fixed - WORD..]);
        let most = self.n_steps * self.num_envs;
        let Some(count) = usize::try_from(count).ok().filter(|count| *count <= most) else {
            return Err(shape_error(format!("at most {most} final observations"), count.to_string()));
        };
        let all = self.encoded_len(count);
        if bytes.len() != all {
            return Err(shape_error(format!("{all} bytes"), bytes.len().to_string()));
        }
        let rows = bytes[fixed..][..count * WORD].chunks_exact(WORD).map(word);
        self.check_finals(bytes, rows.clone())?;
        self.check_numbers(bytes)?;
        alloc::try_reserve("num_envs", &mut self.final_index, count)?;
        self.final_obs.reserve(count).map_err(|error| error.rename_argument("rows", "final_obs"))?;
        let mut rest = bytes;
        let Self { obs, actions, log_probs, values, rewards, terminated, truncated, valid, .. } = self;
        let fields = [obs, actions, log_probs, values, rewards, terminated, truncated, valid];
        let computed = [&mut self.final_values, &mut self.advantages, &mut self.returns];
        for field in fields.into_iter().chain(computed).chain(&mut self.extra.fields) {
            rest = read(field, rest);
        }
        self.final_index.clear();
        self.final_index.extend(rows.map(|row| row as usize));
        self.final_obs.clear();
        self.final_obs.set_rows(count)?;
        read(&mut self.final_obs, &rest[WORD + count * WORD..]);
        self.reset_rows = flags_mut(&mut self.valid).iter().map(|flag| usize::from(*flag == 0)).sum();
        (self.next_step, self.state) = (self.n_steps, RolloutState::Finished);
        Ok(())
    }

    /// Checks that final observations exist for exactly the truncated and not terminated rows.
    fn check_finals(&self, bytes: &[u8], mut rows: impl Iterator<Item = u64>) -> Result<()> {
        let flag_bytes = |name: &str| {
            let before = self.fields().take_while(|field| field.name() != name);
            let from: usize = before.map(|field| field.rows() * row_bytes(field)).sum();
            &bytes[from..][..self.n_steps * self.num_envs]
        };
        let flags = flag_bytes("terminated").iter().zip(flag_bytes("truncated"));
        let mut cut = flags.enumerate().filter(|(_, flags)| *flags.0 == 0 && *flags.1 != 0).map(|(row, _)| row as u64);
        if cut.by_ref().eq(rows.by_ref()) {
            return Ok(());
        }
        let (expected, got) = ("final observations of the truncated rows", "other rows");
        Err(Error::shape("rollout", expected, got, HINT))
    }

    /// Checks that all encoded floating-point numbers are finite.
    fn check_numbers(&self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for field in self.fields() {
            let (field_bytes, next) = rest.split_at(field.rows() * row_bytes(field));
            rest = next;
            check_finite(field, field_bytes)?;
        }
        let count = rest.len().saturating_sub(WORD) / (WORD + row_bytes(&self.final_obs)).max(1);
        check_finite(&self.final_obs, &rest[WORD + count * WORD..])
    }
}

fn check_finite(field: &Field, bytes: &[u8]) -> Result<()> {
    let bad = match field.data() {
        FieldData::F32(_) => {
            numbers(bytes).map(|number| f32::from_le_bytes(number).into()).enumerate().find(is_not_finite)
        }
        FieldData::F64(_) => numbers(bytes).map(f64::from_le_bytes).enumerate().find(is_not_finite),
        _ => None,
    };
    let Some((index, got)) = bad else { return Ok(()) };
    let error = Error::not_finite("rollout", "finite numbers", got.to_string(), "check the sender of the rollout");
    Err(error.in_section(field.name()).at_row(index / field.width()))
}

fn is_not_finite((_, number): &(usize, f64)) -> bool {
    !number.is_finite()
}

fn numbers<const B: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; B]> {
    bytes.chunks_exact(B).filter_map(|chunk| chunk.try_into().ok())
}

fn row_bytes(field: &Field) -> usize {
    field.width() * field.dtype().size()
}

fn word(bytes: &[u8]) -> u64 {
    numbers(bytes).next().map_or(0, u64::from_le_bytes)
}

fn write(field: &Field, out: &mut Vec<u8>) {
    let from = out.len();
    out.extend_from_slice(field.data().bytes());
    little_endian(&mut out[from..], field.dtype().size());
}

/// Decodes the elements of a field from the first bytes and returns the remaining bytes.
fn read<'a>(field: &mut Field, bytes: &'a [u8]) -> &'a [u8] {
    let size = field.dtype().size();
    let into = field.data_mut().into_bytes();
    let (field_bytes, rest) = bytes.split_at(into.len());
    into.copy_from_slice(field_bytes);
    little_endian(into, size);
    rest
}

/// Converts numbers of `size` bytes between the byte order of the machine and little-endian.
fn little_endian(bytes: &mut [u8], size: usize) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envs::{MakeOptions, make};
    use crate::testing::{Variant, assert_rejects};
    use crate::{AutoresetMode, Pcg64, RandomPolicy, VectorEnv, collect};

    fn collected(mode: AutoresetMode) -> (Box<dyn VectorEnv>, RolloutBuffer) {
        let limit = Some(Some(5));
        let options = MakeOptions {
            num_envs: 3,
            seed: Some(1),
            autoreset_mode: mode,
            max_episode_steps: limit,
            ..Default::default()
        };
        let mut env = make("Pendulum-v1", &options).unwrap();
        let mut policy = RandomPolicy::new(&env.spec().action).unwrap();
        let mut buffer = RolloutBuffer::for_env(12, env.as_ref()).unwrap();
        let mut rngs: Vec<_> = (0..3).map(Pcg64::seed_from).collect();
        collect(env.as_mut(), &mut policy, &mut rngs, &mut buffer, None, 0.99, 0.95).unwrap();
        (env, buffer)
    }

    #[test]
    fn a_rollout_is_unchanged_after_a_round_trip() {
        for mode in [AutoresetMode::SameStep, AutoresetMode::NextStep, AutoresetMode::Disabled] {
            let (env, buffer) = collected(mode);
            assert!(!buffer.final_index().is_empty());
            let mut bytes = Vec::new();
            buffer.to_bytes(&mut bytes).unwrap();
            assert_eq!(bytes.len(), buffer.encoded_len(buffer.final_index().len()));
            let mut copy = RolloutBuffer::for_env(12, env.as_ref()).unwrap();
            copy.load_bytes(&bytes).unwrap();
            assert!(copy.fields().eq(buffer.fields()) && copy.is_finished());
            assert_eq!((copy.final_index(), copy.final_obs()), (buffer.final_index(), buffer.final_obs()));
            assert_eq!((copy.transitions(), copy.next_step()), (buffer.transitions(), 12));
        }
    }

    #[test]
    fn invalid_bytes_are_rejected_and_change_nothing() {
        let (env, buffer) = collected(AutoresetMode::SameStep);
        let mut bytes = Vec::new();
        buffer.to_bytes(&mut bytes).unwrap();
        let mut copy = RolloutBuffer::for_env(12, env.as_ref()).unwrap();
        assert_rejects(copy.to_bytes(&mut Vec::new()), Error::Config, "buffer");
        let fixed = copy.encoded_len(0);
        let changed = |at: usize, to: &[u8]| {
            let mut bytes = bytes.clone();
            bytes[at..][..to.len()].copy_from_slice(to);
            bytes
        };
        let longer = [&bytes[..], &[0]].concat();
        let lengths = [bytes.len() - 1, bytes.len() + 1, 0].map(|len| len.to_string());
        let last = buffer.final_index.len().checked_sub(1);
        let cases: [(_, Variant, &str, Option<&str>, Option<usize>); 7] = [
            (bytes[..bytes.len() - 1].to_vec(), Error::Shape, &lengths[0], None, None),
            (longer, Error::Shape, &lengths[1], None, None),
            (Vec::new(), Error::Shape, &lengths[2], None, None),
            (changed(fixed - WORD, &u64::MAX.to_le_bytes()), Error::Shape, "18446744073709551615", None, None),
            (changed(fixed, &1_u64.to_le_bytes()), Error::Shape, "other rows", None, None),
            (changed(0, &f32::NAN.to_le_bytes()), Error::NotFinite, "NaN", Some("obs"), Some(0)),
            (changed(bytes.len() - 4, &f32::INFINITY.to_le_bytes()), Error::NotFinite, "inf", Some("final_obs"), last),
        ];
        for (bad, variant, got, section, row) in cases {
            let rejected = assert_rejects(copy.load_bytes(&bad), variant, "rollout");
            assert_eq!((&rejected.got[..], rejected.at.section.as_deref(), rejected.at.row), (got, section, row));
            assert!(!copy.is_finished() && copy.next_step() == 0);
        }
    }
}
