//! Where a network computes, and how it fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rlox_core::{Error, Result};

/// Where a network computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// One core of the CPU.
    #[default]
    Cpu,
    /// The CUDA device of a number.
    #[cfg(feature = "cuda")]
    Cuda(usize),
    /// The device that wgpu thinks best.
    #[cfg(feature = "wgpu")]
    Wgpu,
}

impl Device {
    /// Burn's own.
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

/// Runs what uses Burn, which panics where a device fails: no panic may leave a network.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T> {
    // What `work` sees is not looked at again if it panics: networks change only after it.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message =
            panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
        Error::Backend(format!("burn: {}", message.unwrap_or("it failed without a word")))
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
