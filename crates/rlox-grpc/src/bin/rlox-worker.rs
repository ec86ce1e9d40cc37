//! The program `rlox-worker`: environments and rollouts for clients on this machine or others.

use std::io::{Write, stderr};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match rlox_grpc::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a working standard error there is no place to report.
            let _ = writeln!(stderr(), "rlox-worker: {error}");
            ExitCode::from(2)
        }
    }
}
