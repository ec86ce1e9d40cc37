//! The Rust blocks of the documentation, run as doc tests: pages lie outside the published crates.

/// One page, so that rustdoc tests its Rust blocks.
macro_rules! page {
    ($name:ident, $path:literal) => {
        #[cfg(doctest)]
        #[doc = include_str!($path)]
        pub struct $name;
    };
}

page!(Readme, "../README.md");
page!(Environments, "../docs/environments.md");
page!(Rollouts, "../docs/rollouts.md");
page!(Replay, "../docs/replay.md");
page!(Impala, "../docs/impala.md");
page!(Rust, "../docs/rust.md");
page!(Llm, "../docs/llm.md");
