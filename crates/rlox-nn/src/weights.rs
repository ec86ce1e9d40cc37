//! Named arrays of parameters, the form in which networks export and load parameters.

mod safetensors;

use std::collections::HashMap;

use rlox_core::{Error, Result};

/// A named array of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Name, as in torch.
    pub name: String,
    /// Length of each dimension; empty for a scalar.
    pub shape: Vec<usize>,
    /// Elements in row-major order.
    pub data: Vec<f32>,
}

impl NamedTensor {
    /// Returns the index of the first element that is NaN or infinite.
    pub fn first_not_finite(&self) -> Option<usize> {
        self.data.iter().position(|x| !x.is_finite())
    }

    /// Adds the location of an element to an error: the name of the array and the index of the row.
    pub(crate) fn locate(&self, error: Error, index: usize) -> Error {
        let rows = self.shape.first().copied().unwrap_or(1).max(1);
        error.in_section(self.name.clone()).at_row(index / (self.data.len() / rows).max(1))
    }

    fn check_finite(&self, argument: &'static str) -> Result<()> {
        let Some(index) = self.first_not_finite() else { return Ok(()) };
        let (got, hint) = (self.data[index].to_string(), "load weights without NaN or infinity");
        Err(self.locate(Error::not_finite(argument, "finite numbers", got, hint), index))
    }
}

const OWN_NAME: &str = "pass another name for each tensor";

/// Checks that a safetensors file can hold a tensor with this name.
///
/// # Errors
/// [`Error::Shape`] if the name is `__metadata__` or has a line break.
pub(crate) fn check_name(argument: &'static str, name: &str) -> Result<()> {
    if name != "__metadata__" && !name.contains('\n') {
        return Ok(());
    }
    let expected = "names without line breaks, other than \"__metadata__\"";
    Err(Error::shape(argument, expected, format!("{name:?}"), OWN_NAME))
}

/// Arrays of parameters in a fixed order, with unique names.
///
/// ```
/// use rlox_nn::NamedTensors;
///
/// let mut tensors = NamedTensors::default();
/// tensors.push("0.weight", &[1, 2], vec![1.0, 2.0])?;
/// let bytes = tensors.to_safetensors();
/// assert_eq!(NamedTensors::from_safetensors(&bytes)?, tensors);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedTensors {
    tensors: Vec<NamedTensor>,
    /// Index of each name in `tensors`.
    indices: HashMap<String, usize>,
}

impl NamedTensors {
    /// Adds an array.
    ///
    /// # Errors
    /// [`Error::Shape`] if the name exists already, if a file cannot hold the name (`__metadata__`,
    /// or a name with a line break), or if the number of elements does not fit the shape.
    pub fn push(&mut self, name: impl Into<String>, shape: &[usize], data: Vec<f32>) -> Result<()> {
        let name = name.into();
        check_name("tensors", &name)?;
        if self.find(&name).is_some() {
            return Err(Error::shape("tensors", "unique names", format!("two tensors named {name:?}"), OWN_NAME));
        }
        if shape.iter().try_fold(1, |count: usize, extent| count.checked_mul(*extent)) != Some(data.len()) {
            let got = format!("{} elements for {name:?}", data.len());
            let fix = "pass as many elements as the shape has";
            return Err(Error::shape("data", format!("elements for the shape {shape:?}"), got, fix));
        }
        self.indices.insert(name.clone(), self.tensors.len());
        self.tensors.push(NamedTensor { name, shape: shape.to_vec(), data });
        Ok(())
    }

    /// Returns an iterator over the arrays, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, NamedTensor> {
        self.tensors.iter()
    }

    /// Returns the number of arrays.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns true if there are no arrays.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Returns the array with this name.
    pub fn find(&self, name: &str) -> Option<&NamedTensor> {
        self.indices.get(name).map(|at| &self.tensors[*at])
    }

    /// Adds all arrays of `others`, with `prefix` and a dot in front of their names.
    ///
    /// # Errors
    /// [`Error::Shape`] if a name exists already.
    pub fn extend(&mut self, prefix: &str, others: &Self) -> Result<()> {
        others
            .iter()
            .try_for_each(|tensor| self.push(format!("{prefix}.{}", tensor.name), &tensor.shape, tensor.data.clone()))
    }

    /// Returns the arrays with names that begin with `prefix` and a dot, without that prefix.
    #[must_use]
    pub fn strip_prefix(&self, prefix: &str) -> Self {
        let stripped = |tensor: &NamedTensor| {
            let name = tensor.name.strip_prefix(prefix)?.strip_prefix('.')?;
            Some(NamedTensor { name: name.to_owned(), ..tensor.clone() })
        };
        Self::from_tensors(self.iter().filter_map(stripped))
    }

    /// Returns the arrays with names that do not begin with `prefix` and a dot.
    pub(crate) fn without_prefix(&self, prefix: &str) -> Self {
        let is_other = |tensor: &&NamedTensor| tensor.name.split('.').next() != Some(prefix);
        Self::from_tensors(self.iter().filter(is_other).cloned())
    }

    /// Collects arrays whose names are known to be valid and unique.
    fn from_tensors(tensors: impl Iterator<Item = NamedTensor>) -> Self {
        let tensors: Vec<_> = tensors.collect();
        let indices = tensors.iter().enumerate().map(|(at, tensor)| (tensor.name.clone(), at)).collect();
        Self { tensors, indices }
    }

    /// Checks that all numbers are finite.
    ///
    /// # Errors
    /// [`Error::NotFinite`] naming `argument`, the first tensor with a number that is not finite,
    /// and its row.
    ///
    /// ```
    /// let mut tensors = rlox_nn::NamedTensors::default();
    /// tensors.push("0.weight", &[2, 2], vec![0.0, 1.0, 2.0, f32::NAN])?;
    /// let error = tensors.check_finite("parameters").unwrap_err();
    /// let at = &error.mismatch().unwrap().at;
    /// assert_eq!((at.section.as_deref(), at.row), (Some("0.weight"), Some(1)));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn check_finite(&self, argument: &'static str) -> Result<()> {
        self.iter().try_for_each(|tensor| tensor.check_finite(argument))
    }

    /// Checks that the arrays have exactly the names and shapes of `expected`, and that all numbers
    /// are finite.
    ///
    /// # Errors
    /// - [`Error::Shape`]: a tensor is missing, unexpected or of another shape.
    /// - [`Error::NotFinite`]: a number is not finite.
    ///
    /// The error names the tensor.
    pub fn check(&self, expected: &Self) -> Result<()> {
        const FIX: &str = "load weights of the same architecture";
        for one in expected {
            let Some(tensor) = self.find(&one.name) else {
                let there: Vec<_> = self.iter().map(|tensor| tensor.name.as_str()).collect();
                let got = format!("only {there:?}");
                return Err(Error::shape("tensors", format!("a tensor named {:?}", one.name), got, FIX));
            };
            if tensor.shape != one.shape {
                let (wanted, got) = (format!("{:?} of shape {:?}", one.name, one.shape), format!("{:?}", tensor.shape));
                return Err(Error::shape("tensors", wanted, got, FIX));
            }
            tensor.check_finite("tensors")?;
        }
        match self.iter().find(|tensor| expected.find(&tensor.name).is_none()) {
            Some(more) => {
                let names: Vec<_> = expected.iter().map(|tensor| tensor.name.as_str()).collect();
                Err(Error::shape("tensors", format!("only {names:?}"), format!("one more, {:?}", more.name), FIX))
            }
            None => Ok(()),
        }
    }
}

impl IntoIterator for NamedTensors {
    type Item = NamedTensor;
    type IntoIter = std::vec::IntoIter<NamedTensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.tensors.into_iter()
    }
}

impl<'a> IntoIterator for &'a NamedTensors {
    type Item = &'a NamedTensor;
    type IntoIter = std::slice::Iter<'a, NamedTensor>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
