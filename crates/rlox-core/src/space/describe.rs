//! Spaces in words.

use super::Space;
use crate::checkpoint::{hex_sha256, python_float};

/// So many numbers are listed; more are told by their checksum.
const LISTED: usize = 16;

impl Space {
    /// A line that says all of the space: two are equal if these are. It is that of `rlox.spaces.describe` in Python.
    ///
    /// ```
    /// use rlox_core::Space;
    ///
    /// assert_eq!(Space::discrete(3).describe(), "Discrete(n=3, start=0, dtype=int64)");
    /// let bounds = Space::Box { shape: vec![2], low: vec![-1.0; 2], high: vec![0.5, f32::INFINITY] };
    /// assert_eq!(bounds.describe(), "Box(low=-1.0, high=[0.5, inf], shape=(2,), dtype=float32)");
    /// ```
    pub fn describe(&self) -> String {
        match self {
            Self::Discrete { n, start } => format!("Discrete(n={n}, start={start}, dtype=int64)"),
            Self::MultiDiscrete { nvec } => {
                let bytes = || nvec.iter().flat_map(|n| n.to_le_bytes()).collect();
                let nvec = told(nvec, &[nvec.len()], ToString::to_string, bytes);
                format!("MultiDiscrete(nvec={nvec}, start=0, shape={}, dtype=int64)", tuple(&self.shape()))
            }
            Self::MultiBinary { .. } => format!("MultiBinary(shape={}, dtype=int8)", tuple(&self.shape())),
            Self::Box { shape, low, high } => {
                let bound = |bounds: &[f32]| {
                    let bytes = || bounds.iter().flat_map(|x| x.to_le_bytes()).collect();
                    told(bounds, shape, |x| python_float(f64::from(*x)), bytes)
                };
                format!("Box(low={}, high={}, shape={}, dtype=float32)", bound(low), bound(high), tuple(shape))
            }
        }
    }
}

/// One number where all are equal, else a list of lists, or a checksum.
fn told<T: PartialEq>(
    numbers: &[T],
    shape: &[usize],
    word: impl Fn(&T) -> String,
    bytes: impl Fn() -> Vec<u8>,
) -> String {
    match numbers.first() {
        Some(first) if numbers.iter().all(|x| x == first) => word(first),
        _ if numbers.len() <= LISTED => {
            let words: Vec<_> = numbers.iter().map(word).collect();
            shape.iter().rev().fold(words, |words, n| words.chunks((*n).max(1)).map(list).collect()).concat()
        }
        _ => format!("sha256:{}", &hex_sha256(&bytes())[..32]),
    }
}

fn list(words: &[String]) -> String {
    format!("[{}]", words.join(", "))
}

fn tuple(shape: &[usize]) -> String {
    let words: Vec<_> = shape.iter().map(ToString::to_string).collect();
    if let [one] = &words[..] { format!("({one},)") } else { format!("({})", words.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_python_s() {
        // rlox.spaces.describe of the same spaces.
        let high = [4.8, f32::INFINITY, 0.418_879_03, f32::INFINITY];
        for (space, line) in [
            (Space::Discrete { n: 3, start: 5 }, "Discrete(n=3, start=5, dtype=int64)"),
            (Space::MultiDiscrete { nvec: vec![2, 3] }, "MultiDiscrete(nvec=[2, 3], start=0, shape=(2,), dtype=int64)"),
            (Space::MultiDiscrete { nvec: vec![4; 3] }, "MultiDiscrete(nvec=4, start=0, shape=(3,), dtype=int64)"),
            (Space::MultiBinary { n: 3 }, "MultiBinary(shape=(3,), dtype=int8)"),
            (
                Space::symmetric_box(&high),
                "Box(low=[-4.800000190734863, -inf, -0.41887903213500977, -inf], \
                 high=[4.800000190734863, inf, 0.41887903213500977, inf], shape=(4,), dtype=float32)",
            ),
            (
                Space::Box { shape: vec![2, 2], low: vec![0.0; 4], high: vec![1.0, 2.0, 3.0, 1e20] },
                "Box(low=0.0, high=[[1.0, 2.0], [3.0, 1.0000000200408773e+20]], shape=(2, 2), dtype=float32)",
            ),
            (Space::uniform_box(0.0, 1.0, &[]), "Box(low=0.0, high=1.0, shape=(), dtype=float32)"),
            (
                Space::Box { shape: vec![17], low: vec![0.0; 17], high: (1..18).map(|x| x as f32).collect() },
                "Box(low=0.0, high=sha256:f0dba8e011e35a49fdfd3cd034be7acb, shape=(17,), dtype=float32)",
            ),
        ] {
            assert_eq!(space.describe(), line);
        }
    }
}
