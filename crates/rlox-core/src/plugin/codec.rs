//! Encoding of options, spaces, errors and other values as 64-bit words.

use crate::envs::MakeOptions;
use crate::vector::EpisodeProgress;
use crate::{
    AutoresetMode, EnvSpec, Error, Pcg64, ResetOptions, Result, Seeds, Space, alloc,
    error::{Location, Mismatch},
};

/// Decoder of values from the front of a slice of words.
///
/// Its methods return `None` if words are missing or invalid.
pub(super) struct Reader<'a>(pub(super) &'a [u64]);

impl<'a> Reader<'a> {
    pub(super) fn word(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn size(&mut self) -> Option<usize> {
        usize::try_from(self.word()?).ok()
    }

    pub(super) fn number(&mut self) -> Option<f64> {
        self.word().map(f64::from_bits)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        self.word().map(|word| word != 0)
    }

    /// Reads a length and that number of words.
    fn list(&mut self) -> Option<&'a [u64]> {
        let len = self.size()?;
        let (list, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(list)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.list()?.iter().map(|word| *word as u8).collect()).ok()
    }

    #[expect(clippy::option_option, reason = "outer: readable, inner: present")]
    fn option(&mut self) -> Option<Option<u64>> {
        let (there, word) = (self.flag()?, self.word()?);
        Some(there.then_some(word))
    }

    fn pairs(&mut self) -> Option<Vec<(String, f64)>> {
        let len = self.size()?;
        (0..len).map(|_| Some((self.text()?, self.number()?))).collect()
    }

    pub(super) fn progress(&mut self) -> Option<EpisodeProgress> {
        let steps = u32::try_from(self.word()?).ok()?;
        Some(EpisodeProgress { steps, episode_return: self.number()?, finished: self.flag()? })
    }
}

fn write_list(words: &mut Vec<u64>, list: impl ExactSizeIterator<Item = u64>) {
    words.push(list.len() as u64);
    words.extend(list);
}

fn write_text(words: &mut Vec<u64>, text: &str) {
    write_list(words, text.bytes().map(u64::from));
}

fn write_option(words: &mut Vec<u64>, option: Option<u64>) {
    words.extend([u64::from(option.is_some()), option.unwrap_or(0)]);
}

fn write_pairs(words: &mut Vec<u64>, pairs: &[(String, f64)]) {
    words.push(pairs.len() as u64);
    for (name, value) in pairs {
        write_text(words, name);
        words.push(value.to_bits());
    }
}

const MODES: [AutoresetMode; 3] = [AutoresetMode::NextStep, AutoresetMode::SameStep, AutoresetMode::Disabled];

fn encode_mode(mode: AutoresetMode) -> u64 {
    MODES.iter().position(|known| *known == mode).map_or(u64::MAX, |index| index as u64)
}

fn decode_mode(reader: &mut Reader<'_>) -> Option<AutoresetMode> {
    MODES.get(reader.size()?).copied()
}

pub(super) fn encode_options(options: &MakeOptions<'_>) -> Vec<u64> {
    let mut words = vec![options.num_envs as u64, encode_mode(options.autoreset_mode)];
    write_option(&mut words, options.seed);
    write_option(&mut words, options.max_episode_steps.map(|limit| limit.map_or(u64::MAX, u64::from)));
    write_pairs(&mut words, options.arguments);
    words
}

/// Decodes the options. The arguments are returned separately, because the options borrow them.
pub(super) fn decode_options(words: &[u64]) -> Option<(MakeOptions<'static>, Vec<(String, f64)>)> {
    let mut reader = Reader(words);
    let options = MakeOptions {
        num_envs: reader.size()?,
        autoreset_mode: decode_mode(&mut reader)?,
        seed: reader.option()?,
        max_episode_steps: reader.option()?.map(|limit| u32::try_from(limit).ok()),
        ..Default::default()
    };
    Some((options, reader.pairs()?))
}

/// Number of environments, autoreset mode, presence of action masks, and spec.
pub(super) type Description = (usize, AutoresetMode, bool, EnvSpec);

pub(super) fn encode_description((num_envs, mode, masks, spec): (usize, AutoresetMode, bool, &EnvSpec)) -> Vec<u64> {
    let mut words = vec![num_envs as u64, encode_mode(mode), u64::from(masks)];
    write_text(&mut words, &spec.id);
    write_option(&mut words, spec.max_episode_steps.map(u64::from));
    for space in [&spec.observation, &spec.action] {
        let bits = |bounds: &[f32]| bounds.iter().map(|bound| u64::from(bound.to_bits())).collect::<Vec<_>>();
        match space {
            Space::Discrete { n, start } => words.extend([0, *n as u64, *start as u64]),
            Space::MultiDiscrete { nvec } => {
                words.push(1);
                write_list(&mut words, nvec.iter().map(|n| *n as u64));
            }
            Space::MultiBinary { n } => words.extend([2, *n as u64]),
            Space::Box { shape, low, high } => {
                words.push(3);
                write_list(&mut words, shape.iter().map(|n| *n as u64));
                write_list(&mut words, bits(low).into_iter());
                write_list(&mut words, bits(high).into_iter());
            }
        }
    }
    words
}

pub(super) fn decode_description(words: &[u64]) -> Option<Description> {
    let mut reader = Reader(words);
    let (num_envs, mode, masks) = (reader.size()?, decode_mode(&mut reader)?, reader.flag()?);
    let id = reader.text()?;
    let max_episode_steps = reader.option()?.and_then(|limit| u32::try_from(limit).ok());
    let (observation, action) = (decode_space(&mut reader)?, decode_space(&mut reader)?);
    Some((num_envs, mode, masks, EnvSpec { id, observation, action, max_episode_steps }))
}

fn decode_space(reader: &mut Reader<'_>) -> Option<Space> {
    let bounds = |reader: &mut Reader<'_>| Some(reader.list()?.iter().map(|x| f32::from_bits(*x as u32)).collect());
    Some(match reader.word()? {
        0 => Space::Discrete { n: reader.word()? as i64, start: reader.word()? as i64 },
        1 => Space::MultiDiscrete { nvec: reader.list()?.iter().map(|n| *n as i64).collect() },
        2 => Space::MultiBinary { n: reader.size()? },
        3 => Space::Box {
            shape: reader.list()?.iter().map(|n| usize::try_from(*n).ok()).collect::<Option<_>>()?,
            low: bounds(reader)?,
            high: bounds(reader)?,
        },
        _ => return None,
    })
}

/// Encodes the seeds and options of a reset, and a flag that tells if a mask is passed.
pub(super) fn encode_reset(seeds: Seeds<'_>, masked: bool, options: &ResetOptions) -> Vec<u64> {
    let mut words = vec![u64::from(masked)];
    match seeds {
        Seeds::Keep => words.push(0),
        Seeds::Base(base) => words.extend([1, base]),
        Seeds::Each(seeds) => {
            words.extend([2, seeds.len() as u64]);
            for seed in seeds {
                write_option(&mut words, *seed);
            }
        }
    }
    write_pairs(&mut words, options.pairs());
    words
}

/// Owned form of [`Seeds`].
pub(super) enum Seeded {
    Keep,
    Base(u64),
    Each(Vec<Option<u64>>),
}

impl Seeded {
    pub(super) fn get(&self) -> Seeds<'_> {
        match self {
            Self::Keep => Seeds::Keep,
            Self::Base(base) => Seeds::Base(*base),
            Self::Each(seeds) => Seeds::Each(seeds),
        }
    }
}

pub(super) fn decode_reset(words: &[u64]) -> Option<(bool, Seeded, ResetOptions)> {
    let mut reader = Reader(words);
    let masked = reader.flag()?;
    let seeded = match reader.word()? {
        0 => Seeded::Keep,
        1 => Seeded::Base(reader.word()?),
        2 => {
            let len = reader.size()?;
            Seeded::Each((0..len).map(|_| reader.option()).collect::<Option<_>>()?)
        }
        _ => return None,
    };
    Some((masked, seeded, ResetOptions::new(reader.pairs()?)))
}

pub(super) fn encode_progress(progress: EpisodeProgress) -> [u64; 3] {
    [u64::from(progress.steps), progress.episode_return.to_bits(), u64::from(progress.finished)]
}

pub(super) fn encode_rngs(rngs: &[Pcg64]) -> Result<Vec<u64>> {
    let mut all = alloc::with_capacity("rngs", rngs.len() * Pcg64::STATE_LEN)?;
    all.extend(rngs.iter().flat_map(|rng| rng.to_state_array().map(i64::cast_unsigned)));
    Ok(all)
}

/// Decodes random streams. Returns `Ok(None)` if the words are invalid.
pub(super) fn decode_rngs(words: &[u64]) -> Result<Option<Vec<Pcg64>>> {
    let (words, []) = words.as_chunks::<{ Pcg64::STATE_LEN }>() else { return Ok(None) };
    let mut rngs = alloc::with_capacity("rngs", words.len())?;
    for words in words {
        let Ok(rng) = Pcg64::from_state_array(&words.map(u64::cast_signed)) else { return Ok(None) };
        rngs.push(rng);
    }
    Ok(Some(rngs))
}

type Constructor = fn(Mismatch) -> Error;

const KINDS: [Constructor; 8] = [
    |m| Error::Shape(Box::new(m)),
    |m| Error::Action(Box::new(m)),
    |m| Error::Space(Box::new(m)),
    |m| Error::Config(Box::new(m)),
    |m| Error::Memory(Box::new(m)),
    |m| Error::Corrupt(Box::new(m)),
    |m| Error::Closed(Box::new(m)),
    |m| Error::NotFinite(Box::new(m)),
];

pub(super) fn encode_error(error: &Error) -> Vec<u64> {
    let (kind, mismatch) = match error {
        Error::Shape(mismatch) => (0, mismatch),
        Error::Action(mismatch) => (1, mismatch),
        Error::Space(mismatch) => (2, mismatch),
        Error::Config(mismatch) => (3, mismatch),
        Error::Memory(mismatch) => (4, mismatch),
        Error::Corrupt(mismatch) => (5, mismatch),
        Error::Closed(mismatch) => (6, mismatch),
        Error::NotFinite(mismatch) => (7, mismatch),
        Error::Io { .. } | Error::Interrupted | Error::Backend(_) => {
            let mut words = vec![KINDS.len() as u64];
            write_text(&mut words, &error.to_string());
            return words;
        }
    };
    let mut words = vec![kind];
    for text in [&mismatch.argument, mismatch.expected.as_str(), &mismatch.got, &mismatch.hint] {
        write_text(&mut words, text);
    }
    // Timesteps and workers exist only in errors of the host.
    let Location { env, row, column, index, step, timesteps: _, section, worker: _ } = &mismatch.at;
    for index in [env, row, column, index, step] {
        write_option(&mut words, index.map(|index| index as u64));
    }
    words.push(u64::from(section.is_some()));
    write_text(&mut words, section.as_deref().unwrap_or_default());
    words
}

pub(super) fn decode_error(words: &[u64]) -> Option<Error> {
    let mut reader = Reader(words);
    let kind = reader.size()?;
    if kind == KINDS.len() {
        return reader.text().map(Error::Backend);
    }
    let constructor = KINDS.get(kind)?;
    let (argument, expected) = (reader.text()?.into(), reader.text()?);
    let (got, hint) = (reader.text()?, reader.text()?.into());
    let mut number = || Some(reader.option()?.and_then(|index| usize::try_from(index).ok()));
    let (env, row, column, index, step) = (number()?, number()?, number()?, number()?, number()?);
    let (has_section, section) = (reader.flag()?, reader.text()?);
    let section = has_section.then_some(section);
    let at = Location { env, row, column, index, step, section, ..Location::default() };
    Some(constructor(Mismatch { argument, expected, got, hint, at }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_kind_and_location_through_words() {
        for constructor in KINDS {
            for at in [
                Location::default(),
                Location {
                    env: Some(1),
                    row: Some(0),
                    column: Some(2),
                    index: Some(3),
                    step: Some(7),
                    section: Some(String::new()),
                    ..Location::default()
                },
            ] {
                let error = constructor(Mismatch { argument: "obs".into(), at, ..Mismatch::default() });
                let back = decode_error(&encode_error(&error)).unwrap();
                assert_eq!(std::mem::discriminant(&back), std::mem::discriminant(&error));
                assert_eq!(back.mismatch(), error.mismatch());
            }
        }
    }
}
