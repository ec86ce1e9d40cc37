//! Devices, conversion of Burn's panics to errors, and conversion between slices and tensors.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::tensor::{Tensor, TensorData};
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
    /// Default device of wgpu.
    #[cfg(feature = "wgpu")]
    Wgpu,
}

impl Device {
    /// Returns the device of Burn.
    pub(crate) fn open(self) -> Result<burn::tensor::Device> {
        catch_panic(|| match self {
            Self::Cpu => burn::tensor::Device::flex(),
            #[cfg(feature = "cuda")]
            Self::Cuda(number) => burn::tensor::Device::cuda(number),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => burn::tensor::Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        })
    }
}

/// Calls a function that uses Burn. Returns [`Error::Backend`] if the function panics, as Burn does
/// after a device failure.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T> {
    // The call is unwind safe, because networks change only after `work` has returned.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message =
            panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Error::Backend(format!("burn: {}", message.unwrap_or("panicked without a message")))
    })
}

/// Copies a slice to a device, as a tensor of shape `[rows, numbers.len() / rows]`.
pub(crate) fn rows(numbers: &[f32], rows: usize, device: &burn::tensor::Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(numbers.to_vec(), [rows, numbers.len() / rows]), device)
}

/// Copies numbers to a device, as a one-dimensional tensor.
pub(crate) fn vector(numbers: Vec<f32>, device: &burn::tensor::Device) -> Tensor<1> {
    let count = numbers.len();
    Tensor::from_data(TensorData::new(numbers, [count]), device)
}

/// Returns the numbers of a tensor, row-major.
///
/// # Panics
/// Panics like Burn if the elements are not f32 numbers. [`catch_panic`] converts the panic to an
/// error.
pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap_or_else(|error| fail(&error))
}

/// Panics like Burn, but prints no message to the standard error.
fn fail(error: &impl Debug) -> ! {
    resume_unwind(Box::new(format!("not f32 numbers: {error:?}")))
}

/// Copies numbers that came from a device to the caller's slice.
pub(crate) fn copy(from: &[f32], to: &mut [f32]) -> Result<()> {
    if from.len() != to.len() {
        return Err(Error::Backend(format!("burn: got {} numbers instead of {}", from.len(), to.len())));
    }
    to.copy_from_slice(from);
    Ok(())
}

/// Calls `work` with the numbers of tensors on the CPU.
///
/// `work` changes the numbers in place. They are copied first only if other tensors share them.
///
/// If `work` panics, the tensors hold their numbers with the changes that `work` made before the
/// panic.
pub(crate) fn in_place<const D: usize, const N: usize, R>(
    mut tensors: [&mut Tensor<D>; N],
    work: impl FnOnce([&mut [f32]; N]) -> R,
) -> R {
    let device = tensors[0].device();
    let empty = Tensor::empty([0; D], &device);
    let mut data = tensors.each_mut().map(|tensor| std::mem::replace(*tensor, empty.clone()).into_data());
    let slice = |data| TensorData::as_mut_slice(data).unwrap_or_else(|error| fail(&error));
    let done = catch_unwind(AssertUnwindSafe(|| work(data.each_mut().map(slice))));
    for (tensor, data) in tensors.into_iter().zip(data) {
        *tensor = Tensor::from_data(data, &device);
    }
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_errors() {
        let error = catch_panic::<()>(|| std::panic::panic_any("no memory"));
        assert!(matches!(error, Err(Error::Backend(message)) if message == "burn: no memory"));
    }

    #[test]
    fn a_failed_update_keeps_the_tensors() {
        let device = burn::tensor::Device::flex();
        let (mut one, mut other) = (vector(vec![1.0, 2.0], &device), vector(vec![3.0], &device));
        let failed = catch_panic(|| in_place([&mut one, &mut other], |_| resume_unwind(Box::new("no memory"))));
        assert!(matches!(failed, Err(Error::Backend(message)) if message == "burn: no memory"));
        assert_eq!((numbers(one), numbers(other)), (vec![1.0, 2.0], vec![3.0]));
    }
}
