//! Curves of simulated buffers, and the expected levels of the detector.

use super::*;
use crate::chain::Random;
use crate::curve::Point;
use crate::report::SURE_MIN;
use proptest::prelude::*;

/// Replacement policy of a full set.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Replacement {
    LeastRecent,
    /// A tree of bits, each pointing away from the half used last.
    Tree,
    /// A bit an entry, set on use; all are cleared when the last one is set.
    NotRecent,
    Random,
}

#[derive(Clone, Copy, Debug)]
struct Level {
    sets: usize,
    ways: usize,
    penalty: f64,
    replacement: Replacement,
    /// Entries that others put into the level for each access.
    foreign: f64,
    /// True if a walk leaves an entry of its own in the level: one for 512 pages.
    walks: bool,
}

fn lru(sets: usize, ways: usize, penalty: f64) -> Level {
    Level {
        sets,
        ways,
        penalty,
        replacement: Replacement::LeastRecent,
        foreign: 0.0,
        walks: false,
    }
}

/// One set of a level.
#[derive(Clone)]
struct Set {
    held: Vec<u32>,
    /// By replacement: places in order of use, the tree's bits, or the bits of use.
    order: Vec<usize>,
    bits: Vec<bool>,
}

impl Set {
    fn new(ways: usize) -> Self {
        Self {
            held: Vec::new(),
            order: Vec::new(),
            bits: vec![false; 2 * ways],
        }
    }

    /// Looks `entry` up and inserts it if it is missing; true if it was there.
    fn access(&mut self, entry: u32, level: &Level, random: &mut Random) -> bool {
        let found = self.held.iter().position(|&held| held == entry);
        let place = found.unwrap_or_else(|| {
            if self.held.len() < level.ways {
                self.held.push(entry);
                return self.held.len() - 1;
            }
            let place = self.victim(level, random);
            self.held[place] = entry;
            place
        });
        self.touch(place, level);
        found.is_some()
    }

    fn victim(&self, level: &Level, random: &mut Random) -> usize {
        match level.replacement {
            Replacement::LeastRecent => self.order[0],
            Replacement::Random => random.below(level.ways),
            Replacement::NotRecent => {
                let unused = self.bits[..level.ways].iter().position(|used| !used);
                unused.unwrap_or(0)
            }
            Replacement::Tree => {
                let mut node = 1;
                while node < level.ways {
                    node = 2 * node + usize::from(self.bits[node]);
                }
                node - level.ways
            }
        }
    }

    fn touch(&mut self, place: usize, level: &Level) {
        match level.replacement {
            Replacement::LeastRecent => {
                self.order.retain(|&other| other != place);
                self.order.push(place);
            }
            Replacement::Random => {}
            Replacement::NotRecent => {
                self.bits[place] = true;
                if self.bits[..level.ways].iter().all(|&used| used) {
                    self.bits.fill(false);
                    self.bits[place] = true;
                }
            }
            Replacement::Tree => {
                let mut node = place + level.ways;
                while node > 1 {
                    self.bits[node / 2] = node.is_multiple_of(2);
                    node /= 2;
                }
            }
        }
    }
}

/// Cycles per access of a random cycle over `pages` neighbouring pages, after some laps.
fn cost(levels: &[Level], pages: usize, random: &mut Random) -> f64 {
    let order = crate::chain::shuffled(pages, random);
    let mut sets: Vec<Vec<Set>> = levels
        .iter()
        .map(|level| vec![Set::new(level.ways); level.sets])
        .collect();
    let (mut cycles, mut counted) = (0.0, 0);
    // A random replacement takes longer to settle.
    for lap in 0..6 {
        for &page in &order {
            counted += usize::from(lap >= 3);
            for (level, sets) in levels.iter().zip(&mut sets) {
                if random.below(1 << 20) < (level.foreign * f64::from(1 << 20)) as usize {
                    let foreign = FOREIGN | random.below(1 << 20) as u32;
                    sets[foreign as usize % level.sets].access(foreign, level, random);
                }
                if sets[page as usize % level.sets].access(page, level, random) {
                    break;
                }
                if level.walks {
                    let walk = WALKS | (page / 512);
                    sets[walk as usize % level.sets].access(walk, level, random);
                }
                if lap >= 3 {
                    cycles += level.penalty;
                }
            }
        }
    }
    4.0 + cycles / counted as f64
}

/// Numbers of entries that are no pages of the chase.
const FOREIGN: u32 = 1 << 30;
const WALKS: u32 = 1 << 29;

/// A measured curve would have points as dense as this around each knee.
fn pages_of(levels: &[Level], last: usize) -> Vec<usize> {
    let mut pages: Vec<usize> = (0..)
        .map(|step| (8.0 * 2f64.powf(f64::from(step) / 8.0)).round() as usize)
        .take_while(|&pages| pages <= last)
        .collect();
    for level in levels {
        let entries = (level.sets * level.ways) as f64;
        pages.extend((0..30).map(|step| (entries * (0.7 + 0.035 * f64::from(step))) as usize));
        // A rise at random goes on for longer.
        pages.extend((0..10).map(|step| (entries * (1.8 + 0.15 * f64::from(step))) as usize));
    }
    pages.sort_unstable();
    pages.dedup();
    pages.retain(|&pages| pages <= last);
    pages
}

/// The curve with noise as interruptions make it: always upwards, mostly little, now and then a
/// lot.
fn curve(levels: &[Level], last: usize, noise: f64, seed: u64) -> Curve {
    let mut random = Random::new(seed);
    let points = pages_of(levels, last).into_iter().map(|pages| {
        let cycles = cost(levels, pages, &mut random);
        let unit = random.below(1000) as f64 / 1000.0;
        let spike = if random.below(25) == 0 { 5.0 } else { 1.0 };
        let cycles = cycles * (1.0 + noise * unit * spike);
        Point {
            pages,
            cycles,
            cycles_fifth: cycles * (1.0 + noise * random.below(1000) as f64 / 1000.0),
            windows: 30,
        }
    });
    Curve::new(points.collect::<Vec<_>>())
}

fn check(levels: &[Level], found: &Findings, tolerances: &[f64], what: &str) {
    assert_eq!(found.knees.len(), levels.len(), "{what}: {found:?}");
    for ((level, knee), tolerance) in levels.iter().zip(&found.knees).zip(tolerances) {
        let entries = (level.sets * level.ways) as f64;
        let off = knee.entries / entries - 1.0;
        assert!(
            off.abs() <= *tolerance,
            "{what}: {entries} entries, {knee:?}"
        );
        let off = knee.penalty_cycles / level.penalty - 1.0;
        assert!(
            off.abs() <= 0.1,
            "{what}: penalty {}, {knee:?}",
            level.penalty
        );
    }
}

#[test]
fn two_levels_are_found_with_their_sizes_and_penalties() {
    for (first, second) in [
        (lru(1, 64, 7.0), lru(256, 8, 35.0)),
        (lru(1, 72, 7.0), lru(256, 12, 19.0)),
        (lru(16, 4, 7.0), lru(128, 12, 20.0)),
        (lru(16, 6, 7.0), lru(128, 16, 25.0)),
    ] {
        for seed in 1..=4 {
            let levels = [first, second];
            let found = find(&curve(&levels, 8192, 0.02, seed));
            let what = format!("seed {seed}, {} and {}", first.ways, second.ways);
            check(&levels, &found, &[0.05, 0.1], &what);
            for knee in &found.knees {
                assert!(knee.confidence > 0.5, "{what}: {knee:?}");
            }
        }
    }
}

#[test]
fn one_level_and_three_levels_are_found() {
    for seed in 1..=4 {
        let one = [lru(64, 16, 150.0)];
        check(
            &one,
            &find(&curve(&one, 8192, 0.03, seed)),
            &[0.1],
            "one level",
        );
        let three = [lru(1, 16, 3.0), lru(1, 96, 8.0), lru(128, 8, 30.0)];
        let found = find(&curve(&three, 8192, 0.01, seed));
        check(&three, &found, &[0.1, 0.05, 0.1], "three levels");
    }
}

#[test]
fn pseudo_lru_and_random_replacement_do_not_move_a_level() {
    use Replacement::{NotRecent, Random, Tree};
    for (sets, ways) in [(256, 8), (256, 16)] {
        for replacement in [Tree, NotRecent, Random] {
            let second = Level {
                replacement,
                ..lru(sets, ways, 45.0)
            };
            let levels = [lru(1, 96, 7.0), second];
            let found = find(&curve(&levels, 16384, 0.02, 1));
            check(&levels, &found, &[0.05, 0.1], &format!("{second:?}"));
        }
    }
}

#[test]
fn a_level_that_others_use_too_keeps_its_size() {
    use Replacement::{Random, Tree};
    for replacement in [Tree, Random] {
        for (foreign, walks) in [(0.0, true), (0.005, true), (0.02, false), (0.04, true)] {
            let second = Level {
                replacement,
                foreign,
                walks,
                ..lru(256, 16, 45.0)
            };
            let levels = [lru(1, 96, 7.0), second];
            let found = find(&curve(&levels, 16384, 0.02, 5));
            check(&levels, &found, &[0.05, 0.1], &format!("{second:?}"));
        }
    }
}

#[test]
fn a_full_level_that_others_use_too_ends_where_its_step_is_half_up() {
    for foreign in [0.0, 0.002, 0.005] {
        let first = Level {
            foreign,
            ..lru(1, 96, 6.0)
        };
        let found = find(&curve(&[first], 1024, 0.01, 3));
        assert_eq!(found.knees.len(), 1, "{foreign}: {found:?}");
        let entries = found.knees[0].entries_if_full();
        assert!((entries / 96.0 - 1.0).abs() < 0.05, "{foreign}: {entries}");
    }
}

#[test]
fn a_disturbed_curve_loses_its_levels_before_they_move() {
    let random = Level {
        replacement: Replacement::Random,
        foreign: 0.01,
        ..lru(128, 8, 40.0)
    };
    for second in [lru(256, 8, 35.0), random] {
        let levels = [lru(1, 64, 7.0), second];
        let true_sizes = levels.map(|level| (level.sets * level.ways) as f64);
        for noise in [0.1, 0.3, 0.6] {
            for seed in 1..=3 {
                let found = find(&curve(&levels, 4096, noise, seed));
                let sure = found
                    .knees
                    .iter()
                    .filter(|knee| knee.confidence >= SURE_MIN);
                for knee in sure {
                    let is_near = |size: &f64| (knee.entries / size - 1.0).abs() < 0.15;
                    assert!(
                        true_sizes.iter().any(is_near),
                        "noise {noise}, {seed}: {knee:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_curve_as_this_machine_drew_it_once() {
    // Zen 4, aliased frames, 128 lines: 72 entries, then 3,072 that replace neither way.
    let drawn = [
        (32, 15.66),
        (35, 15.66),
        (38, 15.66),
        (41, 15.66),
        (45, 15.66),
        (49, 15.66),
        (54, 15.66),
        (59, 18.53),
        (64, 15.66),
        (70, 15.66),
        (76, 17.91),
        (83, 19.10),
        (91, 19.10),
        (99, 19.10),
        (108, 19.10),
        (128, 19.10),
        (152, 19.10),
        (181, 19.10),
        (256, 19.0),
        (362, 19.18),
        (512, 19.24),
        (724, 19.22),
        (1024, 19.10),
        (1218, 19.1),
        (1448, 19.14),
        (1722, 19.1),
        (2048, 19.14),
        (2233, 19.2),
        (2435, 19.25),
        (2656, 19.3),
        (2896, 19.27),
        (3158, 21.5),
        (3444, 24.75),
        (3756, 27.16),
        (4096, 29.25),
        (4467, 32.7),
        (4871, 37.14),
        (5312, 37.3),
        (5793, 37.34),
        (6889, 37.62),
        (8192, 39.08),
        (9742, 40.54),
    ];
    let found = find(&Curve::new(drawn.map(|(pages, cycles)| Point {
        pages,
        cycles,
        cycles_fifth: cycles,
        windows: 30,
    })));
    assert_eq!(found.knees.len(), 2, "{found:?}");
    assert!(
        (found.knees[0].entries / 72.0 - 1.0).abs() < 0.05,
        "{found:?}"
    );
    assert!(
        (found.knees[1].entries / 3072.0 - 1.0).abs() < 0.1,
        "{found:?}"
    );
    assert!(
        (found.knees[1].penalty_cycles / 18.3 - 1.0).abs() < 0.1,
        "{found:?}"
    );
}

#[test]
fn a_larger_level_is_never_much_cheaper_to_miss() {
    let knee = |entries, penalty_cycles, confidence| Knee {
        entries,
        entries_half: entries,
        entries_end: entries,
        base_cycles: 5.0,
        penalty_cycles,
        confidence,
    };
    let levels = [
        knee(72.0, 6.8, 0.9),
        knee(3072.0, 18.6, 0.7),
        knee(9081.0, 6.9, 0.5),
    ];
    let weighed = |gains: [f64; 3]| in_hierarchy(gains.into_iter().zip(levels).collect());
    assert_eq!(weighed([100.0; 3]), levels[..2]);
    // Much that is explained outweighs some confidence, and little does not.
    assert_eq!(weighed([100.0, 30.0, 90.0]), [levels[0], levels[2]]);
    assert_eq!(weighed([100.0, 80.0, 90.0]), levels[..2]);
    let levels = [
        knee(40.0, 9.0, 0.3),
        knee(72.0, 5.0, 0.9),
        knee(3072.0, 20.0, 0.7),
    ];
    let equal = levels.iter().map(|&knee| (100.0, knee));
    assert_eq!(in_hierarchy(equal.collect()), levels[1..]);
}

#[test]
fn level_ground_slopes_and_noise_are_no_levels() {
    let flat = |seed| curve(&[], 8192, 0.05, seed);
    for seed in 1..=20 {
        let found = find(&flat(seed));
        assert_eq!(found, Findings::default(), "seed {seed}");
    }
    // A cache that holds ever less of the page tables.
    let slope = Curve::new((0..90).map(|step| {
        let pages = 8.0 * 2f64.powf(f64::from(step) / 8.0);
        Point {
            pages: pages as usize,
            cycles: 4.0 + f64::from(step) * 0.3,
            cycles_fifth: 4.0 + f64::from(step) * 0.3,
            windows: 30,
        }
    }));
    let found = find(&slope);
    assert!(found.knees.is_empty(), "{found:?}");
}

#[test]
fn a_level_beyond_the_end_is_said_to_be_missing() {
    let levels = [lru(1, 64, 7.0), lru(256, 8, 35.0)];
    let whole = curve(&levels, 8192, 0.01, 3);
    let cut = whole
        .points()
        .iter()
        .filter(|point| point.pages <= 2200)
        .copied();
    let found = find(&Curve::new(cut));
    assert_eq!(found.knees.len(), 1, "{found:?}");
    assert!(found.rises_at_end);
    assert!(!find(&whole).rises_at_end);
}

#[test]
fn the_half_height_is_where_the_formula_says() {
    for ways in [4.0, 8.0, 12.0] {
        let width = (ways + 1.0) / ways;
        let lru = Shape::Lru { width };
        let half = lru.half(2048.0);
        assert!((half - 2048.0 * (ways + 1.0) / (ways + 0.5)).abs() < 1e-6);
        assert!((lru.entries(2048.0) - 2048.0).abs() < 1e-6);
        let straight = Shape::Straight { width };
        for shape in [lru, straight] {
            assert!((shape.share(shape.half(2048.0), 2048.0) - 0.5).abs() < 1e-9);
        }
    }
    for foreign in [0.0, 0.02, 0.1] {
        let shape = Shape::Random { foreign };
        assert!((shape.share(shape.half(2048.0), 2048.0) - 0.5).abs() < 1e-3);
        assert_eq!(shape.entries(2048.0), 2048.0);
        // The share solves the equation, at all sizes, and grows with them.
        let mut before = 0.0;
        for step in 1..80 {
            let x = f64::from(step) / 10.0;
            let share = random_share(x, foreign);
            assert!(
                (1.0 - (-(share + foreign) * x).exp() - share).abs() < 1e-3,
                "{x} {share}"
            );
            assert!(share >= before, "{x} {foreign}");
            before = share;
        }
    }
}

#[test]
fn disturbed_points_at_the_end_are_not_surer_than_the_level_before_them() {
    // The last three points are disturbed by 2, 6 and 9 %.
    let levels = [lru(32, 15, 21.552_123_590_914_59)];
    let found = find(&curve(&levels, 8192, 0.02, 467_413));
    check(&levels, &found, &[0.08], "three disturbed points");
}

#[test]
fn few_points_and_none_are_no_reason_to_panic() {
    for count in 0..12 {
        let points = (0..count).map(|index| Point {
            pages: 8 << index,
            cycles: f64::from(index),
            cycles_fifth: f64::from(index),
            windows: 1,
        });
        let _ = find(&Curve::new(points));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_single_level_is_found(
        sets_log in 4u32..8,
        ways in 4usize..17,
        penalty in 10.0f64..60.0,
        seed in 1u64..1_000_000,
    ) {
        let levels = [lru(1 << sets_log, ways, penalty)];
        let found = find(&curve(&levels, 8192, 0.02, seed));
        check(&levels, &found, &[0.08], &format!("seed {seed}"));
    }

    #[test]
    fn any_curve_at_all_is_taken(
        values in prop::collection::vec((1usize..10_000, 0.0f64..1e4), 0..60),
    ) {
        is_taken(&values);
    }
}

/// Knees of a curve of pages and cycles are in range.
fn is_taken(values: &[(usize, f64)]) {
    let curve = Curve::new(values.iter().map(|&(pages, cycles)| Point {
        pages,
        cycles,
        cycles_fifth: cycles,
        windows: 1,
    }));
    for knee in find(&curve).knees {
        assert!((0.0..=1.0).contains(&knee.confidence));
        assert!(knee.entries > 0.0 && knee.penalty_cycles > 0.0);
    }
}

#[test]
fn curves_that_failed_once_are_taken() {
    is_taken(&[
        (3936, 0.0),
        (1597, 3759.709),
        (1593, 1353.397),
        (3889, 5709.840),
        (5882, 4599.336),
        (9944, 2615.312),
        (5242, 7894.945),
        (8384, 1235.974),
        (9883, 9097.580),
        (3110, 9485.836),
        (2670, 2445.891),
        (6013, 7234.594),
        (5226, 2926.430),
        (1596, 1950.422),
        (1879, 6500.411),
        (2798, 8922.010),
        (4462, 1034.863),
        (7698, 165.528),
        (8622, 8373.266),
        (8804, 2145.269),
        (3935, 4477.464),
    ]);
}
