//! Conversion between the types of `rlox-core` and the messages of the protocol.
//!
//! A slab is a byte string that holds arrays of numbers, little-endian, one after another.

use std::borrow::Cow;

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use rlox_core::{
    AutoresetMode, EnvSpec, Error, Pcg64, Result, Space,
    error::{Location, Mismatch},
    vector::{EnvSnapshot, masked_actions},
};

use crate::proto;

/// Maximum number of environment arguments, and of options of a reset.
const MAX_ARGUMENTS: usize = 64;

/// Type of the numbers in a slab.
pub(crate) trait Number: Pod + Zeroable {
    fn to_little_endian(self) -> Self;
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Number for $number {
            fn to_little_endian(self) -> Self {
                Self::from_le_bytes(self.to_ne_bytes())
            }
        })*
    };
}
numbers!(f32, f64, i64, u64, u32, u8);

/// Appends numbers to a slab, little-endian.
pub(crate) fn write_numbers<T: Number>(slab: &mut Vec<u8>, numbers: &[T]) {
    if cfg!(target_endian = "little") {
        slab.extend_from_slice(bytemuck::cast_slice(numbers));
    } else {
        slab.extend(numbers.iter().flat_map(|x| bytemuck::bytes_of(&x.to_little_endian()).to_vec()));
    }
}

/// Slab whose arrays are read in order.
pub(crate) struct Slab<'a> {
    name: &'static str,
    len: usize,
    remaining: &'a [u8],
}

impl<'a> Slab<'a> {
    pub(crate) fn new(name: &'static str, bytes: &'a [u8]) -> Self {
        Self { name, len: bytes.len(), remaining: bytes }
    }

    /// Fills a slice with the next numbers.
    pub(crate) fn read<T: Number>(&mut self, into: &mut [T]) -> Result<()> {
        let bytes = self.take(size_of_val(into))?;
        bytemuck::cast_slice_mut(into).copy_from_slice(bytes);
        if cfg!(target_endian = "big") {
            for x in into {
                *x = x.to_little_endian();
            }
        }
        Ok(())
    }

    /// Reads the next `count` numbers.
    pub(crate) fn vec<T: Number>(&mut self, count: usize) -> Result<Vec<T>> {
        let needed = count.saturating_mul(size_of::<T>());
        if needed > self.remaining.len() {
            return Err(self.length_mismatch(needed));
        }
        let mut numbers = vec![T::zeroed(); count];
        self.read(&mut numbers)?;
        Ok(numbers)
    }

    /// Reads flags, one byte each.
    pub(crate) fn flags(&mut self, into: &mut [bool]) -> Result<()> {
        let bytes = self.take(into.len())?;
        into.iter_mut().zip(bytes).for_each(|(flag, byte)| *flag = *byte != 0);
        Ok(())
    }

    /// Returns an error if bytes remain.
    pub(crate) fn finish(self) -> Result<()> {
        if self.remaining.is_empty() { Ok(()) } else { Err(self.length_mismatch(0)) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((bytes, remaining)) = self.remaining.split_at_checked(count) else {
            return Err(self.length_mismatch(count));
        };
        self.remaining = remaining;
        Ok(bytes)
    }

    fn length_mismatch(&self, needed: usize) -> Error {
        let expected = format!("{} bytes", self.len - self.remaining.len() + needed);
        Error::shape(self.name, expected, self.len.to_string(), "send the size for the session's spaces and num_envs")
    }
}

pub(crate) fn flags(flags: &[bool]) -> &[u8] {
    bytemuck::cast_slice(flags)
}

/// Returns the rows of environments whose episodes were truncated and not terminated.
pub(crate) fn truncated_rows(terminated: &[bool], truncated: &[bool]) -> impl Iterator<Item = usize> {
    let flags = terminated.iter().zip(truncated).enumerate();
    flags.filter(|(_, (terminated, truncated))| **truncated && !**terminated).map(|(row, _)| row)
}

pub(crate) fn snapshot_to(snapshot: &EnvSnapshot<'_>) -> proto::EnvState {
    let n = snapshot.finished.len();
    let mut slab = Vec::with_capacity(8 * (snapshot.states.len() + n * (2 + Pcg64::STATE_LEN)) + n);
    write_numbers(&mut slab, &snapshot.states);
    write_numbers(&mut slab, &snapshot.episode_returns);
    write_numbers(&mut slab, &snapshot.episode_steps);
    write_numbers(&mut slab, flags(&snapshot.finished));
    write_numbers(&mut slab, &snapshot.streams);
    proto::EnvState { width: (snapshot.states.len() / n.max(1)) as u32, slab: slab.into() }
}

pub(crate) fn snapshot_from(snapshot: &proto::EnvState, num_envs: usize) -> Result<EnvSnapshot<'static>> {
    let mut slab = Slab::new("env_state", &snapshot.slab);
    let mut finished = vec![false; num_envs];
    let env_snapshot = EnvSnapshot {
        states: Cow::Owned(slab.vec(num_envs.saturating_mul(snapshot.width as usize))?),
        episode_returns: Cow::Owned(slab.vec(num_envs)?),
        episode_steps: Cow::Owned(slab.vec(num_envs)?),
        finished: {
            slab.flags(&mut finished)?;
            Cow::Owned(finished)
        },
        streams: Cow::Owned(slab.vec(num_envs * Pcg64::STATE_LEN)?),
    };
    slab.finish()?;
    Ok(env_snapshot)
}

pub(crate) fn mode_to(mode: AutoresetMode) -> proto::AutoresetMode {
    match mode {
        AutoresetMode::NextStep => proto::AutoresetMode::NextStep,
        AutoresetMode::SameStep => proto::AutoresetMode::SameStep,
        AutoresetMode::Disabled => proto::AutoresetMode::Disabled,
    }
}

pub(crate) fn mode_from(mode: i32) -> Result<AutoresetMode> {
    match proto::AutoresetMode::try_from(mode) {
        Ok(proto::AutoresetMode::NextStep) => Ok(AutoresetMode::NextStep),
        Ok(proto::AutoresetMode::SameStep) => Ok(AutoresetMode::SameStep),
        Ok(proto::AutoresetMode::Disabled) => Ok(AutoresetMode::Disabled),
        Err(_) => Err(Error::config("autoreset_mode", "0, 1 or 2", mode.to_string(), "use the same version of rlox")),
    }
}

pub(crate) fn space_to(space: &Space) -> proto::Space {
    use proto::space::Kind;
    let shaped = proto::Space { shape: space.shape().iter().map(|n| *n as u64).collect(), ..proto::Space::default() };
    match space {
        Space::Discrete { n, start } => proto::Space { kind: Kind::Discrete.into(), n: *n, start: *start, ..shaped },
        Space::MultiDiscrete { nvec } => {
            proto::Space { kind: Kind::MultiDiscrete.into(), nvec: nvec.clone(), ..shaped }
        }
        Space::MultiBinary { n } => proto::Space { kind: Kind::MultiBinary.into(), n: *n as i64, ..shaped },
        Space::Box { low, high, .. } => {
            let bound_bytes = |numbers: &[f32]| {
                let mut bytes = Vec::with_capacity(numbers.len() * 4);
                write_numbers(&mut bytes, numbers);
                Bytes::from(bytes)
            };
            proto::Space { kind: Kind::Box.into(), low: bound_bytes(low), high: bound_bytes(high), ..shaped }
        }
    }
}

fn space_from(space: Option<proto::Space>, name: &'static str) -> Result<Space> {
    use proto::space::Kind;
    let missing = || Error::space(name, "a space", "no space", "use the same version of rlox on both sides");
    let proto::Space { kind, n, start, nvec, shape, low, high } = space.ok_or_else(missing)?;
    let decoded = match Kind::try_from(kind).map_err(|_| missing())? {
        Kind::Discrete => Space::Discrete { n, start },
        Kind::MultiDiscrete => Space::MultiDiscrete { nvec },
        Kind::MultiBinary => Space::MultiBinary { n: usize::try_from(n).unwrap_or(0) },
        Kind::Box => {
            let parse_bound = |bytes: &[u8]| Slab::new(name, bytes).vec(bytes.len() / 4);
            let shape = shape.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX)).collect();
            Space::Box { shape, low: parse_bound(&low)?, high: parse_bound(&high)? }
        }
    };
    decoded.validate(name)?;
    Ok(decoded)
}

/// Returns the spec of a worker's environments.
pub(crate) fn spec_from(opened: proto::Opened) -> Result<EnvSpec> {
    let action = space_from(opened.action, "action space")?;
    let flags = masked_actions(&action);
    if opened.mask != 0 && opened.mask as usize != flags {
        let (expected, got) = (format!("no masks, or {flags} flags"), opened.mask.to_string());
        return Err(Error::space("action masks", expected, got, "use the same version of rlox on both sides"));
    }
    Ok(EnvSpec {
        id: opened.env_id,
        observation: space_from(opened.observation, "observation space")?,
        action,
        max_episode_steps: Some(opened.max_episode_steps).filter(|limit| *limit > 0),
    })
}

/// Encodes numbers with names as bytes.
pub(crate) fn arguments_to(argument: &'static str, arguments: &[(String, f64)]) -> Result<Bytes> {
    if arguments.len() > MAX_ARGUMENTS {
        return Err(invalid_arguments(argument, arguments.len().to_string(), "pass fewer"));
    }
    let mut bytes = Vec::with_capacity(arguments.iter().map(|(name, _)| name.len() + 9).sum());
    for (name, value) in arguments {
        let name_too_long =
            |_| invalid_arguments(argument, format!("a name of {} bytes", name.len()), "correct the name");
        bytes.push(u8::try_from(name.len()).map_err(name_too_long)?);
        bytes.extend_from_slice(name.as_bytes());
        write_numbers(&mut bytes, &[*value]);
    }
    Ok(bytes.into())
}

pub(crate) fn arguments_from(argument: &'static str, mut bytes: &[u8]) -> Result<Vec<(String, f64)>> {
    let mismatch = |got: &str| invalid_arguments(argument, got.to_owned(), "use the same version of rlox");
    let mut arguments = Vec::new();
    while let Some((len, remaining)) = bytes.split_first() {
        if arguments.len() == MAX_ARGUMENTS {
            return Err(mismatch("more"));
        }
        let (name, remaining) =
            remaining.split_at_checked(*len as usize).ok_or_else(|| mismatch("a name that is cut short"))?;
        let (number, remaining) =
            remaining.split_first_chunk().ok_or_else(|| mismatch("a number that is cut short"))?;
        let name = str::from_utf8(name).map_err(|_| mismatch("a name in another encoding"))?;
        arguments.push((name.to_owned(), f64::from_le_bytes(*number)));
        bytes = remaining;
    }
    Ok(arguments)
}

fn invalid_arguments(argument: &'static str, got: String, fix: &'static str) -> Error {
    let expected = format!("at most {MAX_ARGUMENTS} numbers, each with a name of at most 255 bytes in UTF-8");
    Error::config(argument, expected, got, fix)
}

/// Encodes one optional seed per environment as bytes.
pub(crate) fn seeds_to(seeds: &[Option<u64>]) -> Bytes {
    let (is_present, numbers): (Vec<_>, Vec<_>) = seeds.iter().map(|seed| (seed.is_some(), seed.unwrap_or(0))).unzip();
    let mut bytes = Vec::with_capacity(seeds.len() * 9);
    write_numbers(&mut bytes, flags(&is_present));
    write_numbers(&mut bytes, &numbers);
    bytes.into()
}

pub(crate) fn seeds_from(bytes: &[u8], num_envs: usize) -> Result<Vec<Option<u64>>> {
    let mut slab = Slab::new("seeds", bytes);
    let is_present: Vec<u8> = slab.vec(num_envs)?;
    let numbers = slab.vec(num_envs)?;
    slab.finish()?;
    Ok(numbers.into_iter().zip(is_present).map(|(seed, there)| Some(seed).filter(|_| there != 0)).collect())
}

pub(crate) fn failure_to(error: Error) -> proto::Failure {
    use proto::failure::Kind;
    let (kind, mismatch) = match error {
        Error::Shape(mismatch) => (Kind::Shape, mismatch),
        Error::Action(mismatch) => (Kind::Action, mismatch),
        Error::Space(mismatch) => (Kind::Space, mismatch),
        Error::Config(mismatch) => (Kind::Config, mismatch),
        Error::NotFinite(mismatch) => (Kind::NotFinite, mismatch),
        Error::Memory(mismatch) => (Kind::Memory, mismatch),
        Error::Corrupt(mismatch) => (Kind::Corrupt, mismatch),
        Error::Closed(mismatch) => (Kind::Closed, mismatch),
        other => {
            let got = other.to_string();
            return proto::Failure { kind: Kind::Backend.into(), got, ..proto::Failure::default() };
        }
    };
    let Mismatch { argument, expected, got, hint, at } = *mismatch;
    proto::Failure {
        kind: kind.into(),
        argument: argument.into_owned(),
        expected,
        got,
        hint: hint.into_owned(),
        env: at.env.map(|env| env as u64),
        row: at.row.map(|row| row as u64),
        step: at.step.map(|step| step as u64),
        section: at.section,
        column: at.column.map(|column| column as u64),
        index: at.index.map(|index| index as u64),
    }
}

/// Returns the error that a worker reported, with the address of the worker.
///
/// `first_env` is the index of the worker's first environment among the environments of all
/// workers.
pub(crate) fn failure_from(failure: proto::Failure, address: &str, first_env: usize) -> Error {
    use proto::failure::Kind;
    let proto::Failure { kind, argument, expected, got, hint, env, row, step, section, column, index } = failure;
    let make = match Kind::try_from(kind).unwrap_or(Kind::Backend) {
        Kind::Backend => return Error::Backend(format!("worker {address}: {got}")),
        Kind::Panic => return Error::Backend(format!("worker {address}: the environment panicked: {got}")),
        Kind::Shape => Error::shape,
        Kind::Action => Error::action,
        Kind::Space => Error::space,
        Kind::Config => Error::config,
        Kind::NotFinite => Error::not_finite,
        Kind::Memory => Error::memory,
        Kind::Corrupt => Error::corrupt,
        Kind::Closed => Error::closed,
    };
    let mut error = make(argument, expected, got, hint);
    if let Some(mismatch) = error.mismatch_mut() {
        let number = |number: Option<u64>| number.and_then(|number| usize::try_from(number).ok());
        mismatch.at = Location {
            env: number(env).and_then(|env| env.checked_add(first_env)),
            row: number(row),
            column: number(column),
            index: number(index),
            step: number(step),
            timesteps: None,
            section,
            worker: Some(address.to_owned()),
        };
    }
    error
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use rlox_core::__private::testing::assert_rejects;

    use super::*;

    #[test]
    fn arguments_are_lengths_names_and_numbers() {
        let arguments = [("g".to_owned(), 9.5), (String::new(), -0.0), ("é".to_owned(), f64::INFINITY)];
        let bytes = arguments_to("arguments", &arguments).unwrap();
        assert_eq!(bytes[..10], [1, b'g', 0, 0, 0, 0, 0, 0, 0x23, 0x40]);
        assert_eq!(arguments_from("arguments", &bytes).unwrap(), arguments);
        assert_eq!(arguments_from("arguments", &[]).unwrap(), []);
    }

    #[test]
    fn wrong_arguments_are_rejected_by_name() {
        for (bytes, got) in [
            (&[3, b'a'][..], "a name that is cut short"),
            (&[1, b'a', 0, 0], "a number that is cut short"),
            (&[1, 0xff, 0, 0, 0, 0, 0, 0, 0, 0], "a name in another encoding"),
            (&[0; 65 * 9], "more"),
        ] {
            assert_eq!(assert_rejects(arguments_from("options", bytes), Error::Config, "options").got, got);
        }
        assert_eq!(arguments_from("options", &[0; 64 * 9]).unwrap().len(), 64);
        let long = arguments_to("arguments", &[("x".repeat(256), 0.0)]);
        assert_eq!(assert_rejects(long, Error::Config, "arguments").got, "a name of 256 bytes");
        let many = arguments_to("arguments", &vec![(String::new(), 0.0); 65]);
        assert_eq!(assert_rejects(many, Error::Config, "arguments").got, "65");
    }

    #[test]
    fn seeds_are_flags_and_numbers() {
        let seeds = [Some(258), None, Some(u64::MAX)];
        let bytes = seeds_to(&seeds);
        assert_eq!(bytes[..11], [1, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(seeds_from(&bytes, 3).unwrap(), seeds);
        for wrong in [2, 4, usize::MAX] {
            assert_rejects(seeds_from(&bytes, wrong), Error::Shape, "seeds");
        }
    }

    proptest! {
        #[test]
        fn any_arguments_come_back(arguments in prop::collection::vec((".{0,60}", any::<i32>().prop_map(f64::from)), 0..=64)) {
            let bytes = arguments_to("arguments", &arguments).unwrap();
            prop_assert_eq!(arguments_from("arguments", &bytes).unwrap(), arguments);
        }

        /// Checks that memory is proportional to the input: at most 64 names, and 16 bytes per 9 bytes of input.
        #[test]
        fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(0..4_u8, 0..700), num_envs in 0..80_usize) {
            if let Ok(arguments) = arguments_from("arguments", &bytes) {
                prop_assert!(arguments.len() <= MAX_ARGUMENTS);
                prop_assert_eq!(arguments_to("arguments", &arguments).unwrap(), bytes.clone());
            }
            let seeds = seeds_from(&bytes, num_envs).ok().map(|seeds| seeds.len());
            prop_assert_eq!(seeds, (bytes.len() == num_envs * 9).then_some(num_envs));
        }

        #[test]
        fn any_bytes_at_all_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..4000), width: u32, num_envs: u32) {
            let _ = arguments_from("arguments", &bytes);
            let _ = seeds_from(&bytes, num_envs as usize);
            let slab = bytes.clone().into();
            let _ = snapshot_from(&proto::EnvState { width, slab }, num_envs as usize);
            let _ = prost::Message::decode(&bytes[..]).map(|_: proto::Request| ());
        }
    }
}
