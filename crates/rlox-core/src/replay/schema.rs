//! The schema of transitions, the layout of a stored row in bytes, and the checks of pushed
//! batches.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

use crate::rollout::record::first_not_finite;
use crate::{
    Error, Result,
    error::check_len,
    field::{DType, FieldData},
    interrupt::InterruptCheck,
};

/// Names of columns that every sample has.
const RESERVED_NAMES: [&str; 6] = ["rewards", "terminated", "truncated", "discounts", "weights", "indices"];
/// Names of columns that only samples of sequences have.
const SEQUENCE_NAMES: [&str; 3] = ["mask", "episode_starts", "lengths"];

const DTYPES: [(DType, &str); 5] =
    [(DType::F32, "f32"), (DType::F64, "f64"), (DType::I64, "i64"), (DType::U8, "u8"), (DType::Bool, "bool")];

/// A field of every transition: name, shape of one row and element type.
///
/// ```
/// use rlox_core::field::DType;
/// use rlox_core::replay::FieldSpec;
///
/// let frames = FieldSpec::new("obs", &[4, 84, 84], DType::U8);
/// assert_eq!(frames.bytes(), 4 * 84 * 84);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    /// Name of the field.
    pub name: String,
    /// Shape of the field in one transition. Empty for a single number.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

impl FieldSpec {
    /// Creates a field with the given name, row shape and element type.
    pub fn new(name: impl Into<String>, shape: &[usize], dtype: DType) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), dtype }
    }

    /// Returns the number of elements of a row, or `usize::MAX` on overflow.
    pub fn width(&self) -> usize {
        self.shape.iter().fold(1, |width: usize, n| width.saturating_mul(*n))
    }

    /// Returns the number of bytes of a row, even if the number exceeds `usize`.
    fn all_bytes(&self) -> u128 {
        self.shape.iter().fold(self.dtype.size() as u128, |bytes, n| bytes.saturating_mul(*n as u128))
    }

    /// Returns the number of bytes of a row, or `usize::MAX` on overflow.
    pub fn bytes(&self) -> usize {
        self.width().saturating_mul(self.dtype.size())
    }
}

/// Schema of a transition.
///
/// An observation has one field, or several fields as in Gymnasium's `Dict` spaces. Rewards (f32)
/// and the flags `terminated` and `truncated` are part of every transition without a field in the
/// schema.
///
/// ```
/// use rlox_core::field::DType;
/// use rlox_core::replay::{TransitionSchema, FieldSpec};
///
/// let (obs, action) = (FieldSpec::new("obs", &[4, 84, 84], DType::U8), FieldSpec::new("actions", &[], DType::I64));
/// let schema = TransitionSchema::new(obs, action);
/// assert_eq!(schema.frame_stack, 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransitionSchema {
    /// Fields of an observation.
    pub obs: Vec<FieldSpec>,
    /// Field of the action.
    pub action: FieldSpec,
    /// Additional fields of each step.
    pub extra: Vec<FieldSpec>,
    /// Number of frames that an observation stacks along its first axis, oldest first.
    ///
    /// If the number exceeds 1, a frame that several observations share is stored once.
    pub frame_stack: usize,
}

impl TransitionSchema {
    /// Creates a schema of one observation field and an action.
    pub fn new(obs: FieldSpec, action: FieldSpec) -> Self {
        Self { obs: vec![obs], action, extra: Vec::new(), frame_stack: 1 }
    }

    /// Returns the fields of the observation and the action, and the extra fields.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &FieldSpec> {
        self.obs.iter().chain([&self.action]).chain(&self.extra)
    }

    fn check(&self) -> Result<()> {
        if self.obs.is_empty() {
            let hint = "add an observation field to the schema";
            return Err(Error::config("obs_dim", "at least one observation field", "none", hint));
        }
        let mut names: Vec<&str> = RESERVED_NAMES.to_vec();
        let following: Vec<_> = self.obs.iter().map(|spec| format!("next_{}", spec.name)).collect();
        names.extend(following.iter().map(String::as_str));
        // Fields with dotted names, such as `obs.camera`, also reserve the prefix as a name.
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
                return Err(shape_error(expected, got, "flatten some axes"));
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

    /// Checks that no extra field has a name that samples of sequences use.
    pub(crate) fn check_sequences(&self) -> Result<()> {
        let clash = self.extra.iter().find(|spec| SEQUENCE_NAMES.contains(&spec.name.as_str()));
        clash.map_or(Ok(()), |spec| Err(reserved_name("extra", &SEQUENCE_NAMES, spec)))
    }

    /// Checks that the number of bytes of a row does not overflow.
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
        let got = format!("{}, which need {} bytes per row", shapes.join(", "), bytes(largest.1));
        Err(Error::memory(largest.0, "rows that fit into memory", got, "pass smaller shapes"))
    }

    fn check_frames(&self) -> Result<()> {
        let stacked = self.obs[0].shape.first().copied().unwrap_or(0);
        let fits = self.obs.len() == 1 && self.frame_stack >= 1 && stacked % self.frame_stack.max(1) == 0;
        if self.frame_stack == 1 || (fits && stacked > 0) {
            return Ok(());
        }
        let expected = "1, or a divisor of the first axis of a single observation field";
        let got = format!("{} for {:?}", self.frame_stack, self.obs.iter().map(|spec| &spec.shape).collect::<Vec<_>>());
        Err(Error::config("frame_stack", expected, got, "stack frames along the first axis"))
    }
}

/// Batch of B transitions: one step of each of B environments, or B steps of one environment.
///
/// The arrays have the shapes and dtypes of a [`TransitionSchema`].
#[derive(Clone, Copy, Debug)]
pub struct TransitionBatch<'a> {
    /// Observations before the step, one `[B, ...]` array per field.
    pub obs: &'a [FieldData<'a>],
    /// Actions, `[B, ...]`.
    pub actions: FieldData<'a>,
    /// Rewards, `[B]`.
    pub rewards: &'a [f32],
    /// True if the step reached a terminal state of the task, `[B]`.
    pub terminated: &'a [bool],
    /// True if the episode was truncated after the step, `[B]`.
    pub truncated: &'a [bool],
    /// Observations after the step, one `[B, ...]` array per field, or `None`.
    ///
    /// After the last step of an episode, this is the final observation, never the observation
    /// after a reset. `None` declares that the next row of each environment will hold the next
    /// observation.
    ///
    /// If several environments push in turns to a storage of one environment, the storage cannot
    /// tell their rows apart. Pass the next observations in that case.
    pub next_obs: Option<&'a [FieldData<'a>]>,
    /// Extra fields, one `[B, ...]` array per field.
    pub extra: &'a [FieldData<'a>],
}

impl TransitionBatch<'_> {
    pub(super) fn rows(&self) -> usize {
        self.rewards.len()
    }

    /// Checks the lengths and dtypes, and that all numbers except the observations are finite.
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

// Layout of a row in bytes.

/// Layout of a row of the ring: byte offsets and sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowLayout {
    /// Size of a complete observation: all frames of all fields.
    pub(crate) obs: usize,
    /// Size of the observation's part at the start of a row: the newest of stacked frames, or
    /// everything.
    pub(crate) frame: usize,
    /// Offset of the action. The extra fields follow the action.
    pub(crate) action: usize,
    pub(crate) reward: usize,
    /// Offset of a `u32`: the slot of the next observation in the overflow pool, with the flag
    /// [`super::storage::STORED`].
    pub(crate) stored: usize,
    /// Offset of a `u32`: the slot of the older frames in the pool of heads, with the flag
    /// [`super::storage::HEAD`].
    pub(crate) head: usize,
    pub(crate) flags: usize,
    /// Distance between the starts of two rows.
    pub(crate) stride: usize,
}

impl RowLayout {
    /// Computes the layout of a schema.
    ///
    /// # Errors
    /// [`Error::Config`] or [`Error::Shape`] if the schema is invalid. [`Error::Memory`] if the
    /// size of a row overflows.
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

// JSON form of a schema in a file.

fn dtype_name(dtype: DType) -> &'static str {
    DTYPES.iter().find(|named| named.0 == dtype).map_or("", |named| named.1)
}

impl FieldSpec {
    /// Returns the JSON form, which [`FieldSpec::from_json`] reads.
    pub(super) fn to_json(&self) -> Value {
        json!({"name": self.name, "shape": self.shape, "dtype": dtype_name(self.dtype)})
    }

    /// Parses the JSON form of a field, or returns `None` if the form is invalid.
    pub(super) fn from_json(entry: &Value) -> Option<Self> {
        let shape = entry.get("shape")?.as_array()?;
        let shape: Option<Vec<_>> = shape.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect();
        let dtype = entry.get("dtype")?.as_str()?;
        let dtype = DTYPES.iter().find(|named| named.1 == dtype)?.0;
        Some(Self::new(entry.get("name")?.as_str()?, &shape?, dtype))
    }
}

impl TransitionSchema {
    /// Returns the JSON form, which [`TransitionSchema::from_json`] reads.
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

    /// Parses the JSON form of a schema, or returns a description of the invalid entry.
    ///
    /// `frame_stack` is optional and defaults to 1.
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

/// Returns the count with the name `key`, or a description of the invalid entry.
pub(super) fn count(entries: &Map<String, Value>, key: &str) -> std::result::Result<usize, String> {
    let number = entries.get(key).and_then(Value::as_u64).ok_or(format!("no number {key:?}"))?;
    usize::try_from(number).map_err(|error| error.to_string())
}

// Pushed rows as bytes.

/// Returns true if row `row + 1` has the next observation of `row`, or no next observations were
/// passed.
pub(super) fn next_obs_matches(batch: &TransitionBatch<'_>, row: usize) -> bool {
    let rows = batch.rows();
    let pairs = batch.next_obs.map(|next_obs| next_obs.iter().zip(batch.obs));
    pairs.is_none_or(|mut pairs| pairs.all(|(next, obs)| row_bytes(*next, row, rows) == row_bytes(*obs, row + 1, rows)))
}

/// Returns the bytes of row `row` of a field that has `rows` rows.
pub(super) fn row_bytes(data: FieldData<'_>, row: usize, rows: usize) -> &[u8] {
    let bytes = data.bytes();
    let each = bytes.len() / rows;
    &bytes[row * each..][..each]
}

/// Returns the bytes of the observation in row `row`: all fields, concatenated in `scratch_row`.
pub(super) fn observation<'a>(
    parts: &[FieldData<'a>],
    row: usize,
    rows: usize,
    len: usize,
    scratch_row: &'a mut [u8],
) -> &'a [u8] {
    if let [part] = parts {
        // Avoids a division, which would take longer than copying a few numbers.
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

// Checks of batches.

/// Returns the name of a field of the next observation.
pub(super) fn next_name(spec: &FieldSpec) -> String {
    format!("next_{}", spec.name)
}

/// Checks the number of arrays, and the dtypes and lengths of the arrays, against the schema.
fn check_parts(name: &'static str, parts: &[FieldSpec], data: &[FieldData<'_>], rows: usize) -> Result<()> {
    if parts.len() != data.len() {
        let (expected, got) = (format!("{} arrays", parts.len()), data.len().to_string());
        return Err(Error::shape(name, expected, got, "pass one array for each field of the schema"));
    }
    for (spec, data) in parts.iter().zip(data) {
        let named = || if name == "next_obs" { next_name(spec) } else { spec.name.clone() };
        if data.dtype() != spec.dtype {
            let (expected, got) = (format!("{:?}", spec.dtype), format!("{:?}", data.dtype()));
            return Err(Error::space(named(), expected, got, "pass the dtype of the buffer's schema"));
        }
        let wanted = rows.saturating_mul(spec.width());
        if data.len() != wanted {
            let (expected, got) = (format!("{rows} rows of {:?}", spec.shape), format!("{} elements", data.len()));
            return Err(Error::shape(named(), expected, got, "pass complete rows"));
        }
    }
    Ok(())
}

/// Checks that the numbers are finite.
///
/// Rows have `width` numbers. An error names the row.
pub(super) fn check_finite(
    name: &str,
    data: FieldData<'_>,
    width: usize,
    interrupt: &mut InterruptCheck,
) -> Result<()> {
    check_finite_as(|| name.to_owned(), data, width, interrupt)
}

/// Checks as [`check_finite`] does, and computes the name only for an error.
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
        Error::not_finite(name(), "finite numbers", got.to_string(), "check the source of the data").at_row(row)
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

/// Returns the error for a field with a reserved or duplicate name.
fn reserved_name(argument: &'static str, names: &[&str], spec: &FieldSpec) -> Error {
    let expected = format!("a name other than {}", names.join(", "));
    Error::config(argument, expected, format!("{:?}", spec.name), "choose another name")
}
