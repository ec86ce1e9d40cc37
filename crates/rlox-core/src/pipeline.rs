//! Actors that collect in threads of their own while a learner learns.

mod actor;
mod channel;
mod schedule;
#[cfg(test)]
mod tests;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub use actor::{Actor, ActorParts, LearnedPolicy, Rollout, RolloutOptions};
pub use channel::{PipelineStats, RolloutJob};
pub use schedule::{RolloutTicket, StalenessPolicy};

use crate::{Error, Pcg64, Result};
use channel::{Boxed, Channel};

/// How long an actor in the middle of a step is waited for when everything ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// What fills buffers in a thread: an [`Actor`] with its own environments, or whatever gets rollouts from elsewhere.
pub trait Collect<W, B>: Send {
    /// Fills the buffer of what was begun, with its weights.
    ///
    /// # Errors
    /// Any one ends the pipeline, but [`Error::Interrupted`] where `stop` says so, which is asked between two steps.
    fn collect(&mut self, job: &mut RolloutJob<W, B>, stop: &dyn Fn() -> bool) -> Result<()>;

    /// Where it stands between two rollouts, to be looked at and changed; `None` where its environments are elsewhere.
    fn state(&mut self) -> Option<ActorParts<'_>> {
        None
    }

    /// Versions come again, those of another run: weights that it knows by theirs are to be forgotten.
    fn invalidate_cache(&mut self) {}
}

/// Actors in threads, a learner, and a bounded ring of buffers between them (the decoupled actors and learner of Espeholt
/// et al. 2018, "IMPALA", section 3).
///
/// The learner takes a rollout with [`AsyncCollector::recv`] and gives it back with new weights,
/// [`AsyncCollector::publish`], while actors fill the other buffers with the weights that were the newest when they began.
/// Every rollout tells the version of its weights; [`StalenessPolicy`] says how old they may be.
///
/// ```
/// use rlox_core::{
///     Actor, StalenessPolicy, AsyncCollector, AutoresetMode, Collect, FieldData, Pcg64, RandomPolicy, Rollout, RolloutOptions,
///     VecEnv, VectorEnv, envs::CartPole,
/// };
///
/// let env = VecEnv::new(4, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let policy = RandomPolicy::new(&env.spec().action)?;
/// let options = RolloutOptions::default();
/// let mut buffers = vec![Rollout::for_env(16, &env)?, Rollout::for_env(16, &env)?];
/// // A policy that learns nothing has no weights.
/// let actor: Box<dyn Collect<(), Rollout>> = Box::new(Actor::new(Box::new(env), policy, 0, options));
/// let ring = || Ok(buffers.pop().unwrap());
/// let mut collector = AsyncCollector::new(vec![actor], StalenessPolicy::default(), (), Pcg64::seed_from(0), ring)?;
/// for _ in 0..3 {
///     let rollout = collector.recv()?;
///     assert_eq!(rollout.buffer.steps.transitions(), 64);
///     collector.publish(())?;
/// }
/// assert_eq!(collector.stats()?.rollouts, 3);
/// // Between two rollouts the actors can be had back.
/// for actor in collector.quiesce()? {
///     assert_eq!(actor.state().expect("it is in this process").env.num_envs(), 4);
/// }
/// collector.recv()?;
/// collector.stop()?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub struct AsyncCollector<W, B> {
    channel: Arc<Channel<W, B>>,
    /// What the learner has taken.
    current: Option<(RolloutTicket, B)>,
    /// The actors, while they have no threads.
    idle: Vec<Boxed<W, B>>,
    /// Whether a thread was waited for in vain.
    is_abandoned: bool,
    /// The process in which the threads are.
    process: u32,
}

impl<W, B> fmt::Debug for AsyncCollector<W, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncCollector").finish_non_exhaustive()
    }
}

impl<W: Send + Sync + 'static, B: Send + 'static> AsyncCollector<W, B> {
    /// Starts a thread for each actor. `weights` are those of version 0, `seeds` gives each rollout its seed, `buffer`
    /// makes the ring's `max_staleness + 1` buffers.
    ///
    /// # Errors
    /// Those of [`StalenessPolicy::check`] and of `buffer`, and [`Error::Io`] where the system starts no thread.
    pub fn new(
        actors: Vec<Box<dyn Collect<W, B>>>,
        staleness_policy: StalenessPolicy,
        weights: W,
        seeds: Pcg64,
        buffer: impl FnMut() -> Result<B>,
    ) -> Result<Self> {
        let channel = Arc::new(Channel::new(actors.len(), staleness_policy, weights, seeds, buffer)?);
        let (current, is_abandoned, process) = (None, false, std::process::id());
        let mut collector = Self { channel, current, idle: actors, is_abandoned, process };
        collector.start()?;
        Ok(collector)
    }

    fn start(&mut self) -> Result<()> {
        self.channel.wake();
        for (number, actor) in self.idle.drain(..).enumerate() {
            let channel = Arc::clone(&self.channel);
            channel.actor_started();
            let thread = thread::Builder::new().name(format!("rlox-actor-{number}"));
            let started = thread.spawn(move || {
                // Gone before the end is told: what it owns may be waited for.
                let lived = catch_unwind(AssertUnwindSafe(|| act(number, actor, &channel)));
                if let Err(panic) = lived {
                    channel.fail(panic_error(number, panic));
                }
                channel.actor_ended();
            });
            if let Err(source) = started {
                self.channel.actor_ended();
                self.channel.stop();
                return Err(Error::Io { path: format!("the thread of actor {number}"), source });
            }
        }
        Ok(())
    }

    /// The next rollout, waited for. One that was taken before is given back first, as if nothing was learned from it.
    ///
    /// # Errors
    /// The first error of an actor, which has ended all of them; a panic is [`Error::Backend`]. [`Error::Interrupted`]
    /// ([`crate::set_interrupt_check`]); [`Error::Closed`] after an error or [`AsyncCollector::stop`], or in a forked process.
    #[expect(clippy::should_implement_trait, reason = "an iterator's items would outlive it")]
    pub fn recv(&mut self) -> Result<Collected<'_, B>> {
        self.recv_unless(&mut || false)?.ok_or(Error::Interrupted)
    }

    /// As [`AsyncCollector::recv`]; `None` where `stop` says so, which is asked every 50 ms while there is nothing.
    ///
    /// # Errors
    /// Those of [`AsyncCollector::recv`].
    pub fn recv_unless(&mut self, stop: &mut dyn FnMut() -> bool) -> Result<Option<Collected<'_, B>>> {
        self.check_process()?;
        if !self.idle.is_empty() {
            self.start()?;
        }
        self.release(None);
        let Some((ticket, staleness, buffer)) = self.channel.take(stop)? else { return Ok(None) };
        let (ticket, buffer) = self.current.insert((ticket, buffer));
        Ok(Some(Collected { ticket: *ticket, staleness, buffer }))
    }

    /// Gives back the rollout that was taken, with the weights that were learned from it: they are the next version's.
    ///
    /// # Errors
    /// [`Error::Config`] where none was taken: rollouts of the newest version may have been begun, and those of one version
    /// have the same weights. [`Error::Closed`] in a forked process.
    pub fn publish(&mut self, weights: W) -> Result<()> {
        self.check_process()?;
        if self.current.is_none() {
            let hint = "call next first, and publish once for each rollout";
            return Err(Error::config("publish", "a rollout that was taken with next", "none", hint));
        }
        self.release(Some(weights));
        Ok(())
    }

    fn release(&mut self, weights: Option<W>) {
        if let Some((ticket, buffer)) = self.current.take() {
            self.channel.release(ticket, buffer, weights);
        }
    }

    /// Ends the threads as [`AsyncCollector::stop`] does, and shows the actors, in order; the recv [`AsyncCollector::recv`]
    /// has them go on. What they collected and nobody took is lost, and so is what was taken. With a bound of 0 in lockstep
    /// that is nothing, unless a call of `recv` failed.
    ///
    /// # Errors
    /// The first error of an actor, and [`Error::Backend`] where one is in a step that takes ten seconds; [`Error::Closed`]
    /// as for [`AsyncCollector::recv`], and after these.
    pub fn quiesce(&mut self) -> Result<&mut [Box<dyn Collect<W, B>>]> {
        self.check_process()?;
        self.release(None);
        if self.idle.is_empty() {
            self.channel.cancel()?;
            self.is_abandoned = !self.channel.wait_all_ended(STOP_TIMEOUT);
            self.idle = self.channel.gather()?;
        }
        Ok(&mut self.idle)
    }

    /// Has paused actors go on after so many rollouts of another run, with these weights and this stream of seeds
    /// ([`Collect::invalidate_cache`]).
    ///
    /// # Errors
    /// [`Error::Config`] where they are not paused, [`Error::Closed`] in a forked process.
    pub fn restart_from(&mut self, rollouts: u64, weights: W, seeds: Pcg64) -> Result<()> {
        self.check_process()?;
        if self.idle.is_empty() {
            return Err(Error::config("rewind", "paused actors", "others", "call pause first"));
        }
        self.idle.iter_mut().for_each(|actor| actor.invalidate_cache());
        self.channel.restart_from(rollouts, weights, seeds);
        Ok(())
    }

    /// How many rollouts were learned from, or given back: the version of the newest weights.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked process.
    pub fn version(&self) -> Result<u64> {
        self.check_process()?;
        Ok(self.channel.version())
    }

    /// Where the stream stands that the rollouts' seeds come from, after those that are under way.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked process.
    pub fn seeds(&self) -> Result<Pcg64> {
        self.check_process()?;
        Ok(self.channel.seeds())
    }

    /// What was counted and timed so far.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked process.
    pub fn stats(&self) -> Result<PipelineStats> {
        self.check_process()?;
        Ok(self.channel.stats())
    }

    /// Ends the actors and waits for them: for one in the middle of a step at most ten seconds. What they collected and
    /// nobody took is lost.
    ///
    /// # Errors
    /// [`Error::Backend`] where one has not ended by then: its thread ends with its step.
    pub fn stop(mut self) -> Result<()> {
        if self.end() { Ok(()) } else { Err(stop_timed_out()) }
    }
}

impl<W, B> AsyncCollector<W, B> {
    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// A child has none of the threads, and whatever they held is never let go.
    fn check_process(&self) -> Result<()> {
        if !self.is_forked() {
            return Ok(());
        }
        let (expected, got) = ("the process that made it", "one that was forked from it");
        Err(Error::closed("collector", expected, got, "make another in this process"))
    }

    fn end(&mut self) -> bool {
        if !self.is_forked() && !self.is_abandoned {
            self.channel.stop();
            self.is_abandoned = !self.channel.wait_all_ended(STOP_TIMEOUT);
            self.idle.drain(..).for_each(release);
        }
        !self.is_abandoned
    }
}

impl<W, B> Drop for AsyncCollector<W, B> {
    fn drop(&mut self) {
        self.end();
    }
}

/// A rollout that the learner has taken.
#[derive(Debug)]
pub struct Collected<'a, B> {
    /// Its place among the others, and the version of its weights.
    pub ticket: RolloutTicket,
    /// How many rollouts were taken since its weights were published.
    pub staleness: u64,
    /// What the actor filled.
    pub buffer: &'a mut B,
}

/// A thread's life.
fn act<W, B>(number: usize, mut actor: Boxed<W, B>, channel: &Channel<W, B>) {
    while let Some(mut job) = channel.begin(number) {
        let collected = catch_unwind(AssertUnwindSafe(|| actor.collect(&mut job, &|| channel.is_stopped())));
        let RolloutJob { ticket, weights, buffer } = job;
        // While the rollout is under way others have them, too: whoever drops them, it is not an actor.
        drop(weights);
        channel.end(ticket, buffer, collected.unwrap_or_else(|panic| Err(panic_error(number, panic))));
    }
    if let Some(actor) = channel.join_actors(number, actor) {
        release(actor);
    }
}

/// Drops what is the caller's code, too.
fn release<W, B>(actor: Boxed<W, B>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(actor))) {
        std::mem::forget(panic);
    }
}

fn stop_timed_out() -> Error {
    Error::Backend(format!("an actor is in a step that has taken {} s: it was left alone", STOP_TIMEOUT.as_secs()))
}

fn panic_error(number: usize, panic: Box<dyn std::any::Any + Send>) -> Error {
    let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    // What a panic carries may panic when it is dropped.
    std::mem::forget(panic);
    Error::Backend(format!("actor {number} panicked: {}", message.as_deref().unwrap_or("no message")))
}
