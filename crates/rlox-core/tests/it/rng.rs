//! Tests that all draws equal those of NumPy, which `fixtures/make_rng.py` has recorded.

use rand_core::Rng;
use rlox_core::__private::testing::assert_rejects;
use rlox_core::{Error, Pcg64, SeedSequence, interrupt::InterruptCheck};

struct Record {
    sequence: SeedSequence,
    numbers: Vec<String>,
}

impl Record {
    fn get<T: std::str::FromStr<Err: std::fmt::Debug>>(&self) -> Vec<T> {
        self.numbers.iter().map(|number| number.parse().expect("the fixture holds numbers of this kind")).collect()
    }

    fn rng(&self) -> Pcg64 {
        Pcg64::from_seed_sequence(&self.sequence)
    }
}

fn words(list: &str) -> Vec<u32> {
    list.split(',').filter(|word| *word != "-").map(|word| word.parse().expect("a word")).collect()
}

/// Returns the records of the fixture whose kind of draw is `kind`.
fn records(kind: &str) -> Vec<Record> {
    let records: Vec<_> = include_str!("../fixtures/rng.txt")
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let mut field = || fields.next().expect("a line has three fields and its numbers");
            let (entropy, key, what) = (words(field()), words(field()), field());
            let sequence = SeedSequence::from_parts(&entropy, &key, 0);
            (what == kind).then(|| Record { sequence, numbers: fields.map(str::to_owned).collect() })
        })
        .collect();
    assert!(records.len() >= 6, "the fixture has records of {kind}");
    records
}

#[test]
fn seed_sequence_generates_the_words_of_numpy() {
    for record in records("state_u32") {
        let mut words = [0; 9];
        record.sequence.generate_state_u32(&mut words);
        assert_eq!(words.as_slice(), record.get::<u32>());
    }
    for record in records("state_u64") {
        let mut words = [0; 5];
        record.sequence.generate_state_u64(&mut words);
        assert_eq!(words.as_slice(), record.get::<u64>());
    }
}

#[test]
fn raw_streams_of_roots_and_children_equal_numpy() {
    for record in records("raw") {
        let mut rng = record.rng();
        for expected in record.get::<u64>() {
            assert_eq!(rng.next_u64(), expected);
        }
    }
}

#[test]
fn spawning_continues_the_count_and_nests() {
    let mut root = SeedSequence::new(1 << 100);
    let keys = |children: &[SeedSequence]| children.iter().map(|c| c.spawn_key().to_vec()).collect::<Vec<_>>();
    let mut first = root.spawn(2);
    assert_eq!(keys(&first), [[0], [1]]);
    assert_eq!(keys(&root.spawn(1)), [[2]]);
    assert_eq!(root.n_children_spawned(), 3);
    assert_eq!(keys(&first[1].spawn(2)), [[1, 0], [1, 1]]);
    assert_eq!(first[1].spawn(1)[0], SeedSequence::from_parts(&[0, 0, 0, 16], &[1, 2], 0));
}

#[test]
fn integer_seeds_equal_their_words() {
    assert_eq!(SeedSequence::new(0), SeedSequence::from_entropy(&[0]));
    assert_eq!(SeedSequence::new(1 << 32), SeedSequence::from_entropy(&[0, 1]));
    assert_eq!(SeedSequence::new(u128::MAX), SeedSequence::from_entropy(&[u32::MAX; 4]));
    assert_eq!(Pcg64::seed_from(42), Pcg64::from_seed_sequence(&SeedSequence::new(42)));
}

#[test]
fn random_equals_numpy() {
    for record in records("random") {
        let mut rng = record.rng();
        for expected in record.get::<u64>() {
            assert_eq!(rng.random().to_bits(), expected);
        }
    }
}

#[test]
fn uniform_equals_numpy() {
    for record in records("uniform") {
        let mut rng = record.rng();
        let numbers = record.get::<u64>();
        let [low, high] = [0, 1].map(|i| f64::from_bits(numbers[i]));
        for &expected in &numbers[2..] {
            assert_eq!(rng.uniform(low, high).to_bits(), expected, "uniform({low}, {high})");
        }
    }
}

#[test]
fn integers_equal_numpy_for_all_kinds_of_ranges() {
    for record in records("integers") {
        let mut rng = record.rng();
        let mut half_open = record.rng();
        let numbers = record.get::<i64>();
        let (low, high) = (numbers[0], numbers[1]);
        for &expected in &numbers[2..] {
            assert_eq!(rng.integers_inclusive(low, high), expected, "[{low}, {high}]");
            if high < i64::MAX {
                assert_eq!(half_open.integers(low, high + 1), expected, "[{low}, {high} + 1)");
            }
        }
    }
}

#[test]
fn mixed_draws_end_in_the_state_of_numpy() {
    for record in records("mixed") {
        let mut rng = record.rng();
        // The recorded draws follow six draws of 64 bits.
        for _ in 0..6 {
            rng.next_u64();
        }
        let numbers = record.get::<i128>();
        let (draws, state) = numbers.split_at(numbers.len() - 6);
        for draw in draws.chunks_exact(3) {
            assert_eq!(i128::from(rng.integers(0, 6)), draw[0]);
            assert_eq!(i128::from(rng.random().to_bits()), draw[1]);
            assert_eq!(i128::from(rng.integers(0, 1 << 40)), draw[2]);
        }
        let expected: Vec<u128> = state.iter().map(|&n| n as u128).collect();
        let got = rng.state();
        assert_eq!([got.state >> 64, got.state & u128::from(u64::MAX)], expected[..2]);
        assert_eq!([got.inc >> 64, got.inc & u128::from(u64::MAX)], expected[2..4]);
        assert_eq!([u128::from(got.has_uint32), u128::from(got.uinteger)], expected[4..]);
        let mut copy = Pcg64::from_state(got).unwrap();
        assert_eq!((copy.next_u32(), copy.next_u64()), (rng.next_u32(), rng.next_u64()));
    }
}

#[test]
fn raw_stream_equals_rand_pcg() {
    let mut seed = [0; 4];
    SeedSequence::new(7).generate_state_u64(&mut seed);
    let [state, stream] = [0, 2].map(|i| u128::from(seed[i]) << 64 | u128::from(seed[i + 1]));
    let mut reference = rand_pcg::Pcg64::new(state, stream);
    let mut rng = Pcg64::seed_from(7);
    for _ in 0..1000 {
        assert_eq!(rng.next_u64(), reference.next_u64());
    }
}

#[test]
fn rand_core_traits_draw_from_the_same_stream() {
    fn draw(rng: &mut impl Rng) -> (u32, u32, u64, [u8; 12]) {
        let mut bytes = [0; 12];
        let numbers = (rng.next_u32(), rng.next_u32(), rng.next_u64());
        rng.fill_bytes(&mut bytes);
        (numbers.0, numbers.1, numbers.2, bytes)
    }
    let mut rng = Pcg64::seed_from(5);
    let (low, high, next, bytes) = draw(&mut Pcg64::seed_from(5));
    assert_eq!(u64::from(low) | u64::from(high) << 32, rng.next_u64());
    assert_eq!(next, rng.next_u64());
    assert_eq!(bytes[..8], rng.next_u64().to_le_bytes());
    assert_eq!(bytes[8..], rng.next_u64().to_le_bytes()[..4]);
}

#[test]
fn os_entropy_differs_between_calls_and_threads() {
    let mut sequences: Vec<_> = (0..8).map(|_| SeedSequence::from_os()).collect();
    sequences.extend((0..8).map(|_| std::thread::spawn(SeedSequence::from_os).join().expect("the thread ends")));
    for (i, sequence) in sequences.iter().enumerate() {
        assert!(!sequences[..i].contains(sequence));
    }
}

#[test]
#[should_panic(expected = "integers: expected low < high, got low = 3 and high = 3")]
fn an_empty_range_of_integers_panics() {
    Pcg64::seed_from(0).integers(3, 3);
}

#[test]
fn states_with_an_even_increment_are_rejected() {
    let state = Pcg64::seed_from(0).state();
    for inc in [0, 2, state.inc - 1] {
        let result = Pcg64::from_state(rlox_core::rng::Pcg64State { inc, ..state });
        assert_eq!(assert_rejects(result, Error::Config, "streams").got, inc.to_string());
    }
}

#[test]
fn seeds_of_any_length_equal_those_of_the_sequence() {
    for len in [1, 3, 4, 5, 1 << 14, (1 << 14) + 1, 50_000] {
        let words: Vec<u32> = (1..=len).map(|i: u32| i.wrapping_mul(0x9e37_79b9)).collect();
        let expected = Pcg64::from_seed_sequence(&SeedSequence::from_entropy(&words));
        assert_eq!(Pcg64::from_entropy(&words, &mut InterruptCheck::default()).unwrap(), expected, "{len} words");
    }
}
