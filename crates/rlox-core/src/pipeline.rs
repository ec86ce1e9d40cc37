//! Actors that collect rollouts in separate threads while a learner learns.

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

/// Maximum time for which the end of the pipeline waits for actors that are in the middle of a
/// step.
const STOP_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// Source of rollouts that runs in a thread: an [`Actor`], or a receiver of remote rollouts.
///
/// `W` is the type of the weights and `B` the type of the buffers.
pub trait Collect<W, B>: Send {
    /// Fills the buffer of `job` with a rollout, collected with the weights of `job`.
    ///
    /// Implementations poll `stop` between two steps and return [`Error::Interrupted`] if it
    /// returns true.
    ///
    /// # Errors
    /// Any error ends the pipeline, except [`Error::Interrupted`] after `stop` has returned true.
    fn collect(&mut self, job: &mut RolloutJob<W, B>, stop: &dyn Fn() -> bool) -> Result<()>;

    /// Returns the state between two rollouts for inspection or changes.
    ///
    /// Returns `None` if the environments are remote.
    fn state(&mut self) -> Option<ActorParts<'_>> {
        None
    }

    /// Discards cached weights, before another run reuses the version numbers of these weights.
    fn invalidate_cache(&mut self) {}
}

/// Collector whose actors fill a bounded ring of buffers in threads while a learner learns.
///
/// Actors and learner are decoupled as in Espeholt et al. 2018, "IMPALA", section 3.
/// [`AsyncCollector::recv`] gives the learner a rollout. [`AsyncCollector::publish`] returns the
/// buffer of this rollout to the actors and sets new weights. Meanwhile, actors fill the other
/// buffers.
///
/// The version of the weights is the number of rollouts that the learner had returned when it
/// published the weights. Every rollout carries the version of the weights with which it was
/// collected. [`StalenessPolicy`] limits the age of this version.
///
/// ```
/// use rlox_core::{
///     AsyncCollector, AutoresetMode, Pcg64, RandomPolicy, VecEnv, VectorEnv, envs::CartPole, field::FieldData,
///     pipeline::{Actor, Collect, Rollout, RolloutOptions, StalenessPolicy},
/// };
///
/// let env = VecEnv::new(4, Some(0), AutoresetMode::SameStep, CartPole::default)?;
/// let policy = RandomPolicy::new(&env.spec().action)?;
/// let options = RolloutOptions::default();
/// let mut buffers = vec![Rollout::for_env(16, &env)?, Rollout::for_env(16, &env)?];
/// // A policy that does not learn has no weights.
/// let actor: Box<dyn Collect<(), Rollout>> = Box::new(Actor::new(Box::new(env), policy, 0, options));
/// let ring = || Ok(buffers.pop().unwrap());
/// let mut collector = AsyncCollector::new(vec![actor], StalenessPolicy::default(), (), Pcg64::seed_from(0), ring)?;
/// for _ in 0..3 {
///     let rollout = collector.recv()?;
///     assert_eq!(rollout.buffer.steps.transitions(), 64);
///     collector.publish(())?;
/// }
/// assert_eq!(collector.stats()?.rollouts, 3);
/// // Actors can be inspected between two rollouts.
/// for actor in collector.quiesce()? {
///     assert_eq!(actor.state().expect("it is in this process").env.num_envs(), 4);
/// }
/// collector.recv()?;
/// collector.stop()?;
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub struct AsyncCollector<W, B> {
    channel: Arc<Channel<W, B>>,
    /// Rollout that the learner has received and not returned.
    current: Option<(RolloutTicket, B)>,
    /// Actors that have no thread now.
    idle: Vec<Boxed<W, B>>,
    /// True after a thread did not end within [`STOP_TIMEOUT`].
    is_abandoned: bool,
    /// Id of the process in which the threads run.
    process: u32,
}

impl<W, B> fmt::Debug for AsyncCollector<W, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncCollector").finish_non_exhaustive()
    }
}

impl<W: Send + Sync + 'static, B: Send + 'static> AsyncCollector<W, B> {
    /// Creates a collector and starts one thread per actor.
    ///
    /// `weights` have version 0. `seeds` generates a seed for each rollout. `buffer` creates the
    /// `max_staleness + 1` buffers of the ring.
    ///
    /// # Errors
    /// The errors of [`StalenessPolicy::check`] and of `buffer`. [`Error::Io`] if a thread cannot
    /// be started.
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
                // The actor is dropped before its end is reported, because callers may wait for its
                // resources.
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

    /// Waits for the next rollout.
    ///
    /// If the previous rollout has not been published, it is first returned to the actors. The next
    /// version of the weights then equals the newest version.
    ///
    /// # Errors
    /// - The first error of an actor, which ends all actors; a panic is an [`Error::Backend`];
    /// - [`Error::Interrupted`] if the interrupt check of the process returns true
    ///   ([`crate::interrupt::set_interrupt_check`]);
    /// - [`Error::Closed`] after an earlier error, or in a forked process.
    pub fn recv(&mut self) -> Result<Collected<'_, B>> {
        self.recv_unless(&mut || false)?.ok_or(Error::Interrupted)
    }

    /// Waits as [`AsyncCollector::recv`] does, but returns `None` if `stop` returns true.
    ///
    /// `stop` is polled every 50 ms.
    ///
    /// # Errors
    /// The errors of [`AsyncCollector::recv`].
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

    /// Returns the received rollout to the actors and publishes the next version of the weights.
    ///
    /// # Errors
    /// [`Error::Config`] if no rollout was received since the last call. Actors may already use the
    /// newest version, and all rollouts of a version must have the same weights. [`Error::Closed`]
    /// in a forked process.
    pub fn publish(&mut self, weights: W) -> Result<()> {
        self.check_process()?;
        if self.current.is_none() {
            let hint = "call recv first, and publish once per rollout";
            return Err(Error::config("publish", "a received rollout", "none", hint));
        }
        self.release(Some(weights));
        Ok(())
    }

    fn release(&mut self, weights: Option<W>) {
        if let Some((ticket, buffer)) = self.current.take() {
            self.channel.release(ticket, buffer, weights);
        }
    }

    /// Ends the threads as [`AsyncCollector::stop`] does, and returns the actors in order.
    ///
    /// The next [`AsyncCollector::recv`] restarts the actors. The received rollout can no longer be
    /// published. Rollouts that were not received are lost. With `max_staleness` 0 and
    /// `deterministic`, there are no such rollouts, unless a call of `recv` failed.
    ///
    /// # Errors
    /// - The first error of an actor;
    /// - [`Error::Backend`] if an actor does not finish its step within ten seconds;
    /// - [`Error::Closed`] after an earlier error, or in a forked process.
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

    /// Sets the state from which quiesced actors restart, for example that of a loaded checkpoint.
    ///
    /// The state is the number of rollouts, the weights and the stream of seeds. The call discards
    /// the cached weights of all actors ([`Collect::invalidate_cache`]). The next
    /// [`AsyncCollector::recv`] restarts the actors.
    ///
    /// # Errors
    /// [`Error::Config`] if the actors are not quiesced. [`Error::Closed`] in a forked process.
    pub fn restart_from(&mut self, rollouts: u64, weights: W, seeds: Pcg64) -> Result<()> {
        self.check_process()?;
        if self.idle.is_empty() {
            return Err(Error::config("restart_from", "quiesced actors", "running actors", "call quiesce first"));
        }
        self.idle.iter_mut().for_each(|actor| actor.invalidate_cache());
        self.channel.restart_from(rollouts, weights, seeds);
        Ok(())
    }

    /// Returns the version of the newest weights: the number of rollouts returned to the actors.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked process.
    pub fn version(&self) -> Result<u64> {
        self.check_process()?;
        Ok(self.channel.version())
    }

    /// Returns the random stream from which the seeds of later rollouts are drawn.
    ///
    /// The seeds of started rollouts are already drawn. With `deterministic`, so are the seeds of
    /// rollouts that the actors may start before the next call of [`AsyncCollector::recv`].
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked process.
    pub fn seeds(&self) -> Result<Pcg64> {
        self.check_process()?;
        Ok(self.channel.seeds())
    }

    /// Returns the counters and timings since construction.
    ///
    /// # Errors
    /// [`Error::Closed`] in a forked process.
    pub fn stats(&self) -> Result<PipelineStats> {
        self.check_process()?;
        Ok(self.channel.stats())
    }

    /// Ends the actors and waits until their threads have ended.
    ///
    /// The call waits at most ten seconds for an actor in the middle of a step. Rollouts that were
    /// not received are lost.
    ///
    /// # Errors
    /// [`Error::Backend`] if an actor has not ended after this time. The thread of this actor ends
    /// after its current step.
    pub fn stop(mut self) -> Result<()> {
        if self.end() { Ok(()) } else { Err(stop_timed_out()) }
    }
}

impl<W, B> AsyncCollector<W, B> {
    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Checks that this process created the collector.
    ///
    /// A forked process has no actor threads, and locks that these threads held stay locked.
    fn check_process(&self) -> Result<()> {
        if !self.is_forked() {
            return Ok(());
        }
        let (expected, got) = ("the process that created the collector", "a forked process");
        Err(Error::closed("collector", expected, got, "create another collector in this process"))
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

/// A rollout that the learner has received.
#[derive(Debug)]
pub struct Collected<'a, B> {
    /// Identification of the rollout, with the version of its weights.
    pub ticket: RolloutTicket,
    /// Number of rollouts that the learner received between the publication of the weights and this
    /// rollout.
    pub staleness: u64,
    /// Buffer that the actor filled.
    pub buffer: &'a mut B,
}

/// Runs the jobs of an actor in its thread until the pipeline ends.
fn act<W, B>(number: usize, mut actor: Boxed<W, B>, channel: &Channel<W, B>) {
    while let Some(mut job) = channel.begin(number) {
        let collected = catch_unwind(AssertUnwindSafe(|| actor.collect(&mut job, &|| channel.is_stopped())));
        let RolloutJob { ticket, weights, buffer } = job;
        // The weights are dropped before the rollout is passed on, so that no actor drops the last
        // reference.
        drop(weights);
        channel.end(ticket, buffer, collected.unwrap_or_else(|panic| Err(panic_error(number, panic))));
    }
    if let Some(actor) = channel.join_actors(number, actor) {
        release(actor);
    }
}

/// Drops an actor. A panic of its destructor, which is the caller's code, does not propagate.
fn release<W, B>(actor: Boxed<W, B>) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(actor))) {
        std::mem::forget(panic);
    }
}

fn stop_timed_out() -> Error {
    Error::Backend(format!("an actor did not finish its step within {} s and was abandoned", STOP_TIMEOUT.as_secs()))
}

fn panic_error(number: usize, panic: Box<dyn std::any::Any + Send>) -> Error {
    let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    // The payload of a panic may panic when dropped.
    std::mem::forget(panic);
    Error::Backend(format!("actor {number} panicked: {}", message.as_deref().unwrap_or("no message")))
}
