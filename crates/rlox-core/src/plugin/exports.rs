//! Plugin side of the C interface: functions of the plugin library, which the host calls and which
//! call [`VectorEnv`].

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::abi::{Call, EnvHandle, Reply, Status, method, unreadable};
use super::codec::{self, Reader};
use crate::envs::MakeOptions;
use crate::{Actions, Error, Result, StepOut, VectorEnv};

/// Environments of a plugin library. The host calls them through the C interface.
struct Guest {
    env: Box<dyn VectorEnv>,
    /// True while a call runs, and after a call has panicked.
    broken: bool,
}

/// Creates environments with the closure that `context` points to. Writes `handle` if the status is 0.
///
/// # Safety
/// `context` must be an `F` from `Box::into_raw`, and the other pointers must be valid.
pub(super) unsafe extern "C" fn make<F>(
    context: *mut c_void,
    call: *mut Call<'_>,
    reply: *mut Reply,
    handle: *mut EnvHandle,
) -> Status
where
    F: Fn(&MakeOptions<'_>) -> Result<Box<dyn VectorEnv>>,
{
    // SAFETY: guaranteed by the caller. Concurrent calls only share the closure, which is `Sync`.
    let (make, call, reply) = unsafe { (&*context.cast::<F>(), &*call, &mut *reply) };
    write_reply(reply, || {
        let (options, arguments) = codec::decode_options(call.words.slice()).ok_or_else(unreadable)?;
        let env = make(&MakeOptions { arguments: &arguments, ..options })?;
        let env = Box::into_raw(Box::new(Guest { env, broken: false })).cast();
        // SAFETY: guaranteed by the caller.
        unsafe { handle.write(EnvHandle { env, call: self::call, free: free::<Guest> }) };
        Ok(Vec::new())
    })
}

/// Drops a value of `Box::into_raw`. A panic of its destructor does not propagate.
///
/// # Safety
/// `value` must be a `T` from `Box::into_raw` that is not used again.
pub(super) unsafe extern "C" fn free<T>(value: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    let value = unsafe { Box::from_raw(value.cast::<T>()) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(panic);
    }
}

/// Dispatches a call to the environments.
///
/// # Safety
/// `env` must be a [`Guest`] that no other call uses, and the other pointers must be valid.
unsafe extern "C" fn call(env: *mut c_void, call: *mut Call<'_>, reply: *mut Reply) -> Status {
    // SAFETY: guaranteed by the caller.
    let (guest, call, reply) = unsafe { (&mut *env.cast::<Guest>(), &mut *call, &mut *reply) };
    write_reply(reply, || {
        if std::mem::replace(&mut guest.broken, true) {
            return Err(Error::Backend("the environment panicked in an earlier call; create a new one".into()));
        }
        // The flag stays set if this call panics.
        let result = dispatch(&mut *guest.env, call);
        guest.broken = false;
        result
    })
}

/// Calls `f`, and writes its result to `reply`: integers, or an error. A panic of `f` becomes an
/// error.
fn write_reply(reply: &mut Reply, f: impl FnOnce() -> Result<Vec<u64>>) -> Status {
    let error = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(words)) => {
            if !words.is_empty() {
                reply.push(&words);
            }
            return 0;
        }
        Ok(Err(error)) => error,
        Err(panic) => {
            let error = Error::Backend(format!("the environment panicked: {}", panic_message(&*panic)));
            // The payload of a panic may panic when dropped.
            std::mem::forget(panic);
            error
        }
    };
    reply.push(&codec::encode_error(&error));
    1
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

fn dispatch(env: &mut dyn VectorEnv, call: &mut Call<'_>) -> Result<Vec<u64>> {
    let words = call.words.slice();
    let mut reader = Reader(words);
    let mut index = || reader.size().ok_or_else(unreadable);
    match call.method {
        method::DESCRIBE => {
            let description = (env.num_envs(), env.autoreset_mode(), env.has_action_masks(), env.spec());
            return Ok(codec::encode_description(description));
        }
        method::RESET => {
            let (masked, seeded, options) = codec::decode_reset(words).ok_or_else(unreadable)?;
            env.reset(seeded.get(), masked.then(|| call.mask.slice()), &options, call.obs.take())?;
        }
        method::STEP_DISCRETE => env.step(Actions::Discrete(call.discrete.slice()), out(call))?,
        method::STEP_CONTINUOUS => env.step(Actions::Continuous(call.continuous.slice()), out(call))?,
        method::ACTION_MASKS => env.action_masks(call.action_masks.take())?,
        method::FINAL_ACTION_MASKS => env.final_action_masks(call.action_masks.take())?,
        method::OBSERVE => env.observe(call.obs.take())?,
        method::EPISODES => return Ok(episodes(env)),
        method::STATE => {
            let state = env.state(index()?);
            let there = [u64::from(state.is_some())];
            return Ok(there.into_iter().chain(state.into_iter().flatten().map(f64::to_bits)).collect());
        }
        method::CHECK_STATE => {
            let (index, progress) = (index()?, reader.progress().ok_or_else(unreadable)?);
            env.check_state(index, &numbers(reader.0), progress)?;
        }
        method::SET_STATE => {
            let index = index()?;
            env.set_state(index, &numbers(reader.0))?;
        }
        method::PROGRESS => {
            let progress = env.progress(index()?);
            return Ok(progress.map_or_else(Vec::new, |progress| codec::encode_progress(progress).to_vec()));
        }
        method::SET_PROGRESS => {
            let (index, progress) = (index()?, reader.progress().ok_or_else(unreadable)?);
            env.set_progress(index, progress)?;
        }
        method::RNGS => return codec::encode_rngs(&env.rngs()?),
        method::SET_RNGS => env.set_rngs(&codec::decode_rngs(words)?.ok_or_else(unreadable)?)?,
        unknown => {
            let text = format!(
                "the environment's library has no method {unknown}; recompile it with this version of rlox-core"
            );
            return Err(Error::Backend(text));
        }
    }
    Ok(Vec::new())
}

fn numbers(words: &[u64]) -> Vec<f64> {
    words.iter().map(|word| f64::from_bits(*word)).collect()
}

fn out<'a>(call: &mut Call<'a>) -> StepOut<'a> {
    StepOut {
        obs: call.obs.take(),
        reward: call.reward.take(),
        terminated: call.terminated.take(),
        truncated: call.truncated.take(),
        final_obs: call.final_obs.take(),
    }
}

/// Returns the total number of episodes, then the return and the length of each drained episode.
fn episodes(env: &mut dyn VectorEnv) -> Vec<u64> {
    let (mut returns, mut lengths) = (Vec::new(), Vec::new());
    let log = env.episodes();
    log.drain(&mut returns, &mut lengths);
    let pairs = returns.iter().zip(&lengths).flat_map(|(gained, length)| [gained.to_bits(), u64::from(*length)]);
    std::iter::once(log.total()).chain(pairs).collect()
}
