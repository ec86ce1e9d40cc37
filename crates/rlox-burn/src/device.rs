//! Devices, and conversion of Burn's panics to errors.

use std::panic::{AssertUnwindSafe, catch_unwind};

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
    /// Returns Burn's device.
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

/// Calls a function that uses Burn, and converts a panic, as after a device failure, to an error.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T> {
    // Unwind safe, because networks change only after `work` has returned.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message =
            panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Error::Backend(format!("burn: {}", message.unwrap_or("panicked without a message")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_errors() {
        let error = catch_panic::<()>(|| std::panic::panic_any("no memory"));
        assert!(matches!(error, Err(Error::Backend(message)) if message == "burn: no memory"));
    }
}
