//! Tests that the generated Rust code matches `worker.proto`. `RLOX_REGENERATE=1` writes the code
//! again.

use std::path::Path;

#[test]
fn committed_code_matches_the_protocol() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = root.join("proto");
    let compiled = protox::compile(["rlox/v1/worker.proto"], [&proto]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let builder = tonic_prost_build::configure().bytes(".").out_dir(folder.path());
    builder.emit_rerun_if_changed(false).compile_fds(compiled).unwrap();
    let generated = std::fs::read_to_string(folder.path().join("rlox.v1.rs")).unwrap();
    let committed = root.join("src/generated/rlox.v1.rs");
    if std::env::var_os("RLOX_REGENERATE").is_some() {
        std::fs::write(&committed, &generated).unwrap();
    }
    let current = std::fs::read_to_string(&committed).unwrap_or_default();
    assert!(current == generated, "src/generated/ differs; run this test with RLOX_REGENERATE=1 and commit the file");
}
