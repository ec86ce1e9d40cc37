//! What messages and the types of `rlox-core` have to do with each other.

use std::borrow::Cow;

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use rlox_core::{AutoresetMode, EnvSpec, Error, Mismatch, Pcg64, Result, Space, Standing, masked_actions};

use crate::v1;

/// Numbers that slabs are made of.
pub(crate) trait Number: Pod + Zeroable {
    fn swapped(self) -> Self;
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Number for $number {
            fn swapped(self) -> Self {
                Self::from_le_bytes(self.to_ne_bytes())
            }
        })*
    };
}
numbers!(f32, f64, i64, u32, u8);

/// Appends numbers to a slab.
pub(crate) fn put<T: Number>(slab: &mut Vec<u8>, numbers: &[T]) {
    if cfg!(target_endian = "little") {
        slab.extend_from_slice(bytemuck::cast_slice(numbers));
    } else {
        slab.extend(numbers.iter().flat_map(|x| bytemuck::bytes_of(&x.swapped()).to_vec()));
    }
}

/// A slab that is read from its front.
pub(crate) struct Slab<'a> {
    name: &'static str,
    len: usize,
    rest: &'a [u8],
}

impl<'a> Slab<'a> {
    pub(crate) fn new(name: &'static str, bytes: &'a [u8]) -> Self {
        Self { name, len: bytes.len(), rest: bytes }
    }

    /// Fills a slice.
    pub(crate) fn read<T: Number>(&mut self, into: &mut [T]) -> Result<()> {
        let bytes = self.take(size_of_val(into))?;
        bytemuck::cast_slice_mut(into).copy_from_slice(bytes);
        if cfg!(target_endian = "big") {
            for x in into {
                *x = x.swapped();
            }
        }
        Ok(())
    }

    /// So many numbers.
    pub(crate) fn vec<T: Number>(&mut self, count: usize) -> Result<Vec<T>> {
        let needed = count.saturating_mul(size_of::<T>());
        if needed > self.rest.len() {
            return Err(self.wrong(needed));
        }
        let mut numbers = vec![T::zeroed(); count];
        self.read(&mut numbers)?;
        Ok(numbers)
    }

    /// Flags, a byte each.
    pub(crate) fn flags(&mut self, into: &mut [bool]) -> Result<()> {
        let bytes = self.take(into.len())?;
        into.iter_mut().zip(bytes).for_each(|(flag, byte)| *flag = *byte != 0);
        Ok(())
    }

    /// Refuses bytes that are left.
    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.wrong(0)) }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else { return Err(self.wrong(count)) };
        self.rest = rest;
        Ok(taken)
    }

    fn wrong(&self, needed: usize) -> Error {
        let expected = format!("{} bytes", self.len - self.rest.len() + needed);
        Error::shape(self.name, expected, self.len.to_string(), "send what the session's spaces and num_envs say")
    }
}

pub(crate) fn flags(flags: &[bool]) -> &[u8] {
    bytemuck::cast_slice(flags)
}

pub(crate) fn standing_to(standing: &Standing<'_>) -> v1::Standing {
    let n = standing.finished.len();
    let mut slab = Vec::with_capacity(8 * (standing.states.len() + n * (2 + Pcg64::WORDS)) + n);
    put(&mut slab, &standing.states);
    put(&mut slab, &standing.episode_returns);
    put(&mut slab, &standing.episode_steps);
    put(&mut slab, flags(&standing.finished));
    put(&mut slab, &standing.streams);
    v1::Standing { width: (standing.states.len() / n.max(1)) as u32, slab: slab.into() }
}

pub(crate) fn standing_from(standing: &v1::Standing, num_envs: usize) -> Result<Standing<'static>> {
    let mut slab = Slab::new("standing", &standing.slab);
    let mut finished = vec![false; num_envs];
    let made = Standing {
        states: Cow::Owned(slab.vec(num_envs.saturating_mul(standing.width as usize))?),
        episode_returns: Cow::Owned(slab.vec(num_envs)?),
        episode_steps: Cow::Owned(slab.vec(num_envs)?),
        finished: {
            slab.flags(&mut finished)?;
            Cow::Owned(finished)
        },
        streams: Cow::Owned(slab.vec(num_envs * Pcg64::WORDS)?),
    };
    slab.end()?;
    Ok(made)
}

pub(crate) fn mode_to(mode: AutoresetMode) -> v1::AutoresetMode {
    match mode {
        AutoresetMode::NextStep => v1::AutoresetMode::NextStep,
        AutoresetMode::SameStep => v1::AutoresetMode::SameStep,
        AutoresetMode::Disabled => v1::AutoresetMode::Disabled,
    }
}

pub(crate) fn mode_from(mode: i32) -> Result<AutoresetMode> {
    match v1::AutoresetMode::try_from(mode) {
        Ok(v1::AutoresetMode::NextStep) => Ok(AutoresetMode::NextStep),
        Ok(v1::AutoresetMode::SameStep) => Ok(AutoresetMode::SameStep),
        Ok(v1::AutoresetMode::Disabled) => Ok(AutoresetMode::Disabled),
        Err(_) => Err(Error::config("autoreset_mode", "0, 1 or 2", mode.to_string(), "use the same version of rlox")),
    }
}

pub(crate) fn space_to(space: &Space) -> v1::Space {
    use v1::space::Kind;
    let made = v1::Space { shape: space.shape().iter().map(|n| *n as u64).collect(), ..v1::Space::default() };
    match space {
        Space::Discrete { n, start } => v1::Space { kind: Kind::Discrete.into(), n: *n, start: *start, ..made },
        Space::MultiDiscrete { nvec } => v1::Space { kind: Kind::MultiDiscrete.into(), nvec: nvec.clone(), ..made },
        Space::MultiBinary { n } => v1::Space { kind: Kind::MultiBinary.into(), n: *n as i64, ..made },
        Space::Box { low, high, .. } => {
            let bound = |numbers: &[f32]| {
                let mut bytes = Vec::with_capacity(numbers.len() * 4);
                put(&mut bytes, numbers);
                Bytes::from(bytes)
            };
            v1::Space { kind: Kind::Box.into(), low: bound(low), high: bound(high), ..made }
        }
    }
}

fn space_from(space: Option<v1::Space>, name: &'static str) -> Result<Space> {
    use v1::space::Kind;
    let absent = || Error::space(name, "a space", "none", "use the same version of rlox on both sides");
    let v1::Space { kind, n, start, nvec, shape, low, high } = space.ok_or_else(absent)?;
    let made = match Kind::try_from(kind).map_err(|_| absent())? {
        Kind::Discrete => Space::Discrete { n, start },
        Kind::MultiDiscrete => Space::MultiDiscrete { nvec },
        Kind::MultiBinary => Space::MultiBinary { n: usize::try_from(n).unwrap_or(0) },
        Kind::Box => {
            let bound = |bytes: &[u8]| Slab::new(name, bytes).vec(bytes.len() / 4);
            let shape = shape.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX)).collect();
            Space::Box { shape, low: bound(&low)?, high: bound(&high)? }
        }
    };
    made.validate(name)?;
    Ok(made)
}

/// What a worker's environments are.
pub(crate) fn spec_from(opened: v1::Opened) -> Result<EnvSpec> {
    let action = space_from(opened.action, "action space")?;
    let flags = masked_actions(&action);
    if opened.mask != 0 && opened.mask as usize != flags {
        let (expected, got) = (format!("none, or one for each of {flags} choices"), opened.mask.to_string());
        return Err(Error::space("action masks", expected, got, "use the same version of rlox on both sides"));
    }
    Ok(EnvSpec {
        id: opened.env_id,
        observation: space_from(opened.observation, "observation space")?,
        action,
        max_episode_steps: Some(opened.max_episode_steps).filter(|limit| *limit > 0),
    })
}

pub(crate) fn arguments_to(arguments: &[(String, f64)]) -> Vec<v1::Argument> {
    arguments.iter().map(|(name, value)| v1::Argument { name: name.clone(), value: *value }).collect()
}

pub(crate) fn failure_to(error: Error) -> v1::Failure {
    use v1::failure::Kind;
    let (kind, wrong) = match error {
        Error::Shape(wrong) => (Kind::Shape, wrong),
        Error::Action(wrong) => (Kind::Action, wrong),
        Error::Space(wrong) => (Kind::Space, wrong),
        Error::Config(wrong) => (Kind::Config, wrong),
        Error::NotFinite(wrong) => (Kind::NotFinite, wrong),
        Error::Memory(wrong) => (Kind::Memory, wrong),
        Error::Corrupt(wrong) => (Kind::Corrupt, wrong),
        Error::Closed(wrong) => (Kind::Closed, wrong),
        other => {
            let got = other.to_string();
            return v1::Failure { kind: Kind::Backend.into(), got, ..v1::Failure::default() };
        }
    };
    let Mismatch { argument, expected, got, fix } = *wrong;
    v1::Failure { kind: kind.into(), argument: argument.into_owned(), expected, got, fix: fix.into_owned() }
}

/// The error that a worker told of, with its address.
pub(crate) fn failure_from(failure: v1::Failure, address: &str) -> Error {
    use v1::failure::Kind;
    let v1::Failure { kind, argument, expected, got, fix } = failure;
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
    make(argument, expected, format!("{got} (worker {address})"), fix)
}
