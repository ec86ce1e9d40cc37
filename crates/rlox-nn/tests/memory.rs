//! Sizes that exceed the memory or the range of counters are rejected by errors that name the
//! argument.

use rlox_core::__private::testing::assert_rejects;
use rlox_core::{
    __private::available_memory,
    Actions, EnvSpec, Error, Pcg64, Result, Space,
    advantage::{EpisodeEnds, VtraceConfig},
};
use rlox_nn::train::{Encoding, Observations, mask_width, predict_actions};
use rlox_nn::{
    Activation, Distribution, Init, Mlp, MlpLayout, Parameters, PolicyBuilder, PolicyNetworks, SquashedGaussian,
    SquashedPolicy, Trajectories, VtraceTargets, orthogonal,
};

/// Number of elements that do not fit into the memory of any machine.
const HUGE: usize = 1 << 50;

fn rng() -> Pcg64 {
    Pcg64::seed_from(0)
}

fn net(outputs: usize) -> Mlp {
    Mlp::new(&[2, 8, outputs], Activation::Tanh, Init::Kaiming, &mut rng()).unwrap()
}

fn torque() -> Space {
    Space::uniform_box(-1.0, 1.0, &[1])
}

fn assert_memory_error<T>(result: Result<T>, argument: &str) {
    assert!(assert_rejects(result, Error::Memory, argument).expected.starts_with("at most "));
}

#[test]
fn widths_beyond_memory_are_rejected() {
    assert_memory_error(Distribution::state_dependent(&torque(), HUGE, 0.0), "hidden");
    assert_memory_error(Distribution::state_dependent(&torque(), usize::MAX, 0.0), "hidden");
    let spec = EnvSpec { id: "none".into(), observation: torque(), action: torque(), max_episode_steps: None };
    let tanh = Activation::Tanh;
    assert_memory_error(PolicyBuilder::new(&spec).net_arch(&[HUGE]).use_sde(true).build(&mut rng()), "net_arch");
    assert_memory_error(Parameters::filled("x", &[HUGE], 0.0), "shape");
    assert_memory_error(Parameters::filled("x", &[usize::MAX, 2], 0.0), "shape");
    assert_memory_error(Mlp::new(&[2, HUGE], tanh, Init::Kaiming, &mut rng()), "sizes");
    assert_memory_error(MlpLayout::new(&[usize::MAX, usize::MAX, 2], tanh), "sizes");
    assert_memory_error(orthogonal(1 << 31, 1 << 31, 1.0, &mut rng()), "rows");
}

#[test]
fn padding_of_narrow_layers_counts_as_memory() {
    // A layer with one output is padded to 16 numbers per input. Without this padding the weights
    // would fit.
    let free = available_memory().unwrap();
    let wide = (free / 150) as usize;
    let sizes = [1, wide, 1, 9];
    assert!(MlpLayout::new(&sizes, Activation::Tanh).is_ok());
    assert_memory_error(Mlp::new(&sizes, Activation::Tanh, Init::Kaiming, &mut rng()), "sizes");
}

#[test]
fn action_sizes_beyond_counting_are_rejected() {
    let shape = |result, expected: &str| {
        let rejected = assert_rejects(result, Error::Shape, "actor");
        assert!(rejected.expected.starts_with(expected), "{rejected}");
    };
    shape(SquashedPolicy::state_dependent(net(1), HUGE, -3.0), "1125899906842624 outputs");
    shape(SquashedPolicy::new(net(2), usize::MAX), "2 outputs for each of 18446744");
    shape(SquashedPolicy::new(net(2), 0), "2 outputs for each of 0 action elements");
    assert_rejects(SquashedGaussian::new(usize::MAX), Error::Config, "dim");
    assert!(SquashedGaussian::new(usize::MAX / 2).unwrap().mode(&[], &mut []).is_ok());
}

#[test]
fn spaces_beyond_counting_are_rejected() {
    for space in [
        Space::MultiDiscrete { nvec: vec![-1, -1] },
        Space::MultiDiscrete { nvec: vec![i64::MAX, i64::MAX, 4] },
        Space::MultiDiscrete { nvec: vec![i64::MAX] },
        Space::MultiBinary { n: usize::MAX },
        Space::MultiBinary { n: isize::MAX as usize },
        Space::Discrete { n: i64::MAX, start: 0 },
    ] {
        let encoding = Encoding::Numbers(2);
        let obs = Observations { data: (&[0.0_f32; 2][..]).into(), encoding: &encoding, normalizer: None, masks: None };
        let distribution = Distribution::new(&Space::discrete(2), 0.0).unwrap();
        let mut policy = PolicyNetworks::new(net(2), net(1), distribution).unwrap();
        let actions = rlox_core::ActionsMut::Discrete(&mut [0]);
        assert_rejects(mask_width(&space), Error::Space, "action space");
        assert_rejects(Distribution::new(&space, 0.0), Error::Space, "action space");
        let result = predict_actions(&mut policy, obs, None, &space, &mut Vec::new(), actions);
        assert_rejects(result, Error::Space, "action space");
    }
    assert_eq!(mask_width(&Space::MultiBinary { n: 3 }).unwrap(), 6);
    assert_eq!(mask_width(&torque()).unwrap(), 0);
}

#[test]
fn num_envs_beyond_memory_is_rejected() {
    let distribution = Distribution::new(&Space::discrete(2), 0.0).unwrap();
    let mut policy = PolicyNetworks::new(net(2), net(1), distribution).unwrap();
    let steps = Trajectories {
        obs: &[0.1; 2],
        next_obs: &[0.1; 2],
        actions: Actions::Discrete(&[0]),
        masks: None,
        log_probs: &[-0.7],
        rewards: &[1.0],
        ends: EpisodeEnds::dones(&[false]),
        num_envs: usize::MAX,
    };
    assert_memory_error(
        VtraceTargets::default().minibatch(&mut policy, &steps, VtraceConfig::default()).map(|_| ()),
        "num_envs",
    );
}
