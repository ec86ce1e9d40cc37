//! Devices, and conversion of Candle's errors.

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
    /// Returns Candle's device.
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

/// Converts an error of Candle.
#[allow(clippy::needless_pass_by_value, reason = "it stands in map_err")]
pub(crate) fn failed(error: candle_core::Error) -> Error {
    Error::Backend(format!("candle: {error}"))
}
