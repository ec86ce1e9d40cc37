//! How long SAC's state-dependent exploration keeps a matrix. Where the observation never changes and nothing is
//! learned, actions are the same as long as the matrix is.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rlox_core::{Actions, ActionsMut, EnvSpec, FieldData, Pcg64, Space};
use rlox_nn::train::{
    Encoding, Observations, OffPolicyAgent, OffPolicyMethod as _, Outcome, SacConfig, SacLearner, Surroundings,
    predict_with,
};
use rlox_nn::{Mlp, SquashedPolicy, TwinCritics};

type Learner = SacLearner<SquashedPolicy<Mlp>, TwinCritics<Mlp>>;
type Agent = OffPolicyAgent<Learner>;

const OBS: [f32; 3] = [0.5, -0.2, 0.1];

fn action() -> Space {
    Space::uniform_box(-2.0, 2.0, &[1])
}

/// Draws a matrix for three steps each.
fn agent() -> Agent {
    let observation = Space::uniform_box(-1.0, 1.0, &[OBS.len()]);
    let spec = EnvSpec { id: "none".into(), observation, action: action(), max_episode_steps: None };
    let config = SacConfig {
        use_sde: true,
        use_sde_at_warmup: true,
        sde_sample_freq: 3,
        log_std_init: 0.0,
        buffer_size: 64,
        ..SacConfig::default()
    };
    let networks = config.mlp(&spec, &[8], &mut Pcg64::seed_from(0)).unwrap();
    let how = Learner::gathering(&config, &spec).unwrap();
    let learner = Box::new(Learner::new(config, networks, &spec, 1).unwrap());
    let envs = Surroundings { spec: &spec, num_envs: 1, masked: false, idling: true };
    let mut agent = OffPolicyAgent::new(learner, how, &envs, [1, 2]).unwrap();
    agent.start_at(&OBS, None, None).unwrap();
    agent.begin(0.0).unwrap();
    agent
}

/// The action of a step, or of one in which the environment only resets.
fn step(agent: &mut Agent, made: bool) -> f32 {
    let Actions::Continuous(&[action]) = agent.act(None).unwrap() else { unreachable!() };
    let (rewards, ends, valid) = (&[0.0][..], &[false][..], Some(&[made][..]));
    let (terminated, truncated, masks, final_masks) = (ends, ends, None, None);
    let outcome = Outcome { next_obs: &OBS, obs: &OBS, rewards, terminated, truncated, valid, masks, final_masks };
    agent.observe(&outcome, None).unwrap();
    action
}

#[test]
fn steps_that_only_reset_do_not_count() {
    let mut agent = agent();
    let actions = [true, true, false, true, true, true, true].map(|made| step(&mut agent, made));
    assert_eq!(actions[..4], [actions[0]; 4]);
    assert_eq!(actions[4..], [actions[4]; 3]);
    assert_ne!(actions[0], actions[4]);
}

#[test]
fn predictions_in_the_middle_of_an_iteration_leave_it_alone() {
    let (mut asked, mut alone) = (agent(), agent());
    let mut predicted = vec![];
    for _ in 0..7 {
        let (encoding, mut said) = (Encoding::Numbers(OBS.len()), [0.0]);
        let obs = Observations { data: FieldData::F32(&OBS), encoding: &encoding, normalizer: None, masks: None };
        let (space, actions) = (action(), ActionsMut::Continuous(&mut said));
        predict_with(&mut asked, obs, Some(9), &space, &mut Vec::new(), actions).unwrap();
        predicted.push(said[0]);
        assert_eq!(step(&mut asked, true), step(&mut alone, true));
    }
    // And they go by their seed alone.
    assert_eq!(predicted, [predicted[0]; 7]);
}
