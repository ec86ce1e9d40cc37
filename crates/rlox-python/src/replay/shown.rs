//! A buffer as a short text.

use pyo3::prelude::*;
use rlox_core::DType;
use rlox_core::replay::Part;

use super::buffer::Buffer;
use super::parts::key_of;
use super::source::Source;

impl<B: Source> Buffer<B> {
    /// Its class, how much it can hold and holds, of what, and what else there is to say.
    pub(super) fn told(&self, py: Python<'_>, class: &str, beside: &[(&str, String)]) -> String {
        // Whoever asks in the middle of a push, as a signal's handler does, learns all but how much there is.
        let counts = self.inner.read(py, false, |buffer| Ok((buffer.capacity(), buffer.len()))).ok();
        let obs = match &*self.layout.obs {
            [part] if key_of(part).is_none() => row(part),
            parts => {
                let each = |part| format!("{}: {}", key_of(part).unwrap_or_default(), row(part));
                format!("{{{}}}", parts.iter().map(each).collect::<Vec<_>>().join(", "))
            }
        };
        let mut told = Vec::new();
        if let Some((capacity, len)) = counts {
            told.extend([format!("capacity={capacity}"), format!("len={len}")]);
        }
        told.extend([format!("obs={obs}"), format!("actions={}", row(&self.layout.action))]);
        if self.num_envs > 1 {
            told.push(format!("num_envs={}", self.num_envs));
        }
        told.extend(beside.iter().map(|(name, value)| format!("{name}={value}")));
        format!("{class}({})", told.join(", "))
    }
}

/// What a row of a part is, as in "uint8[4, 84, 84]".
fn row(part: &Part) -> String {
    let dtype = match part.dtype {
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        DType::Bool => "bool",
    };
    format!("{dtype}{:?}", part.shape)
}
