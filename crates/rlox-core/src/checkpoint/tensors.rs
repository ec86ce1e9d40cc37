//! Arrays of any type in a member, and out of it.

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::Checkpoint;
use crate::{DType, Error, Field, FieldData, FieldMut, Result, alloc};

/// Bytes of a safetensors file before its header, which has a multiple of so many.
const LEN: usize = 8;

/// An array of a member: its name, shape and type.
pub(crate) type Named<'a> = (&'a str, &'a [usize], DType);

impl Checkpoint {
    /// Adds a member, or replaces it: arrays by name, with their shapes.
    ///
    /// # Errors
    /// Those of [`Checkpoint::insert_safetensors`], [`Error::Shape`] for shapes that do not have as many elements.
    pub fn insert_arrays(&mut self, member: &str, arrays: &[(&str, &[usize], FieldData<'_>)]) -> Result<()> {
        for (name, shape, data) in arrays {
            if shape.iter().try_fold(1, |len: usize, n| len.checked_mul(*n)) != Some(data.len()) {
                let got = format!("{name:?} of shape {shape:?} and {} elements", data.len());
                let hint = "pass the shape of the elements";
                return Err(Error::shape("arrays", "as many elements as the shape has", got, hint));
            }
        }
        let named: Vec<_> = arrays.iter().map(|(name, shape, data)| (*name, *shape, data.dtype())).collect();
        self.insert_with(member, &named, |memory| {
            memory.into_iter().zip(arrays).for_each(|(to, (.., data))| to.copy_from_slice(data.bytes()));
            Ok(())
        })
    }

    /// Adds a member, or replaces it, whose arrays are written where they stay: `fill` gets the zeroed bytes of each, in
    /// the order of `arrays`, and writes numbers as this machine has them.
    ///
    /// # Errors
    /// Those of [`Checkpoint::insert_safetensors`] and of `fill`, [`Error::Memory`] if there is no room.
    pub(crate) fn insert_with(
        &mut self,
        member: &str,
        arrays: &[Named<'_>],
        fill: impl FnOnce(Vec<&mut [u8]>) -> Result<()>,
    ) -> Result<()> {
        // Byte for byte what `safetensors::serialize` gives, which takes each array whole, however: the largest of a
        // replay buffer would be in memory once more, and too little memory an abort instead of an error.
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

    /// Adds a member, or replaces it: each field an array `[rows, ...]`.
    ///
    /// # Errors
    /// Those of [`Checkpoint::insert_safetensors`].
    pub fn insert_fields(&mut self, member: &str, fields: &[Field]) -> Result<()> {
        let shapes: Vec<_> = fields.iter().map(|field| [&[field.rows()], field.shape()].concat()).collect();
        let each = fields.iter().zip(&shapes);
        let arrays: Vec<_> = each.map(|(field, shape)| (field.name(), &shape[..], field.data())).collect();
        self.insert_arrays(member, &arrays)
    }

    /// The arrays of a member as fields, in the order of their names; none if there is no such member.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the member is no safetensors or has arrays of other types or without rows, and
    /// [`Error::Memory`] if it does not fit into memory.
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

    /// The arrays of a member by name, with their shapes; none if there is no such member.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the member is no safetensors.
    pub fn shapes(&self, member: &str) -> Result<Vec<(String, Vec<usize>)>> {
        let Some(file) = self.tensors(member)? else { return Ok(Vec::new()) };
        Ok(file.iter().map(|(name, view)| (name.to_owned(), view.shape().to_vec())).collect())
    }

    /// Copies an array of a member into `out`, which has as many elements as `shape`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none of this name, shape and type; `out` has not changed then. [`Error::Shape`] if
    /// `out` has another length.
    pub fn read_array(&self, member: &str, name: &str, shape: &[usize], out: FieldMut<'_>) -> Result<()> {
        let file = self.tensors(member)?.ok_or_else(|| self.corrupt(member, "no such member"))?;
        let view = file.tensor(name).map_err(|_| self.corrupt(member, format!("no array {name:?}")))?;
        let (kind, len) = dtype_and_len(&out);
        if view.shape() != shape || view.dtype() != dtype(kind) {
            let got = format!("{name:?} of shape {:?} and type {:?}", view.shape(), view.dtype());
            return Err(self.corrupt(member, format!("{got} instead of {shape:?} and {:?}", dtype(kind))));
        }
        crate::check_len("out", len, shape.iter().product())?;
        copy_from_bytes(view.data(), out);
        Ok(())
    }

    fn tensors(&self, member: &str) -> Result<Option<SafeTensors<'_>>> {
        let read = self.safetensors(member).map(SafeTensors::deserialize).transpose();
        read.map_err(|error| self.corrupt(member, format!("no safetensors ({error})")))
    }
}

/// Makes elements as this machine has them such as files have: of booleans 0 and 1, of numbers the lowest byte first.
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
