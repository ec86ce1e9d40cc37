//! Arrays of any type in a member, and out of it.

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors, serialize};

use super::Checkpoint;
use crate::{DType, Error, Field, FieldData, FieldMut, Result};

impl Checkpoint {
    /// Adds a member, or replaces it: arrays by name, with their shapes.
    ///
    /// # Errors
    /// Those of [`Checkpoint::put_safetensors`], [`Error::Shape`] for shapes that do not have as many elements.
    pub fn put(&mut self, member: &str, arrays: &[(&str, &[usize], FieldData<'_>)]) -> Result<()> {
        let bytes: Vec<_> = arrays.iter().map(|(_, _, data)| little_endian(*data)).collect();
        let mut views = Vec::with_capacity(arrays.len());
        for ((name, shape, data), bytes) in arrays.iter().zip(&bytes) {
            let view = TensorView::new(dtype(data.dtype()), shape.to_vec(), bytes);
            views.push((*name, view.map_err(|error| unfit(name, shape, &error))?));
        }
        let bytes = serialize(views, None).map_err(|error| Error::Backend(error.to_string()))?;
        self.put_safetensors(member, bytes)
    }

    /// Adds a member, or replaces it: each field an array `[rows, ...]`.
    ///
    /// # Errors
    /// Those of [`Checkpoint::put_safetensors`].
    pub fn put_fields(&mut self, member: &str, fields: &[Field]) -> Result<()> {
        let shapes: Vec<_> = fields.iter().map(|field| [&[field.rows()], field.shape()].concat()).collect();
        let each = fields.iter().zip(&shapes);
        let arrays: Vec<_> = each.map(|(field, shape)| (field.name(), &shape[..], field.data())).collect();
        self.put(member, &arrays)
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
                Err(Error::Shape(wrong)) => return Err(self.corrupt(member, wrong.to_string())),
                other => other?,
            };
            take(view.data(), field.data_mut());
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
    pub fn array(&self, member: &str, name: &str, shape: &[usize], out: FieldMut<'_>) -> Result<()> {
        let file = self.tensors(member)?.ok_or_else(|| self.corrupt(member, "no such member"))?;
        let view = file.tensor(name).map_err(|_| self.corrupt(member, format!("no array {name:?}")))?;
        let (kind, len) = of(&out);
        if view.shape() != shape || view.dtype() != dtype(kind) {
            let got = format!("{name:?} of shape {:?} and type {:?}", view.shape(), view.dtype());
            return Err(self.corrupt(member, format!("{got} instead of {shape:?} and {:?}", dtype(kind))));
        }
        crate::check_len("out", len, shape.iter().product())?;
        take(view.data(), out);
        Ok(())
    }

    fn tensors(&self, member: &str) -> Result<Option<SafeTensors<'_>>> {
        let read = self.safetensors(member).map(SafeTensors::deserialize).transpose();
        read.map_err(|error| self.corrupt(member, format!("no safetensors ({error})")))
    }
}

fn unfit(name: &str, shape: &[usize], error: &SafeTensorError) -> Error {
    let got = format!("{name:?} of shape {shape:?} ({error})");
    Error::shape("arrays", "as many elements as the shape has", got, "pass the shape of the elements")
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

fn of(out: &FieldMut<'_>) -> (DType, usize) {
    match out {
        FieldMut::F32(out) => (DType::F32, out.len()),
        FieldMut::F64(out) => (DType::F64, out.len()),
        FieldMut::I64(out) => (DType::I64, out.len()),
        FieldMut::U8(out) => (DType::U8, out.len()),
        FieldMut::Bool(out) => (DType::Bool, out.len()),
    }
}

fn little_endian(data: FieldData<'_>) -> Vec<u8> {
    match data {
        FieldData::F32(_) | FieldData::F64(_) | FieldData::I64(_) if cfg!(target_endian = "little") => {
            data.bytes().to_vec()
        }
        FieldData::F32(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        FieldData::F64(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        FieldData::I64(data) => data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        FieldData::U8(data) => data.to_vec(),
        FieldData::Bool(data) => data.iter().map(|x| u8::from(*x != 0)).collect(),
    }
}

fn take(bytes: &[u8], out: FieldMut<'_>) {
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
