//! `rlox-worker`: environments and rollouts for clients on this machine or others.

use std::io::{Write, stderr};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match rlox_grpc::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where that fails nobody reads it.
            let _ = writeln!(stderr(), "rlox-worker: {error}");
            ExitCode::from(2)
        }
    }
}
