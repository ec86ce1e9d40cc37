//! What transitions are made of, as text of a file.

use serde_json::{Map, Value, json};

use super::layout::{Layout, Part};
use crate::DType;

const DTYPES: [(DType, &str); 5] =
    [(DType::F32, "f32"), (DType::F64, "f64"), (DType::I64, "i64"), (DType::U8, "u8"), (DType::Bool, "bool")];

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
    pub(super) fn of_text(entries: &Map<String, Value>) -> Result<Self, String> {
        let part = |entry: &Value| Part::of_text(entry).ok_or_else(|| format!("{entry} as a part"));
        let parts = |key: &str| {
            let list = entries.get(key).and_then(Value::as_array).ok_or(format!("no list {key:?}"))?;
            list.iter().map(part).collect::<Result<_, _>>()
        };
        let action = part(entries.get("actions").unwrap_or(&Value::Null))?;
        let frame_stack = entries.get("frame_stack").map_or(Ok(1), |_| count(entries, "frame_stack"))?;
        Ok(Self { obs: parts("obs")?, action, extra: parts("extra")?, frame_stack })
    }
}

/// A number of things, of an entry; else says what is wrong with it.
pub(super) fn count(entries: &Map<String, Value>, key: &str) -> Result<usize, String> {
    let number = entries.get(key).and_then(Value::as_u64).ok_or(format!("no number {key:?}"))?;
    usize::try_from(number).map_err(|error| error.to_string())
}
