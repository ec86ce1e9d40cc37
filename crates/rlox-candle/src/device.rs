//! Where a network computes.

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
    /// The Metal device of a number.
    #[cfg(feature = "metal")]
    Metal(usize),
}

impl Device {
    /// Candle's own.
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

/// What Candle said, as an error of rlox.
#[allow(clippy::needless_pass_by_value, reason = "it stands in map_err")]
pub(crate) fn failed(error: candle_core::Error) -> Error {
    Error::Backend(format!("candle: {error}"))
}
