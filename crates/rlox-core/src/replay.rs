//! Replay: transitions that are learned from more than once.
//!
//! [`ReplayStorage`] holds them; what chooses among them comes beside it.

mod any_sampler;
mod batch;
mod buffer;
mod checks;
mod described;
mod episodes;
mod gather;
mod going_on;
mod hindsight;
mod layout;
mod mmap;
mod n_step;
mod prioritized;
mod push;
mod restore;
mod save;
mod sequence;
mod slots;
mod state;
mod steps;
mod storage;
mod sum_tree;
#[cfg(test)]
mod tests;

pub use any_sampler::AnySampler;
pub use batch::{Chosen, Relabel, SampledBatch};
pub use buffer::{ExperienceRecord, Replay, ReplayBuffer, Sampler, Uniform};
pub use gather::Column;
pub use hindsight::{Hindsight, HindsightReplayBuffer, Strategy};
pub use layout::{Layout, Part};
pub use mmap::MmapReplayBuffer;
pub use n_step::NStep;
pub use prioritized::{Prioritized, PrioritizedReplayBuffer};
pub use save::{Description, Saved};
pub use sequence::{ChosenSequences, Sequences};
pub use steps::Steps;
pub use storage::ReplayStorage;
pub use sum_tree::SumTree;
