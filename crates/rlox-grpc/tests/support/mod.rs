//! Shared code of the integration tests.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod process;
pub(crate) mod raw;
