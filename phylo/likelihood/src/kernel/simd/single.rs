//! Loops in single precision, eight lanes: two rates of four states, or eight states of one rate.
//!
//! Why here: half the memory and twice the lanes of the double loops, for clients of BEAGLE's
//! interface that ask for single precision.
//! Must stay true: as in [`super`]; every instruction set goes through the same operations, and
//! plain arithmetic differs from AVX2 by its unfused products alone. A class's result does not
//! depend on its neighbours.

use super::{Isa, Set};
use crate::kernel::single::{Octet, SingleShape, SingleSide};

/// Classes whose starts are checked together.
const GROUP: usize = 16;
/// Classes that share the loads of a matrix.
const CLASSES: usize = 4;
/// Octets of a matrix's column whose sums are in registers at a time.
const BLOCK: usize = 3;

/// Eight floats and the operations of the loops on them.
trait Eight: Copy {
    fn splat(value: f32) -> Self;
    fn load(from: &Octet) -> Self;
    fn store(self, to: &mut Octet);
    fn mul(self, other: Self) -> Self;
    fn add(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * other + more`.
    fn mul_add(self, other: Self, more: Self) -> Self;
    /// Lane by lane the larger; `other` where `self` is no number.
    fn max(self, other: Self) -> Self;
    /// Lane `J` of each half, in all lanes of that half.
    fn spread<const J: i32>(self) -> Self;
    /// Lane `i` is the largest of `rows[i]`'s lanes.
    fn largest(rows: [Self; 8]) -> Self;
    /// Lane `i` is the sum of `rows[i]`'s lanes, in one order.
    fn sums(rows: [Self; 8]) -> Self;

    #[inline(always)]
    fn to_array(self) -> Octet {
        let mut octet = [0.0; 8];
        self.store(&mut octet);
        octet
    }
}

/// A kernel for each instruction set, as `super::kernel` makes them.
macro_rules! single {
    (
        $(#[$attribute:meta])*
        pub fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?, $loops:ident
    ) => {
        $(#[$attribute])*
        pub fn $name(isa: Isa, $($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn wide($($argument: $type),*) $(-> $result)? {
                $loops::<Wide>($($argument),*)
            }
            match isa.0 {
                Set::Portable => $loops::<Plain>($($argument),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` exists only if the machine has its features, and those of AVX2
                // with AVX-512.
                Set::Avx2 | Set::Avx512 => unsafe { wide($($argument),*) },
            }
        }
    };
}

single! {
    /// A node's entries from those of both sides: one span for each class of the indices.
    ///
    /// # Panics
    /// When slices are too short for the indices, or an index is beyond its side.
    pub fn newview_single(
        shape: SingleShape,
        left: SingleSide<'_>,
        right: SingleSide<'_>,
        values: &mut [Octet],
    ),
    newview
}

single! {
    /// As [`super::lower_spans`], of spans of `span` octets.
    ///
    /// # Panics
    /// When `values` has fewer spans than there are `factors`, or `span` is 0.
    pub fn lower_single(
        span: usize,
        values: &mut [Octet],
        factors: &mut [f64],
    ),
    lower
}

single! {
    /// As [`super::any_span_beyond`], of spans of `span` octets.
    ///
    /// # Panics
    /// When `values` is no whole number of spans.
    #[must_use]
    pub fn any_single_beyond(
        span: usize,
        values: &[Octet],
        least: f32,
        most: f32,
    ) -> bool,
    beyond
}

single! {
    /// The sum of each span of `span` octets.
    ///
    /// # Panics
    /// When `values` has fewer spans than there are `sums`, or `span` is 0.
    pub fn total_single(
        span: usize,
        values: &[Octet],
        sums: &mut [f64],
    ),
    totals
}

#[inline(always)]
fn newview<V: Eight>(
    shape: SingleShape,
    left: SingleSide<'_>,
    right: SingleSide<'_>,
    values: &mut [Octet],
) {
    assert_eq!(
        left.index.len(),
        right.index.len(),
        "operands of one length"
    );
    let values = &mut values[..left.index.len() * shape.span()];
    if shape.is_paired() {
        return match (left.matrix, right.matrix) {
            (None, None) => pairs::<V, true, true>(shape.span(), left, right, values),
            (None, Some(_)) => pairs::<V, true, false>(shape.span(), left, right, values),
            // The product commutes.
            (Some(_), None) => pairs::<V, true, false>(shape.span(), right, left, values),
            (Some(_), Some(_)) => pairs::<V, false, false>(shape.span(), left, right, values),
        };
    }
    for first in (0..left.index.len()).step_by(CLASSES) {
        classes::<V>(shape, first, left, right, values);
    }
}

/// Four states: two rates to a register, whose matrices stay in registers for a group.
#[inline(always)]
fn pairs<V: Eight, const A_IS_TIP: bool, const B_IS_TIP: bool>(
    span: usize,
    a: SingleSide<'_>,
    b: SingleSide<'_>,
    values: &mut [Octet],
) {
    let groups = values.chunks_mut(GROUP * span);
    let lists = a.index.chunks(GROUP).zip(b.index.chunks(GROUP));
    for (out, (a_index, b_index)) in groups.zip(lists) {
        let (a_at, b_at) = (
            starts(a_index, span, a.spans.len()),
            starts(b_index, span, b.spans.len()),
        );
        for pair in 0..span {
            let (a_held, b_held) = (
                columns::<V, A_IS_TIP>(a.matrix, pair),
                columns::<V, B_IS_TIP>(b.matrix, pair),
            );
            for (k, out) in out.chunks_exact_mut(span).enumerate() {
                // SAFETY: a group has at most `GROUP` classes; `starts` has checked that a whole
                // span follows each start, and `pair` is within a span.
                let (x, y, out) = unsafe {
                    (
                        a.spans.get_unchecked(*a_at.get_unchecked(k) + pair),
                        b.spans.get_unchecked(*b_at.get_unchecked(k) + pair),
                        out.get_unchecked_mut(pair),
                    )
                };
                let x = moved::<V, A_IS_TIP>(&a_held, V::load(x));
                let y = moved::<V, B_IS_TIP>(&b_held, V::load(y));
                x.mul(y).store(out);
            }
        }
    }
}

/// Beginnings of the spans of one group, which are there.
#[inline(always)]
fn starts(index: &[u16], span: usize, octets: usize) -> [usize; GROUP] {
    let mut starts = [0; GROUP];
    let mut last = 0;
    for (start, &class) in starts.iter_mut().zip(index) {
        *start = usize::from(class) * span;
        last = last.max(*start);
    }
    assert!(last + span <= octets, "a class is beyond its operand");
    starts
}

#[inline(always)]
fn columns<V: Eight, const IS_TIP: bool>(matrix: Option<&[Octet]>, pair: usize) -> [V; 4] {
    match matrix {
        Some(matrix) if !IS_TIP => {
            let block = &matrix[4 * pair..][..4];
            [
                V::load(&block[0]),
                V::load(&block[1]),
                V::load(&block[2]),
                V::load(&block[3]),
            ]
        }
        _ => [V::splat(0.0); 4],
    }
}

#[inline(always)]
fn moved<V: Eight, const IS_TIP: bool>(held: &[V; 4], x: V) -> V {
    if IS_TIP {
        return x;
    }
    let mut sum = held[0].mul(x.spread::<0>());
    sum = held[1].mul_add(x.spread::<1>(), sum);
    sum = held[2].mul_add(x.spread::<2>(), sum);
    held[3].mul_add(x.spread::<3>(), sum)
}

/// Four classes from `first` on, of any number of states; places beyond the last repeat it.
#[inline(always)]
fn classes<V: Eight>(
    shape: SingleShape,
    first: usize,
    left: SingleSide<'_>,
    right: SingleSide<'_>,
    values: &mut [Octet],
) {
    let (width, last) = (shape.width(), left.index.len() - 1);
    let mut at = [0; CLASSES];
    for (k, at) in at.iter_mut().enumerate() {
        *at = (first + k).min(last);
    }
    for rate in 0..shape.rates {
        let mut block = 0;
        while block < width {
            // Four are two and two: one alone would wait for each sum.
            let wide = match width - block {
                4 => 2,
                rest => rest.min(BLOCK),
            };
            let place = Place { rate, block, at };
            match wide {
                1 => product::<V, 1>(shape, place, left, right, values),
                2 => product::<V, 2>(shape, place, left, right, values),
                _ => product::<V, BLOCK>(shape, place, left, right, values),
            }
            block += wide;
        }
    }
}

/// Some octets of one rate of some classes.
#[derive(Clone, Copy)]
struct Place {
    rate: usize,
    block: usize,
    at: [usize; CLASSES],
}

#[inline(always)]
fn product<V: Eight, const B: usize>(
    shape: SingleShape,
    place: Place,
    left: SingleSide<'_>,
    right: SingleSide<'_>,
    values: &mut [Octet],
) {
    let offset = place.rate * shape.width() + place.block;
    let x = arrived::<V, B>(shape, place, left);
    let y = arrived::<V, B>(shape, place, right);
    for ((x, y), class) in x.iter().zip(&y).zip(place.at) {
        let to = &mut values[class * shape.span() + offset..][..B];
        for ((x, y), to) in x.iter().zip(y).zip(to) {
            x.mul(*y).store(to);
        }
    }
}

/// The octets of a side, moved over its branch.
#[inline(always)]
fn arrived<V: Eight, const B: usize>(
    shape: SingleShape,
    place: Place,
    side: SingleSide<'_>,
) -> [[V; B]; CLASSES] {
    let width = shape.width();
    let mut sums = [[V::splat(0.0); B]; CLASSES];
    let mut rates: [&[Octet]; CLASSES] = [&[]; CLASSES];
    for (rate, class) in rates.iter_mut().zip(place.at) {
        let at = usize::from(side.index[class]) * shape.span() + place.rate * width;
        *rate = &side.spans[at..at + width];
    }
    let Some(matrix) = side.matrix else {
        for (sums, rate) in sums.iter_mut().zip(rates) {
            for (sum, octet) in sums.iter_mut().zip(&rate[place.block..]) {
                *sum = V::load(octet);
            }
        }
        return sums;
    };
    let states = shape.states;
    let block = &matrix[place.rate * states * width..][..states * width];
    let x = [
        &rates[0].as_flattened()[..states],
        &rates[1].as_flattened()[..states],
        &rates[2].as_flattened()[..states],
        &rates[3].as_flattened()[..states],
    ];
    for (j, column) in block.chunks_exact(width).enumerate() {
        let column = &column[place.block..place.block + B];
        for (sums, x) in sums.iter_mut().zip(x) {
            let value = V::splat(x[j]);
            for (sum, entries) in sums.iter_mut().zip(column) {
                *sum = V::load(entries).mul_add(value, *sum);
            }
        }
    }
    sums
}

#[inline(always)]
fn lower<V: Eight>(span: usize, values: &mut [Octet], factors: &mut [f64]) {
    let values = &mut values[..factors.len() * span];
    for (spans, factors) in values.chunks_mut(8 * span).zip(factors.chunks_mut(8)) {
        let largest = largest_of_eight::<V>(span, spans);
        let inverse = V::splat(1.0).div(largest).to_array();
        let largest = largest.to_array();
        let lists = spans.chunks_exact_mut(span).zip(factors);
        for ((span, factor), (largest, inverse)) in lists.zip(largest.into_iter().zip(inverse)) {
            *factor = f64::from(largest);
            if !largest.is_normal() {
                divide(span, factor);
                continue;
            }
            let inverse = V::splat(inverse);
            for octet in span {
                V::load(octet).mul(inverse).store(octet);
            }
        }
    }
}

/// Largest entries of one to eight spans; lanes without a span repeat the first.
#[inline(always)]
fn largest_of_eight<V: Eight>(span: usize, spans: &[Octet]) -> V {
    let mut rows = [V::splat(0.0); 8];
    for (number, row) in rows.iter_mut().enumerate() {
        let at = number * span;
        let at = if at < spans.len() { at } else { 0 };
        for octet in &spans[at..at + span] {
            *row = V::load(octet).max(*row);
        }
    }
    V::largest(rows)
}

/// A span whose largest entry is 0, which has the factor 1, or has no finite inverse.
#[cold]
#[inline(never)]
fn divide(span: &mut [Octet], factor: &mut f64) {
    if *factor == 0.0 {
        *factor = 1.0;
        return;
    }
    for value in span.as_flattened_mut() {
        // The quotient is at most 1.
        *value = (f64::from(*value) / *factor) as f32;
    }
}

#[inline(always)]
fn beyond<V: Eight>(span: usize, values: &[Octet], least: f32, most: f32) -> bool {
    for spans in values.chunks(8 * span) {
        let largest: V = largest_of_eight(span, spans);
        let far = |&value: &f32| value > most || (value < least && value > 0.0);
        if largest.to_array().iter().any(far) {
            return true;
        }
    }
    false
}

#[inline(always)]
fn totals<V: Eight>(span: usize, values: &[Octet], sums: &mut [f64]) {
    let values = &values[..sums.len() * span];
    for (spans, sums) in values.chunks(8 * span).zip(sums.chunks_mut(8)) {
        let mut rows = [V::splat(0.0); 8];
        for (row, span) in rows.iter_mut().zip(spans.chunks_exact(span)) {
            for octet in span {
                *row = V::load(octet).add(*row);
            }
        }
        for (sum, total) in sums.iter_mut().zip(V::sums(rows).to_array()) {
            *sum = f64::from(total);
        }
    }
}

/// Eight floats by plain arithmetic.
#[derive(Clone, Copy)]
struct Plain(Octet);

impl Plain {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    #[inline(always)]
    fn fold(rows: [Self; 8], f: impl Fn(f32, f32) -> f32) -> Self {
        // In the order of the registers' shuffles, so that sums have the same bits.
        Self(rows.map(|Self([a, b, c, d, e, g, h, i])| f(f(f(a, c), f(b, d)), f(f(e, h), f(g, i)))))
    }
}

impl Eight for Plain {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; 8])
    }
    #[inline(always)]
    fn load(from: &Octet) -> Self {
        Self(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut Octet) {
        *to = self.0;
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, other: Self, more: Self) -> Self {
        // Two roundings: without FMA a fused result would need a slow software routine.
        Self(std::array::from_fn(|i| self.0[i] * other.0[i] + more.0[i]))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn spread<const J: i32>(self) -> Self {
        Self(std::array::from_fn(|i| self.0[i / 4 * 4 + J as usize]))
    }
    #[inline(always)]
    fn largest(rows: [Self; 8]) -> Self {
        Self::fold(rows, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn sums(rows: [Self; 8]) -> Self {
        Self::fold(rows, |a, b| a + b)
    }
}

#[cfg(target_arch = "x86_64")]
use avx2::Wide;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Eight, Octet};
    use std::arch::x86_64::*;

    /// One register of eight floats.
    #[derive(Clone, Copy)]
    pub(super) struct Wide(__m256);

    /// Transposes eight rows and folds their lanes with `$fold`.
    macro_rules! fold {
        ($fold:ident, $rows:expr) => {{
            let [a, b, c, d, e, f, g, h] = $rows;
            let ab = $fold(_mm256_unpacklo_ps(a.0, b.0), _mm256_unpackhi_ps(a.0, b.0));
            let cd = $fold(_mm256_unpacklo_ps(c.0, d.0), _mm256_unpackhi_ps(c.0, d.0));
            let ef = $fold(_mm256_unpacklo_ps(e.0, f.0), _mm256_unpackhi_ps(e.0, f.0));
            let gh = $fold(_mm256_unpacklo_ps(g.0, h.0), _mm256_unpackhi_ps(g.0, h.0));
            let (ab, cd) = (_mm256_castps_pd(ab), _mm256_castps_pd(cd));
            let (ef, gh) = (_mm256_castps_pd(ef), _mm256_castps_pd(gh));
            let low = $fold(
                _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)),
            );
            let high = $fold(
                _mm256_castpd_ps(_mm256_unpacklo_pd(ef, gh)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(ef, gh)),
            );
            Wide($fold(
                _mm256_permute2f128_ps::<0x20>(low, high),
                _mm256_permute2f128_ps::<0x31>(low, high),
            ))
        }};
    }

    // SAFETY of every block below: `Wide` lives only under functions that enable `avx2` and `fma`;
    // loads and stores go through references to eight floats.
    impl Eight for Wide {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_set1_ps(value) })
        }
        #[inline(always)]
        fn load(from: &Octet) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_loadu_ps(from.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, to: &mut Octet) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_mul_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_add_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_div_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn mul_add(self, other: Self, more: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_fmadd_ps(self.0, other.0, more.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_max_ps(self.0, other.0) })
        }
        #[inline(always)]
        fn spread<const J: i32>(self) -> Self {
            // SAFETY: see above.
            Self(unsafe {
                match J {
                    0 => _mm256_permute_ps::<0x00>(self.0),
                    1 => _mm256_permute_ps::<0x55>(self.0),
                    2 => _mm256_permute_ps::<0xaa>(self.0),
                    _ => _mm256_permute_ps::<0xff>(self.0),
                }
            })
        }
        #[inline(always)]
        fn largest(rows: [Self; 8]) -> Self {
            // SAFETY: see above.
            unsafe { fold!(_mm256_max_ps, rows) }
        }
        #[inline(always)]
        fn sums(rows: [Self; 8]) -> Self {
            // SAFETY: see above.
            unsafe { fold!(_mm256_add_ps, rows) }
        }
    }
}
