//! What off-policy learning draws from.

mod sum_tree;

pub use sum_tree::SumTree;
