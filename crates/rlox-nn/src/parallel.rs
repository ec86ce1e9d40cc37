//! Execution of two tasks of a call on two threads, if that is faster.
//!
//! A fork is a pair of tasks that run in parallel. The parameter `multiplications` is the work of
//! one task: the rows of the batch times the parameters of the network, for a forward and a
//! backward pass together. The two passes perform each of these multiplications three times, so
//! that a forward pass alone counts as a third.

use std::cell::Cell;

#[cfg(not(test))]
use rlox_core::__private::num_threads;
use rlox_core::{__private::join, Result};

/// Work of one task, in `multiplications`, from which a second thread is faster. This work takes
/// about 10 us.
const FORK_THRESHOLD: usize = 200_000;

/// Factor by which [`FORK_THRESHOLD`] is larger if two threads share one network.
///
/// The parameters, layers and gradients of a shared network move between the caches of two cores.
pub(crate) const MIGRATION_COST: usize = 10;

/// Approximate number of multiplications that take as long as the optimizer step of one parameter.
pub(crate) const STEP_WORK: usize = 8;

thread_local! {
    /// True while this thread runs one task of a fork.
    static IN_FORK: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if two threads are faster for two tasks with `multiplications` each.
pub(crate) fn worth_forking(multiplications: usize) -> bool {
    multiplications >= FORK_THRESHOLD && num_threads() > 1
}

/// Runs both tasks and returns their results, in parallel if `multiplications` is large enough.
///
/// Tasks within a task run one after the other, because the other thread is busy.
pub(crate) fn join_if_worth<A: Send, B: Send>(
    multiplications: usize,
    a: impl FnOnce() -> Result<A> + Send,
    b: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    join_if(worth_forking(multiplications), a, b)
}

/// Works as [`join_if_worth`], but runs the tasks in parallel if `fork` is true.
///
/// Callers set `fork` if two threads have computed the gradients that the tasks apply, however
/// small the work is, because the gradients are in the caches of these threads.
pub(crate) fn join_if<A: Send, B: Send>(
    fork: bool,
    a: impl FnOnce() -> Result<A> + Send,
    b: impl FnOnce() -> Result<B> + Send,
) -> Result<(A, B)> {
    if !fork || IN_FORK.get() {
        // Both tasks run even if the first task fails, as on two threads.
        let (a, b) = (a(), b());
        return Ok((a?, b?));
    }
    #[cfg(test)]
    tests::FORKS.set(tests::FORKS.get() + 1);
    let (a, b) = join(|| ForkGuard::scoped(a), || ForkGuard::scoped(b))?;
    Ok((a?, b?))
}

/// Works as [`join_if_worth`], for tasks that cannot fail and have no result.
pub(crate) fn join_infallible(multiplications: usize, a: impl FnOnce() + Send, b: impl FnOnce() + Send) -> Result<()> {
    let (a, b) = (
        || {
            a();
            Ok(())
        },
        || {
            b();
            Ok(())
        },
    );
    join_if_worth(multiplications, a, b).map(|_| ())
}

/// Guard that clears [`IN_FORK`] on drop, also after a panic.
struct ForkGuard;

impl ForkGuard {
    fn scoped<T>(work: impl FnOnce() -> T) -> T {
        IN_FORK.set(true);
        let _guard = Self;
        work()
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        IN_FORK.set(false);
    }
}

/// Returns 2, so that tests do not depend on the number of cores of the machine.
#[cfg(test)]
fn num_threads() -> usize {
    2
}

#[cfg(test)]
mod tests {
    use rlox_core::{Actions, Pcg64, Space};

    use super::*;
    use crate::{
        ActionValue, Activation, ActorCritic, ActorCriticLoss, CriticBatch, CriticEnsemble, CriticReduction,
        DeterministicActor, DeterministicPolicy, Discount, Distribution, Init, Minibatch, Mlp, Network, Optimizer,
        PolicyLoss, PolicyNetworks, QBatch, QFunction, QLoss, QNetworks, SquashedPolicy, StochasticPolicy, TdLoss,
        Workspace,
    };

    thread_local! {
        pub(super) static FORKS: Cell<usize> = const { Cell::new(0) };
    }

    const ADAM: Optimizer = Optimizer::Adam { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8 };
    const DISCOUNT: Discount<'_> = Discount::Same(0.9);

    /// Returns the number of forks in `work`.
    fn forks<T>(work: impl FnOnce() -> Result<T>) -> usize {
        FORKS.set(0);
        work().unwrap();
        FORKS.get()
    }

    fn net(hidden: &[usize], inputs: usize, outputs: usize) -> Mlp {
        let sizes = crate::builders::sizes(inputs, hidden, outputs);
        Mlp::new(&sizes, Activation::Relu, Init::Kaiming, &mut Pcg64::seed_from(1)).unwrap()
    }

    fn critics(hidden: &[usize]) -> CriticEnsemble<Mlp> {
        CriticEnsemble::new((0..2).map(|_| [net(hidden, 4, 1), net(hidden, 4, 1)]).collect(), 3).unwrap()
    }

    /// Returns the numbers of forks in PPO's backward pass and in its optimizer step.
    fn ppo_forks(hidden: &[usize], rows: usize, shared: bool) -> [usize; 2] {
        let distribution = Distribution::new(&Space::discrete(2), 0.0).unwrap();
        let mut policy = if shared {
            PolicyNetworks::with_shared_trunk(net(hidden, 4, 3), distribution).unwrap()
        } else {
            PolicyNetworks::new(net(hidden, 4, 2), net(hidden, 4, 1), distribution).unwrap()
        };
        let (obs, actions, numbers) = (vec![0.5; rows * 4], vec![1; rows], vec![-0.5; rows]);
        let batch = Minibatch {
            obs: &obs,
            actions: Actions::Discrete(&actions),
            masks: None,
            log_probs: &numbers,
            values: &numbers,
            advantages: &numbers,
            returns: &numbers,
        };
        let clipped = PolicyLoss::Clipped { clip_coef: 0.2 };
        let loss = ActorCriticLoss { policy: clipped, clip_coef_vf: None, vf_coef: 0.5, ent_coef: 0.0 };
        policy.evaluate(&batch, &loss).unwrap();
        [forks(|| policy.backward()), forks(|| policy.step(&ADAM, None))]
    }

    #[test]
    fn actor_and_critic_fork_by_their_number_of_parameters() {
        // Networks of 64 x 64 have 4,610 parameters, which are worth a fork from 44 rows on.
        // Threads that computed gradients also apply the step.
        assert_eq!(ppo_forks(&[64, 64], 32, false), [0, 0]);
        assert_eq!(ppo_forks(&[64, 64], 64, false), [1, 1]);
        // The width of the last layer does not count, but all parameters: 3,586 with a hidden layer
        // of 512, and 273,458 with 512 x 512 x 16.
        assert_eq!(ppo_forks(&[512], 32, false), [0, 0]);
        assert_eq!(ppo_forks(&[512, 512, 16], 32, false), [1, 1]);
        // With a shared trunk, there is no second network. If the network is large, threads share
        // its rows and then its parameters.
        assert_eq!(ppo_forks(&[256, 256], 64, true), [0, 0]);
        assert_eq!(ppo_forks(&[256, 256], 256, true), [2, 1]);
    }

    #[test]
    fn critics_are_computed_in_parallel() {
        let of = |hidden: &[usize], rows: usize| {
            let (obs, actions, targets) = (vec![0.5; rows * 3], vec![0.5; rows], vec![1.0; rows]);
            let batch = CriticBatch { obs: &obs, actions: &actions, targets: &targets, weights: None };
            let (mut critics, mut values, mut slopes) = (critics(hidden), vec![0.0; rows], vec![0.0; rows]);
            [
                forks(|| critics.target_values(&obs, &actions, &mut values)),
                forks(|| critics.backward(&batch, 0.5)),
                forks(|| critics.step(&ADAM, None)),
                forks(|| critics.action_gradients(&obs, &actions, CriticReduction::Min, &mut values, &mut slopes)),
                forks(|| critics.action_gradients(&obs, &actions, CriticReduction::First, &mut values, &mut slopes)),
                forks(|| critics.soft_update(0.5)),
            ]
        };
        assert_eq!(of(&[64, 64], 32), [0; 6]);
        // Threads that computed gradients also apply the optimizer step and the soft update.
        assert_eq!(of(&[64, 64], 100), [0, 1, 1, 1, 0, 1]);
        // One thread computes all rows of a critic, unless the method reads only one critic and
        // this critic is large.
        assert_eq!(of(&[256, 256], 64), [1, 1, 1, 2, 0, 1]);
        assert_eq!(of(&[256, 256], 256), [1, 1, 1, 2, 2, 1]);
    }

    #[test]
    fn large_actors_share_rows_and_parameters() {
        let of = |hidden: &[usize], rows: usize| {
            let (obs, mut actions, mut log_probs) = (vec![0.5; rows * 3], vec![0.5; rows], vec![0.0; rows]);
            let (mut critics, mut rng) = (critics(hidden), Pcg64::seed_from(2));
            let mut sac = SquashedPolicy::new(net(hidden, 3, 2), 1).unwrap();
            let mut td3 = DeterministicActor::new(net(hidden, 3, 1), net(hidden, 3, 1)).unwrap();
            [
                forks(|| sac.sample(&obs, &mut rng, &mut actions, &mut log_probs)),
                forks(|| sac.rsample(&obs, &mut rng, &mut actions, &mut log_probs)),
                // Two of the forks of this update belong to the critics.
                forks(|| sac.update(&obs, &mut critics, 0.1, &ADAM, None)),
                forks(|| td3.update(&obs, &mut critics, &ADAM, None)),
            ]
        };
        assert_eq!(of(&[64, 64], 64), [0; 4]);
        assert_eq!(of(&[256, 256], 64), [0, 0, 2, 0]);
        // SAC's actor forks for the rows and the parameters of the backward pass and for the step.
        // TD3's update also forks in the forward pass, and its critic forks twice for its rows.
        assert_eq!(of(&[256, 256], 256), [1, 1, 5, 6]);
    }

    #[test]
    fn small_batches_of_a_huge_network_are_not_shared() {
        let of = |rows: usize| {
            let (mut net, x) = (net(&[800, 800], 4, 1), vec![0.5; rows * 4]);
            let (mut y, mut workspace) = (vec![0.0; rows], Workspace::default());
            [forks(|| net.infer(&x, rows, &mut y, &mut workspace)), forks(|| net.forward(&x, rows, &mut y))]
        };
        assert_eq!([of(1), of(12), of(23)], [[0; 2]; 3]);
        assert_eq!(of(24), [1; 2]);
    }

    #[test]
    fn the_networks_of_dqn_are_computed_in_parallel() {
        let of = |hidden: &[usize], rows: usize| {
            let mut q = QNetworks::new(net(hidden, 4, 2), net(hidden, 4, 2)).unwrap();
            let (obs, actions, rewards, terminated) =
                (vec![0.5; rows * 4], vec![1; rows], vec![1.0; rows], vec![false; rows]);
            let batch = QBatch {
                obs: &obs,
                actions: &actions,
                rewards: &rewards,
                next_obs: &obs,
                terminated: &terminated,
                discount: DISCOUNT,
                weights: None,
                next_masks: None,
            };
            let loss = QLoss { distance: TdLoss::Huber, double: false };
            [forks(|| q.evaluate(&batch, loss)), forks(|| q.backward()), forks(|| q.step(&ADAM, None))]
        };
        assert_eq!(of(&[64, 64], 64), [0; 3]);
        assert_eq!(of(&[256, 256], 64), [1, 0, 0]);
        assert_eq!(of(&[256, 256], 256), [1, 2, 1]);
    }

    #[test]
    fn tasks_within_a_task_do_not_fork() {
        let rows = 256;
        let (net, x) = (net(&[256, 256], 4, 1), vec![0.5; rows * 4]);
        let infer = || {
            let (mut y, mut workspace) = (vec![0.0; rows], Workspace::default());
            net.infer(&x, rows, &mut y, &mut workspace).map(|()| FORKS.get())
        };
        assert_eq!(forks(infer), 1);
        FORKS.set(0);
        let (first, second) = join_if_worth(FORK_THRESHOLD, infer, infer).unwrap();
        // A single thread may run both tasks if the other thread starts too late.
        assert!(first <= 1 && second <= 1, "{first} {second}");
        // A task that fails or panics resets the flag, too.
        let failed: Result<((), ())> = join_if_worth(FORK_THRESHOLD, || Err(rlox_core::Error::Interrupted), || Ok(()));
        assert!(failed.is_err());
        let panicked =
            std::panic::catch_unwind(|| join_if_worth(FORK_THRESHOLD, || -> Result<()> { panic!("here") }, || Ok(())));
        assert!(panicked.is_err());
        assert_eq!(forks(infer), 1);
    }
}
