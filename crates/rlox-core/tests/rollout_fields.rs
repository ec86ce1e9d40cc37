//! Rollouts: fields of every dtype.

use rlox_core::{
    Actions, AutoresetMode, DType, FieldData, FieldMut, Normalizer, NormalizerOptions, PolicySaid, RolloutBuffer,
    Seeds, Transition, VecEnv, envs::CartPole,
};

fn f32s<'a>(buffer: &'a RolloutBuffer, name: &str) -> &'a [f32] {
    let FieldData::F32(data) = buffer.field(name).unwrap().data() else { panic!("{name} is f32") };
    data
}

#[test]
fn flags_of_any_byte_but_zero_are_true() {
    let mut env = VecEnv::new(2, Some(0), AutoresetMode::SameStep, CartPole::default).unwrap();
    let mut buffer = RolloutBuffer::for_env(3, &env).unwrap();
    buffer.begin(&mut env, Seeds::Keep, None).unwrap();
    let said = PolicySaid { actions: Actions::Discrete(&[0, 1]), log_probs: &[0.0; 2], values: &[0.5; 2] };
    for t in 0..3 {
        buffer.step(t, &mut env, said, None).unwrap();
    }
    for byte in [1, 2, 255] {
        let Some(FieldMut::Bool(flags)) = buffer.field_mut("terminated") else { panic!("bytes") };
        flags[1] = byte;
        buffer.finish(&[1.0; 2], &[], 0.9, 0.9).unwrap();
        assert_eq!(f32s(&buffer, "advantages")[1], 0.5);
    }
}

/// Data one after the other, as it is shown.
fn joined(parts: &[FieldData<'_>]) -> String {
    let inner = |part| {
        let text = format!("{part:?}");
        text.split_once("([").unwrap().1.trim_end_matches("])").to_owned()
    };
    let all: Vec<_> = parts.iter().map(inner).collect();
    format!("{:?}([{}])", parts[0].dtype(), all.join(", "))
}

#[test]
fn observations_of_any_dtype_are_stored_as_they_are() {
    let (u8s, f64s, i64s, flags) = (
        [[3_u8, 255], [7, 0]],
        [[0.1_f64, 1e300], [2.0, -1.0]],
        [[1_i64, i64::MAX], [0, 4]],
        [[true, false], [false, true]],
    );
    let kinds: [[FieldData<'_>; 2]; 4] = [
        [(&u8s[0][..]).into(), (&u8s[1][..]).into()],
        [(&f64s[0][..]).into(), (&f64s[1][..]).into()],
        [(&i64s[0][..]).into(), (&i64s[1][..]).into()],
        [(&flags[0][..]).into(), (&flags[1][..]).into()],
    ];
    for [first, second] in kinds {
        let dtype = first.dtype();
        let mut buffer = RolloutBuffer::new(2, 1, (&[2], dtype), (&[], DType::I64)).unwrap();
        let wrong = FieldData::F32(&[0.0; 2]);
        let text = buffer.begin_with(wrong, true, None, None).unwrap_err().to_string();
        assert!(text.contains(&format!("obs: expected {dtype:?} elements, got F32")), "{text}");
        buffer.begin_with(first, true, None, None).unwrap();
        let said = PolicySaid { actions: Actions::Discrete(&[0]), log_probs: &[0.0], values: &[0.5] };
        let answered = Transition {
            next_obs: second,
            rewards: &[1.0],
            terminated: &[false],
            truncated: &[true],
            final_obs: first,
        };
        let text = buffer.record(0, said, Transition { next_obs: wrong, ..answered }, None).unwrap_err().to_string();
        assert!(text.starts_with("next_obs: expected"), "{text}");
        buffer.record(0, said, answered, None).unwrap();
        let never = Transition { truncated: &[false], final_obs: FieldData::F32(&[]), ..answered };
        buffer.record(1, said, never, None).unwrap();
        assert_eq!(buffer.final_obs(), first);
        assert_eq!(format!("{:?}", buffer.field("obs").unwrap().data()), joined(&[first, second, second]));
        buffer.finish(&[1.0], &[2.0], 0.5, 1.0).unwrap();
        // 1 + 0.5 * 2 - 0.5, and 1 + 0.5 * 1 - 0.5.
        assert_eq!(f32s(&buffer, "advantages"), [1.5, 1.0]);

        let mut normalizer = Normalizer::new(1, 2, NormalizerOptions::default()).unwrap();
        let text = buffer.begin_with(first, true, None, Some(&mut normalizer)).unwrap_err().to_string();
        assert!(text.starts_with("normalizer: expected F32 observations"), "{text}");
        let rewards_only = NormalizerOptions { obs: false, ..NormalizerOptions::default() };
        let mut normalizer = Normalizer::new(1, 2, rewards_only).unwrap();
        buffer.begin_with(first, true, None, Some(&mut normalizer)).unwrap();
        buffer.record(0, said, answered, Some(&mut normalizer)).unwrap();
        assert_eq!(buffer.final_obs(), first);
    }
}

#[test]
fn rows_of_more_axes_than_arrays_have_are_refused() {
    let new = |axes| RolloutBuffer::new(1, 1, (&vec![1; axes], DType::F32), (&[], DType::I64));
    assert_eq!(new(32).unwrap().field("obs").unwrap().shape().len(), 32);
    let text = new(33).unwrap_err().to_string();
    assert!(text.contains("expected at most 32 axes, got 33"), "{text}");
    assert!(new(32).unwrap().with_field("costs", &[1; 33], DType::F32).is_err());
}

#[test]
fn fields_of_the_callers_own_are_found_however_many_there_are() {
    let mut buffer = RolloutBuffer::new(2, 3, (&[4], DType::F32), (&[], DType::I64)).unwrap();
    for i in 0..1000 {
        buffer = buffer.with_field(&format!("field {i}"), &[1 + i % 3], DType::U8).unwrap();
    }
    for i in 0..1000 {
        let name = format!("field {i}");
        let Some(FieldMut::U8(data)) = buffer.field_mut(&name) else { panic!("{name}") };
        assert_eq!(data.len(), 6 * (1 + i % 3));
        data[0] = i as u8;
        assert_eq!(buffer.field(&name).unwrap().name(), name);
    }
    assert_eq!(buffer.fields().count(), 11 + 1000);
    for taken in ["field 999", "obs", "returns"] {
        assert!(buffer.fields().any(|field| field.name() == taken));
    }
    let error = buffer.with_field("field 7", &[], DType::F32).unwrap_err().to_string();
    assert!(error.contains("expected a new field name, got \"field 7\""), "{error}");
}
