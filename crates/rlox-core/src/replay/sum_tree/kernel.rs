//! Kernels of the sum tree: updates of sums and minima, and descents to leaves, level by level.
//!
//! A node is a group of 16 numbers of a level. Above the leaves, each number belongs to one node of
//! the level below: the child of the number.

#![expect(clippy::inline_always, reason = "only inlined functions are compiled for the wider instruction sets")]

use std::ops::Range;

use super::{Nodes, Pair, WIDTH};
use crate::simd::f32x16::Sixteen;
use crate::simd::f64x8::on_f64s;
use crate::simd::prefetch;

/// Number type of a level.
trait Number: Copy + PartialOrd + Default {
    fn load<S: Sixteen>(simd: S, from: &[Self; WIDTH]) -> S::Numbers;
}

impl Number for f32 {
    #[inline(always)]
    fn load<S: Sixteen>(simd: S, from: &[Self; WIDTH]) -> S::Numbers {
        simd.load_16_f32(from)
    }
}

impl Number for f64 {
    #[inline(always)]
    fn load<S: Sixteen>(simd: S, from: &[Self; WIDTH]) -> S::Numbers {
        simd.load_16(from)
    }
}

/// Recomputes the sum and the minimum of some nodes.
///
/// `numbers` are the nodes to add up, and `singles` are the nodes of which the minima are computed.
#[inline(always)]
fn update_nodes<T: Number>(
    simd: impl Sixteen,
    numbers: &[[T; WIDTH]],
    singles: &[[f32; WIDTH]],
    nodes: impl Iterator<Item = usize>,
    (sums, minima): Pair<'_>,
) {
    for i in nodes {
        sums[i] = simd.sum(T::load(simd, &numbers[i]));
        minima[i] = simd.least(&singles[i]);
    }
}

on_f64s! {
    /// Updates all levels above the nodes of leaves in `touched`.
    ///
    /// A level with at most as many nodes as `touched` is recomputed completely, which is faster
    /// than removing all duplicates by a sort. In a larger level, only adjacent duplicates are
    /// removed. Few duplicates remain, and recomputing a node twice is harmless.
    pub(super) fn refresh(simd: F64s, nodes: &mut Nodes, touched: &mut Vec<usize>) {
        let (leaves, above, root) = nodes.parts();
        let Some((mut below, others)) = above.split_first_mut() else {
            return update_nodes(simd, leaves, leaves, 0..1, root);
        };
        if leaves.len() <= touched.len() {
            update_nodes(simd, leaves, leaves, 0..leaves.len(), below.numbers_mut());
        } else {
            touched.dedup();
            update_nodes(simd, leaves, leaves, touched.iter().copied(), below.numbers_mut());
        }
        for level in others {
            let (sums, minima) = below.nodes();
            if sums.len() <= touched.len() {
                update_nodes(simd, sums, minima, 0..sums.len(), level.numbers_mut());
            } else {
                for node in &mut *touched {
                    *node /= WIDTH;
                }
                touched.dedup();
                update_nodes(simd, sums, minima, touched.iter().copied(), level.numbers_mut());
            }
            below = level;
        }
        let (sums, minima) = below.nodes();
        update_nodes(simd, sums, minima, 0..1, root);
    }
}

on_f64s! {
    /// Updates all levels above consecutive nodes of leaves, as [`refresh`] does.
    pub(super) fn refresh_range(simd: F64s, nodes: &mut Nodes, touched: Range<usize>) {
        let (leaves, above, root) = nodes.parts();
        let Some((mut below, others)) = above.split_first_mut() else {
            return update_nodes(simd, leaves, leaves, 0..1, root);
        };
        let mut touched = touched;
        update_nodes(simd, leaves, leaves, touched.clone(), below.numbers_mut());
        for level in others {
            let (sums, minima) = below.nodes();
            touched = touched.start / WIDTH..touched.end.div_ceil(WIDTH);
            update_nodes(simd, sums, minima, touched.clone(), level.numbers_mut());
            below = level;
        }
        let (sums, minima) = below.nodes();
        update_nodes(simd, sums, minima, 0..1, root);
    }
}

on_f64s! {
    /// Writes to `positions`, for each mass, the leaf at which the cumulative sum of priorities
    /// exceeds the mass.
    ///
    /// The priority of the leaf is positive if any priority is positive. The masses must not be
    /// negative. They are overwritten.
    pub(super) fn descend(simd: F64s, nodes: &Nodes, positions: &mut [usize], masses: &mut [f64]) {
        positions.fill(0);
        for k in (0..nodes.above.len()).rev() {
            let level = nodes.above[k].nodes().0;
            match k.checked_sub(1) {
                Some(k) => step(simd, level, positions, masses, nodes.above[k].nodes().0),
                None => step(simd, level, positions, masses, nodes.leaves.nodes()),
            }
        }
        step::<f32, f32>(simd, nodes.leaves.nodes(), positions, masses, &[]);
    }
}

/// Moves each position from a node to a child, and prefetches the child.
///
/// The child is the one in which the cumulative sum exceeds the mass. The mass is reduced by the
/// sum before the child.
#[inline(always)]
fn step<T: Number, U>(
    simd: impl Sixteen,
    nodes: &[[T; WIDTH]],
    positions: &mut [usize],
    masses: &mut [f64],
    below: &[[U; WIDTH]],
) {
    // Masses ascend, so draws near the root often share a node, whose cumulative sums are reused.
    // Further down, the test for a shared node costs more time than it saves.
    let may_repeat = 4 * nodes.len() <= positions.len();
    let (mut current, mut running) = (0, simd.running(T::load(simd, &nodes[0])));
    // The cumulative sums in memory, behind a 0, so that `sums[7 + child]` is the sum before a
    // child.
    let mut sums = [0.0; 8 + WIDTH];
    if let Some(sums) = sums.last_chunk_mut() {
        simd.store_16(running, sums);
    }
    for (position, mass) in positions.iter_mut().zip(masses) {
        let node = &nodes[*position];
        if !may_repeat || *position != current {
            (current, running) = (*position, simd.running(T::load(simd, node)));
            if let Some(sums) = sums.last_chunk_mut() {
                simd.store_16(running, sums);
            }
        }
        let mut child = simd.at_most(running, *mass);
        *mass -= sums[7 + child];
        if child == WIDTH {
            (child, *mass) = (last_above_zero(node), f64::INFINITY);
        }
        *position = *position * WIDTH + child;
        if let Some(node) = below.get(*position) {
            prefetch(node);
        }
    }
}

/// Returns the last positive child, for a mass that exceeds the node's sum because of rounding.
#[cold]
fn last_above_zero<T: Number>(node: &[T; WIDTH]) -> usize {
    node.iter().rposition(|number| *number > T::default()).unwrap_or(0)
}
