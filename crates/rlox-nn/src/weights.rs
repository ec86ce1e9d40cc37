//! Parameters by name: the form in which they leave a network, and come back.

use std::collections::BTreeMap;

use rlox_core::{Error, Result};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};

/// One array of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Its name, as torch has it.
    pub name: String,
    /// Its extents; empty for a single number.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub data: Vec<f32>,
}

impl NamedTensor {
    /// Where the first element is that is NaN or infinite.
    pub fn first_not_finite(&self) -> Option<usize> {
        self.data.iter().position(|x| !x.is_finite())
    }
}

/// Arrays of parameters in a fixed order, each name once.
///
/// ```
/// use rlox_nn::NamedTensors;
///
/// let mut tensors = NamedTensors::default();
/// tensors.push("0.weight", &[1, 2], vec![1.0, 2.0])?;
/// let bytes = tensors.to_safetensors()?;
/// assert_eq!(NamedTensors::from_safetensors(&bytes)?, tensors);
/// # Ok::<(), rlox_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedTensors {
    tensors: Vec<NamedTensor>,
}

impl NamedTensors {
    /// Adds an array.
    ///
    /// # Errors
    /// [`Error::Shape`] if the name is taken, or if the shape does not have as many elements.
    pub fn push(&mut self, name: impl Into<String>, shape: &[usize], data: Vec<f32>) -> Result<()> {
        let name = name.into();
        if self.find(&name).is_some() {
            let fix = "give each tensor a name of its own";
            return Err(Error::shape("tensors", "each name once", format!("two tensors named {name:?}"), fix));
        }
        if shape.iter().product::<usize>() != data.len() {
            let got = format!("{} for {name:?}", data.len());
            let fix = "pass as many elements as the shape has";
            return Err(Error::shape("data", format!("elements for the shape {shape:?}"), got, fix));
        }
        self.tensors.push(NamedTensor { name, shape: shape.to_vec(), data });
        Ok(())
    }

    /// The arrays, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, NamedTensor> {
        self.tensors.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The array of a name.
    pub fn find(&self, name: &str) -> Option<&NamedTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// Adds all of another's, their names behind `prefix` and a dot.
    ///
    /// # Errors
    /// [`Error::Shape`] if a name is taken.
    pub fn extend(&mut self, prefix: &str, others: &Self) -> Result<()> {
        others.iter().try_for_each(|one| self.push(format!("{prefix}.{}", one.name), &one.shape, one.data.clone()))
    }

    /// Those whose names begin with `prefix` and a dot, without it.
    #[must_use]
    pub fn part(&self, prefix: &str) -> Self {
        let stripped = |tensor: &NamedTensor| {
            let name = tensor.name.strip_prefix(prefix)?.strip_prefix('.')?;
            Some(NamedTensor { name: name.to_owned(), ..tensor.clone() })
        };
        Self { tensors: self.tensors.iter().filter_map(stripped).collect() }
    }

    /// Those whose names do not begin with `prefix` and a dot.
    pub(crate) fn beside(&self, prefix: &str) -> Self {
        let beside = |tensor: &&NamedTensor| tensor.name.split('.').next() != Some(prefix);
        Self { tensors: self.tensors.iter().filter(beside).cloned().collect() }
    }

    /// Checks that these are exactly arrays of `expected`'s names and shapes, of finite numbers.
    ///
    /// # Errors
    /// [`Error::Shape`] naming the first one that is absent, superfluous or of another shape, [`Error::Config`] naming
    /// the first with a number that is not finite, and where.
    pub fn check(&self, expected: &Self) -> Result<()> {
        const FIX: &str = "load weights of the same architecture";
        for one in expected {
            let Some(tensor) = self.find(&one.name) else {
                let there: Vec<_> = self.iter().map(|tensor| tensor.name.as_str()).collect();
                let got = format!("only {there:?}");
                return Err(Error::shape("tensors", format!("one named {:?}", one.name), got, FIX));
            };
            if tensor.shape != one.shape {
                let (wanted, got) = (format!("{:?} of shape {:?}", one.name, one.shape), format!("{:?}", tensor.shape));
                return Err(Error::shape("tensors", wanted, got, FIX));
            }
            if let Some(at) = tensor.first_not_finite() {
                let row = at / one.shape.last().copied().unwrap_or(1).max(1);
                let got = format!("{} in {:?}, row {row}", tensor.data[at], one.name);
                return Err(Error::config("tensors", "finite numbers", got, "load weights that were saved whole"));
            }
        }
        match self.iter().find(|tensor| expected.find(&tensor.name).is_none()) {
            Some(more) => {
                let names: Vec<_> = expected.iter().map(|tensor| tensor.name.as_str()).collect();
                Err(Error::shape("tensors", format!("only {names:?}"), format!("one more, {:?}", more.name), FIX))
            }
            None => Ok(()),
        }
    }

    /// The contents of a safetensors file.
    ///
    /// # Errors
    /// [`Error::Backend`] if the library refuses.
    pub fn to_safetensors(&self) -> Result<Vec<u8>> {
        let bytes: Vec<Vec<u8>> =
            self.iter().map(|tensor| tensor.data.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
        let views = self.iter().zip(&bytes).map(|(tensor, bytes)| {
            let view = TensorView::new(Dtype::F32, tensor.shape.clone(), bytes);
            view.map(|view| (tensor.name.clone(), view))
        });
        let refused = |error: safetensors::SafeTensorError| Error::Backend(error.to_string());
        let views = views.collect::<std::result::Result<Vec<_>, _>>().map_err(refused)?;
        // The file keeps no order of its own: the names' is written down.
        let order: Vec<&str> = self.iter().map(|tensor| tensor.name.as_str()).collect();
        let metadata = [("order".to_owned(), order.join("\n"))].into_iter().collect();
        serialize(views, Some(metadata)).map_err(refused)
    }

    /// The arrays of a safetensors file of f32 tensors, in the order they were written in, or of their names.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is none, is truncated or holds other dtypes.
    pub fn from_safetensors(bytes: &[u8]) -> Result<Self> {
        const FIX: &str = "write it again, or load another file";
        let damaged =
            |error: safetensors::SafeTensorError| Error::corrupt("file", "safetensors", error.to_string(), FIX);
        let file = SafeTensors::deserialize(bytes).map_err(damaged)?;
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let order = header.metadata().as_ref().and_then(|metadata| metadata.get("order"));
        let rank: BTreeMap<&str, usize> =
            order.map(|order| order.lines().enumerate().map(|(i, name)| (name, i)).collect()).unwrap_or_default();
        let mut names: Vec<String> = file.names().into_iter().map(ToOwned::to_owned).collect();
        names.sort_by_key(|name| (rank.get(name.as_str()).copied().unwrap_or(usize::MAX), name.clone()));
        let mut tensors = Self::default();
        for name in names {
            let view = file.tensor(&name).map_err(damaged)?;
            if view.dtype() != Dtype::F32 {
                let got = format!("{:?} in {name:?}", view.dtype());
                return Err(Error::corrupt("file", "f32 tensors", got, "convert them to f32"));
            }
            let numbers = view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            tensors.push(name, view.shape(), numbers.collect())?;
        }
        Ok(tensors)
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
