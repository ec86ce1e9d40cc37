//! The numbers of the tree, level by level, nodes on cache lines of their own.

#![expect(clippy::inline_always, reason = "what is not inlined is not compiled for the wider instruction set")]

use bytemuck::Zeroable;

use crate::{Result, memory};

/// Children of a node.
pub(super) const WIDTH: usize = 16;

/// Bytes that memory gives at once.
const CACHE_LINE: usize = 64;

/// Nodes of 16 numbers each, one after the other from the beginning of a cache line on.
pub(super) struct Level<T> {
    memory: Vec<T>,
    first: usize,
    len: usize,
}

impl<T: Zeroable> Level<T> {
    /// Zeros, at least `numbers` of them.
    fn new(numbers: usize) -> Result<Self> {
        let len = numbers.next_multiple_of(WIDTH);
        let memory: Vec<T> = memory::zeroed("capacity", len + CACHE_LINE / size_of::<T>())?;
        // The offset may be unknown, which costs time alone.
        let first = memory.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE / size_of::<T>());
        Ok(Self { memory, first, len })
    }

    /// Bytes of memory.
    fn bytes(&self) -> usize {
        memory::of(&self.memory)
    }

    /// All numbers.
    #[inline(always)]
    pub(super) fn all(&self) -> &[T] {
        &self.memory[self.first..][..self.len]
    }

    /// All numbers, to be changed.
    #[inline(always)]
    pub(super) fn all_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.first..][..self.len]
    }

    /// The nodes.
    #[inline(always)]
    pub(super) fn nodes(&self) -> &[[T; WIDTH]] {
        self.all().as_chunks().0
    }
}

/// What is known of the nodes of one level below.
pub(super) struct Above {
    /// The sum of each.
    pub(super) sums: Level<f64>,
    /// The smallest positive number of each, 0 where there is none.
    pub(super) minima: Level<f32>,
}

impl Above {
    /// Sixteen sums and minima each.
    #[inline(always)]
    pub(super) fn nodes(&self) -> (&[[f64; WIDTH]], &[[f32; WIDTH]]) {
        (self.sums.nodes(), self.minima.nodes())
    }

    /// Sums and minima, to be changed.
    #[inline(always)]
    pub(super) fn numbers_mut(&mut self) -> Pair<'_> {
        (self.sums.all_mut(), self.minima.all_mut())
    }
}

/// The whole tree.
pub(super) struct Nodes {
    pub(super) leaves: Level<f32>,
    /// From the leaves up, the last level being one node. None, if the leaves are.
    pub(super) above: Vec<Above>,
    pub(super) total: f64,
    /// The smallest positive leaf, 0 if there is none.
    pub(super) min: f32,
}

/// Sums and minima, one of each for every node below.
pub(super) type Pair<'a> = (&'a mut [f64], &'a mut [f32]);

impl Nodes {
    /// A tree of zeros.
    pub(super) fn new(capacity: usize) -> Result<Self> {
        // All of it at once, so that the error names the capacity that was asked for.
        memory::check("capacity", capacity, 5)?;
        let leaves = Level::new(capacity)?;
        let mut above = Vec::new();
        let mut nodes = leaves.len / WIDTH;
        while nodes > 1 {
            above.push(Above { sums: Level::new(nodes)?, minima: Level::new(nodes)? });
            nodes = nodes.div_ceil(WIDTH);
        }
        Ok(Self { leaves, above, total: 0.0, min: 0.0 })
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        self.leaves.bytes() + self.above.iter().map(|above| above.sums.bytes() + above.minima.bytes()).sum::<usize>()
    }

    /// The leaves, what is above them, and what is known of the root.
    #[inline(always)]
    pub(super) fn parts(&mut self) -> (&[[f32; WIDTH]], &mut [Above], Pair<'_>) {
        let root = (std::slice::from_mut(&mut self.total), std::slice::from_mut(&mut self.min));
        (self.leaves.nodes(), &mut self.above, root)
    }
}
