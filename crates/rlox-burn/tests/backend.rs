//! What every backend promises, of Burn's network.

#[path = "../../rlox-nn/tests/backend/mod.rs"]
mod backend;

use rlox_burn::BurnMlp;

backend_tests!(BurnMlp::new);
