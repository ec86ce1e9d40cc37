//! Sum tree that draws leaves in proportion to their priorities (Schaul et al. 2016, "Prioritized
//! Experience Replay", <https://arxiv.org/abs/1511.05952>).
//!
//! A node is a group of 16 consecutive numbers of a level. The lowest level has the leaves, which
//! are priorities. Each level above has one sum and one minimum per node of the level below.
//!
//! Priorities are f32, so that a node of leaves fills one cache line of 64 bytes. Sums are f64. A
//! change recomputes a sum from the 16 numbers of its node and never adds a difference. Therefore
//! the sums depend only on the current priorities, and rounding errors do not accumulate.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

mod kernel;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

use bytemuck::Zeroable;

use crate::simd::prefetch;
use crate::{Error, Pcg64, Result, alloc, error::check_len, interrupt::InterruptCheck};

/// Number of numbers in a node.
const WIDTH: usize = 16;
/// Size of a cache line in bytes.
const CACHE_LINE: usize = 64;
/// Number of draws whose descents from the root to a leaf run together.
const BATCH: usize = 256;
/// Number of groups of [`BATCH`] draws between two interrupt checks.
const POLL_EVERY_BATCHES: usize = 16;

/// Fixed number of leaves with priorities, which are drawn in proportion to their priorities.
///
/// A priority is 0, so that the leaf is never drawn, or positive and finite. Subnormal numbers become the smallest
/// normal number. All priorities are initially 0. A leaf takes about 5 bytes of memory.
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
    /// Nodes that a batch of changes touches, in memory that is reused between calls.
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
    /// Creates a tree of `capacity` leaves with priority 0.
    ///
    /// # Errors
    /// [`Error::Config`] if the capacity is 0. [`Error::Memory`] if the tree does not fit into
    /// memory.
    ///
    /// ```
    /// assert!(rlox_core::replay::SumTree::new(0).is_err());
    /// ```
    pub fn new(capacity: usize) -> Result<Self> {
        if capacity == 0 {
            return Err(Error::config("capacity", "at least 1", "0", "pass the number of leaves"));
        }
        Ok(Self { capacity, nodes: Nodes::new(capacity)?, touched: Vec::new() })
    }

    /// Returns the number of leaves.
    ///
    /// ```
    /// assert_eq!(rlox_core::replay::SumTree::new(7)?.capacity(), 7);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of allocated bytes.
    ///
    /// ```
    /// assert!(rlox_core::replay::SumTree::new(1000)?.memory() >= 4000);
    /// # Ok::<(), rlox_core::Error>(())
    /// ```
    pub fn memory(&self) -> usize {
        self.nodes.bytes() + alloc::allocated_bytes(&self.touched)
    }

    /// Returns the priorities of all leaves. Trees with the same priorities draw the same leaves.
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

    /// Returns the sum of all priorities, which may exceed the range of f32.
    ///
    /// The relative error is at most 2^-51 per level of the tree. A tree of a million leaves has 5
    /// levels. The error does not depend on earlier changes.
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

    /// Returns the smallest positive priority without a search, or `None` if all priorities are 0.
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

    /// Returns the priority of a leaf.
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

    /// Sets the priority of a leaf.
    ///
    /// # Errors
    /// [`Error::Config`] if there is no such leaf or the priority is negative. [`Error::NotFinite`]
    /// if the priority is not finite. Nothing has changed after an error.
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

    /// Sets the priorities of some leaves. If a leaf is repeated, its last priority counts.
    ///
    /// # Errors
    /// The errors of [`SumTree::set`]. [`Error::Shape`] if the numbers of priorities and leaves
    /// differ. [`Error::Memory`] if the allocation of 8 bytes per leaf fails. Later calls reuse
    /// that memory. Nothing has changed after an error.
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

    /// Sets the priorities of consecutive leaves, from `first` on.
    ///
    /// # Errors
    /// The errors of [`SumTree::set`]. Nothing has changed after an error.
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

    /// Sets consecutive leaves to one priority.
    ///
    /// # Errors
    /// The errors of [`SumTree::set`]. Nothing has changed after an error.
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

    /// Returns the first leaf at which the cumulative sum of priorities exceeds `mass`.
    ///
    /// If no cumulative sum exceeds `mass`, the result is the last leaf with a positive priority.
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
        // `max` also replaces NaN by 0.
        kernel::descend(&self.nodes, &mut leaf, &mut [mass.max(0.0)]);
        Ok(leaf[0])
    }

    /// Draws `out.len()` leaves in ascending order, one per stratum.
    ///
    /// The strata are equal parts of the sum of priorities (Schaul et al. 2016, appendix B.2.1).
    /// Each draw takes one 64-bit number from `rng`.
    ///
    /// # Errors
    /// [`Error::Config`] if all priorities are 0; nothing is drawn in that case.
    /// [`Error::Interrupted`] if the interrupt check of the process stops the call.
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

    /// Updates the sums and minima of the nodes that contain the leaves in the range `leaves`.
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
        Err(Error::config("priorities", "at least one positive number", "only 0", "set a priority before drawing"))
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
    let (expected, got, hint) = ("finite numbers >= 0", priority.to_string(), "check the source of the priorities");
    if priority.is_finite() {
        Error::config(argument, expected, got, hint)
    } else {
        Error::not_finite(argument, expected, got, hint)
    }
}

/// Returns the number that the tree stores for a priority: normal and positive, or 0.
///
/// The function works on the bits, because a thread may treat subnormal numbers as 0.
fn to_stored(priority: f32) -> f32 {
    let bits = priority.abs().to_bits();
    f32::from_bits(if bits == 0 { 0 } else { bits.max(f32::MIN_POSITIVE.to_bits()) })
}

// Numbers of the tree by level, with each node of f32 on one cache line.

/// Level of the tree: nodes of 16 numbers each, starting at a cache line.
struct Level<T> {
    memory: Vec<T>,
    first: usize,
    len: usize,
}

impl<T: Zeroable> Level<T> {
    /// Creates a level of at least `numbers` zeros.
    fn new(numbers: usize) -> Result<Self> {
        let len = numbers.next_multiple_of(WIDTH);
        let memory: Vec<T> = alloc::zeroed("capacity", len + CACHE_LINE / size_of::<T>())?;
        // `align_offset` may return `usize::MAX`. Without alignment, the tree is only slower.
        let first = memory.as_ptr().align_offset(CACHE_LINE).min(CACHE_LINE / size_of::<T>());
        Ok(Self { memory, first, len })
    }

    /// Returns the number of allocated bytes.
    fn bytes(&self) -> usize {
        alloc::allocated_bytes(&self.memory)
    }

    /// Returns all numbers.
    #[inline(always)]
    fn all(&self) -> &[T] {
        &self.memory[self.first..][..self.len]
    }

    /// Returns all numbers mutably.
    #[inline(always)]
    fn all_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.first..][..self.len]
    }

    /// Returns the nodes of the level.
    #[inline(always)]
    fn nodes(&self) -> &[[T; WIDTH]] {
        self.all().as_chunks().0
    }
}

/// Level above the leaves: one sum and one minimum per node of the level below.
struct Above {
    /// Sum of each node.
    sums: Level<f64>,
    /// Smallest positive number of each node; 0 if there is none.
    minima: Level<f32>,
}

impl Above {
    /// Returns the sums and the minima, each as nodes of 16 numbers.
    #[inline(always)]
    fn nodes(&self) -> (&[[f64; WIDTH]], &[[f32; WIDTH]]) {
        (self.sums.nodes(), self.minima.nodes())
    }

    /// Returns the sums and the minima mutably.
    #[inline(always)]
    fn numbers_mut(&mut self) -> Pair<'_> {
        (self.sums.all_mut(), self.minima.all_mut())
    }
}

/// Levels of the tree.
struct Nodes {
    leaves: Level<f32>,
    /// Levels above the leaves, lowest level first. The last level is one node. Empty if the leaves
    /// are one node.
    above: Vec<Above>,
    total: f64,
    /// Smallest positive leaf; 0 if there is none.
    min: f32,
}

/// Sums and minima, one of each per node of the level below.
type Pair<'a> = (&'a mut [f64], &'a mut [f32]);

impl Nodes {
    /// Creates a tree of zeros.
    fn new(capacity: usize) -> Result<Self> {
        // Checks the total size first, so that the error names the requested capacity.
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

    /// Returns the number of allocated bytes.
    fn bytes(&self) -> usize {
        self.leaves.bytes() + self.above.iter().map(|above| above.sums.bytes() + above.minima.bytes()).sum::<usize>()
    }

    /// Returns the nodes of leaves, the levels above, and the sum and the minimum of the whole
    /// tree.
    #[inline(always)]
    fn parts(&mut self) -> (&[[f32; WIDTH]], &mut [Above], Pair<'_>) {
        let root = (std::slice::from_mut(&mut self.total), std::slice::from_mut(&mut self.min));
        (self.leaves.nodes(), &mut self.above, root)
    }
}
