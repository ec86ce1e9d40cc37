//! Leaves drawn in proportion to their priorities: the tree of sums of Schaul et al. 2016, "Prioritized Experience
//! Replay" (<https://arxiv.org/abs/1511.05952>), with 16 children a node.
//!
//! Priorities are f32, 16 of them in a cache line. Sums are f64 and always made anew from the 16 numbers below, never
//! moved by differences: they depend on the priorities alone, not on how these came about, and nothing drifts.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

mod kernel;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use bytemuck::Zeroable;

use crate::simd::prefetch::prefetch;
use crate::{Error, InterruptCheck, Pcg64, Result, alloc, check_len};

/// Children of a node.
const WIDTH: usize = 16;
/// Bytes that memory gives at once.
const CACHE_LINE: usize = 64;
/// How many draws go down the tree together.
const BATCH: usize = 256;
/// How often that is done between two looks for an interruption.
const POLL_EVERY_BATCHES: usize = 16;

/// A fixed number of leaves with a priority each, which are drawn in proportion to it (Schaul et al. 2016, "Prioritized
/// Experience Replay", <https://arxiv.org/abs/1511.05952>).
///
/// A priority is 0, so that the leaf is never drawn, or positive and finite; subnormal numbers become the smallest normal
/// one. At first all are 0. Memory: 5 bytes a leaf.
///
/// ```
/// use rlox_core::{Pcg64, replay::SumTree};
///
/// let mut tree = SumTree::new(1000)?;
/// tree.fill(0..100, 1.0)?;
/// tree.set_many(&[3, 7], &[50.0, 0.0])?;
/// assert_eq!((tree.total(), tree.min()), (148.0, Some(1.0)));
/// let mut drawn = [0; 32];
/// tree.sample_stratified(&mut Pcg64::seed_from(1), &mut drawn)?;
/// assert!(drawn.iter().all(|&leaf| leaf < 100 && leaf != 7));
/// # Ok::<(), rlox_core::Error>(())
/// ```
pub struct SumTree {
    capacity: usize,
    nodes: Nodes,
    /// What a batch of changes has touched, kept to allocate nothing.
    touched: Vec<usize>,
}

impl fmt::Debug for SumTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tree = f.debug_struct("SumTree");
        tree.field("capacity", &self.capacity)
            .field("total", &self.total())
            .field("min", &self.min())
            .finish_non_exhaustive()
    }
}

impl SumTree {
    /// A tree of `capacity` leaves with priority 0.
    ///
    /// # Errors
    /// [`Error::Config`] for a capacity of 0, [`Error::Memory`] if the tree does not fit into memory.
    ///
    /// ```
    /// assert!(rlox_core::replay::SumTree::new(0).is_err());
    /// ```
    pub fn new(capacity: usize) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::config("capacity", "at least 1", "0", "say how many leaves there are"));
        }
        Ok(Self { capacity, nodes: Nodes::new(capacity)?, touched: Vec::new() })
    }

    /// The number of leaves.
    ///
    /// ```
    /// assert_eq!(rlox_core::replay::SumTree::new(7)?.capacity(), 7);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of memory.
    ///
    /// ```
    /// assert!(rlox_core::replay::SumTree::new(1000)?.memory() >= 4000);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn memory(&self) -> usize {
        self.nodes.bytes() + alloc::allocated_bytes(&self.touched)
    }

    /// The priorities of all leaves. A tree that gets the same ones draws the same.
    ///
    /// ```
    /// let mut tree = rlox_core::replay::SumTree::new(3)?;
    /// tree.set(1, 2.0)?;
    /// assert_eq!(tree.priorities(), [0.0, 2.0, 0.0]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn priorities(&self) -> &[f32] {
        &self.nodes.leaves.all()[..self.capacity]
    }

    /// The sum of all priorities, which many f32 could exceed. Its relative error is at most 2^-51 for each level of the
    /// tree, which are 5 for a million leaves, whatever happened before.
    ///
    /// ```
    /// let mut tree = rlox_core::replay::SumTree::new(3)?;
    /// tree.fill(0..3, f32::MAX)?;
    /// assert_eq!(tree.total(), 3.0 * f64::from(f32::MAX));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn total(&self) -> f64 {
        self.nodes.total
    }

    /// The smallest positive priority, known without a search; `None` if all are 0.
    ///
    /// ```
    /// let mut tree = rlox_core::replay::SumTree::new(3)?;
    /// assert_eq!(tree.min(), None);
    /// tree.set_range(1, &[4.0, 3.0])?;
    /// assert_eq!(tree.min(), Some(3.0));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn min(&self) -> Option<f32> {
        (self.nodes.min > 0.0).then_some(self.nodes.min)
    }

    /// The priority of a leaf.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such leaf.
    ///
    /// ```
    /// let tree = rlox_core::replay::SumTree::new(3)?;
    /// assert_eq!(tree.get(2)?, 0.0);
    /// assert_eq!(tree.get(3).unwrap_err().to_string(), "leaf: expected less than 3, got 3; pass leaves of this tree");
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn get(&self, leaf: usize) -> Result<f32> {
        self.priorities().get(leaf).copied().ok_or_else(|| self.no_such_leaf("leaf", leaf))
    }

    /// Changes the priority of a leaf.
    ///
    /// # Errors
    /// [`Error::Config`] for a leaf that is none, and for a priority that is negative, NaN or infinite. Nothing has
    /// changed then.
    ///
    /// ```
    /// let mut tree = rlox_core::replay::SumTree::new(3)?;
    /// tree.set(0, 0.5)?;
    /// assert!(tree.set(0, f32::NAN).is_err());
    /// assert_eq!(tree.get(0)?, 0.5);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn set(&mut self, leaf: usize, priority: f32) -> Result<()> {
        if leaf >= self.capacity {
            return Err(self.no_such_leaf("leaf", leaf));
        }
        self.fill(leaf..leaf + 1, priority)
    }

    /// Changes the priorities of some leaves, in this order: of equal leaves the last one counts.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are not as many priorities as leaves; [`Error::Memory`] if the system does not grant
    /// 8 bytes a leaf, which are kept for later calls; and as [`SumTree::set`]. Nothing has changed then.
    ///
    /// ```
    /// let mut tree = rlox_core::replay::SumTree::new(3)?;
    /// tree.set_many(&[2, 0, 2], &[1.0, 2.0, 3.0])?;
    /// assert_eq!(tree.priorities(), [2.0, 0.0, 3.0]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn set_many(&mut self, leaves: &[usize], priorities: &[f32]) -> Result<()> {
        check_len("priorities", priorities.len(), leaves.len())?;
        let nodes = self.nodes.leaves.nodes();
        for (&leaf, &priority) in leaves.iter().zip(priorities) {
            if leaf >= self.capacity {
                return Err(self.no_such_leaf("leaves", leaf));
            }
            check("priorities", priority)?;
            prefetch(&nodes[leaf / WIDTH]);
        }
        self.touched.clear();
        alloc::try_reserve("leaves", &mut self.touched, leaves.len())?;
        let values = self.nodes.leaves.all_mut();
        for (&leaf, &priority) in leaves.iter().zip(priorities) {
            values[leaf] = to_stored(priority);
        }
        self.touched.extend(leaves.iter().map(|leaf| leaf / WIDTH));
        kernel::refresh(&mut self.nodes, &mut self.touched);
        Ok(())
    }

    /// Changes the priorities of leaves that follow each other, from `first` on.
    ///
    /// # Errors
    /// [`Error::Config`] if leaves or priorities are not as [`SumTree::set`] asks. Nothing has changed then.
    ///
    /// ```
    /// let mut tree = rlox_core::replay::SumTree::new(3)?;
    /// tree.set_range(1, &[1.0, 2.0])?;
    /// assert_eq!(tree.priorities(), [0.0, 1.0, 2.0]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn set_range(&mut self, first: usize, priorities: &[f32]) -> Result<()> {
        let leaves = first..first.saturating_add(priorities.len());
        self.check_range(&leaves)?;
        priorities.iter().try_for_each(|&priority| check("priorities", priority))?;
        for (leaf, &priority) in self.nodes.leaves.all_mut()[leaves.clone()].iter_mut().zip(priorities) {
            *leaf = to_stored(priority);
        }
        self.refresh(&leaves);
        Ok(())
    }

    /// Gives leaves that follow each other one priority.
    ///
    /// # Errors
    /// [`Error::Config`] if leaves or priority are not as [`SumTree::set`] asks. Nothing has changed then.
    ///
    /// ```
    /// let mut tree = rlox_core::replay::SumTree::new(3)?;
    /// tree.fill(0..2, 1.5)?;
    /// assert_eq!(tree.priorities(), [1.5, 1.5, 0.0]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn fill(&mut self, leaves: Range<usize>, priority: f32) -> Result<()> {
        self.check_range(&leaves)?;
        check("priority", priority)?;
        self.nodes.leaves.all_mut()[leaves.clone()].fill(to_stored(priority));
        self.refresh(&leaves);
        Ok(())
    }

    /// The first leaf for which the sum of all priorities up to and with its own exceeds `mass`; the last leaf that can
    /// be drawn, if there is none.
    ///
    /// # Errors
    /// [`Error::Config`] if all priorities are 0.
    ///
    /// ```
    /// let mut tree = rlox_core::replay::SumTree::new(3)?;
    /// tree.set_range(0, &[1.0, 0.0, 2.0])?;
    /// assert_eq!((tree.find(0.9)?, tree.find(1.0)?, tree.find(9.0)?), (0, 2, 2));
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn find(&self, mass: f64) -> Result<usize> {
        self.check_total()?;
        let mut leaf = [0];
        // NaN becomes 0 as well.
        kernel::descend(&self.nodes, &mut leaf, &mut [mass.max(0.0)]);
        Ok(leaf[0])
    }

    /// Draws `out.len()` leaves, in rising order: the mass of all priorities is cut into so many strata of equal mass, and
    /// in each of them a point is drawn (Schaul et al. 2016, appendix B.2.1). One 64-bit draw of `rng` for each.
    ///
    /// # Errors
    /// [`Error::Config`] if all priorities are 0. Nothing is drawn then. [`Error::Interrupted`] if it was told to stop.
    ///
    /// ```
    /// use rlox_core::{Pcg64, replay::SumTree};
    ///
    /// let mut tree = SumTree::new(3)?;
    /// tree.set_range(0, &[1.0, 0.0, 3.0])?;
    /// let mut drawn = [9; 4];
    /// tree.sample_stratified(&mut Pcg64::seed_from(0), &mut drawn)?;
    /// assert_eq!(drawn, [0, 2, 2, 2]);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn sample_stratified(&self, rng: &mut Pcg64, out: &mut [usize]) -> Result<()> {
        self.check_total()?;
        let stratum = self.total() / out.len() as f64;
        let mut interrupt = InterruptCheck::default();
        for (i, out) in out.chunks_mut(BATCH).enumerate() {
            if i % POLL_EVERY_BATCHES == POLL_EVERY_BATCHES - 1 {
                interrupt.check()?;
            }
            let mut masses = [0.0; BATCH];
            let masses = &mut masses[..out.len()];
            for (j, mass) in masses.iter_mut().enumerate() {
                *mass = ((i * BATCH + j) as f64 + rng.random()) * stratum;
            }
            kernel::descend(&self.nodes, out, masses);
        }
        Ok(())
    }

    /// After changes of the priorities of some leaves.
    fn refresh(&mut self, leaves: &Range<usize>) {
        if !leaves.is_empty() {
            kernel::refresh_range(&mut self.nodes, leaves.start / WIDTH..leaves.end.div_ceil(WIDTH));
        }
    }

    fn check_range(&self, leaves: &Range<usize>) -> Result<()> {
        if leaves.start <= leaves.end && leaves.end <= self.capacity {
            return Ok(());
        }
        let expected = format!("a range within 0..{}", self.capacity);
        Err(Error::config("leaves", expected, format!("{leaves:?}"), "pass leaves of this tree"))
    }

    fn check_total(&self) -> Result<()> {
        if self.total() > 0.0 {
            return Ok(());
        }
        Err(Error::config("priorities", "one above 0", "only 0", "set a priority before drawing"))
    }

    #[cold]
    fn no_such_leaf(&self, argument: &'static str, leaf: usize) -> Error {
        let expected = format!("less than {}", self.capacity);
        Error::config(argument, expected, leaf.to_string(), "pass leaves of this tree")
    }
}

fn check(argument: &'static str, priority: f32) -> Result<()> {
    if (0.0..=f32::MAX).contains(&priority) { Ok(()) } else { Err(invalid_priority(argument, priority)) }
}

#[cold]
fn invalid_priority(argument: &'static str, priority: f32) -> Error {
    let (expected, got, hint) = ("finite numbers of at least 0", priority.to_string(), "find out where it comes from");
    if priority.is_finite() {
        Error::config(argument, expected, got, hint)
    } else {
        Error::not_finite(argument, expected, got, hint)
    }
}

/// As it is kept. Compared bit by bit: a thread may take subnormal numbers for 0.
fn to_stored(priority: f32) -> f32 {
    let bits = priority.abs().to_bits();
    f32::from_bits(if bits == 0 { 0 } else { bits.max(f32::MIN_POSITIVE.to_bits()) })
}

// The numbers of the tree, level by level, nodes on cache lines of their own.

/// Nodes of 16 numbers each, one after the other from the beginning of a cache line on.
struct Level<T> {
    memory: Vec<T>,
    first: usize,
    len: usize,
}

impl<T: Zeroable> Level<T> {
    /// Zeros, at least `numbers` of them.
    fn new(numbers: usize) -> Result<Self> {
        let len = numbers.next_multiple_of(WIDTH);
        let memory: Vec<T> = alloc::zeroed("capacity", len + CACHE_LINE / size_of::<T>())?;
        // The offset may be unknown, which costs time alone.
        let first = memory.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE / size_of::<T>());
        Ok(Self { memory, first, len })
    }

    /// Bytes of memory.
    fn bytes(&self) -> usize {
        alloc::allocated_bytes(&self.memory)
    }

    /// All numbers.
    #[inline(always)]
    fn all(&self) -> &[T] {
        &self.memory[self.first..][..self.len]
    }

    /// All numbers, to be changed.
    #[inline(always)]
    fn all_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.first..][..self.len]
    }

    /// The nodes.
    #[inline(always)]
    fn nodes(&self) -> &[[T; WIDTH]] {
        self.all().as_chunks().0
    }
}

/// What is known of the nodes of one level below.
struct Above {
    /// The sum of each.
    sums: Level<f64>,
    /// The smallest positive number of each, 0 where there is none.
    minima: Level<f32>,
}

impl Above {
    /// Sixteen sums and minima each.
    #[inline(always)]
    fn nodes(&self) -> (&[[f64; WIDTH]], &[[f32; WIDTH]]) {
        (self.sums.nodes(), self.minima.nodes())
    }

    /// Sums and minima, to be changed.
    #[inline(always)]
    fn numbers_mut(&mut self) -> Pair<'_> {
        (self.sums.all_mut(), self.minima.all_mut())
    }
}

/// The whole tree.
struct Nodes {
    leaves: Level<f32>,
    /// From the leaves up, the last level being one node. None, if the leaves are.
    above: Vec<Above>,
    total: f64,
    /// The smallest positive leaf, 0 if there is none.
    min: f32,
}

/// Sums and minima, one of each for every node below.
type Pair<'a> = (&'a mut [f64], &'a mut [f32]);

impl Nodes {
    /// A tree of zeros.
    fn new(capacity: usize) -> Result<Self> {
        // All of it at once, so that the error names the capacity that was asked for.
        alloc::check_available("capacity", capacity, 5)?;
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
    fn bytes(&self) -> usize {
        self.leaves.bytes() + self.above.iter().map(|above| above.sums.bytes() + above.minima.bytes()).sum::<usize>()
    }

    /// The leaves, what is above them, and what is known of the root.
    #[inline(always)]
    fn parts(&mut self) -> (&[[f32; WIDTH]], &mut [Above], Pair<'_>) {
        let root = (std::slice::from_mut(&mut self.total), std::slice::from_mut(&mut self.min));
        (self.leaves.nodes(), &mut self.above, root)
    }
}
