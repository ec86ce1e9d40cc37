//! Spaces as JSON values.

use serde_json::{Value, json};

use super::Space;

impl Space {
    /// Returns a description of the space as a JSON value, equal to the description of `rlox._spaces.to_json` in Python.
    ///
    /// Bounds and counts that are equal for all components are one number, others are a flat list. Infinite bounds are
    /// "inf" and "-inf". Equal spaces have equal descriptions.
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
    fn descriptions_equal_those_of_python() {
        // json.dumps(rlox._spaces.to_json(space), sort_keys=True, separators=(",", ":")) of the same spaces.
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
