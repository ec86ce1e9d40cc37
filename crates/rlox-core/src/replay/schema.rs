//! The schema of transitions: their parts, where these lie in a row of bytes, the rows that are pushed, and their checks.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

use crate::rollout::record::first_not_finite;
use crate::{DType, Error, FieldData, InterruptCheck, Result, check_len};

/// What sampling calls other things.
const RESERVED_NAMES: [&str; 6] = ["rewards", "terminated", "truncated", "discounts", "weights", "indices"];
/// What sampling sequences does, beside.
const SEQUENCE_NAMES: [&str; 3] = ["mask", "episode_starts", "lengths"];

const DTYPES: [(DType, &str); 5] =
    [(DType::F32, "f32"), (DType::F64, "f64"), (DType::I64, "i64"), (DType::U8, "u8"), (DType::Bool, "bool")];

/// A part of every transition: its name, the shape of one row and the element type.
///
/// ```
/// use rlox_core::DType;
/// use rlox_core::replay::FieldSpec;
///
/// let frames = FieldSpec::new("obs", &[4, 84, 84], DType::U8);
/// assert_eq!(frames.bytes(), 4 * 84 * 84);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    /// What it is called.
    pub name: String,
    /// The shape of one row; empty for a single number.
    pub shape: Vec<usize>,
    /// The element type.
    pub dtype: DType,
}

impl FieldSpec {
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
/// use rlox_core::replay::{TransitionSchema, FieldSpec};
///
/// let schema = TransitionSchema::new(FieldSpec::new("obs", &[4, 84, 84], DType::U8), FieldSpec::new("actions", &[], DType::I64));
/// assert_eq!(schema.frame_stack, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitionSchema {
    /// The parts of an observation.
    pub obs: Vec<FieldSpec>,
    /// The action.
    pub action: FieldSpec,
    /// What else is stored of each step.
    pub extra: Vec<FieldSpec>,
    /// How many frames an observation stacks along its first axis, oldest first. Where it is more than 1, the frames are
    /// stored once.
    pub frame_stack: usize,
}

impl TransitionSchema {
    /// Transitions of an observation of one part and an action.
    pub fn new(obs: FieldSpec, action: FieldSpec) -> Self {
        Self { obs: vec![obs], action, extra: Vec::new(), frame_stack: 1 }
    }

    /// All parts that a caller gives rows of.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &FieldSpec> {
        self.obs.iter().chain([&self.action]).chain(&self.extra)
    }

    fn check(&self) -> Result<()> {
        if self.obs.is_empty() {
            return Err(Error::config("obs_dim", "one part or more", "none", "say what an observation is made of"));
        }
        let mut names: Vec<&str> = RESERVED_NAMES.to_vec();
        let following: Vec<_> = self.obs.iter().map(|spec| format!("next_{}", spec.name)).collect();
        names.extend(following.iter().map(String::as_str));
        // Parts of an observation stand under one name.
        let prefixes = self.obs.iter().filter_map(|spec| Some(spec.name.split_once('.')?.0.to_owned()));
        let prefixes: Vec<_> = prefixes.flat_map(|name| [format!("next_{name}"), name]).collect();
        names.extend(prefixes.iter().map(String::as_str));
        for (number, spec) in self.fields().enumerate() {
            let shape_error = |expected: String, got: String, hint: &'static str| {
                let (argument, several) = match number.cmp(&self.obs.len()) {
                    Ordering::Less => ("obs_dim", self.obs.len() > 1 || spec.name.contains('.')),
                    Ordering::Equal => ("act_dim", false),
                    Ordering::Greater => ("extra", true),
                };
                let error = Error::shape(argument, expected, got, hint);
                if several { error.in_section(spec.name.trim_start_matches("obs.")) } else { error }
            };
            if spec.shape.len() > crate::field::AXES {
                let (expected, got) = (format!("at most {} axes", crate::field::AXES), spec.shape.len().to_string());
                return Err(shape_error(expected, got, "flatten some of them"));
            }
            if spec.shape.contains(&0) {
                let got = format!("{:?}", spec.shape);
                return Err(shape_error("a row with elements".into(), got, "drop the empty dimension"));
            }
            if names.contains(&spec.name.as_str()) {
                let argument = if number > self.obs.len() { "extra" } else { "name" };
                return Err(reserved_name(argument, &names, spec));
            }
            names.push(&spec.name);
        }
        self.check_frames()
    }

    /// Checks that sequences of such transitions call nothing else by the name of a part.
    pub(crate) fn check_sequences(&self) -> Result<()> {
        let clash = self.extra.iter().find(|spec| SEQUENCE_NAMES.contains(&spec.name.as_str()));
        clash.map_or(Ok(()), |spec| Err(reserved_name("extra", &SEQUENCE_NAMES, spec)))
    }

    /// Checks that the bytes of a row can be counted.
    fn check_bytes(&self) -> Result<()> {
        let bytes = |parts: &[FieldSpec]| parts.iter().fold(0, |sum: u128, spec| sum.saturating_add(spec.all_bytes()));
        let parts: [(_, &[FieldSpec]); 3] =
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
        let shapes: Vec<_> = largest.1.iter().map(|spec| format!("{:?}", spec.shape)).collect();
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
        let got = format!("{} for {:?}", self.frame_stack, self.obs.iter().map(|spec| &spec.shape).collect::<Vec<_>>());
        Err(Error::config("frame_stack", expected, got, "stack frames along the first axis"))
    }
}

/// What happened in each of B environments, or in B steps: rows of what the [`TransitionSchema`] says.
#[derive(Clone, Copy, Debug)]
pub struct TransitionBatch<'a> {
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

impl TransitionBatch<'_> {
    pub(super) fn rows(&self) -> usize {
        self.rewards.len()
    }

    /// Checks all but whether observations are finite, which may be known, and whether next ones are needed.
    pub(super) fn check(&self, schema: &TransitionSchema, interrupt: &mut InterruptCheck) -> Result<()> {
        let rows = self.rows();
        check_len("terminated", self.terminated.len(), rows)?;
        check_len("truncated", self.truncated.len(), rows)?;
        check_parts("obs", &schema.obs, self.obs, rows)?;
        check_parts("actions", std::slice::from_ref(&schema.action), &[self.actions], rows)?;
        check_parts("extra", &schema.extra, self.extra, rows)?;
        check_finite("rewards", FieldData::F32(self.rewards), 1, interrupt)?;
        check_finite("actions", self.actions, schema.action.width(), interrupt)?;
        for (spec, data) in schema.extra.iter().zip(self.extra) {
            check_finite(&spec.name, *data, spec.width(), interrupt)?;
        }
        let Some(next_obs) = self.next_obs else { return Ok(()) };
        check_parts("next_obs", &schema.obs, next_obs, rows)?;
        for (spec, data) in schema.obs.iter().zip(next_obs) {
            check_finite_as(|| next_name(spec), *data, spec.width(), interrupt)?;
        }
        Ok(())
    }

    /// Checks that observations are finite.
    pub(super) fn check_obs(&self, schema: &TransitionSchema, interrupt: &mut InterruptCheck) -> Result<()> {
        let mut parts = schema.obs.iter().zip(self.obs);
        parts.try_for_each(|(spec, data)| check_finite(&spec.name, *data, spec.width(), interrupt))
    }

    pub(super) fn is_done(&self, row: usize) -> bool {
        self.terminated[row] || self.truncated[row]
    }
}

// Places in a row of bytes.

/// Where the parts of a transition lie in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowLayout {
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

impl RowLayout {
    /// # Errors
    /// [`Error::Config`] and [`Error::Shape`] for a layout that makes no sense, [`Error::Memory`] if a row has more bytes
    /// than can be counted.
    pub(crate) fn new(schema: &TransitionSchema) -> Result<Self> {
        schema.check()?;
        schema.check_bytes()?;
        let bytes = |parts: &[FieldSpec]| parts.iter().map(FieldSpec::bytes).sum::<usize>();
        let obs = bytes(&schema.obs);
        let frame = obs / schema.frame_stack;
        let action = frame;
        let reward = action + schema.action.bytes() + bytes(&schema.extra);
        let stored = reward + 4;
        let head = stored + 4;
        let flags = head + if schema.frame_stack > 1 { 4 } else { 0 };
        Ok(Self { obs, frame, action, reward, stored, head, flags, stride: (flags + 1).next_multiple_of(8) })
    }
}

// The text of a schema in a file.

fn dtype_name(dtype: DType) -> &'static str {
    DTYPES.iter().find(|named| named.0 == dtype).map_or("", |named| named.1)
}

impl FieldSpec {
    /// What [`FieldSpec::from_json`] reads.
    pub(super) fn to_json(&self) -> Value {
        json!({"name": self.name, "shape": self.shape, "dtype": dtype_name(self.dtype)})
    }

    /// The part of a text, if it is one's.
    pub(super) fn from_json(entry: &Value) -> Option<Self> {
        let shape = entry.get("shape")?.as_array()?;
        let shape: Option<Vec<_>> = shape.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect();
        let dtype = entry.get("dtype")?.as_str()?;
        let dtype = DTYPES.iter().find(|named| named.1 == dtype)?.0;
        Some(Self::new(entry.get("name")?.as_str()?, &shape?, dtype))
    }
}

impl TransitionSchema {
    /// What [`TransitionSchema::from_json`] reads.
    pub(super) fn to_json(&self) -> Map<String, Value> {
        let parts = |parts: &[FieldSpec]| Value::from(parts.iter().map(FieldSpec::to_json).collect::<Vec<_>>());
        [
            ("obs", parts(&self.obs)),
            ("actions", self.action.to_json()),
            ("extra", parts(&self.extra)),
            ("frame_stack", self.frame_stack.into()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into_iter()
        .collect()
    }

    /// The layout of entries; else says what is wrong with them. Entries that say nothing of frames stack none.
    pub(super) fn from_json(entries: &Map<String, Value>) -> std::result::Result<Self, String> {
        let field = |entry: &Value| FieldSpec::from_json(entry).ok_or_else(|| format!("{entry} as a part"));
        let parts = |key: &str| {
            let list = entries.get(key).and_then(Value::as_array).ok_or(format!("no list {key:?}"))?;
            list.iter().map(field).collect::<std::result::Result<_, _>>()
        };
        let action = field(entries.get("actions").unwrap_or(&Value::Null))?;
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
pub(super) fn next_obs_matches(batch: &TransitionBatch<'_>, row: usize) -> bool {
    let rows = batch.rows();
    let pairs = batch.next_obs.map(|next_obs| next_obs.iter().zip(batch.obs));
    pairs.is_none_or(|mut pairs| pairs.all(|(next, obs)| row_bytes(*next, row, rows) == row_bytes(*obs, row + 1, rows)))
}

/// The bytes of a row of one part.
pub(super) fn row_bytes(data: FieldData<'_>, row: usize, rows: usize) -> &[u8] {
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
    scratch_row: &'a mut [u8],
) -> &'a [u8] {
    if let [part] = parts {
        // Without a division, which takes longer than copying a few numbers.
        return &part.bytes()[row * len..][..len];
    }
    let scratch_row = &mut scratch_row[..len];
    let mut offset = 0;
    for data in parts {
        let bytes = row_bytes(*data, row, rows);
        scratch_row[offset..offset + bytes.len()].copy_from_slice(bytes);
        offset += bytes.len();
    }
    scratch_row
}

// Checks.

/// What a next observation's part is called.
pub(super) fn next_name(spec: &FieldSpec) -> String {
    format!("next_{}", spec.name)
}

/// Checks the dtypes and lengths of so many rows of each part.
fn check_parts(name: &'static str, parts: &[FieldSpec], data: &[FieldData<'_>], rows: usize) -> Result<()> {
    if parts.len() != data.len() {
        let (expected, got) = (format!("{} parts", parts.len()), data.len().to_string());
        return Err(Error::shape(name, expected, got, "pass each part of the layout"));
    }
    for (spec, data) in parts.iter().zip(data) {
        let named = || if name == "next_obs" { next_name(spec) } else { spec.name.clone() };
        if data.dtype() != spec.dtype {
            let (expected, got) = (format!("{:?}", spec.dtype), format!("{:?}", data.dtype()));
            return Err(Error::space(named(), expected, got, "pass the dtype that the buffer was made for"));
        }
        let wanted = rows.saturating_mul(spec.width());
        if data.len() != wanted {
            let (expected, got) = (format!("{rows} rows of {:?}", spec.shape), format!("{} elements", data.len()));
            return Err(Error::shape(named(), expected, got, "pass whole rows"));
        }
    }
    Ok(())
}

/// Checks rows of `width` numbers.
pub(super) fn check_finite(
    name: &str,
    data: FieldData<'_>,
    width: usize,
    interrupt: &mut InterruptCheck,
) -> Result<()> {
    check_finite_as(|| name.to_owned(), data, width, interrupt)
}

/// The same of what is named only if it is wrong.
fn check_finite_as(
    name: impl Fn() -> String,
    data: FieldData<'_>,
    width: usize,
    interrupt: &mut InterruptCheck,
) -> Result<()> {
    if matches!(data.dtype(), DType::I64 | DType::U8 | DType::Bool) {
        return Ok(());
    }
    let non_finite = |(row, got): (usize, f64)| {
        Error::not_finite(name(), "finite numbers", got.to_string(), "find out where it comes from").at_row(row)
    };
    if data.len() <= InterruptCheck::POLL_ELEMENTS {
        return first_not_finite(data, width).map_or(Ok(()), |found| Err(non_finite(found)));
    }
    let width = width.max(1);
    let piece_rows = (InterruptCheck::POLL_ELEMENTS / width).max(1);
    for first in (0..data.len() / width).step_by(piece_rows) {
        interrupt.check()?;
        let from = first * width;
        let piece = data.slice(from, (piece_rows * width).min(data.len() - from));
        if let Some((row, got)) = first_not_finite(piece, width) {
            return Err(non_finite((first + row, got)));
        }
    }
    Ok(())
}

/// The error for a part that is called as something else is.
fn reserved_name(argument: &'static str, names: &[&str], spec: &FieldSpec) -> Error {
    let expected = format!("a name that is none of {}", names.join(", "));
    Error::config(argument, expected, format!("{:?}", spec.name), "choose another")
}
