//! The loops where each pattern has stationary frequencies of its own, and so a rate matrix.
//!
//! Why here: a transition matrix for each pattern and branch would cost twenty times the product it
//! is made for. A vector is moved over a branch in the space of the eigenvectors instead: two
//! products with matrices that no length changes. Rates go two at a time, so that both share the
//! loads of a matrix.
//! Must stay true: a class is a pattern, so there are no site repeats here. An operand has as its
//! matrix or table a single quad, whose first double is the branch's length. No unsafe code.
//! Source: Wang, Minh, Susko and Roger, Systematic Biology 67 (2018), 216-235.

use super::edge::four;
use super::functions::exponentials;
use super::lanes::{Batch, Lanes};
use super::scale::{add_counts, count_scaling, join_counts};
use crate::kernel::{Derivatives, Operand, QUAD, Quad, SCALE, Spectra, THRESHOLD};

/// States, and quads of them.
const STATES: usize = 20;
const QUADS: usize = STATES / QUAD;
/// One rate's states of a pattern.
type Row = [Quad; QUADS];
/// The matrix of a profile: twenty rows.
type Square = [Row; STATES];

/// One pattern's matrix.
#[derive(Clone, Copy)]
struct Own<'a> {
    values: &'a Row,
    /// Row by value, column by state.
    right: &'a Square,
    /// Row by state, column by value.
    left: &'a Square,
    frequencies: &'a Row,
}

impl<'a> Own<'a> {
    #[inline(always)]
    fn new(spectra: &Spectra<'a>, pattern: usize) -> Self {
        let at = spectra.of_pattern[pattern] as usize;
        let rows = |from: &'a [f64]| from.as_chunks::<QUAD>().0.as_chunks::<QUADS>().0;
        let square = |from: &'a [f64]| &rows(from).as_chunks::<STATES>().0[at];
        Self {
            values: &rows(spectra.values)[at],
            right: square(spectra.right),
            left: square(spectra.left),
            frequencies: &rows(spectra.frequencies)[at],
        }
    }

    /// `e^(value time) - 1` for each value.
    #[inline(always)]
    fn growth<V: Lanes>(&self, time: f64) -> [V; QUADS] {
        let mut growth = [V::zero(); QUADS];
        for (to, values) in growth.iter_mut().zip(self.values) {
            *to = exponentials(V::load(values).mul(V::splat(time))).1;
        }
        growth
    }

    /// The vectors of some rates in the space of the eigenvectors.
    #[inline(always)]
    fn inward<V: Lanes, const N: usize>(&self, x: &[Row; N]) -> [[V; QUADS]; N] {
        product(self.left, x)
    }

    /// The vectors of some rates moved over a branch, of which `growth` tells the length.
    #[inline(always)]
    fn moved<V: Lanes, const N: usize>(
        &self,
        growth: &[[V; QUADS]; N],
        x: &[Row; N],
    ) -> [[V; QUADS]; N] {
        let mut grown = [[[0.0; QUAD]; QUADS]; N];
        let inside = self.inward::<V, N>(x);
        for n in 0..N {
            for q in 0..QUADS {
                inside[n][q].mul(growth[n][q]).store(&mut grown[n][q]);
            }
        }
        let mut moved = product::<V, N>(self.right, &grown);
        for n in 0..N {
            for q in 0..QUADS {
                // Rounding can turn a true 0 into a value just below it.
                moved[n][q] = V::load(&x[n][q]).add(moved[n][q]).max(V::zero());
            }
        }
        moved
    }
}

/// Rows of a matrix times the entries of some vectors, added.
#[inline(always)]
fn product<V: Lanes, const N: usize>(rows: &Square, x: &[Row; N]) -> [[V; QUADS]; N] {
    let mut sums = [[V::zero(); QUADS]; N];
    for (at, row) in rows.iter().enumerate() {
        let row: [V; QUADS] = [
            V::load(&row[0]),
            V::load(&row[1]),
            V::load(&row[2]),
            V::load(&row[3]),
            V::load(&row[4]),
        ];
        for n in 0..N {
            let entry = V::splat(x[n][at / QUAD][at % QUAD]);
            for q in 0..QUADS {
                sums[n][q] = row[q].mul_add(entry, sums[n][q]);
            }
        }
    }
    sums
}

/// An operand, pattern by pattern.
#[derive(Clone, Copy)]
struct Side<'a> {
    length: f64,
    /// Of an inner node; a tip has none.
    values: &'a [Row],
    masks: &'a [u64],
    scalers: &'a [u16],
    index: &'a [u16],
    rates: usize,
    tip: bool,
}

impl<'a> Side<'a> {
    #[inline(always)]
    fn new(operand: &Operand<'a>, spectra: &Spectra<'a>) -> Self {
        let length = |quads: &[Quad]| quads.first().map_or(0.0, |quad| quad[0]);
        let (rates, masks) = (spectra.rates.len(), spectra.masks);
        match *operand {
            Operand::Tip(tip) => Self {
                length: length(tip.table),
                values: &[],
                masks,
                scalers: &[],
                index: tip.index,
                rates,
                tip: true,
            },
            Operand::Inner(inner) => Self {
                length: length(inner.matrix),
                values: inner.values.as_chunks::<QUADS>().0,
                masks,
                scalers: inner.scalers,
                index: inner.index,
                rates,
                tip: false,
            },
        }
    }

    /// The vectors of `N` rates from `rate` on, where they are kept.
    #[inline(always)]
    fn here<const N: usize>(&self, pattern: usize, rate: usize) -> [Row; N] {
        let at = usize::from(self.index[pattern]);
        if self.tip {
            return [indicator(self.masks[at]); N];
        }
        let mut rows = [[[0.0; QUAD]; QUADS]; N];
        rows.copy_from_slice(&self.values[at * self.rates + rate..][..N]);
        rows
    }

    /// The same, moved over the branch.
    #[inline(always)]
    fn moved<V: Lanes, const N: usize>(
        &self,
        own: &Own<'_>,
        rates: &[f64],
        pattern: usize,
        rate: usize,
    ) -> [[V; QUADS]; N] {
        let mut growth = [[V::zero(); QUADS]; N];
        for (n, growth) in growth.iter_mut().enumerate() {
            *growth = own.growth(rates[rate + n] * self.length);
        }
        own.moved(&growth, &self.here(pattern, rate))
    }
}

/// 1 for each state of a set, 0 for the others.
#[inline(always)]
fn indicator(mask: u64) -> Row {
    let mut row = [[0.0; QUAD]; QUADS];
    for (at, value) in row.as_flattened_mut().iter_mut().enumerate() {
        *value = ((mask >> at) & 1) as f64;
    }
    row
}

/// Calls a loop body for two rates at a time, then for the last.
macro_rules! by_rates {
    ($rates:expr, $rate:ident, $body:ident ( $($argument:expr),* )) => {
        let mut $rate = 0;
        while $rate + 2 <= $rates {
            $body::<V::Lanes, 2>($($argument),*);
            $rate += 2;
        }
        if $rate < $rates {
            $body::<V::Lanes, 1>($($argument),*);
        }
    };
}

/// As [`super::newview`].
#[inline(always)]
pub(super) fn profiled_newview<V: Batch>(
    spectra: &Spectra<'_>,
    left: &Operand<'_>,
    right: &Operand<'_>,
    values: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    let rates = spectra.rates.len();
    let sides = [Side::new(left, spectra), Side::new(right, spectra)];
    let patterns = sides[0].index.len();
    let (indices, counts) = (
        [sides[0].index, sides[1].index],
        [sides[0].scalers, sides[1].scalers],
    );
    let scalers = &mut scalers[..patterns * rates];
    let mut scaled = join_counts::<V::Lanes>(rates, scalers, indices, counts);
    let rows = &mut values.as_chunks_mut::<QUADS>().0[..patterns * rates];
    for (pattern, rows) in rows.chunks_exact_mut(rates).enumerate() {
        let own = Own::new(spectra, pattern);
        by_rates!(
            rates,
            rate,
            products(&own, spectra.rates, &sides, [pattern, rate], rows)
        );
        for (rate, row) in rows.iter_mut().enumerate() {
            let entries = row.as_flattened_mut();
            // Each rate is scaled by itself, as in `node`.
            if entries.iter().all(|&value| value < THRESHOLD) {
                entries.iter_mut().for_each(|value| *value *= SCALE);
                count_scaling(scalers, pattern * rates + rate, &mut scaled);
            }
        }
    }
    scaled
}

#[inline(always)]
fn products<V: Lanes, const N: usize>(
    own: &Own<'_>,
    rates: &[f64],
    sides: &[Side<'_>; 2],
    [pattern, rate]: [usize; 2],
    rows: &mut [Row],
) {
    let x: [[V; QUADS]; N] = sides[0].moved(own, rates, pattern, rate);
    let y: [[V; QUADS]; N] = sides[1].moved(own, rates, pattern, rate);
    for n in 0..N {
        for q in 0..QUADS {
            x[n][q].mul(y[n][q]).store(&mut rows[rate + n][q]);
        }
    }
}

/// A CLV moved over a branch, times frequencies and the rates' weights.
#[inline(always)]
pub(super) fn profiled_carry<V: Batch>(
    spectra: &Spectra<'_>,
    from: &Operand<'_>,
    values: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    let rates = spectra.rates.len();
    let side = Side::new(from, spectra);
    let patterns = side.index.len();
    let rows = &mut values.as_chunks_mut::<QUADS>().0[..patterns * rates];
    for (pattern, rows) in rows.chunks_exact_mut(rates).enumerate() {
        let own = Own::new(spectra, pattern);
        by_rates!(
            rates,
            rate,
            carried(spectra, &own, &side, [pattern, rate], rows)
        );
    }
    let scalers = &mut scalers[..patterns * rates];
    join_counts::<V::Lanes>(rates, scalers, [side.index; 2], [side.scalers, &[]])
}

#[inline(always)]
fn carried<V: Lanes, const N: usize>(
    spectra: &Spectra<'_>,
    own: &Own<'_>,
    side: &Side<'_>,
    [pattern, rate]: [usize; 2],
    rows: &mut [Row],
) {
    let moved: [[V; QUADS]; N] = side.moved(own, spectra.rates, pattern, rate);
    for n in 0..N {
        let weight = V::splat(spectra.weights[rate + n]);
        for q in 0..QUADS {
            let folded = V::load(&own.frequencies[q]).mul(weight);
            moved[n][q].mul(folded).store(&mut rows[rate + n][q]);
        }
    }
}

/// As [`super::evaluate`]; the right operand's length is the branch's.
#[inline(always)]
pub(super) fn profiled_evaluate<V: Batch>(
    spectra: &Spectra<'_>,
    left: &Operand<'_>,
    right: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    let rates = spectra.rates.len();
    let sides = [Side::new(left, spectra), Side::new(right, spectra)];
    let patterns = sides[0].index.len();
    let terms = &mut terms[..patterns.div_ceil(QUAD) * rates];
    terms.fill([0.0; QUAD]);
    let mut rows = [[[0.0; QUAD]; QUADS]; 2];
    for pattern in 0..patterns {
        let own = Own::new(spectra, pattern);
        for rate in 0..rates {
            // The row is at the place of the rate: both slices begin with this one.
            let side = &sides[1];
            let moved: [[V::Lanes; QUADS]; 1] = side.moved(&own, spectra.rates, pattern, rate);
            rows[0] = sides[0].here::<1>(pattern, rate)[0];
            let mut sum = V::Lanes::zero();
            for q in 0..QUADS {
                let folded = Lanes::mul(load::<V>(&rows[0][q]), load::<V>(&own.frequencies[q]));
                sum = Lanes::mul_add(folded, moved[0][q], sum);
            }
            let term = spectra.weights[rate] * sum.sum();
            terms[pattern / QUAD * rates + rate][pattern % QUAD] = term;
        }
    }
    let scalers = &mut scalers[..patterns * rates];
    let (indices, counts) = (
        [sides[0].index, sides[1].index],
        [sides[0].scalers, sides[1].scalers],
    );
    join_counts::<V::Lanes>(rates, scalers, indices, counts)
}

/// As [`super::insert`]; `below` comes from [`profiled_carry`].
#[inline(always)]
pub(super) fn profiled_insert<V: Batch>(
    spectra: &Spectra<'_>,
    near: &Operand<'_>,
    far: &Operand<'_>,
    below: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    let rates = spectra.rates.len();
    let [near, far, below] = [near, far, below].map(|operand| Side::new(operand, spectra));
    let patterns = near.index.len();
    let terms = &mut terms[..patterns.div_ceil(QUAD) * rates];
    terms.fill([0.0; QUAD]);
    for pattern in 0..patterns {
        let own = Own::new(spectra, pattern);
        for rate in 0..rates {
            let x: [[V::Lanes; QUADS]; 1] = near.moved(&own, spectra.rates, pattern, rate);
            let y: [[V::Lanes; QUADS]; 1] = far.moved(&own, spectra.rates, pattern, rate);
            let z = below.here::<1>(pattern, rate)[0];
            let mut sum = V::Lanes::zero();
            for q in 0..QUADS {
                sum = Lanes::mul_add(Lanes::mul(x[0][q], y[0][q]), load::<V>(&z[q]), sum);
            }
            terms[pattern / QUAD * rates + rate][pattern % QUAD] = sum.sum();
        }
    }
    let scalers = &mut scalers[..patterns * rates];
    let (indices, counts) = ([near.index, far.index], [near.scalers, far.scalers]);
    let counted = join_counts::<V::Lanes>(rates, scalers, indices, counts);
    add_counts(rates, scalers, counted, below.index, below.scalers)
}

/// The sum table of a branch: both ends in the space of the eigenvectors, times the rates' weights.
/// Nothing is scaled.
#[inline(always)]
pub(super) fn profiled_table<V: Batch>(
    spectra: &Spectra<'_>,
    near: &Operand<'_>,
    far: &Operand<'_>,
    table: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    let rates = spectra.rates.len();
    let [near, far] = [near, far].map(|operand| Side::new(operand, spectra));
    let patterns = near.index.len();
    let rows = &mut table.as_chunks_mut::<QUADS>().0[..patterns * rates];
    for (pattern, rows) in rows.chunks_exact_mut(rates).enumerate() {
        let own = Own::new(spectra, pattern);
        for (rate, row) in rows.iter_mut().enumerate() {
            let weight = V::Lanes::splat(spectra.weights[rate]);
            let both = [
                near.here::<1>(pattern, rate)[0],
                far.here::<1>(pattern, rate)[0],
            ];
            let [x, y]: [[V::Lanes; QUADS]; 2] = own.inward(&both);
            for q in 0..QUADS {
                Lanes::mul(Lanes::mul(x[q], weight), y[q]).store(&mut row[q]);
            }
        }
    }
    let scalers = &mut scalers[..patterns * rates];
    let (indices, counts) = ([near.index, far.index], [near.scalers, far.scalers]);
    join_counts::<V::Lanes>(rates, scalers, indices, counts)
}

/// The likelihood of a pattern and its two derivatives by the length, from its rows of the table.
#[inline(always)]
fn orders<V: Lanes>(spectra: &Spectra<'_>, own: &Own<'_>, length: f64, rows: &[Row]) -> [f64; 3] {
    let mut sums = [V::zero(); 3];
    for (row, rate) in rows.iter().zip(spectra.rates) {
        for (entries, values) in row.iter().zip(own.values) {
            let slope = V::load(values).mul(V::splat(*rate));
            let power = exponentials(slope.mul(V::splat(length))).0;
            let value = V::load(entries).mul(power);
            let first = value.mul(slope);
            sums[0] = sums[0].add(value);
            sums[1] = sums[1].add(first);
            sums[2] = first.mul_add(slope, sums[2]);
        }
    }
    [sums[0].sum(), sums[1].sum(), sums[2].sum()]
}

/// As [`super::derivatives`].
#[inline(always)]
pub(super) fn profiled_derivatives<V: Batch>(
    spectra: &Spectra<'_>,
    length: f64,
    table: &[Quad],
    fixed: &[f64],
    weights: &[f64],
) -> Derivatives {
    let rows = table
        .as_chunks::<QUADS>()
        .0
        .chunks_exact(spectra.rates.len());
    let mut sum = Derivatives::default();
    for (pattern, ((rows, fixed), weight)) in rows.zip(fixed).zip(weights).enumerate() {
        let own = Own::new(spectra, pattern);
        let [value, first, second] = orders::<V::Lanes>(spectra, &own, length, rows);
        let likelihood = value + fixed;
        // An impossible pattern (likelihood 0 or NaN) adds no slope.
        if likelihood > 0.0 {
            let slope = first / likelihood;
            sum.first += weight * slope;
            sum.second += weight * (second / likelihood - slope * slope);
        }
    }
    sum
}

/// As [`super::table_terms`].
#[inline(always)]
pub(super) fn profiled_terms<V: Batch>(
    spectra: &Spectra<'_>,
    length: f64,
    table: &[Quad],
    terms: &mut [Quad],
) {
    let rows = table
        .as_chunks::<QUADS>()
        .0
        .chunks_exact(spectra.rates.len());
    for (pattern, rows) in rows.enumerate() {
        let own = Own::new(spectra, pattern);
        let [value, ..] = orders::<V::Lanes>(spectra, &own, length, rows);
        if pattern % QUAD == 0 {
            terms[pattern / QUAD] = four(&[]);
        }
        terms[pattern / QUAD][pattern % QUAD] = value;
    }
}

#[inline(always)]
fn load<V: Batch>(quad: &Quad) -> V::Lanes {
    <V::Lanes as Lanes>::load(quad)
}
