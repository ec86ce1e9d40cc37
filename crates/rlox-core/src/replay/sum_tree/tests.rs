//! Tests of the tree against direct sums over all leaves.

use proptest::prelude::*;

use super::*;
use crate::simd::tests::on_each_isa;
use crate::testing::{Variant, assert_rejects};

/// Sizes with one to four levels, with full and partial nodes.
const CAPACITIES: [usize; 8] = [1, 5, 16, 17, 255, 300, 4096, 5000];

fn tree(priorities: &[f32]) -> SumTree {
    let mut tree = SumTree::new(priorities.len()).unwrap();
    tree.set_range(0, priorities).unwrap();
    tree
}

fn draw(tree: &SumTree, seed: u128, n: usize) -> Vec<usize> {
    let mut drawn = vec![usize::MAX; n];
    tree.sample_stratified(&mut Pcg64::seed_from(seed), &mut drawn).unwrap();
    drawn
}

/// Returns a priority between `2^-spread` and `2^spread`, or 0.
fn any_priority(rng: &mut Pcg64, spread: f64) -> f32 {
    let positive = rng.uniform(-spread, spread).exp2() as f32;
    if rng.random() < 0.2 { 0.0 } else { positive }
}

/// Returns a priority in units of `2^-64`, without rounding.
fn exact(priority: f32) -> u128 {
    (f64::from(priority) * 64.0_f64.exp2()) as u128
}

/// Compares priorities, sum and minimum with direct sums over all leaves.
fn check_all(tree: &SumTree, expected: &[f32]) {
    assert_eq!(tree.priorities(), expected);
    let total = expected.iter().map(|&priority| exact(priority)).sum::<u128>();
    let off = ((tree.total() * 64.0_f64.exp2()) as u128).abs_diff(total);
    let levels = tree.nodes.above.len() + 1;
    // One more unit covers the truncation in the conversion to integers.
    assert!(off as f64 <= total as f64 * levels as f64 * (-51.0_f64).exp2() + 1.0, "{} {total}", tree.total());
    let min = expected.iter().copied().filter(|priority| *priority > 0.0).reduce(f32::min);
    assert_eq!(tree.min(), min);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Makes about 16,000 changes in each of 64 cases: a million.
    #[test]
    fn tree_equals_direct_sums_after_a_million_changes(capacity in prop::sample::select(&CAPACITIES[..]), seed: u64) {
        let mut rng = Pcg64::seed_from(seed.into());
        let (mut tree, mut expected) = (SumTree::new(capacity).unwrap(), vec![0.0; capacity]);
        let mut changes = 0;
        while changes < 16_000 {
            let n = rng.integers(1, 600) as usize;
            let first = rng.integers(0, capacity as i64) as usize;
            let priorities: Vec<f32> = (0..n.min(capacity - first)).map(|_| any_priority(&mut rng, 20.0)).collect();
            let range = first..first + priorities.len();
            match rng.integers(0, 8) {
                0 => {
                    tree.set_range(first, &priorities).unwrap();
                    expected[range].copy_from_slice(&priorities);
                }
                1 => {
                    tree.fill(range.clone(), priorities[0]).unwrap();
                    expected[range].fill(priorities[0]);
                }
                2 => {
                    tree.set(first, priorities[0]).unwrap();
                    expected[first] = priorities[0];
                }
                _ => {
                    let leaves: Vec<_> = (0..n).map(|_| rng.integers(0, capacity as i64) as usize).collect();
                    let priorities: Vec<_> = (0..n).map(|_| any_priority(&mut rng, 20.0)).collect();
                    tree.set_many(&leaves, &priorities).unwrap();
                    for (&leaf, &priority) in leaves.iter().zip(&priorities) {
                        expected[leaf] = priority;
                    }
                }
            }
            changes += n;
            check_all(&tree, &expected);
        }
        // The state of a tree does not depend on earlier changes.
        let fresh = self::tree(&expected);
        prop_assert_eq!((fresh.total(), fresh.min()), (tree.total(), tree.min()));
        if fresh.total() > 0.0 {
            prop_assert_eq!(draw(&fresh, 3, 100), draw(&tree, 3, 100));
        }
    }

    /// Checks with integer priorities, which are added without rounding.
    #[test]
    fn find_equals_a_linear_search(capacity in prop::sample::select(&CAPACITIES[..]), seed: u64) {
        let mut rng = Pcg64::seed_from(seed.into());
        let priorities: Vec<f32> = (0..capacity).map(|_| (rng.integers(-2, 4).max(0)) as f32).collect();
        let tree = tree(&priorities);
        let total = priorities.iter().sum::<f32>();
        prop_assert_eq!(tree.total(), f64::from(total));
        if total > 0.0 {
            for mass in (0..50).map(|_| rng.integers(0, total as i64) as f32) {
                let mut sum = 0.0;
                let slow = priorities.iter().position(|priority| {
                    sum += priority;
                    sum > mass
                });
                prop_assert_eq!(Some(tree.find(mass.into()).unwrap()), slow);
                prop_assert_eq!(Some(tree.find(f64::from(mass) + 0.99).unwrap()), slow);
            }
        }
    }

    #[test]
    fn leaves_without_priority_are_never_drawn(
        capacity in prop::sample::select(&CAPACITIES[..]),
        seed: u64,
        none in 0.0..0.999,
        spread in 1.0..127.0,
    ) {
        let mut rng = Pcg64::seed_from(seed.into());
        let mut priorities = vec![0.0; capacity];
        for priority in &mut priorities {
            if rng.random() > none {
                *priority = any_priority(&mut rng, spread);
            }
        }
        let tree = tree(&priorities);
        let mut masses: Vec<f64> = (0..50).map(|_| rng.random() * tree.total()).collect();
        masses.extend([tree.total(), tree.total().next_down(), f64::INFINITY, -1.0, f64::NAN, 0.0, 1e-300]);
        if tree.total() > 0.0 {
            for leaf in masses.iter().map(|&mass| tree.find(mass).unwrap()).chain(draw(&tree, 1, 300)) {
                prop_assert!(priorities[leaf] > 0.0);
            }
        }
    }

    /// Checks that a leaf is drawn in each stratum that it covers completely.
    ///
    /// The leaf may also be drawn in strata that it shares with other leaves.
    #[test]
    fn strata_bound_the_number_of_draws_of_a_leaf(capacity in prop::sample::select(&CAPACITIES[..]), seed: u64) {
        let mut rng = Pcg64::seed_from(seed.into());
        let priorities: Vec<f32> = (0..capacity).map(|_| any_priority(&mut rng, 3.0) + 0.1).collect();
        let tree = tree(&priorities);
        for n in [1, 255, 256, 257, 1000] {
            let drawn = draw(&tree, seed.into(), n);
            prop_assert!(drawn.is_sorted());
            let mut counts = vec![0.0; capacity];
            for leaf in drawn {
                counts[leaf] += 1.0;
            }
            for (count, &priority) in counts.iter().zip(&priorities) {
                let share = f64::from(priority) / tree.total() * n as f64;
                prop_assert!((count - share).abs() < 2.0, "{} of {}", count, share);
            }
        }
    }
}

/// Tests independent draws over three levels by a chi-squared statistic.
///
/// 999 degrees of freedom have a mean of 999 and a standard deviation of 45.
#[test]
fn frequencies_match_priorities() {
    let mut rng = Pcg64::seed_from(5);
    let priorities: Vec<f32> = (0..1000).map(|_| rng.uniform(0.0, 3.0).exp2() as f32).collect();
    let tree = tree(&priorities);
    let (mut counts, n) = (vec![0.0; 1000], 500_000);
    let mut leaf = [0];
    for _ in 0..n {
        tree.sample_stratified(&mut rng, &mut leaf).unwrap();
        counts[leaf[0]] += 1.0;
    }
    let chi_squared = |priorities: &[f32]| {
        let total = priorities.iter().copied().map(f64::from).sum::<f64>();
        let terms = counts.iter().zip(priorities).map(|(count, &priority)| {
            let expected = f64::from(n) * f64::from(priority) / total;
            (count - expected) * (count - expected) / expected
        });
        terms.sum::<f64>()
    };
    assert!((800.0..1200.0).contains(&chi_squared(&priorities)), "{}", chi_squared(&priorities));
    assert!(chi_squared(&[1.0; 1000]) > 10_000.0);
}

#[test]
fn extreme_priorities_are_drawn_correctly() {
    // Only one leaf can be drawn.
    for (capacity, leaf) in [(1, 0), (16, 15), (5000, 0), (5000, 4999), (4097, 4096), (300, 17)] {
        for priority in [1e-30, 1.0, f32::MAX] {
            let mut tree = SumTree::new(capacity).unwrap();
            tree.set(leaf, priority).unwrap();
            assert_eq!((tree.total(), tree.min()), (priority.into(), Some(priority)));
            assert_eq!(draw(&tree, 2, 500), [leaf; 500]);
        }
    }
    // Small priorities beside a large one.
    for large in [0, 2499, 4999] {
        let mut tree = SumTree::new(5000).unwrap();
        tree.fill(0..5000, 1e-30).unwrap();
        tree.set(large, 1e30).unwrap();
        assert_eq!((tree.min(), tree.total()), (Some(1e-30), f64::from(1e30_f32)));
        assert_eq!(draw(&tree, 2, 1000), [large; 1000]);
        tree.set(large, 0.0).unwrap();
        assert!((tree.total() / (4999.0 * f64::from(1e-30_f32)) - 1.0).abs() < 1e-14);
    }
    // Equal priorities: with as many strata as leaves, each leaf is drawn once.
    for capacity in CAPACITIES {
        for priority in [1e-30, 0.1, f32::MAX] {
            let mut tree = SumTree::new(capacity).unwrap();
            tree.fill(0..capacity, priority).unwrap();
            assert!(draw(&tree, 3, capacity).into_iter().enumerate().all(|(i, leaf)| i.abs_diff(leaf) <= 1));
        }
    }
}

#[test]
fn subnormal_priorities_become_normal_and_negative_zeros_zero() {
    let tree = tree(&[-0.0, f32::from_bits(1), f32::MIN_POSITIVE, 1e-39]);
    assert_eq!(tree.priorities(), [0.0, f32::MIN_POSITIVE, f32::MIN_POSITIVE, f32::MIN_POSITIVE]);
    assert_eq!(tree.get(0).unwrap().to_bits(), 0);
    assert_eq!((tree.min(), tree.total()), (Some(f32::MIN_POSITIVE), 3.0 * f64::from(f32::MIN_POSITIVE)));
    assert_eq!(draw(&tree, 1, 3), [1, 2, 3]);
}

#[test]
fn every_instruction_set_draws_the_same_leaves() {
    for capacity in CAPACITIES {
        let results = on_each_isa(|| {
            let mut rng = Pcg64::seed_from(capacity as u128);
            let mut tree = SumTree::new(capacity).unwrap();
            let mut drawn = Vec::new();
            for i in 0..20 {
                let leaves: Vec<_> = (0..300).map(|_| rng.integers(0, capacity as i64) as usize).collect();
                let priorities: Vec<_> = (0..300).map(|_| any_priority(&mut rng, 60.0) + 1e-20).collect();
                tree.set_many(&leaves, &priorities).unwrap();
                drawn.push((tree.total().to_bits(), tree.min(), draw(&tree, i, 300)));
            }
            drawn
        });
        assert!(results.iter().all(|result| *result == results[0]), "{capacity}");
    }
}

#[test]
fn invalid_arguments_are_rejected_and_change_nothing() {
    let got = |result: Result<()>, variant: Variant, argument| assert_rejects(result, variant, argument).got;
    let mut tree = tree(&[1.0, 2.0, 0.5]);
    assert_eq!(got(tree.set(3, 1.0), Error::Config, "leaf"), "3");
    assert_eq!(got(tree.set_many(&[0, 3], &[9.0; 2]), Error::Config, "leaves"), "3");
    assert_eq!(got(tree.set_many(&[0, 1], &[9.0]), Error::Shape, "priorities"), "1");
    for bad in [-1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e-45] {
        let variant: Variant = if bad.is_finite() { Error::Config } else { Error::NotFinite };
        for (result, argument) in [
            (tree.set(0, bad), "priority"),
            (tree.fill(0..3, bad), "priority"),
            (tree.set_many(&[0, 1], &[9.0, bad]), "priorities"),
            (tree.set_range(0, &[9.0, bad]), "priorities"),
        ] {
            assert_eq!(got(result, variant, argument), bad.to_string());
        }
    }
    assert_eq!(got(tree.fill(2..4, 9.0), Error::Config, "leaves"), "2..4");
    got(tree.set_range(usize::MAX, &[9.0; 2]), Error::Config, "leaves");
    #[expect(clippy::reversed_empty_ranges, reason = "the test checks that it is rejected")]
    let reversed = 2..1;
    assert_eq!(got(tree.fill(reversed, 9.0), Error::Config, "leaves"), "2..1");
    assert_eq!(tree.priorities(), [1.0, 2.0, 0.5]);
    assert_eq!((tree.total(), tree.min()), (3.5, Some(0.5)));
    tree.fill(3..3, 9.0).unwrap();
    tree.set_many(&[], &[]).unwrap();
    tree.set_range(3, &[]).unwrap();
    assert_eq!(tree.total(), 3.5);
}

#[test]
fn invalid_capacities_are_rejected() {
    assert!(matches!(SumTree::new(0), Err(Error::Config(_))));
    for capacity in [1 << 50, usize::MAX / 2, usize::MAX] {
        assert!(matches!(SumTree::new(capacity), Err(Error::Memory(_))), "{capacity}");
    }
}

#[test]
fn drawing_from_zero_priorities_is_an_error_and_uses_no_random_numbers() {
    let mut tree = SumTree::new(100).unwrap();
    let (mut rng, mut drawn) = (Pcg64::seed_from(1), [7; 3]);
    for _ in 0..2 {
        assert_rejects(tree.sample_stratified(&mut rng, &mut drawn), Error::Config, "priorities");
        assert!(tree.find(0.0).is_err());
        tree.set(9, 1.0).unwrap();
        tree.set(9, 0.0).unwrap();
    }
    assert_eq!((rng, drawn), (Pcg64::seed_from(1), [7; 3]));
    tree.set(9, 1.0).unwrap();
    tree.sample_stratified(&mut Pcg64::seed_from(1), &mut []).unwrap();
}

#[test]
fn draws_and_changes_do_not_allocate_after_the_first_batch() {
    let mut tree = SumTree::new(5000).unwrap();
    let mut rng = Pcg64::seed_from(1);
    let (mut leaves, priorities) = (vec![0; 600], vec![2.0; 600]);
    tree.set_many(&leaves, &priorities).unwrap();
    let info = allocation_counter::measure(|| {
        for i in 0..20 {
            tree.fill(i..i + 400, 1.0).unwrap();
            tree.sample_stratified(&mut rng, &mut leaves).unwrap();
            tree.set_many(&leaves, &priorities).unwrap();
        }
    });
    assert_eq!(info.count_total, 0);
}

#[test]
fn debug_output_is_a_summary() {
    assert_eq!(format!("{:?}", tree(&[1.0, 2.0])), "SumTree { capacity: 2, total: 3.0, min: Some(1.0), .. }");
}
