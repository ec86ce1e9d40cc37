//! Weights and optimiser states from files and memory, and rejection of invalid ones.

use rlox_core::__private::testing::{Variant, assert_rejects};
use rlox_core::envs::CartPole;
use rlox_core::{AutoresetMode, EnvSpec, Error, Pcg64, Space, VecEnv, checkpoint::Checkpoint};
use rlox_nn::train::{A2c, A2cConfig};
use rlox_nn::{
    ActionValue, Activation, ActorCritic, Init, Learnable, Mlp, NamedTensors, Network, Optimizer, Parameters,
    PolicyNetworks, Workspace,
};

use crate::support::checkpoints::assert_checkpoint_rejects;
use crate::support::learners::twin_critics;

fn tensors() -> NamedTensors {
    let mut tensors = NamedTensors::default();
    // The order differs from that of the names.
    tensors.push("b.weight", &[2, 3], vec![0.5, -1.0, 3e-9, 7.25, 0.0, -0.0]).unwrap();
    tensors.push("a.bias", &[2], vec![1.0, 2.0]).unwrap();
    tensors.push("a\r", &[], vec![4.0]).unwrap();
    tensors.push("\"ä\\", &[0, 4], vec![]).unwrap();
    tensors
}

/// Returns the bytes of a safetensors file with this header and these numbers.
fn file(header: &str, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

#[test]
fn safetensors_round_trip() {
    let bytes = tensors().to_safetensors();
    assert_eq!(NamedTensors::from_safetensors(&bytes).unwrap(), tensors());
    assert_eq!(bytes, tensors().to_safetensors());
    let none = NamedTensors::default();
    assert_eq!(NamedTensors::from_safetensors(&none.to_safetensors()).unwrap(), none);
}

#[test]
fn flipped_bits_and_truncation_are_detected() {
    let bytes = tensors().to_safetensors();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let read = NamedTensors::from_safetensors(&damaged);
            assert!(matches!(read, Err(Error::Corrupt(_))), "bit {bit} of byte {at}: {read:?}");
        }
        assert_rejects(NamedTensors::from_safetensors(&bytes[..at]), Error::Corrupt, "file");
    }
}

#[test]
fn files_without_checksum_are_accepted() {
    let tensor = r#""b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#;
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt"}}, {tensor}, "a":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#
    );
    let read = NamedTensors::from_safetensors(&file(&header, &[1.0, 2.0])).unwrap();
    let there: Vec<_> = read.iter().map(|tensor| (&tensor.name[..], tensor.data[0])).collect();
    assert_eq!(there, [("a", 1.0), ("b", 2.0)]);
}

#[test]
fn duplicate_names_are_rejected() {
    let tensor = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let result = NamedTensors::from_safetensors(&file(&format!("{{{tensor},{tensor}}}"), &[1.0]));
    let rejected = assert_rejects(result, Error::Corrupt, "file");
    assert!(rejected.got.contains("two tensors named \"a\""), "{rejected}");
}

#[test]
fn invalid_names_and_shapes_are_rejected() {
    let mut tensors = NamedTensors::default();
    for name in ["a\nb", "__metadata__"] {
        assert_eq!(
            assert_rejects(tensors.push(name, &[], vec![0.0]), Error::Shape, "tensors").got,
            format!("{name:?}")
        );
    }
    assert_rejects(tensors.push("a", &[1 << 63, 2], vec![]), Error::Shape, "data");
    assert!(tensors.is_empty());
}

const OVERFLOWING: Optimizer = Optimizer::AdamW { lr: 1e30, beta1: 0.9, beta2: 0.999, eps: 1e-5, weight_decay: 1e30 };

fn net() -> Mlp {
    Mlp::new(&[2, 3, 1], Activation::Tanh, Init::orthogonal(1.0), &mut Pcg64::seed_from(0)).unwrap()
}

fn step(net: &mut Mlp, x: [f32; 2], optimizer: &Optimizer) -> rlox_core::Result<()> {
    net.forward(&x, 1, &mut [0.0]).unwrap();
    net.backward(&[1.0], true, None).unwrap();
    net.apply_gradients(optimizer, 1.0)
}

#[test]
fn loading_replaces_non_finite_weights() {
    let adam = Optimizer::adam(1e-3);
    for (x, spoils) in [([f32::NAN, 1.0], adam), ([0.3, -0.4], OVERFLOWING)] {
        let (mut good, mut broken) = (net(), net());
        assert!(step(&mut broken, x, &spoils).is_err());
        // Loading does not clear the invalid gradients.
        broken.zero_gradients();
        broken.load(&good.tensors()).unwrap();
        broken.load_optimizer_state(&good.optimizer_state()).unwrap();
        let (mut expected, mut outputs, mut scratch) = ([0.0], [0.0], Workspace::default());
        good.infer(&[0.3, -0.4], 1, &mut expected, &mut scratch).unwrap();
        broken.infer(&[0.3, -0.4], 1, &mut outputs, &mut scratch).unwrap();
        assert_eq!(outputs, expected);
        for _ in 0..3 {
            step(&mut good, [0.3, -0.4], &adam).unwrap();
            step(&mut broken, [0.3, -0.4], &adam).unwrap();
        }
        assert_eq!((good.tensors(), good.optimizer_state()), (broken.tensors(), broken.optimizer_state()));
    }
    let good = Parameters::new("log_std", &[3], &[0.5; 3]).unwrap();
    let mut broken = good.clone();
    assert!(broken.step(&OVERFLOWING, 1.0).is_err());
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

/// Returns weights and optimiser state as bytes, so that NaN equals NaN in comparisons.
fn bits(trainer: &A2c<PolicyNetworks<Mlp>>) -> [Vec<u8>; 2] {
    [trainer.policy().tensors().to_safetensors(), trainer.policy().optimizer_state().to_safetensors()]
}

#[test]
fn rejected_checkpoints_change_nothing_even_non_finite_weights() {
    let scratch = tempfile::tempdir().unwrap();
    let (good, bad) = (scratch.path().join("good"), scratch.path().join("bad"));
    let mut trainer = trainer(OVERFLOWING);
    trainer.save(&good).unwrap();
    trainer.save(&bad).unwrap();
    let mut checkpoint = Checkpoint::read(&bad).unwrap();
    let mut other = NamedTensors::default();
    other.push("nonsense", &[1], vec![1.0]).unwrap();
    checkpoint.insert_safetensors("optimizer", other.to_safetensors()).unwrap();
    checkpoint.write(&bad).unwrap();
    assert!(trainer.iterate(0.0).is_err());
    let before = bits(&trainer);
    let missing = (Error::Shape as Variant, "optimizer, state", "a tensor named \"actor.0.weight.exp_avg\"", "");
    assert_checkpoint_rejects(trainer.load(&bad), &bad, missing);
    assert_eq!(bits(&trainer), before);
    trainer.load(&good).unwrap();
    let mut values = [0.0];
    rlox_core::Policy::value(trainer.policy_mut(), &[0.1; 4], &mut values).unwrap();
    assert!(values[0].is_finite());
}

/// Returns a state with all numbers 1, except for one tensor with numbers `x`.
fn state_with(state: &NamedTensors, name: &str, x: f32) -> NamedTensors {
    let mut changed = NamedTensors::default();
    for tensor in state {
        let here = if tensor.name == name { x } else { 1.0 };
        changed.push(tensor.name.clone(), &tensor.shape, vec![here; tensor.data.len()]).unwrap();
    }
    changed
}

#[test]
fn rejected_states_change_no_part() {
    let [observation, action] = [Space::uniform_box(-1.0, 1.0, &[3]), Space::uniform_box(-1.0, 1.0, &[2])];
    let spec = EnvSpec { id: "none".into(), observation, action, max_episode_steps: None };
    let mut policy = PolicyNetworks::mlp(&spec, &[8], Activation::Tanh, &mut Pcg64::seed_from(0)).unwrap();
    let mut critics = twin_critics(8);
    let before = (policy.optimizer_state(), critics.optimizer_state());
    for (name, x, expected) in [
        ("critic.step", 0.5, "a non-negative integer"),
        ("log_std.step", -1.0, "a non-negative integer"),
        ("log_std.exp_avg_sq", -0.25, "non-negative numbers"),
    ] {
        let rejected =
            assert_rejects(policy.load_optimizer_state(&state_with(&before.0, name, x)), Error::Config, "state");
        assert_eq!(rejected.expected, expected);
        assert_eq!((rejected.got, rejected.at.section.as_deref()), (x.to_string(), Some(name)));
    }
    let nan = policy.load_optimizer_state(&state_with(&before.0, "critic.0.bias.exp_avg", f32::NAN));
    let rejected = assert_rejects(nan, Error::NotFinite, "state");
    assert_eq!((&rejected.got[..], rejected.at.section.as_deref()), ("NaN", Some("critic.0.bias.exp_avg")));
    for (name, x) in [("critic.qf1.step", 0.5), ("critic.qf1.0.weight.exp_avg_sq", -1e-9)] {
        let rejected =
            assert_rejects(critics.load_optimizer_state(&state_with(&before.1, name, x)), Error::Config, "state");
        assert_eq!(rejected.at.section.as_deref(), Some(name));
    }
    assert_eq!((policy.optimizer_state(), critics.optimizer_state()), before);
    policy.load_optimizer_state(&state_with(&before.0, "", 0.0)).unwrap();
    assert_eq!(policy.optimizer_state().find("critic.step").unwrap().data, [1.0]);
}
