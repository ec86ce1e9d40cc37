//! Files of weights: what is damaged is refused, and what is not is what was written.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

use rlox_core::{Error, Result};
use rlox_nn::NamedTensors;

fn tensors() -> NamedTensors {
    let mut tensors = NamedTensors::default();
    // Neither in the order of the names.
    tensors.push("b.weight", &[2, 3], vec![0.5, -1.0, 3e-9, 7.25, 0.0, -0.0]).unwrap();
    tensors.push("a.bias", &[2], vec![1.0, 2.0]).unwrap();
    tensors.push("a\r", &[], vec![4.0]).unwrap();
    tensors.push("\"ä\\", &[0, 4], vec![]).unwrap();
    tensors
}

/// A file of a header and numbers.
fn file(header: &str, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

fn said(read: Result<NamedTensors>) -> String {
    let error = read.unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
    error.to_string()
}

#[test]
fn a_file_is_read_as_it_was_written_and_twice_the_same() {
    let bytes = tensors().to_safetensors();
    assert_eq!(NamedTensors::from_safetensors(&bytes).unwrap(), tensors());
    assert_eq!(bytes, tensors().to_safetensors());
    let none = NamedTensors::default();
    assert_eq!(NamedTensors::from_safetensors(&none.to_safetensors()).unwrap(), none);
}

#[test]
fn no_bit_can_be_turned_and_no_end_be_missing() {
    let whole = tensors().to_safetensors();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            let read = NamedTensors::from_safetensors(&damaged);
            assert!(matches!(read, Err(Error::Corrupt(_))), "bit {bit} of byte {at}: {read:?}");
        }
        said(NamedTensors::from_safetensors(&whole[..at]));
    }
}

#[test]
fn files_of_others_have_no_checksum() {
    let tensor = r#""b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#;
    let header = format!(
        r#"{{"__metadata__":{{"format":"pt"}}, {tensor}, "a":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#
    );
    let read = NamedTensors::from_safetensors(&file(&header, &[1.0, 2.0])).unwrap();
    let there: Vec<_> = read.iter().map(|tensor| (&tensor.name[..], tensor.data[0])).collect();
    assert_eq!(there, [("a", 1.0), ("b", 2.0)]);
}

#[test]
fn a_name_stands_once_in_a_header() {
    let tensor = r#""a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    let text = said(NamedTensors::from_safetensors(&file(&format!("{{{tensor},{tensor}}}"), &[1.0])));
    assert!(text.contains("two tensors named \"a\""), "{text}");
}

#[test]
fn names_and_shapes_that_no_file_holds_are_refused() {
    let mut tensors = NamedTensors::default();
    for name in ["a\nb", "__metadata__"] {
        let error = tensors.push(name, &[], vec![0.0]).unwrap_err().to_string();
        assert!(error.starts_with("tensors: expected names without line breaks"), "{error}");
    }
    let error = tensors.push("a", &[1 << 63, 2], vec![]).unwrap_err().to_string();
    assert!(error.starts_with("data: expected elements for the shape"), "{error}");
    assert!(tensors.is_empty());
}
