//! From a curve to the levels of translation buffers behind it.
//!
//! Why here: a tool that prints a curve leaves the reader to find the knee. This module finds it,
//! states its confidence, and reports when there is none.
//!
//! Three shapes are fitted, with place and width free, and the best one counts:
//!
//! - A buffer of C entries in sets of W ways, replacing the least recently used, that serves a
//!   cycle of N pages misses a share of (W+1)(N-C)/N of the accesses from N = C on, and all of them
//!   from C(W+1)/W on; half of them at C(W+1)/(W+1/2).
//! - Buffers between that and the next rise over a wider stretch, and straighter. The fit gives H,
//!   where half of the accesses miss, and the width of the step, from which follows the W of a set
//!   that would rise as widely; the capacity is then H(W+1/2)/(W+1).
//! - A buffer that replaces any entry misses a share m = 1 - exp(-(m+d)N/C), where d is the number
//!   of entries that others put into the level for each access. An entry survives a lap of N
//!   accesses, (m+d)N of which replace something, with probability exp(-(m+d)N/C). Half of the
//!   accesses miss only at 1.39 C, nearly all at 4 C; with d = 0.02 a tenth of them miss at 0.86 C
//!   already. So neither H nor the place where the step begins is the capacity: C is fitted.
//!
//! Must stay true: a rise that is no step is no level: it must be explained better by a step than
//! by a slope, with level ground on both sides. Pure. Source: own; notes on the method in
//! docs/tlb.md.

use crate::curve::Curve;
use std::f64::consts::LN_2;

/// A step in a curve: one level that is outgrown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Knee {
    /// Pages that the level holds.
    pub entries: f64,
    /// Pages at which half of the accesses miss.
    pub entries_half: f64,
    /// Pages from which on every access misses.
    pub entries_end: f64,
    /// Cycles per access before the step.
    pub base_cycles: f64,
    /// Cycles that a miss costs more.
    pub penalty_cycles: f64,
    /// Confidence from 0 to 1: the smaller the noise in the step, and the less the capacity depends
    /// on the chosen points and on the statistic of the windows, the higher.
    pub confidence: f64,
}

impl Knee {
    /// Pages that the level holds if any entry serves any page. Its own step is then one page wide;
    /// a wider one says that others come and go, not that there are sets.
    #[must_use]
    pub(crate) fn entries_if_full(&self) -> f64 {
        match self.entries_half < self.entries * SHARP {
            true => self.entries_half - 0.5,
            // A rise so wide has another cause.
            false => self.entries,
        }
    }
}

/// Levels found in a curve.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Findings {
    /// The steps, ascending.
    pub knees: Vec<Knee>,
    /// True if the curve still rises at its end: a level may lie beyond.
    pub rises_at_end: bool,
}

/// Finds the steps of a curve.
#[must_use]
pub fn find(curve: &Curve) -> Findings {
    let fastest = curve.fastest();
    let mut fits: Vec<Fit> = Vec::new();
    // The least of all windows: disturbances only ever add cycles.
    let mut candidates: Vec<Fit> = candidates(&fastest);
    // The best explanations first: each rules out its neighbours, which fit the same rise.
    candidates.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    for candidate in candidates {
        if fits.len() < LEVELS_MAX && fits.iter().all(|fit| fit.is_apart_from(&candidate)) {
            fits.push(candidate);
        }
    }
    fits.sort_by(|a, b| a.start.total_cmp(&b.start));
    let knees = fits.iter().map(|fit| (fit.gain, fit.knee(curve, &fastest)));
    let knees = in_hierarchy(knees.collect());
    Findings {
        rises_at_end: rises_at_end(&fastest, knees.last()),
        knees,
    }
}

/// Drops steps that cannot be levels of one hierarchy: a larger level is never much cheaper to miss
/// than a smaller one. Of two such steps the one stays that explains more of the curve, weighted by
/// its confidence. Confidence alone would take the last few points, disturbed one after the other,
/// for a small step without noise.
fn in_hierarchy(mut knees: Vec<(f64, Knee)>) -> Vec<Knee> {
    // A miss of a later level costs more; of a pair in the wrong order one is no level.
    while let Some(index) = knees
        .windows(2)
        .position(|pair| pair[1].1.penalty_cycles < pair[0].1.penalty_cycles * CHEAPER_SHARE)
    {
        let evidence = |index: usize| {
            let (gain, knee) = knees[index];
            gain * knee.confidence
        };
        let first_stays = evidence(index) >= evidence(index + 1);
        knees.remove(index + usize::from(first_stays));
    }
    knees.into_iter().map(|(_, knee)| knee).collect()
}

/// One fitted step.
#[derive(Debug, Clone, Copy)]
struct Fit {
    shape: Shape,
    start: f64,
    base: f64,
    height: f64,
    /// Mean distance of the points from the fit, in cycles.
    miss: f64,
    /// Sum of the points' distances from a slope, less the sum of their distances from the fit.
    gain: f64,
}

/// Shape of a step. `width` is its end, as a multiple of its start.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    /// Misses of a set-associative buffer with least-recently-used replacement.
    Lru { width: f64 },
    /// Misses in proportion to the pages.
    Straight { width: f64 },
    /// Misses of a buffer that replaces any entry, while others put `foreign` entries into it for
    /// each access.
    Random { foreign: f64 },
}

impl Shape {
    /// The share of accesses that miss.
    fn share(self, pages: f64, start: f64) -> f64 {
        match self {
            Self::Random { foreign } => random_share(pages / start, foreign),
            Self::Lru { .. } | Self::Straight { .. } if pages <= start => 0.0,
            Self::Lru { width } | Self::Straight { width } if pages >= start * width => 1.0,
            Self::Lru { width } => (1.0 - start / pages) * width / (width - 1.0),
            Self::Straight { width } => (pages / start - 1.0) / (width - 1.0),
        }
    }

    /// Number of pages at which half of the accesses miss.
    fn half(self, start: f64) -> f64 {
        match self {
            // With W = 1/(width-1) this is C(W+1)/(W+1/2).
            Self::Lru { width } => start * 2.0 * width / (width + 1.0),
            Self::Straight { width } => start * f64::midpoint(1.0, width),
            Self::Random { foreign } => start * LN_2 / (0.5 + foreign),
        }
    }

    /// Pages that the level holds.
    fn entries(self, start: f64) -> f64 {
        match self {
            // (W+1/2)/(W+1) with W = 1/(width-1).
            Self::Lru { width } | Self::Straight { width } => {
                self.half(start) * (width + 1.0) / (2.0 * width)
            }
            Self::Random { .. } => start,
        }
    }

    /// End of the step, as a multiple of its start.
    fn width(self) -> f64 {
        match self {
            Self::Lru { width } | Self::Straight { width } => width,
            Self::Random { .. } => RANDOM_WIDTH,
        }
    }

    /// Reach of the points that a fit looks at: factors below and above the start. Enough of the
    /// ground on both sides, too little for another step.
    fn reach(self) -> (f64, f64) {
        match self {
            Self::Lru { width } | Self::Straight { width } => (WINDOW_BEFORE, width * WINDOW_AFTER),
            Self::Random { .. } => (RANDOM_BEFORE, RANDOM_AFTER),
        }
    }

    fn is_random(self) -> bool {
        matches!(self, Self::Random { .. })
    }
}

/// The m of m = 1 - exp(-(m+d)x) that is not 0, if there is one: the share of misses at x times the
/// capacity.
fn random_share(x: f64, foreign: f64) -> f64 {
    // Everything fits, and nothing else comes in.
    if foreign == 0.0 && x <= 1.0 {
        return 0.0;
    }
    // From 1 on Newton's steps come down to the upper root, which they never pass: the curve bends
    // one way.
    let mut share: f64 = 1.0;
    for _ in 0..NEWTON_STEPS_MAX {
        let kept = (-(share + foreign) * x).exp();
        let step = (1.0 - kept - share) / (x * kept - 1.0);
        share -= step;
        if step.abs() < NEWTON_NEAR {
            break;
        }
    }
    share.max(0.0)
}

impl Fit {
    fn is_apart_from(&self, other: &Self) -> bool {
        let (low, high) = if self.start < other.start {
            (self, other)
        } else {
            (other, self)
        };
        high.start > low.start * low.shape.width().max(APART)
    }

    /// The knee, after a closer look at the same place.
    fn knee(&self, curve: &Curve, fastest: &[(f64, f64)]) -> Knee {
        let mut best = refine(fastest, self).unwrap_or(*self);
        let mut points = fastest.to_vec();
        let mut fifth = curve.fifth();
        if best.shape.is_random() {
            // Over so long a rise, taking the least of all later points moves it to the right.
            points = curve.raw();
            fifth = curve.raw_fifth();
            best = refine(&points, &best).unwrap_or(best);
        }
        let half_of = |odd: usize| -> Vec<(f64, f64)> {
            let kept = points
                .iter()
                .enumerate()
                .filter(|(index, _)| index % 2 == odd);
            kept.map(|(_, &point)| point).collect()
        };
        // How far the capacity moves when other points are fitted; half of it where none fits.
        let off = |points: &[(f64, f64)]| {
            let entries = best.shape.entries(best.start);
            refine(points, &best).map_or(0.5, |fit| {
                (fit.shape.entries(fit.start) / entries - 1.0).abs()
            })
        };
        // A level that half of the points do not show is an accident of the other half.
        let halves = off(&half_of(0)).max(off(&half_of(1)));
        let fifth = off(&fifth);
        // What the fit leaves unexplained, relative to the rise itself.
        let noise = best.miss / best.height.max(f64::MIN_POSITIVE);
        let confidence = (1.0 - NOISE_WEIGHT * noise).clamp(0.0, 1.0)
            * (1.0 - HALVES_WEIGHT * halves).clamp(0.0, 1.0)
            * (1.0 - FIFTH_WEIGHT * fifth).clamp(0.0, 1.0);
        Knee {
            entries: best.shape.entries(best.start),
            entries_half: best.shape.half(best.start),
            entries_end: best.start * best.shape.width(),
            base_cycles: best.base,
            penalty_cycles: best.height,
            confidence,
        }
    }
}

/// Every step that would be accepted, on a coarse grid.
fn candidates(points: &[(f64, f64)]) -> Vec<Fit> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return Vec::new();
    };
    // Place by place; overlapping ones are sorted out by `find`.
    let mut found = Vec::new();
    let mut start = first.0;
    while start < last.0 {
        let widths = WIDTHS.iter();
        let narrow = widths.filter_map(|&width| {
            let shapes = [Shape::Lru { width }, Shape::Straight { width }];
            best_shape(points, &shapes, start)
        });
        let wide = RANDOM_COARSE.map(|foreign| Shape::Random { foreign });
        let fits = narrow.chain(best_shape(points, &wide, start));
        found.extend(fits.filter(|fit| fit.is_level(points)));
        // Steps of equal ratio: levels are as likely at any order of magnitude.
        start *= GRID_STEP;
    }
    found
}

/// The same step on a fine grid, in any shape.
fn refine(points: &[(f64, f64)], coarse: &Fit) -> Option<Fit> {
    // All of them are judged by the same points, so that distances compare.
    let (before, after) = coarse.shape.reach();
    let after = after.max(WINDOW_WIDTH_MIN * WINDOW_AFTER);
    let window = window(points, coarse.start, (before, after));
    let widths = (0..=FINE_WIDTHS).map(|index| 1.0 + WIDTH_MIN + f64::from(index) * FINE_WIDTH);
    let narrow = widths.flat_map(|width| [Shape::Lru { width }, Shape::Straight { width }]);
    let wide = RANDOM_FINE.map(|foreign| Shape::Random { foreign });
    let shapes: Vec<Shape> = narrow.chain(wide).collect();
    let steps = -FINE_STEPS..=FINE_STEPS;
    let starts = steps.map(|step| coarse.start * (f64::from(step) * FINE_STEP).exp());
    let fits = starts.flat_map(|start| {
        let shapes = shapes.iter();
        shapes.filter_map(move |&shape| fit(window, shape, start))
    });
    // Points as measured may fall; a level never does.
    let fits = fits.filter(|fit| fit.height > 0.0);
    fits.min_by(|a, b| a.miss.total_cmp(&b.miss))
}

/// The best of shapes of the same reach.
fn best_shape(points: &[(f64, f64)], shapes: &[Shape], start: f64) -> Option<Fit> {
    let window = window(points, start, shapes.first()?.reach());
    let fits = shapes.iter().filter_map(|&shape| fit(window, shape, start));
    let mut best = fits.min_by(|a, b| a.miss.total_cmp(&b.miss))?;
    // Compared with a straight line over the same points: a slow rise is no level.
    best.gain = (slope_miss(window) - best.miss) * window.len() as f64;
    Some(best)
}

/// The points around a step.
fn window(points: &[(f64, f64)], start: f64, (before, after): (f64, f64)) -> &[(f64, f64)] {
    let from = points.partition_point(|&(pages, _)| pages < start / before);
    let to = points.partition_point(|&(pages, _)| pages <= start * after);
    &points[from..to]
}

/// The step of this shape that is nearest to the points; `None` where they do not tell base and
/// height apart. A first round by least squares, a second one without the points that are far off.
fn fit(points: &[(f64, f64)], shape: Shape, start: f64) -> Option<Fit> {
    let shared: Vec<(f64, f64)> = points
        .iter()
        .map(|&(pages, cycles)| (shape.share(pages, start), cycles))
        .collect();
    let off = |(base, height): (f64, f64), (share, cycles): (f64, f64)| {
        (cycles - base - height * share).abs()
    };
    let mean = |line: (f64, f64)| {
        shared.iter().map(|&point| off(line, point)).sum::<f64>() / shared.len() as f64
    };
    let first = line(shared.iter().copied())?;
    // Fitted twice: a few disturbed points must not bend the line.
    let limit = OUTLIER * mean(first);
    let near = shared.iter().filter(|&&point| off(first, point) <= limit);
    let (base, height) = line(near.copied())?;
    Some(Fit {
        shape,
        start,
        base,
        height,
        miss: mean((base, height)),
        gain: 0.0,
    })
}

/// Mean distance of the points from the best slope by the logarithm of the pages.
fn slope_miss(points: &[(f64, f64)]) -> f64 {
    let by_log = || points.iter().map(|&(pages, cycles)| (pages.ln(), cycles));
    let Some((base, slope)) = line(by_log()) else {
        return 0.0;
    };
    by_log()
        .map(|(x, y)| (y - base - slope * x).abs())
        .sum::<f64>()
        / points.len() as f64
}

/// Offset and slope by least squares; `None` where all x are the same.
fn line(points: impl Iterator<Item = (f64, f64)> + Clone) -> Option<(f64, f64)> {
    let count = points.clone().count() as f64;
    let (sum_x, sum_y) = points
        .clone()
        .fold((0.0, 0.0), |(x, y), p| (x + p.0, y + p.1));
    let (mean_x, mean_y) = (sum_x / count, sum_y / count);
    let (mut over, mut under) = (0.0, 0.0);
    for (x, y) in points {
        over += (x - mean_x) * (y - mean_y);
        under += (x - mean_x) * (x - mean_x);
    }
    // All points at one place have no slope.
    (under > 1e-9).then(|| {
        let slope = over / under;
        (mean_y - slope * mean_x, slope)
    })
}

impl Fit {
    /// True if this is a level: high enough, with level ground on both sides, and a step rather
    /// than a slope.
    fn is_level(&self, points: &[(f64, f64)]) -> bool {
        let window = window(points, self.start, self.shape.reach());
        // A rise at random has no end; far enough up, its height can be measured.
        let (foot, top) = match self.shape.is_random() {
            true => (self.start * RANDOM_FOOT, self.start * RANDOM_TOP),
            false => (self.start, self.start * self.shape.width()),
        };
        let before = window.iter().filter(|point| point.0 <= foot).count();
        let after = window.iter().filter(|point| point.0 >= top).count();
        // Without ground on a side, the base or the height would be a guess.
        before >= GROUND_POINTS
            && after >= GROUND_POINTS
            && self.height >= HEIGHT_MIN.max(HEIGHT_SHARE_MIN * self.base)
            && self.miss <= MISS_SHARE_MAX * self.height
            && self.miss <= SLOPE_SHARE_MAX * slope_miss(window)
    }
}

/// True if the last octave rises by more than a level would have to.
fn rises_at_end(points: &[(f64, f64)], last: Option<&Knee>) -> bool {
    let Some(&(end, top)) = points.last() else {
        return false;
    };
    // Behind the last knee, or in the last octave: elsewhere a rise has been explained.
    let from = last.map_or(end / 2.0, |knee| (end / 2.0).max(knee.entries_end));
    let Some(&(_, ground)) = points.iter().find(|point| point.0 >= from) else {
        return false;
    };
    top - ground >= HEIGHT_MIN.max(RISE_SHARE * ground)
}

const LEVELS_MAX: usize = 4;
/// Greatest ratio of the half-height to the size of a step that is sharp.
const SHARP: f64 = 1.08;
/// Least ratio of the sizes of two levels.
const APART: f64 = 2.0;
const CHEAPER_SHARE: f64 = 0.6;
const GRID_STEP: f64 = 1.022;
const WIDTHS: [f64; 8] = [1.02, 1.06, 1.12, 1.2, 1.3, 1.45, 1.6, 1.8];
const WINDOW_BEFORE: f64 = 2.0;
const WINDOW_AFTER: f64 = 1.5;
const WINDOW_WIDTH_MIN: f64 = 1.2;
/// A rise at random counts as ended here: nine of ten accesses miss.
const RANDOM_WIDTH: f64 = 2.5;
const RANDOM_BEFORE: f64 = 4.0;
const RANDOM_AFTER: f64 = 4.0;
const RANDOM_FOOT: f64 = 0.8;
const RANDOM_TOP: f64 = 1.7;
const RANDOM_COARSE: [f64; 3] = [0.0, 0.01, 0.04];
const RANDOM_FINE: [f64; 9] = [0.0, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08];
const NEWTON_STEPS_MAX: usize = 30;
const NEWTON_NEAR: f64 = 1e-4;
/// Steps of the fine grid: far enough to get from the start of one shape to that of another.
const FINE_STEPS: i32 = 90;
const FINE_STEP: f64 = 0.004;
const WIDTH_MIN: f64 = 0.01;
const FINE_WIDTHS: i32 = 40;
const FINE_WIDTH: f64 = 0.02;
const OUTLIER: f64 = 3.0;
/// Points of level ground on each side.
const GROUND_POINTS: usize = 3;
/// Least height of a step, in cycles.
const HEIGHT_MIN: f64 = 1.5;
/// The same as a share of the ground before it.
const HEIGHT_SHARE_MIN: f64 = 0.05;
/// Greatest mean distance of the points from the step, as a share of its height.
const MISS_SHARE_MAX: f64 = 0.12;
/// The same as a share of their distance from a slope.
const SLOPE_SHARE_MAX: f64 = 0.5;
const RISE_SHARE: f64 = 0.3;
const NOISE_WEIGHT: f64 = 4.0;
const HALVES_WEIGHT: f64 = 3.0;
const FIFTH_WEIGHT: f64 = 2.0;

#[cfg(test)]
#[path = "detect_tests.rs"]
mod tests;
