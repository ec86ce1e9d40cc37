//! Numbers from and to tensors.

use burn::tensor::{Device, Tensor, TensorData};
use rlox_core::{Error, Result};

/// A slice as rows on a device.
pub(crate) fn rows(numbers: &[f32], rows: usize, device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers.to_vec(), [rows, numbers.len() / rows]), device)
}

/// Numbers in one row on a device.
pub(crate) fn line(numbers: Vec<f32>, device: &Device) -> Tensor<1> {
    let count = numbers.len();
    Tensor::from_data(TensorData::new(numbers, [count]), device)
}

/// The numbers of a tensor, row-major; none if they are of another type.
pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap_or_default()
}

/// Numbers from a device to where they are wanted.
pub(crate) fn copy(from: &[f32], to: &mut [f32]) -> Result<()> {
    if from.len() != to.len() {
        return Err(Error::Backend(format!("burn: gave {} numbers instead of {}", from.len(), to.len())));
    }
    to.copy_from_slice(from);
    Ok(())
}

/// Does something with the numbers of tensors on the CPU, which are copied only if other tensors share them.
pub(crate) fn in_place<const D: usize, const N: usize>(
    mut tensors: [&mut Tensor<D>; N],
    work: impl FnOnce([&mut [f32]; N]),
) {
    let device = tensors[0].device();
    let empty = Tensor::empty([0; D], &device);
    let mut data = tensors.each_ref().map(|_| None);
    for (tensor, data) in tensors.iter_mut().zip(&mut data) {
        *data = Some(std::mem::replace(*tensor, empty.clone()).into_data());
    }
    work(data.each_mut().map(|data| data.as_mut().and_then(|data| data.as_mut_slice().ok()).unwrap_or_default()));
    for (tensor, data) in tensors.into_iter().zip(data) {
        if let Some(data) = data {
            *tensor = Tensor::from_data(data, &device);
        }
    }
}
