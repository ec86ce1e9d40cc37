//! The schema of transitions: their parts, where these lie in a row of bytes, the rows that are pushed, and their checks.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

use crate::rollout::record::first_not_finite;
use crate::{DType, Error, FieldData, Result, Watch, check_len};

/// What sampling calls other things.
const TAKEN: [&str; 6] = ["rewards", "terminated", "truncated", "discounts", "weights", "indices"];
/// What sampling sequences does, beside.
const OF_SEQUENCES: [&str; 3] = ["mask", "episode_starts", "lengths"];

const DTYPES: [(DType, &str); 5] =
    [(DType::F32, "f32"), (DType::F64, "f64"), (DType::I64, "i64"), (DType::U8, "u8"), (DType::Bool, "bool")];

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

/// What happened in each of B environments, or in B steps: rows of what the [`Layout`] says.
#[derive(Clone, Copy, Debug)]
pub struct Steps<'a> {
    /// Each part of the observations, `[B, ...]`.
    pub obs: &'a [FieldData<'a>],
    /// The actions, `[B, ...]`.
    pub actions: FieldData<'a>,
    /// The rewards, `[B]`.
    pub rewards: &'a [f32],
    /// The task itself ended, `[B]`.
    pub terminated: &'a [bool],
    /// The episode was cut, `[B]`.
    pub truncated: &'a [bool],
    /// Each part of the next observations, `[B, ...]`: of an episode that ended its last, never one after a reset. `None`
    /// is a promise that each environment's next observation is the one that its next row will have. Nothing tells rows of
    /// several environments apart that are pushed in turns to a storage of one: pass it there.
    pub next_obs: Option<&'a [FieldData<'a>]>,
    /// Each further part, `[B, ...]`.
    pub extra: &'a [FieldData<'a>],
}

impl Steps<'_> {
    pub(super) fn rows(&self) -> usize {
        self.rewards.len()
    }

    /// Checks all but whether observations are finite, which may be known, and whether next ones are needed.
    pub(super) fn check(&self, layout: &Layout, watch: &mut Watch) -> Result<()> {
        let rows = self.rows();
        check_len("terminated", self.terminated.len(), rows)?;
        check_len("truncated", self.truncated.len(), rows)?;
        check_parts("obs", &layout.obs, self.obs, rows)?;
        check_parts("actions", std::slice::from_ref(&layout.action), &[self.actions], rows)?;
        check_parts("extra", &layout.extra, self.extra, rows)?;
        check_finite("rewards", FieldData::F32(self.rewards), 1, watch)?;
        check_finite("actions", self.actions, layout.action.width(), watch)?;
        for (part, data) in layout.extra.iter().zip(self.extra) {
            check_finite(&part.name, *data, part.width(), watch)?;
        }
        let Some(next_obs) = self.next_obs else { return Ok(()) };
        check_parts("next_obs", &layout.obs, next_obs, rows)?;
        for (part, data) in layout.obs.iter().zip(next_obs) {
            check_finite_as(|| next_name(part), *data, part.width(), watch)?;
        }
        Ok(())
    }

    /// Checks that observations are finite.
    pub(super) fn check_obs(&self, layout: &Layout, watch: &mut Watch) -> Result<()> {
        let mut parts = layout.obs.iter().zip(self.obs);
        parts.try_for_each(|(part, data)| check_finite(&part.name, *data, part.width(), watch))
    }

    pub(super) fn is_done(&self, row: usize) -> bool {
        self.terminated[row] || self.truncated[row]
    }
}

// Places in a row of bytes.

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

// The text of a schema in a file.

fn name_of(dtype: DType) -> &'static str {
    DTYPES.iter().find(|named| named.0 == dtype).map_or("", |named| named.1)
}

impl Part {
    /// What [`Part::of_text`] reads.
    pub(super) fn text(&self) -> Value {
        json!({"name": self.name, "shape": self.shape, "dtype": name_of(self.dtype)})
    }

    /// The part of a text, if it is one's.
    pub(super) fn of_text(entry: &Value) -> Option<Self> {
        let shape = entry.get("shape")?.as_array()?;
        let shape: Option<Vec<_>> = shape.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect();
        let dtype = entry.get("dtype")?.as_str()?;
        let dtype = DTYPES.iter().find(|named| named.1 == dtype)?.0;
        Some(Self::new(entry.get("name")?.as_str()?, &shape?, dtype))
    }
}

impl Layout {
    /// What [`Layout::of_text`] reads.
    pub(super) fn text(&self) -> Map<String, Value> {
        let parts = |parts: &[Part]| Value::from(parts.iter().map(Part::text).collect::<Vec<_>>());
        [
            ("obs", parts(&self.obs)),
            ("actions", self.action.text()),
            ("extra", parts(&self.extra)),
            ("frame_stack", self.frame_stack.into()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect()
    }

    /// The layout of entries; else says what is wrong with them. Entries that say nothing of frames stack none.
    pub(super) fn of_text(entries: &Map<String, Value>) -> std::result::Result<Self, String> {
        let part = |entry: &Value| Part::of_text(entry).ok_or_else(|| format!("{entry} as a part"));
        let parts = |key: &str| {
            let list = entries.get(key).and_then(Value::as_array).ok_or(format!("no list {key:?}"))?;
            list.iter().map(part).collect::<std::result::Result<_, _>>()
        };
        let action = part(entries.get("actions").unwrap_or(&Value::Null))?;
        let frame_stack = entries.get("frame_stack").map_or(Ok(1), |_| count(entries, "frame_stack"))?;
        Ok(Self { obs: parts("obs")?, action, extra: parts("extra")?, frame_stack })
    }
}

/// A number of things, of an entry; else says what is wrong with it.
pub(super) fn count(entries: &Map<String, Value>, key: &str) -> std::result::Result<usize, String> {
    let number = entries.get(key).and_then(Value::as_u64).ok_or(format!("no number {key:?}"))?;
    usize::try_from(number).map_err(|error| error.to_string())
}

// Rows that are pushed, as bytes.

/// Whether the row after one holds its next observation.
pub(super) fn holds(steps: &Steps<'_>, row: usize) -> bool {
    let rows = steps.rows();
    let pairs = steps.next_obs.map(|next_obs| next_obs.iter().zip(steps.obs));
    pairs.is_none_or(|mut pairs| pairs.all(|(next, obs)| of_row(*next, row, rows) == of_row(*obs, row + 1, rows)))
}

/// The bytes of a row of one part.
pub(super) fn of_row(data: FieldData<'_>, row: usize, rows: usize) -> &[u8] {
    let bytes = data.bytes();
    let each = bytes.len() / rows;
    &bytes[row * each..][..each]
}

/// The bytes of a row's observation: those of its parts one after another.
pub(super) fn observation<'a>(
    parts: &[FieldData<'a>],
    row: usize,
    rows: usize,
    len: usize,
    joined: &'a mut [u8],
) -> &'a [u8] {
    if let [part] = parts {
        // Without a division, which takes longer than copying a few numbers.
        return &part.bytes()[row * len..][..len];
    }
    let joined = &mut joined[..len];
    let mut at = 0;
    for part in parts {
        let part = of_row(*part, row, rows);
        joined[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    joined
}

// Checks.

/// What a next observation's part is called.
pub(super) fn next_name(part: &Part) -> String {
    format!("next_{}", part.name)
}

/// Checks the dtypes and lengths of so many rows of each part.
fn check_parts(name: &'static str, parts: &[Part], data: &[FieldData<'_>], rows: usize) -> Result<()> {
    if parts.len() != data.len() {
        let (expected, got) = (format!("{} parts", parts.len()), data.len().to_string());
        return Err(Error::shape(name, expected, got, "pass each part of the layout"));
    }
    for (part, data) in parts.iter().zip(data) {
        let named = || if name == "next_obs" { next_name(part) } else { part.name.clone() };
        if data.dtype() != part.dtype {
            let (expected, got) = (format!("{:?}", part.dtype), format!("{:?}", data.dtype()));
            return Err(Error::space(named(), expected, got, "pass the dtype that the buffer was made for"));
        }
        let wanted = rows.saturating_mul(part.width());
        if data.len() != wanted {
            let (expected, got) = (format!("{rows} rows of {:?}", part.shape), format!("{} elements", data.len()));
            return Err(Error::shape(named(), expected, got, "pass whole rows"));
        }
    }
    Ok(())
}

/// Checks rows of `width` numbers.
pub(super) fn check_finite(name: &str, data: FieldData<'_>, width: usize, watch: &mut Watch) -> Result<()> {
    check_finite_as(|| name.to_owned(), data, width, watch)
}

/// The same of what is named only if it is wrong.
fn check_finite_as(name: impl Fn() -> String, data: FieldData<'_>, width: usize, watch: &mut Watch) -> Result<()> {
    if matches!(data.dtype(), DType::I64 | DType::U8 | DType::Bool) {
        return Ok(());
    }
    let wrong = |(row, got): (usize, f64)| {
        Error::not_finite(name(), "finite numbers", got.to_string(), "find out where it comes from").at_row(row)
    };
    if data.len() <= Watch::STRETCH {
        return first_not_finite(data, width).map_or(Ok(()), |found| Err(wrong(found)));
    }
    let width = width.max(1);
    let together = (Watch::STRETCH / width).max(1);
    for first in (0..data.len() / width).step_by(together) {
        watch.check()?;
        let from = first * width;
        let piece = data.part(from, (together * width).min(data.len() - from));
        if let Some((row, got)) = first_not_finite(piece, width) {
            return Err(wrong((first + row, got)));
        }
    }
    Ok(())
}

/// The error for a part that is called as something else is.
fn taken(argument: &'static str, names: &[&str], part: &Part) -> Error {
    let expected = format!("a name that is none of {}", names.join(", "));
    Error::config(argument, expected, format!("{:?}", part.name), "choose another")
}
