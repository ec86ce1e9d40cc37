//! The text of the manifest and its seal, the SHA-256 of the text without the line of the seal.
//!
//! The text has the format of Python's `json.dumps(..., indent=2, sort_keys=True)`. The seal is
//! computed from the text, not from the parsed values. Rust and Python can print different digits
//! for the same float, if two shortest decimal numbers are equally near to it.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::hex_sha256;

/// Start of the line that holds the seal.
const SEAL: &str = "\n  \"sha256\": \"";
const DIGITS: usize = 64;

/// Returns the text of a manifest, including its seal.
pub(super) fn seal(mut content: Map<String, Value>) -> String {
    content.remove("sha256");
    let digest = hex_sha256(to_json_text(&content).as_bytes());
    content.insert("sha256".into(), digest.into());
    to_json_text(&content)
}

/// Parses the text of a manifest and checks its seal, or returns a description of the error.
///
/// The seal covers every byte, including white space.
pub(super) fn unseal(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| format!("no JSON ({error})"))?;
    let missing = || "no SHA-256".to_owned();
    // JSON strings contain no line breaks, so only a key of the outermost object can match `SEAL`.
    let (before, after) = text.split_once(SEAL).ok_or_else(missing)?;
    let (digest, after) = after.split_at_checked(DIGITS).ok_or_else(missing)?;
    let content = if let Some(after) = after.strip_prefix("\",") {
        format!("{before}{after}")
    } else if after == "\"\n}\n" {
        format!("{}\n}}\n", before.strip_suffix(',').ok_or_else(missing)?)
    } else {
        return Err(missing());
    };
    if hex_sha256(content.as_bytes()) != digest {
        return Err("a wrong SHA-256".into());
    }
    match serde_json::from_str(&content) {
        Ok(Value::Object(manifest)) => Ok(manifest),
        Ok(_) => Err("no JSON object".into()),
        Err(error) => Err(format!("no JSON ({error})")),
    }
}

fn to_json_text(content: &Map<String, Value>) -> String {
    let mut out = String::new();
    write_object(&mut out, content, 0);
    out.push('\n');
    out
}

fn write_value(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(x) => out.push_str(&format_float(x)),
            None => out.push_str(&number.to_string()),
        },
        Value::String(text) => write_string(out, text),
        Value::Array(items) if items.is_empty() => out.push_str("[]"),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                out.push(if i == 0 { '[' } else { ',' });
                write_newline(out, depth + 1);
                self::write_value(out, item, depth + 1);
            }
            write_newline(out, depth);
            out.push(']');
        }
        Value::Object(content) => write_object(out, content, depth),
    }
}

fn write_object(out: &mut String, content: &Map<String, Value>, depth: usize) {
    if content.is_empty() {
        out.push_str("{}");
        return;
    }
    let mut entries: Vec<_> = content.iter().collect();
    entries.sort_by_key(|(key, _)| *key);
    for (i, (key, item)) in entries.into_iter().enumerate() {
        out.push(if i == 0 { '{' } else { ',' });
        write_newline(out, depth + 1);
        write_string(out, key);
        out.push_str(": ");
        write_value(out, item, depth + 1);
    }
    write_newline(out, depth);
    out.push('}');
}

fn write_newline(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// Formats a float as Python's `repr` does: the shortest text that parses to the same number.
pub(crate) fn format_float(x: f64) -> String {
    if !x.is_finite() {
        return x.to_string().to_lowercase();
    }
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = x.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_equals_the_output_of_python() {
        let content = serde_json::json!({
            "z": [1, -2, 18_446_744_073_709_551_615_u64, true, null],
            "floats": [0.1, 1.0, -0.0, 1e-4, 1e-5, 1.5e-7, 1e15, 1e16, 1.25e22, 5e-324, 1.797_693_134_862_315_7e308],
            "empty": {"list": [], "object": {}},
            "A": "\"\\\u{8}\u{c}\n\r\t\u{1}\u{7f}\u{e9}\u{1f600}/",
        });
        // json.dumps(content, indent=2, sort_keys=True) + "\n"
        let expected = r#"{
  "A": "\"\\\b\f\n\r\t\u0001\u007f\u00e9\ud83d\ude00/",
  "empty": {
    "list": [],
    "object": {}
  },
  "floats": [
    0.1,
    1.0,
    -0.0,
    0.0001,
    1e-05,
    1.5e-07,
    1000000000000000.0,
    1e+16,
    1.25e+22,
    5e-324,
    1.7976931348623157e+308
  ],
  "z": [
    1,
    -2,
    18446744073709551615,
    true,
    null
  ]
}
"#;
        let Value::Object(content) = content else { unreachable!() };
        assert_eq!(to_json_text(&content), expected);
        assert_eq!(to_json_text(&Map::new()), "{}\n");
        assert_eq!(
            [format_float(f64::INFINITY), format_float(f64::NEG_INFINITY), format_float(f64::NAN)],
            ["inf", "-inf", "nan"]
        );
    }

    #[test]
    fn sealed_manifests_round_trip_at_any_position_of_the_seal() {
        for key in ["a", "z"] {
            let content: Map<_, _> = [(key.to_owned(), Value::from(0.1 + 0.2))].into_iter().collect();
            let text = seal(content.clone());
            assert_eq!(unseal(text.as_bytes()), Ok(content));
        }
        for text in ["", "{}\n", "[]\n", "\n  \"sha256\": \"", "{\n  \"sha256\": \"\"\n}\n"] {
            assert_eq!(unseal(text.as_bytes()), Err("no SHA-256".into()), "{text}");
        }
        let deep = format!("{{\n  \"a\": {}{}\n}}\n", "[".repeat(1000), "]".repeat(1000));
        let seal = format!(",{SEAL}{}\"\n}}\n", hex_sha256(deep.as_bytes()));
        let error = unseal(deep.replace("\n}\n", &seal).as_bytes()).unwrap_err();
        assert!(error.starts_with("no JSON (recursion limit"), "{error}");
    }
}
