//! From weights that are no numbers a whole copy leads back, and a refused one changes nothing.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rlox_core::{AutoresetMode, Checkpoint, EnvSpec, Pcg64, VecEnv, envs::CartPole};
use rlox_nn::train::{A2c, A2cConfig};
use rlox_nn::{
    Activation, ActorCritic, Init, Learnable, Mlp, NamedTensors, Network, Optimizer, Parameters, PolicyNetworks,
    Scratch,
};

const ENDLESS: Optimizer = Optimizer::AdamW { lr: 1e30, beta1: 0.9, beta2: 0.999, eps: 1e-5, weight_decay: 1e30 };

fn net() -> Mlp {
    Mlp::new(&[2, 3, 1], Activation::Tanh, Init::orthogonal(1.0), &mut Pcg64::seed_from(0)).unwrap()
}

fn step(net: &mut Mlp, x: [f32; 2], optimizer: &Optimizer) -> rlox_core::Result<()> {
    net.forward(&x, 1, &mut [0.0]).unwrap();
    net.backward(&[1.0], true, None).unwrap();
    net.apply_gradients(optimizer, 1.0)
}

#[test]
fn weights_that_are_loaded_over_nan_leave_nothing_of_it() {
    let adam = Optimizer::adam(1e-3);
    for (x, spoils) in [([f32::NAN, 1.0], adam), ([0.3, -0.4], ENDLESS)] {
        let (mut good, mut broken) = (net(), net());
        assert!(step(&mut broken, x, &spoils).is_err());
        // Those that are refused are there still.
        broken.zero_gradients();
        broken.load(&good.tensors()).unwrap();
        broken.load_optimizer_state(&good.optimizer_state()).unwrap();
        let (mut expected, mut said, mut scratch) = ([0.0], [0.0], Scratch::default());
        good.infer(&[0.3, -0.4], 1, &mut expected, &mut scratch).unwrap();
        broken.infer(&[0.3, -0.4], 1, &mut said, &mut scratch).unwrap();
        assert_eq!(said, expected);
        for _ in 0..3 {
            step(&mut good, [0.3, -0.4], &adam).unwrap();
            step(&mut broken, [0.3, -0.4], &adam).unwrap();
        }
        assert_eq!((good.tensors(), good.optimizer_state()), (broken.tensors(), broken.optimizer_state()));
    }
    let good = Parameters::new("log_std", &[3], &[0.5; 3]).unwrap();
    let mut broken = good.clone();
    assert!(broken.step(&ENDLESS, 1.0).is_err());
    broken.load(&good.tensors()).unwrap();
    broken.load_optimizer_state(&good.optimizer_state()).unwrap();
    broken.step(&adam, 1.0).unwrap();
    assert_eq!(broken.tensors(), good.tensors());
}

fn trainer(optimizer: Optimizer) -> A2c<PolicyNetworks<Mlp>> {
    let env = VecEnv::new(2, None, AutoresetMode::SameStep, CartPole::default).unwrap();
    let policy = |spec: &EnvSpec, rng: &mut Pcg64| PolicyNetworks::mlp(spec, &[4], Activation::Tanh, rng);
    A2c::new(Box::new(env), policy, A2cConfig { optimizer, ..A2cConfig::default() }, 1).unwrap()
}

/// Numbers that are NaN are equal if their bits are.
fn bits(trainer: &A2c<PolicyNetworks<Mlp>>) -> [Vec<u8>; 2] {
    [trainer.policy().tensors().to_safetensors(), trainer.policy().optimizer_state().to_safetensors()]
}

#[test]
fn a_refused_checkpoint_leaves_weights_that_are_no_numbers_too_and_is_told_itself() {
    let scratch = tempfile::tempdir().unwrap();
    let (good, bad) = (scratch.path().join("good"), scratch.path().join("bad"));
    let mut trainer = trainer(ENDLESS);
    trainer.save(&good).unwrap();
    trainer.save(&bad).unwrap();
    let mut checkpoint = Checkpoint::read(&bad).unwrap();
    let mut other = NamedTensors::default();
    other.push("nonsense", &[1], vec![1.0]).unwrap();
    checkpoint.put_safetensors("optimizer", other.to_safetensors()).unwrap();
    checkpoint.write(&bad).unwrap();
    assert!(trainer.iterate(0.0).is_err());
    let before = bits(&trainer);
    let error = trainer.load(&bad).unwrap_err().to_string();
    assert!(error.contains("section optimizer, state: expected one named \"actor.0.weight.exp_avg\""), "{error}");
    assert_eq!(bits(&trainer), before);
    trainer.load(&good).unwrap();
    let mut values = [0.0];
    rlox_core::Policy::value(trainer.policy_mut(), &[0.1; 4], &mut values).unwrap();
    assert!(values[0].is_finite());
}
