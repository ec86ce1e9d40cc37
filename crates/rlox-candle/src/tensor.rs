//! Devices, errors, and conversion between slices and tensors.

use candle_core::{Storage, Tensor};
use rlox_core::{Error, Result};

/// Device that a network computes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// One core of the CPU.
    #[default]
    Cpu,
    /// CUDA device of this index.
    #[cfg(feature = "cuda")]
    Cuda(usize),
    /// Metal device of this index.
    #[cfg(feature = "metal")]
    Metal(usize),
}

impl Device {
    /// Returns the device of Candle.
    #[allow(clippy::unnecessary_wraps, reason = "devices of other features may be absent")]
    pub(crate) fn open(self) -> Result<candle_core::Device> {
        match self {
            Self::Cpu => Ok(candle_core::Device::Cpu),
            #[cfg(feature = "cuda")]
            Self::Cuda(number) => candle_core::Device::new_cuda(number).map_err(failed),
            #[cfg(feature = "metal")]
            Self::Metal(number) => candle_core::Device::new_metal(number).map_err(failed),
        }
    }
}

/// Converts an error of Candle to [`Error::Backend`].
#[allow(clippy::needless_pass_by_value, reason = "it stands in map_err")]
pub(crate) fn failed(error: candle_core::Error) -> Error {
    Error::Backend(format!("candle: {error}"))
}

/// Calls `read` with the numbers of a tensor, row-major. On the CPU, contiguous numbers are not
/// copied.
fn read<T>(tensor: &Tensor, read: impl FnOnce(&[f32]) -> T) -> Result<T> {
    let (storage, layout) = tensor.storage_and_layout();
    if let (Storage::Cpu(numbers), Some((from, to))) = (&*storage, layout.contiguous_offsets()) {
        return Ok(read(&numbers.as_slice::<f32>().map_err(failed)?[from..to]));
    }
    drop(storage);
    let numbers = tensor.flatten_all().and_then(|tensor| tensor.to_vec1::<f32>());
    Ok(read(&numbers.map_err(failed)?))
}

/// Copies a slice to a device, as a tensor of shape `[rows, numbers.len() / rows]`.
pub(crate) fn rows(numbers: &[f32], rows: usize, device: &candle_core::Device) -> candle_core::Result<Tensor> {
    Tensor::from_slice(numbers, (rows, numbers.len() / rows), device)
}

/// Returns the numbers of a tensor, row-major.
pub(crate) fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    read(tensor, <[f32]>::to_vec)
}

/// Copies the numbers of a tensor to a slice of the same length.
pub(crate) fn copy(tensor: &Tensor, to: &mut [f32]) -> Result<()> {
    if tensor.elem_count() != to.len() {
        return Err(Error::Backend(format!("candle: got {} numbers instead of {}", tensor.elem_count(), to.len())));
    }
    read(tensor, |numbers| to.copy_from_slice(numbers))
}

/// Returns the sum of the squares of a tensor's numbers, in f64.
pub(crate) fn sum_of_squares(tensor: &Tensor) -> Result<f64> {
    read(tensor, |numbers| {
        // Eight independent sums let the compiler vectorise the loop.
        let (chunks, remainder) = numbers.as_chunks::<8>();
        let mut sums = [0.0; 8];
        for chunk in chunks {
            sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
        }
        sums.iter().sum::<f64>() + remainder.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>()
    })
}
