//! Observation and action spaces, as defined by Gymnasium.

use serde_json::{Value, json};

use crate::{Error, Result, alloc};

/// Set of valid values of an observation or an action.
///
/// ```
/// use rlox_core::Space;
///
/// let torque = Space::uniform_box(-2.0, 2.0, &[1]);
/// assert_eq!(torque.dim(), 1);
/// assert_eq!(Space::discrete(2).dim(), 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Space {
    /// The integers `start..start + n`.
    Discrete {
        /// The number of values, at least 1.
        n: i64,
        /// The smallest value.
        start: i64,
    },
    /// A vector of integers. Component `i` is in `0..nvec[i]`.
    MultiDiscrete {
        /// The number of values of each component.
        nvec: Vec<i64>,
    },
    /// A vector of `n` zeros and ones.
    MultiBinary {
        /// The length of the vector.
        n: usize,
    },
    /// An array of f32 numbers in row-major order. Each element has a lower and an upper bound,
    /// which may be infinite.
    Box {
        /// The shape of the array.
        shape: Vec<usize>,
        /// Lower bounds, one per element.
        low: Vec<f32>,
        /// Upper bounds, one per element.
        high: Vec<f32>,
    },
}

impl Space {
    /// Creates a `Discrete` space that starts at 0.
    pub fn discrete(n: i64) -> Self {
        Self::Discrete { n, start: 0 }
    }

    /// Creates a `Box` space with the same bounds for all elements.
    ///
    /// If the arrays of bounds do not fit into memory, they stay empty, and [`Space::validate`]
    /// rejects the space.
    pub fn uniform_box(low: f32, high: f32, shape: &[usize]) -> Self {
        let dim = elements(shape);
        let bounds = |bound| {
            let mut bounds = alloc::with_capacity("shape", dim).unwrap_or_default();
            bounds.resize(bounds.capacity().min(dim), bound);
            bounds
        };
        Self::Box { shape: shape.to_vec(), low: bounds(low), high: bounds(high) }
    }

    /// Creates a one-dimensional `Box` space. Element `i` has the bounds `-high[i]` and `high[i]`.
    pub fn symmetric_box(high: &[f32]) -> Self {
        Self::Box { shape: vec![high.len()], low: high.iter().map(|x| -x).collect(), high: high.to_vec() }
    }

    /// Returns the number of elements of one value of the space, after flattening.
    pub fn dim(&self) -> usize {
        match self {
            Self::Discrete { .. } => 1,
            Self::MultiDiscrete { nvec } => nvec.len(),
            Self::MultiBinary { n } => *n,
            Self::Box { low, .. } => low.len(),
        }
    }

    /// Returns the shape of one value of the space. The shape is empty for `Discrete`.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Discrete { .. } => Vec::new(),
            Self::MultiDiscrete { nvec } => vec![nvec.len()],
            Self::MultiBinary { n } => vec![*n],
            Self::Box { shape, .. } => shape.clone(),
        }
    }

    /// Checks that the space is valid.
    ///
    /// Counts must be positive. A `Box` must have a lower and an upper bound for each element, and
    /// the lower bound must not exceed the upper bound.
    ///
    /// # Errors
    /// [`Error::Space`] with the given `argument` if the space is invalid.
    pub fn validate(&self, argument: &'static str) -> Result<()> {
        let mut index = None;
        let problem = match self {
            Self::Discrete { n, .. } if *n < 1 => Some(("n >= 1", format!("n = {n}"))),
            Self::Discrete { n, start } if start.checked_add(*n).is_none() => {
                Some(("start + n within i64", format!("start = {start}, n = {n}")))
            }
            Self::MultiDiscrete { nvec } if nvec.is_empty() || nvec.iter().any(|n| *n < 1) => {
                Some(("components >= 1", format!("nvec = {nvec:?}")))
            }
            Self::MultiBinary { n: 0 } => Some(("n >= 1", "n = 0".into())),
            Self::Box { shape, low, high } => {
                let dim = elements(shape);
                if dim == 0 || low.len() != dim || high.len() != dim {
                    Some((
                        "one pair of bounds per element",
                        format!("shape {shape:?} with {} lower and {} upper bounds", low.len(), high.len()),
                    ))
                } else {
                    index = low.iter().zip(high).position(|(l, h)| l > h || l.is_nan() || h.is_nan());
                    index.map(|i| ("low <= high", format!("[{}, {}]", low[i], high[i])))
                }
            }
            _ => None,
        };
        let Some((expected, got)) = problem else { return Ok(()) };
        let error = Error::space(argument, expected, got, "correct the definition of the space");
        Err(if let Some(index) = index { error.at_index(index) } else { error })
    }

    /// Returns the JSON description of the space, which equals the result of `rlox._spaces.to_json`
    /// in Python.
    ///
    /// A bound or count that all components share is written as one number. Otherwise, a flat list
    /// has one number per component. Infinite bounds are written as "inf" and "-inf". Equal spaces
    /// have equal descriptions.
    ///
    /// ```
    /// use rlox_core::Space;
    ///
    /// let bounds = Space::Box { shape: vec![2], low: vec![-1.0; 2], high: vec![0.5, f32::INFINITY] };
    /// assert_eq!(
    ///     bounds.to_json().to_string(),
    ///     r#"{"dtype":"float32","high":[0.5,"inf"],"low":-1.0,"shape":[2],"type":"Box"}"#
    /// );
    /// ```
    pub fn to_json(&self) -> Value {
        match self {
            Self::Discrete { n, start } => json!({"type": "Discrete", "n": n, "start": start, "dtype": "int64"}),
            Self::MultiDiscrete { nvec } => {
                let nvec = one_or_list(nvec.iter().map(|n| json!(n)).collect());
                json!({"type": "MultiDiscrete", "nvec": nvec, "start": 0, "shape": self.shape(), "dtype": "int64"})
            }
            Self::MultiBinary { .. } => json!({"type": "MultiBinary", "shape": self.shape(), "dtype": "int8"}),
            Self::Box { shape, low, high } => {
                let [low, high] = [low, high].map(|bounds| one_or_list(bounds.iter().copied().map(bound).collect()));
                json!({"type": "Box", "low": low, "high": high, "shape": shape, "dtype": "float32"})
            }
        }
    }
}

/// Returns the number of elements of an array, saturated at `usize::MAX`.
fn elements(shape: &[usize]) -> usize {
    shape.iter().fold(1, |len: usize, n| len.saturating_mul(*n))
}

fn bound(x: f32) -> Value {
    if x.is_finite() { json!(f64::from(x)) } else { json!(x.to_string()) }
}

fn one_or_list(mut numbers: Vec<Value>) -> Value {
    match numbers.first() {
        Some(first) if numbers.iter().all(|x| x == first) => numbers.swap_remove(0),
        _ => Value::Array(numbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_and_shapes() {
        let image = Space::uniform_box(0.0, 1.0, &[2, 3]);
        assert_eq!((image.dim(), image.shape()), (6, vec![2, 3]));
        assert_eq!(Space::MultiDiscrete { nvec: vec![3, 4] }.dim(), 2);
        assert_eq!(Space::discrete(5).shape(), Vec::<usize>::new());
    }

    #[test]
    fn invalid_input_is_rejected() {
        for space in [
            Space::discrete(0),
            Space::Discrete { n: 2, start: i64::MAX },
            Space::MultiDiscrete { nvec: vec![2, 0] },
            Space::MultiBinary { n: 0 },
            Space::uniform_box(0.0, 1.0, &[usize::MAX, 2]),
            Space::uniform_box(0.0, 1.0, &[1 << 40, 1 << 20]),
            Space::uniform_box(0.0, 1.0, &[1 << 50]),
            Space::Box { shape: vec![usize::MAX, 3], low: vec![], high: vec![] },
            Space::uniform_box(1.0, -1.0, &[2]),
            Space::uniform_box(f32::NAN, 1.0, &[2]),
            Space::Box { shape: vec![3], low: vec![0.0], high: vec![1.0] },
        ] {
            crate::testing::assert_rejects(space.validate("action space"), Error::Space, "action space");
        }
        assert!(Space::symmetric_box(&[f32::INFINITY]).validate("x").is_ok());
    }

    #[test]
    fn descriptions_equal_those_of_python() {
        // The texts are json.dumps(rlox._spaces.to_json(space), sort_keys=True, separators=(",",
        // ":")).
        let high = [4.8, f32::INFINITY, 0.418_879_03, f32::INFINITY];
        for (space, text) in [
            (Space::Discrete { n: 3, start: 5 }, r#"{"dtype":"int64","n":3,"start":5,"type":"Discrete"}"#),
            (
                Space::MultiDiscrete { nvec: vec![2, 3] },
                r#"{"dtype":"int64","nvec":[2,3],"shape":[2],"start":0,"type":"MultiDiscrete"}"#,
            ),
            (
                Space::MultiDiscrete { nvec: vec![3, 3] },
                r#"{"dtype":"int64","nvec":3,"shape":[2],"start":0,"type":"MultiDiscrete"}"#,
            ),
            (Space::MultiBinary { n: 3 }, r#"{"dtype":"int8","shape":[3],"type":"MultiBinary"}"#),
            (
                Space::Box { shape: vec![2, 2], low: high.map(|x| -x).to_vec(), high: high.to_vec() },
                r#"{"dtype":"float32","high":[4.800000190734863,"inf",0.41887903213500977,"inf"],"low":[-4.800000190734863,"-inf",-0.41887903213500977,"-inf"],"shape":[2,2],"type":"Box"}"#,
            ),
            (Space::uniform_box(0.0, 1.0, &[]), r#"{"dtype":"float32","high":1.0,"low":0.0,"shape":[],"type":"Box"}"#),
        ] {
            assert_eq!(space.to_json().to_string(), text);
        }
    }
}
