//! What every backend promises, of Candle's network.

#[path = "../../rlox-nn/tests/backend/mod.rs"]
mod backend;

use rlox_candle::CandleMlp;

backend_tests!(CandleMlp::new);
