//! The program `rlox-worker`, which steps environments and collects rollouts for clients on any
//! machine.

use std::io::{Write, stderr};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match rlox_grpc::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If writing to the standard error fails, the error cannot be reported elsewhere.
            let _ = writeln!(stderr(), "rlox-worker: {error}");
            ExitCode::from(2)
        }
    }
}
