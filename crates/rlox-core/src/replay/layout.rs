//! What a transition is made of, and where its parts lie in a row of bytes.

use std::cmp::Ordering;

use crate::{DType, Error, Result};

/// A part of every transition: its name, the shape of one row and the element type.
///
/// ```
/// use rlox_core::DType;
/// use rlox_core::replay::Part;
///
/// let frames = Part::new("obs", &[4, 84, 84], DType::U8);
/// assert_eq!(frames.bytes(), 4 * 84 * 84);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is called.
    pub name: String,
    /// The shape of one row; empty for a single number.
    pub shape: Vec<usize>,
    /// The element type.
    pub dtype: DType,
}

impl Part {
    /// A part of this name, shape and type.
    pub fn new(name: impl Into<String>, shape: &[usize], dtype: DType) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), dtype }
    }

    /// How many elements a row has; `usize::MAX` if that is more than can be counted.
    pub fn width(&self) -> usize {
        self.shape.iter().fold(1, |width: usize, n| width.saturating_mul(*n))
    }

    /// How many bytes a row has, however many.
    fn all_bytes(&self) -> u128 {
        self.shape.iter().fold(self.dtype.size() as u128, |bytes, n| bytes.saturating_mul(*n as u128))
    }

    /// How many bytes a row has.
    pub fn bytes(&self) -> usize {
        self.width().saturating_mul(self.dtype.size())
    }
}

/// What a transition is made of.
///
/// An observation has one part or, as those of Gymnasium's `Dict` spaces, several. Rewards (f32) and the flags
/// `terminated` and `truncated` are always there.
///
/// ```
/// use rlox_core::DType;
/// use rlox_core::replay::{Layout, Part};
///
/// let layout = Layout::new(Part::new("obs", &[4, 84, 84], DType::U8), Part::new("actions", &[], DType::I64));
/// assert_eq!(layout.frame_stack, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The parts of an observation.
    pub obs: Vec<Part>,
    /// The action.
    pub action: Part,
    /// What else is stored of each step.
    pub extra: Vec<Part>,
    /// How many frames an observation stacks along its first axis, oldest first. Where it is more than 1, the frames are
    /// stored once.
    pub frame_stack: usize,
}

/// What sampling calls other things.
const TAKEN: [&str; 6] = ["rewards", "terminated", "truncated", "discounts", "weights", "indices"];
/// What sampling sequences does, beside.
const OF_SEQUENCES: [&str; 3] = ["mask", "episode_starts", "lengths"];

impl Layout {
    /// Transitions of an observation of one part and an action.
    pub fn new(obs: Part, action: Part) -> Self {
        Self { obs: vec![obs], action, extra: Vec::new(), frame_stack: 1 }
    }

    /// All parts that a caller gives rows of.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.obs.iter().chain([&self.action]).chain(&self.extra)
    }

    fn check(&self) -> Result<()> {
        if self.obs.is_empty() {
            return Err(Error::config("obs_dim", "one part or more", "none", "say what an observation is made of"));
        }
        let mut names: Vec<&str> = TAKEN.to_vec();
        let following: Vec<_> = self.obs.iter().map(|part| format!("next_{}", part.name)).collect();
        names.extend(following.iter().map(String::as_str));
        // Parts of an observation stand under one name.
        let whole = self.obs.iter().filter_map(|part| Some(part.name.split_once('.')?.0.to_owned()));
        let whole: Vec<_> = whole.flat_map(|name| [format!("next_{name}"), name]).collect();
        names.extend(whole.iter().map(String::as_str));
        for (number, part) in self.parts().enumerate() {
            let wrong_shape = |expected: String, got: String, hint: &'static str| {
                let (argument, several) = match number.cmp(&self.obs.len()) {
                    Ordering::Less => ("obs_dim", self.obs.len() > 1 || part.name.contains('.')),
                    Ordering::Equal => ("act_dim", false),
                    Ordering::Greater => ("extra", true),
                };
                let error = Error::shape(argument, expected, got, hint);
                if several { error.in_section(part.name.trim_start_matches("obs.")) } else { error }
            };
            if part.shape.len() > crate::field::AXES {
                let (expected, got) = (format!("at most {} axes", crate::field::AXES), part.shape.len().to_string());
                return Err(wrong_shape(expected, got, "flatten some of them"));
            }
            if part.shape.contains(&0) {
                let got = format!("{:?}", part.shape);
                return Err(wrong_shape("a row with elements".into(), got, "drop the empty dimension"));
            }
            if names.contains(&part.name.as_str()) {
                let argument = if number > self.obs.len() { "extra" } else { "name" };
                return Err(taken(argument, &names, part));
            }
            names.push(&part.name);
        }
        self.check_frames()
    }

    /// Checks that sequences of such transitions call nothing else by the name of a part.
    pub(crate) fn check_sequences(&self) -> Result<()> {
        let wrong = self.extra.iter().find(|part| OF_SEQUENCES.contains(&part.name.as_str()));
        wrong.map_or(Ok(()), |part| Err(taken("extra", &OF_SEQUENCES, part)))
    }

    /// Checks that the bytes of a row can be counted.
    fn check_bytes(&self) -> Result<()> {
        let bytes = |parts: &[Part]| parts.iter().fold(0, |sum: u128, part| sum.saturating_add(part.all_bytes()));
        let parts: [(_, &[Part]); 3] =
            [("obs_dim", &self.obs), ("act_dim", std::slice::from_ref(&self.action)), ("extra", &self.extra)];
        let all = parts.iter().fold(0, |sum: u128, (_, parts)| sum.saturating_add(bytes(parts)));
        if all <= isize::MAX as u128 / 2 {
            return Ok(());
        }
        let mut largest = parts[0];
        for kind in &parts[1..] {
            if bytes(kind.1) > bytes(largest.1) {
                largest = *kind;
            }
        }
        let shapes: Vec<_> = largest.1.iter().map(|part| format!("{:?}", part.shape)).collect();
        let got = format!("{}, of which a row needs {} bytes", shapes.join(", "), bytes(largest.1));
        Err(Error::memory(largest.0, "rows that fit into memory", got, "pass smaller shapes"))
    }

    fn check_frames(&self) -> Result<()> {
        let stacked = self.obs[0].shape.first().copied().unwrap_or(0);
        let fits = self.obs.len() == 1 && self.frame_stack >= 1 && stacked % self.frame_stack.max(1) == 0;
        if self.frame_stack == 1 || (fits && stacked > 0) {
            return Ok(());
        }
        let expected = "1, or a number of frames that divides the first axis of observations of one part";
        let got = format!("{} for {:?}", self.frame_stack, self.obs.iter().map(|part| &part.shape).collect::<Vec<_>>());
        Err(Error::config("frame_stack", expected, got, "stack frames along the first axis"))
    }
}

/// The error for a part that is called as something else is.
fn taken(argument: &'static str, names: &[&str], part: &Part) -> Error {
    let expected = format!("a name that is none of {}", names.join(", "));
    Error::config(argument, expected, format!("{:?}", part.name), "choose another")
}

/// Where the parts of a transition lie in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    /// Bytes of an observation as callers give it: all frames of all parts.
    pub(crate) obs: usize,
    /// Bytes of what a row holds of it, from its start on: the newest frame.
    pub(crate) frame: usize,
    /// Where the action begins, and after it each further part.
    pub(crate) action: usize,
    pub(crate) reward: usize,
    /// A `u32`: where [`super::storage::STORED`] observations are.
    pub(crate) stored: usize,
    /// A `u32`: where the older frames of a row that is a [`super::storage::HEAD`] are.
    pub(crate) head: usize,
    pub(crate) flags: usize,
    /// From a row to the next.
    pub(crate) stride: usize,
}

impl Places {
    /// # Errors
    /// [`Error::Config`] and [`Error::Shape`] for a layout that makes no sense, [`Error::Memory`] if a row has more bytes
    /// than can be counted.
    pub(crate) fn of(layout: &Layout) -> Result<Self> {
        layout.check()?;
        layout.check_bytes()?;
        let bytes = |parts: &[Part]| parts.iter().map(Part::bytes).sum::<usize>();
        let obs = bytes(&layout.obs);
        let frame = obs / layout.frame_stack;
        let action = frame;
        let reward = action + layout.action.bytes() + bytes(&layout.extra);
        let stored = reward + 4;
        let head = stored + 4;
        let flags = head + if layout.frame_stack > 1 { 4 } else { 0 };
        Ok(Self { obs, frame, action, reward, stored, head, flags, stride: (flags + 1).next_multiple_of(8) })
    }
}
