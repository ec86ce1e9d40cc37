//! Parameters as a safetensors file with a SHA-256 checksum.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use rlox_core::{Error, Result};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use super::{NamedTensor, NamedTensors};

/// Metadata key of the tensor names, one per line. They have an order here, because the JSON object
/// of the header has none.
const ORDER: &str = "order";
/// Metadata key of the SHA-256 of all tensors in the order of [`ORDER`].
const CHECKSUM: &str = "sha256";
const FIX: &str = "write the file again, or load another file";

fn corrupt_file(got: impl Into<String>) -> Error {
    Error::corrupt("file", "an intact safetensors file", got.into(), FIX)
}

/// Returns the SHA-256 of the names, shapes and bytes of tensors.
fn checksum<'a>(tensors: impl Iterator<Item = (&'a str, &'a [usize], &'a [u8])>) -> String {
    let mut hash = hmac_sha256::Hash::new();
    for (name, shape, bytes) in tensors {
        hash.update(format!("{name:?} {shape:?} {}\n", bytes.len()));
        hash.update(bytes);
    }
    hash.finalize().iter().fold(String::new(), |mut digits, byte| {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

impl NamedTensors {
    /// Returns the contents of a safetensors file, with a SHA-256 of the tensors in its metadata.
    ///
    /// Equal tensors give equal bytes.
    pub fn to_safetensors(&self) -> Vec<u8> {
        self.file(true)
    }

    /// Returns the contents of a safetensors file without SHA-256 and order of the tensors.
    ///
    /// This takes a fraction of the time of [`NamedTensors::to_safetensors`]. Use this form for
    /// data that are read at once from a reliable channel, such as a network connection.
    ///
    /// ```
    /// use rlox_nn::NamedTensors;
    ///
    /// let mut tensors = NamedTensors::default();
    /// tensors.push("weight", &[2], vec![1.0, 2.0])?;
    /// let bytes = tensors.to_safetensors_without_checksum();
    /// assert!(bytes.len() < tensors.to_safetensors().len());
    /// assert_eq!(NamedTensors::from_safetensors(&bytes)?, tensors);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn to_safetensors_without_checksum(&self) -> Vec<u8> {
        self.file(false)
    }

    fn file(&self, checked: bool) -> Vec<u8> {
        let mut bytes = vec![0; self.iter().map(|tensor| size_of_val(&tensor.data[..])).sum()];
        let mut rest = bytes.as_chunks_mut().0;
        for tensor in self {
            let (slot, after) = rest.split_at_mut(tensor.data.len());
            slot.iter_mut().zip(&tensor.data).for_each(|(bytes, x)| *bytes = x.to_le_bytes());
            rest = after;
        }
        let (mut header, mut entries, mut end) = (Map::new(), Vec::new(), 0);
        for NamedTensor { name, shape, data } in self {
            let start = end;
            end += size_of_val(&data[..]);
            header.insert(name.clone(), json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]}));
            entries.push((name.as_str(), &shape[..], &bytes[start..end]));
        }
        if checked {
            let order: Vec<&str> = entries.iter().map(|(name, ..)| *name).collect();
            let metadata = json!({ORDER: order.join("\n"), CHECKSUM: checksum(entries.into_iter())});
            header.insert("__metadata__".into(), metadata);
        }
        let mut header = Value::Object(header).to_string();
        // The numbers of the tensors start at a multiple of 8 bytes.
        let padding = header.len().next_multiple_of(size_of::<u64>()) - header.len();
        header.extend(std::iter::repeat_n(' ', padding));
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes].concat()
    }

    /// Reads a safetensors file of f32 tensors.
    ///
    /// The tensors have the order in which they were written, or the order of their names if the
    /// file has no order. Files of other libraries have no checksum and are accepted without one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the file is not a safetensors file, is truncated or changed, has a
    /// name twice, or has tensors that are not f32.
    pub fn from_safetensors(bytes: &[u8]) -> Result<Self> {
        let to_error = |error: SafeTensorError| corrupt_file(error.to_string());
        let file = SafeTensors::deserialize(bytes).map_err(to_error)?;
        let (length, header) = SafeTensors::read_metadata(bytes).map_err(to_error)?;
        names_once(&bytes[size_of::<u64>()..][..length])?;
        let metadata: BTreeMap<&str, &str> =
            header.metadata().iter().flatten().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let order = metadata.get(ORDER).map(|order| order.split('\n').enumerate().map(|(i, name)| (name, i)));
        let rank: BTreeMap<&str, usize> = order.map(Iterator::collect).unwrap_or_default();
        let mut views: Vec<_> = file.iter().collect();
        views.sort_by_key(|(name, _)| (rank.get(name).copied().unwrap_or(usize::MAX), *name));
        check_metadata(&metadata, &views)?;
        let mut tensors = Self::default();
        for (name, view) in views {
            if view.dtype() != Dtype::F32 {
                let got = format!("{:?}", view.dtype());
                return Err(Error::corrupt("file", "f32 tensors", got, "convert the tensors to f32").in_section(name));
            }
            let numbers = view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            tensors.push(name, view.shape(), numbers.collect()).map_err(|error| corrupt_file(error.to_string()))?;
        }
        Ok(tensors)
    }
}

/// Checks the order and the checksum of a file with metadata of [`NamedTensors::to_safetensors`].
fn check_metadata(metadata: &BTreeMap<&str, &str>, views: &[(&str, TensorView<'_>)]) -> Result<()> {
    let (order, sum) = (metadata.get(ORDER), metadata.get(CHECKSUM));
    let Some(order) = order else {
        return if sum.is_none() { Ok(()) } else { Err(corrupt_file(format!("no {ORDER:?} in the metadata"))) };
    };
    let names: Vec<&str> = views.iter().map(|(name, _)| *name).collect();
    let Some(sum) = sum else { return Err(corrupt_file(format!("no {CHECKSUM:?} in the metadata"))) };
    if metadata.len() != 2 || names.join("\n") != *order {
        return Err(corrupt_file("metadata that do not match the tensors"));
    }
    let tensors = views.iter().map(|(name, view)| (*name, view.shape(), view.data()));
    if *sum == checksum(tensors) { Ok(()) } else { Err(corrupt_file("tensors that do not match their SHA-256")) }
}

/// Checks that no name occurs twice in a header, because only one of the two tensors would be read.
fn names_once(header: &[u8]) -> Result<()> {
    let Keys(mut names) = serde_json::from_slice(header).map_err(|error| corrupt_file(error.to_string()))?;
    let mut unique_names = HashSet::new();
    match names.iter().position(|name| !unique_names.insert(name.as_str())) {
        Some(at) => Err(corrupt_file(format!("two tensors named {:?}", names.swap_remove(at)))),
        None => Ok(()),
    }
}

/// Keys of a JSON object, including duplicates.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }

        deserializer.deserialize_map(Object)
    }
}
