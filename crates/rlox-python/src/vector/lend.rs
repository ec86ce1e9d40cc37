//! Native environments lent to whoever fills a rollout or a replay buffer.

use pyo3::prelude::*;
use rlox_core::{Normalizer as CoreNormalizer, Result, RolloutBuffer as Core, VectorEnv};

use super::NativeVectorEnv;
use crate::normalize::Normalizer;
use crate::rollout::RolloutBuffer;

impl NativeVectorEnv {
    /// Enters environment, buffer and normaliser, in this order.
    pub(crate) fn roll(
        &self,
        py: Python<'_>,
        long: bool,
        buffer: &RolloutBuffer,
        normalizer: Option<&Normalizer>,
        f: impl FnOnce(&mut dyn VectorEnv, &mut Core, Option<&mut CoreNormalizer>) -> Result<()> + Send,
    ) -> PyResult<()> {
        self.inner.with(py, long, |inner| {
            buffer.inner.enter(|buffer| match normalizer {
                Some(normalizer) => normalizer.inner.enter(|normalizer| f(&mut *inner.env, buffer, Some(normalizer))),
                None => f(&mut *inner.env, buffer, None),
            })
        })
    }

    /// Enters environment and normaliser, in this order, without the GIL.
    pub(crate) fn lend<R: Send>(
        &self,
        py: Python<'_>,
        normalizer: Option<&Normalizer>,
        f: impl FnOnce(&mut dyn VectorEnv, Option<&mut CoreNormalizer>) -> Result<R> + Send,
    ) -> PyResult<R> {
        self.inner.with(py, true, |inner| match normalizer {
            Some(normalizer) => normalizer.inner.enter(|normalizer| f(&mut *inner.env, Some(normalizer))),
            None => f(&mut *inner.env, None),
        })
    }
}
