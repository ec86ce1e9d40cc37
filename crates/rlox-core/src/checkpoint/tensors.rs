//! Arrays of all dtypes in the members of a checkpoint.

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::Checkpoint;
use crate::{
    Error, Result, alloc,
    field::{DType, Field, FieldData, FieldMut},
};

/// Size in bytes of the length field of a safetensors file. The size of the header is a multiple of
/// this size.
const LEN: usize = 8;

/// Name, shape and dtype of an array.
pub(crate) type Named<'a> = (&'a str, &'a [usize], DType);

impl Checkpoint {
    /// Adds or replaces a member that consists of named arrays with the given shapes.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::insert_safetensors`]. [`Error::Shape`] if a shape and the number
    /// of elements of its array differ. [`Error::Memory`] if the member does not fit into memory.
    pub fn insert_arrays(&mut self, member: &str, arrays: &[(&str, &[usize], FieldData<'_>)]) -> Result<()> {
        for (name, shape, data) in arrays {
            if shape.iter().try_fold(1, |len: usize, n| len.checked_mul(*n)) != Some(data.len()) {
                let got = format!("{name:?} of shape {shape:?} and {} elements", data.len());
                let hint = "pass the shape of each array";
                return Err(Error::shape("arrays", "arrays with as many elements as their shapes", got, hint));
            }
        }
        let named: Vec<_> = arrays.iter().map(|(name, shape, data)| (*name, *shape, data.dtype())).collect();
        self.insert_with(member, &named, |memory| {
            memory.into_iter().zip(arrays).for_each(|(to, (.., data))| to.copy_from_slice(data.bytes()));
            Ok(())
        })
    }

    /// Adds or replaces a member with arrays that `fill` writes in place, to save a copy.
    ///
    /// `fill` receives the zeroed bytes of each array in the order of `arrays`. It writes numbers
    /// in native byte order.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::insert_safetensors`] and of `fill`. [`Error::Memory`] if the
    /// member does not fit into memory.
    pub(crate) fn insert_with(
        &mut self,
        member: &str,
        arrays: &[Named<'_>],
        fill: impl FnOnce(Vec<&mut [u8]>) -> Result<()>,
    ) -> Result<()> {
        // The bytes equal those of `safetensors::serialize`, which copies each array. For a replay
        // buffer, copies need too much memory, and a failed allocation would abort the process.
        let mut order: Vec<_> = (0..arrays.len()).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(dtype(arrays[*i].2)), arrays[*i].0));
        let len = |i: usize| arrays[i].1.iter().product::<usize>() * arrays[i].2.size();
        let (mut offset, mut infos) = (0, Vec::with_capacity(arrays.len()));
        for (name, shape, kind) in order.iter().map(|i| arrays[*i]) {
            let end = offset + shape.iter().product::<usize>() * kind.size();
            infos.push((
                name.to_owned(),
                TensorInfo { dtype: dtype(kind), shape: shape.to_vec(), data_offsets: (offset, end) },
            ));
            offset = end;
        }
        let failed = |error: &dyn std::fmt::Display| Error::Backend(error.to_string());
        let metadata = Metadata::new(None, infos).map_err(|error| failed(&error))?;
        let header = serde_json::to_vec(&metadata).map_err(|error| failed(&error))?;
        let start = LEN + header.len().next_multiple_of(LEN);
        let mut bytes = alloc::zeroed("path", start + offset)?;
        let (before, mut rest) = bytes.split_at_mut(start);
        before.fill(b' ');
        before[..LEN].copy_from_slice(&((start - LEN) as u64).to_le_bytes());
        before[LEN..][..header.len()].copy_from_slice(&header);
        let mut slices: Vec<_> = arrays.iter().map(|_| &mut [][..]).collect();
        for i in order {
            (slices[i], rest) = rest.split_at_mut(len(i));
        }
        fill(slices)?;
        for (name, _, kind) in arrays {
            if let Some(info) = metadata.info(name) {
                to_file_bytes(*kind, &mut bytes[start..][info.data_offsets.0..info.data_offsets.1]);
            }
        }
        self.insert_safetensors(member, bytes)
    }

    /// Adds or replaces a member that consists of fields.
    ///
    /// Each field becomes an array with the rows as the first axis.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::insert_arrays`].
    pub fn insert_fields(&mut self, member: &str, fields: &[Field]) -> Result<()> {
        let shapes: Vec<_> = fields.iter().map(|field| [&[field.rows()], field.shape()].concat()).collect();
        let each = fields.iter().zip(&shapes);
        let arrays: Vec<_> = each.map(|(field, shape)| (field.name(), &shape[..], field.data())).collect();
        self.insert_arrays(member, &arrays)
    }

    /// Returns the arrays of a member as fields, sorted by name.
    ///
    /// The result is empty if there is no such member.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the member is not in the safetensors format. [`Error::Corrupt`] also
    /// if an array has a dtype that [`DType`] lacks, has no axis for rows, or has rows without
    /// elements. [`Error::Memory`] if the fields do not fit into memory.
    pub fn fields(&self, member: &str) -> Result<Vec<Field>> {
        let Some(file) = self.tensors(member)? else { return Ok(Vec::new()) };
        let mut fields = Vec::new();
        for (name, view) in file.iter() {
            let known = [DType::F32, DType::F64, DType::I64, DType::U8, DType::Bool];
            let kind = known.into_iter().find(|known| dtype(*known) == view.dtype());
            let (Some(kind), Some((rows, row))) = (kind, view.shape().split_first()) else {
                let got = format!("{name:?} of shape {:?} and type {:?}", view.shape(), view.dtype());
                return Err(self.corrupt(member, got));
            };
            let field = Field::new(name, *rows, row, kind);
            let mut field = match field {
                Err(error @ Error::Shape(_)) => return Err(self.damaged(member, error)),
                other => other?,
            };
            copy_from_bytes(view.data(), field.data_mut());
            fields.push(field);
        }
        fields.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(fields)
    }

    /// Returns the names and shapes of a member's arrays, or nothing if there is no such member.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the member is not in the safetensors format.
    pub fn shapes(&self, member: &str) -> Result<Vec<(String, Vec<usize>)>> {
        let Some(file) = self.tensors(member)? else { return Ok(Vec::new()) };
        Ok(file.iter().map(|(name, view)| (name.to_owned(), view.shape().to_vec())).collect())
    }

    /// Copies an array of a member into `out`, which has as many elements as `shape`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no array of this name, shape and dtype. [`Error::Shape`] if
    /// the length of `out` differs from `shape`. `out` is unchanged after an error.
    pub fn read_array(&self, member: &str, name: &str, shape: &[usize], out: FieldMut<'_>) -> Result<()> {
        let file = self.tensors(member)?.ok_or_else(|| self.corrupt(member, "no such member"))?;
        let view = file.tensor(name).map_err(|_| self.corrupt(member, format!("no array {name:?}")))?;
        let (kind, len) = dtype_and_len(&out);
        if view.shape() != shape || view.dtype() != dtype(kind) {
            let got = format!("{name:?} of shape {:?} and type {:?}", view.shape(), view.dtype());
            return Err(self.corrupt(member, format!("{got} instead of {shape:?} and {:?}", dtype(kind))));
        }
        crate::error::check_len("out", len, shape.iter().product())?;
        copy_from_bytes(view.data(), out);
        Ok(())
    }

    fn tensors(&self, member: &str) -> Result<Option<SafeTensors<'_>>> {
        let read = self.safetensors(member).map(SafeTensors::deserialize).transpose();
        read.map_err(|error| self.corrupt(member, format!("no safetensors ({error})")))
    }
}

/// Converts the elements of an array to the file format, in place.
///
/// Booleans become 0 or 1. Numbers become little-endian.
fn to_file_bytes(kind: DType, bytes: &mut [u8]) {
    if kind == DType::Bool {
        for byte in bytes {
            *byte = u8::from(*byte != 0);
        }
    } else if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(kind.size()).for_each(<[u8]>::reverse);
    }
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

fn dtype_and_len(out: &FieldMut<'_>) -> (DType, usize) {
    match out {
        FieldMut::F32(out) => (DType::F32, out.len()),
        FieldMut::F64(out) => (DType::F64, out.len()),
        FieldMut::I64(out) => (DType::I64, out.len()),
        FieldMut::U8(out) => (DType::U8, out.len()),
        FieldMut::Bool(out) => (DType::Bool, out.len()),
    }
}

fn copy_from_bytes(bytes: &[u8], out: FieldMut<'_>) {
    fn copy<T, const SIZE: usize>(bytes: &[u8], out: &mut [T], read: fn([u8; SIZE]) -> T) {
        let elements = bytes.as_chunks::<SIZE>().0.iter();
        out.iter_mut().zip(elements).for_each(|(x, bytes)| *x = read(*bytes));
    }
    match out {
        FieldMut::F32(out) => copy(bytes, out, f32::from_le_bytes),
        FieldMut::F64(out) => copy(bytes, out, f64::from_le_bytes),
        FieldMut::I64(out) => copy(bytes, out, i64::from_le_bytes),
        FieldMut::U8(out) | FieldMut::Bool(out) => out.copy_from_slice(bytes),
    }
}
