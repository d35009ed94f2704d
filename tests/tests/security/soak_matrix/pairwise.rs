//! A selection of combinations in which every pair of values of two axes occurs: most defects need no more than two things
//! to come together, and all combinations are too many for every day.

use std::collections::BTreeSet;

/// Two axes and a value of each; the lower axis first.
type Pair = (usize, usize, usize, usize);

/// How many rows are tried for each that is taken.
const CANDIDATES: usize = 24;

/// Rows with one value for each axis, fewer than `sizes[axis]`. Another seed is another selection.
pub(super) fn pairwise(sizes: &[usize], seed: u64) -> Vec<Vec<usize>> {
    let mut chance = Chance(seed);
    let mut missing = all_pairs(sizes);
    let mut rows = Vec::new();
    while !missing.is_empty() {
        let candidates = (0..CANDIDATES).map(|_| candidate(sizes, &missing, &mut chance));
        let best = candidates.max_by_key(|row| covered(row, &missing)).unwrap_or_default();
        missing.retain(|pair| !has(&best, pair));
        rows.push(best);
    }
    rows
}

/// Every combination, in an order that the seed decides.
pub(super) fn all(sizes: &[usize], seed: u64) -> Vec<Vec<usize>> {
    let mut rows = vec![Vec::new()];
    for size in sizes {
        let longer = |row: &Vec<usize>| (0..*size).map(|value| [&row[..], &[value]].concat()).collect::<Vec<_>>();
        rows = rows.iter().flat_map(longer).collect();
    }
    Chance(seed).shuffle(&mut rows);
    rows
}

fn all_pairs(sizes: &[usize]) -> BTreeSet<Pair> {
    let mut pairs = BTreeSet::new();
    for (high, high_size) in sizes.iter().enumerate() {
        for (low, low_size) in sizes[..high].iter().enumerate() {
            for value in 0..*low_size {
                pairs.extend((0..*high_size).map(|other| (low, value, high, other)));
            }
        }
    }
    pairs
}

fn has(row: &[usize], (low, value, high, other): &Pair) -> bool {
    row[*low] == *value && row[*high] == *other
}

fn covered(row: &[usize], missing: &BTreeSet<Pair>) -> usize {
    missing.iter().filter(|pair| has(row, pair)).count()
}

/// Holds one missing pair by chance; each further axis gets the value that brings the most others.
fn candidate(sizes: &[usize], missing: &BTreeSet<Pair>, chance: &mut Chance) -> Vec<usize> {
    let mut row: Vec<Option<usize>> = vec![None; sizes.len()];
    if let Some((low, value, high, other)) = missing.iter().nth(chance.below(missing.len())) {
        row[*low] = Some(*value);
        row[*high] = Some(*other);
    }
    let mut open: Vec<usize> = (0..sizes.len()).filter(|axis| row[*axis].is_none()).collect();
    chance.shuffle(&mut open);
    for axis in open {
        let first = chance.below(sizes[axis]); // among equals, chance decides
        let values = (0..sizes[axis]).map(|step| (first + step) % sizes[axis]);
        row[axis] = values.max_by_key(|value| gain(&row, axis, *value, missing));
    }
    row.into_iter().map(Option::unwrap_or_default).collect()
}

fn gain(row: &[Option<usize>], axis: usize, value: usize, missing: &BTreeSet<Pair>) -> usize {
    let others = row.iter().enumerate().filter_map(|(other, set)| set.map(|set| (other, set)));
    let pair = |(other, set): (usize, usize)| match other < axis {
        true => (other, set, axis, value),
        false => (axis, value, other, set),
    };
    others.filter(|other| missing.contains(&pair(*other))).count()
}

/// Numbers that look like chance, and are the same for the same seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_pairwise_selection_covers_every_pair(sizes in prop::collection::vec(1usize..6, 2..9), seed in any::<u64>()) {
        let rows = pairwise(&sizes, seed);
        for row in &rows {
            prop_assert!(row.len() == sizes.len() && row.iter().zip(&sizes).all(|(value, size)| value < size));
        }
        for pair in all_pairs(&sizes) {
            prop_assert!(rows.iter().any(|row| has(row, &pair)), "{:?} is in none of {:?}", pair, rows);
        }
        prop_assert_eq!(&rows, &pairwise(&sizes, seed), "the same seed, another selection");
    }

    #[test]
    fn all_combinations_are_there_once(sizes in prop::collection::vec(1usize..4, 1..6), seed in any::<u64>()) {
        let rows = all(&sizes, seed);
        let different: BTreeSet<_> = rows.iter().collect();
        prop_assert_eq!(rows.len(), sizes.iter().product::<usize>());
        prop_assert_eq!(different.len(), rows.len());
    }
}

/// A selection of all combinations would cover every pair too: it has to be small.
#[test]
fn a_pairwise_selection_is_hardly_longer_than_its_two_longest_axes_need() {
    let sizes = super::combination::SIZES;
    for seed in 0..20 {
        let rows = pairwise(&sizes, seed).len();
        assert!((15..=20).contains(&rows), "{rows} rows of {}", sizes.iter().product::<usize>());
    }
}
