//! The side of the library that environments are from: calls from the border become calls of [`VectorEnv`].

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::abi::{Call, EnvHandle, Reply, Status, method, unreadable};
use super::codec::{self, Reader};
use crate::envs::MakeOptions;
use crate::{Actions, Error, Result, StepOut, VectorEnv};

/// Environments that have crossed the border.
struct Guest {
    env: Box<dyn VectorEnv>,
    /// A call panicked, or is under way.
    broken: bool,
}

/// Makes environments with the closure that `context` points to.
///
/// # Safety
/// `context` is an `F` from `Box::into_raw`; the other pointers are valid; `handle` is written where 0 is returned.
pub(super) unsafe extern "C" fn make<F>(
    context: *mut c_void,
    call: *mut Call<'_>,
    reply: *mut Reply,
    handle: *mut EnvHandle,
) -> Status
where
    F: Fn(&MakeOptions<'_>) -> Result<Box<dyn VectorEnv>>,
{
    // SAFETY: as promised. Calls from several threads only share the closure, which is `Sync`.
    let (make, call, reply) = unsafe { (&*context.cast::<F>(), &*call, &mut *reply) };
    write_reply(reply, || {
        let (options, arguments) = codec::decode_options(call.words.slice()).ok_or_else(unreadable)?;
        let env = make(&MakeOptions { arguments: &arguments, ..options })?;
        let env = Box::into_raw(Box::new(Guest { env, broken: false })).cast();
        // SAFETY: as promised.
        unsafe { handle.write(EnvHandle { env, call: self::call, free: free::<Guest> }) };
        Ok(Vec::new())
    })
}

/// Frees what `Box::into_raw` gave. A panic on the way is kept inside.
///
/// # Safety
/// `value` is a `T` from `Box::into_raw`, and is not used again.
pub(super) unsafe extern "C" fn free<T>(value: *mut c_void) {
    // SAFETY: as promised.
    let value = unsafe { Box::from_raw(value.cast::<T>()) };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        std::mem::forget(panic);
    }
}

/// # Safety
/// `env` is a [`Guest`] that no other call uses, and the other pointers are valid.
unsafe extern "C" fn call(env: *mut c_void, call: *mut Call<'_>, reply: *mut Reply) -> Status {
    // SAFETY: as promised.
    let (guest, call, reply) = unsafe { (&mut *env.cast::<Guest>(), &mut *call, &mut *reply) };
    write_reply(reply, || {
        if std::mem::replace(&mut guest.broken, true) {
            return Err(Error::Backend("the environment has panicked before; make a new one".into()));
        }
        // Stays set where this panics.
        let result = dispatch(&mut *guest.env, call);
        guest.broken = false;
        result
    })
}

/// Answers with words or with an error, which a panic is, too.
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
            // What a panic carries may panic when it is dropped.
            std::mem::forget(panic);
            error
        }
    };
    reply.push(&codec::encode_error(&error));
    1
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
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
            let text = format!("the environment's library does not know method {unknown}; compile it anew");
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

/// The total, and return and length of each episode that is kept.
fn episodes(env: &mut dyn VectorEnv) -> Vec<u64> {
    let (mut returns, mut lengths) = (Vec::new(), Vec::new());
    let log = env.episodes();
    log.drain(&mut returns, &mut lengths);
    let pairs = returns.iter().zip(&lengths).flat_map(|(gained, length)| [gained.to_bits(), u64::from(*length)]);
    std::iter::once(log.total()).chain(pairs).collect()
}
