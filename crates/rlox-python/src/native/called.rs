//! Actors in Python, called from threads.

use std::sync::{Arc, Mutex, PoisonError};

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use rlox_core::{Begun, Collect, Error, Result};

use super::actors::{Filled, Weights};

/// How long one waits at a time, in seconds, before it is looked whether it shall end.
const LOOK: f64 = 0.1;

/// A Python object that fills rollouts, and where its error goes.
pub(super) struct Called {
    actor: Py<PyAny>,
    raised: Arc<Mutex<Option<PyErr>>>,
}

/// Returns, lengths, and how many more episodes there were.
type Told<'py> = (PyReadonlyArray1<'py, f64>, PyReadonlyArray1<'py, i64>, u64);

impl Called {
    pub(super) fn new(actor: Py<PyAny>, raised: Arc<Mutex<Option<PyErr>>>) -> Self {
        Self { actor, raised }
    }

    /// Calls with the GIL; the first error of all actors is kept for the learner.
    fn attached<R>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Result<R> {
        // Where Python ends, so do its actors.
        let called = Python::try_attach(|py| call(self.actor.bind(py))).ok_or(Error::Interrupted)?;
        called.map_err(|error| {
            self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            Error::Backend("an actor in Python raised".to_owned())
        })
    }
}

impl Collect<Weights, Filled> for Called {
    fn collect(&mut self, begun: &mut Begun<Weights, Filled>, stop: &dyn Fn() -> bool) -> Result<()> {
        let Weights::Object(weights) = &*begun.weights else {
            return Err(Error::Backend("expected weights for actors in Python, got tensors".to_owned()));
        };
        let (buffer, turn) = (begun.buffer.buffer, begun.turn);
        self.attached(|actor| actor.call_method1("begin", (buffer, turn.version, turn.seed, weights)).map(drop))?;
        while !stop() {
            let filled = self.attached(|actor| {
                let said = actor.call_method1("wait", (LOOK,))?;
                if said.is_none() {
                    return Ok(None);
                }
                let (returns, lengths, dropped): Told<'_> = said.extract()?;
                let lengths =
                    lengths.as_array().iter().map(|length| u32::try_from(*length).unwrap_or(u32::MAX)).collect();
                Ok(Some((returns.as_array().to_vec(), lengths, dropped)))
            })?;
            if let Some((returns, lengths, dropped)) = filled {
                begun.buffer = Filled { buffer, returns, lengths, dropped, ..Filled::default() };
                return Ok(());
            }
        }
        Err(Error::Interrupted)
    }
}
