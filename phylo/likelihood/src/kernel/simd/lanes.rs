//! Four lanes: plain doubles, or one AVX2 register; and a batch of them, one class's or, in an
//! AVX-512 register, two classes' side by side.
//!
//! Must stay true: [`Avx2`] is used only below functions that enable `avx2` and `fma`
//! (`super::avx2`), which are called only where the machine has both, and [`Avx512`] only below
//! those that enable `avx512f` (`super::avx512`). The methods are always inlined, so that the
//! intrinsics become single instructions there. A class's lanes go through the same operations in
//! the same order whatever the batch: AVX2 and AVX-512 give the same bits.

use crate::kernel::Quad;

/// Four doubles and the operations of the kernels on them.
pub(super) trait Lanes: Copy {
    fn zero() -> Self;
    fn splat(value: f64) -> Self;
    fn load(from: &Quad) -> Self;
    fn store(self, to: &mut Quad);
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * other + more`.
    fn mul_add(self, other: Self, more: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// Lane by lane the lesser; `other` where `self` is no number.
    fn min(self, other: Self) -> Self;
    /// True if all lanes are below `limit`.
    fn all_below(self, limit: Self) -> bool;
    /// True if all lanes are positive normal doubles.
    fn all_normal(self) -> bool;
    /// The lanes where `other` is above 0; 0 elsewhere, also for NaN.
    fn where_positive(self, other: Self) -> Self;
    /// The sums of four: lane `i` is the sum of `rows[i]`'s lanes.
    fn sums(rows: [Self; 4]) -> Self;
    /// The largest of four: lane `i` is the largest of `rows[i]`'s lanes.
    #[inline(always)]
    fn largest(rows: [Self; 4]) -> Self {
        Self::load(&rows.map(|row| {
            let [a, b, c, d] = row.to_array();
            f64::max(f64::max(a, b), f64::max(c, d))
        }))
    }
    /// Mantissas from about 0.707 to 1.414 and exponents of two of normal positive doubles: the
    /// product of a mantissa with two to its exponent is the double.
    fn split(self) -> (Self, Self);
    /// Two to whole exponents from -1022 to 1023.
    fn two_to(self) -> Self;
    /// The nearest whole numbers, of lanes below 2^51.
    #[inline(always)]
    fn round(self) -> Self {
        let shift = Self::splat(ROUNDING);
        self.add(shift).sub(shift)
    }

    /// The counts of four rates, added; the largest count stays.
    #[inline(always)]
    fn add_counts(a: &[u16; 4], b: &[u16; 4]) -> [u16; 4] {
        std::array::from_fn(|i| a[i].saturating_add(b[i]))
    }

    #[inline(always)]
    fn to_array(self) -> Quad {
        let mut quad = [0.0; 4];
        self.store(&mut quad);
        quad
    }

    /// The sum of the lanes, in a fixed order.
    #[inline(always)]
    fn sum(self) -> f64 {
        let [a, b, c, d] = self.to_array();
        (a + b) + (c + d)
    }
}

/// 1.5 times 2^52: a double near it has its lowest bit at 1.
const ROUNDING: f64 = 6_755_399_441_055_744.0;
/// 2^52, whose lowest bits hold a whole number that was put there.
const WHOLE: f64 = 4_503_599_627_370_496.0;
const MANTISSA_BITS: i32 = 52;
const MANTISSA_MASK: u64 = (1 << MANTISSA_BITS) - 1;
const BIAS: f64 = 1023.0;
/// High half of the root of a half: where mantissas begin.
const ROOT_HALF: u64 = 0x3fe6_a09e << 32;
/// Added to it, gives the high half of 1.
const ROOT_TO_ONE: u64 = (0x3ff0_0000 << 32) - ROOT_HALF;

/// The most classes of a batch.
pub(super) const CLASSES_MAX: usize = 4;

/// A value of each class of a batch; those beyond its [`Batch::CLASSES`] are not looked at.
pub(super) type Each<T> = [T; CLASSES_MAX];

/// The same quad of some classes, and operations on all of them at once.
pub(super) trait Batch: Copy {
    /// The lanes of one class.
    type Lanes: Lanes;
    /// A quad of each class; one value after the other is spread.
    type Values<'a>: Copy;
    /// Classes of a batch: 1, 2 or 4.
    const CLASSES: usize;
    /// The same quad for every class.
    fn same(quad: &Quad) -> Self;
    fn load(quads: Each<&Quad>) -> Self;
    /// As many quads that lie together as a batch has classes, from `at` on.
    ///
    /// # Safety
    /// `quads` has them.
    unsafe fn together(quads: &[Quad], at: usize) -> Self;
    /// Writes them there.
    ///
    /// # Safety
    /// `quads` has them.
    unsafe fn put(self, quads: &mut [Quad], at: usize);
    /// Each part's value `J`, in all of its lanes.
    fn each<const J: i32>(self) -> Self;
    fn values<'a>(quads: Each<&'a Quad>) -> Self::Values<'a>;
    /// Each class's value `J`, in all of its lanes.
    fn spread<const J: i32>(values: Self::Values<'_>) -> Self;
    fn mul(self, other: Self) -> Self;
    /// `self * other + more`.
    fn mul_add(self, other: Self, more: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// Lane by lane the lesser; `other` where `self` is no number.
    fn min(self, other: Self) -> Self;
    /// The lanes of one class.
    fn class(self, class: usize) -> Self::Lanes;
}

impl<V: Lanes> Batch for V {
    type Lanes = V;
    type Values<'a> = &'a Quad;
    const CLASSES: usize = 1;

    #[inline(always)]
    fn same(quad: &Quad) -> Self {
        Lanes::load(quad)
    }
    #[inline(always)]
    fn load(quads: Each<&Quad>) -> Self {
        Lanes::load(quads[0])
    }
    #[inline(always)]
    unsafe fn together(quads: &[Quad], at: usize) -> Self {
        // SAFETY: the caller's promise.
        Lanes::load(unsafe { quads.get_unchecked(at) })
    }
    #[inline(always)]
    unsafe fn put(self, quads: &mut [Quad], at: usize) {
        // SAFETY: the caller's promise.
        self.store(unsafe { quads.get_unchecked_mut(at) });
    }
    #[inline(always)]
    fn each<const J: i32>(self) -> Self {
        Self::splat(self.to_array()[J as usize])
    }
    #[inline(always)]
    fn values(quads: Each<&Quad>) -> &Quad {
        quads[0]
    }
    #[inline(always)]
    fn spread<const J: i32>(values: &Quad) -> Self {
        // From memory: that takes no shuffle.
        Self::splat(values[J as usize])
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        Lanes::mul(self, other)
    }
    #[inline(always)]
    fn mul_add(self, other: Self, more: Self) -> Self {
        Lanes::mul_add(self, other, more)
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Lanes::max(self, other)
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Lanes::min(self, other)
    }
    #[inline(always)]
    fn class(self, _: usize) -> V {
        self
    }
}

/// Four doubles.
#[derive(Clone, Copy)]
pub(super) struct Portable(Quad);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f64, f64) -> f64) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl Lanes for Portable {
    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; 4])
    }
    #[inline(always)]
    fn splat(value: f64) -> Self {
        Self([value; 4])
    }
    #[inline(always)]
    fn load(from: &Quad) -> Self {
        Self(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut Quad) {
        *to = self.0;
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
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
        // As `maxpd` has it, also for NaN: the second operand.
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // As `minpd` has it.
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn all_below(self, limit: Self) -> bool {
        (0..4).all(|i| self.0[i] < limit.0[i])
    }
    #[inline(always)]
    fn all_normal(self) -> bool {
        self.0.iter().all(|x| x.is_normal() && *x > 0.0)
    }
    #[inline(always)]
    fn where_positive(self, other: Self) -> Self {
        self.zip(other, |a, b| if b > 0.0 { a } else { 0.0 })
    }
    #[inline(always)]
    fn sums(rows: [Self; 4]) -> Self {
        Self(rows.map(Lanes::sum))
    }
    #[inline(always)]
    fn split(self) -> (Self, Self) {
        // The exponent's carry happens at the root of a half, so mantissas lie around 1.
        let bits = self.0.map(|value| value.to_bits() + ROOT_TO_ONE);
        let mantissa = |bits| f64::from_bits((bits & MANTISSA_MASK) + ROOT_HALF);
        let exponent = |bits| (bits >> MANTISSA_BITS) as f64 - BIAS;
        (Self(bits.map(mantissa)), Self(bits.map(exponent)))
    }
    #[inline(always)]
    fn two_to(self) -> Self {
        let bits =
            |exponent: f64| ((exponent + BIAS + WHOLE).to_bits() & MANTISSA_MASK) << MANTISSA_BITS;
        Self(self.0.map(|exponent| f64::from_bits(bits(exponent))))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use {avx2::Avx2, avx512::Avx512};

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{BIAS, Lanes, MANTISSA_BITS, MANTISSA_MASK, Quad, ROOT_HALF, ROOT_TO_ONE, WHOLE};
    use std::arch::x86_64::*;

    /// One register of four doubles.
    #[derive(Clone, Copy)]
    pub(in crate::kernel::simd) struct Avx2(pub(super) __m256d);

    // SAFETY of every block below: the module's rule. `Avx2` lives only under functions that enable
    // `avx2` and `fma`; loads and stores go through references to four doubles.
    impl Lanes for Avx2 {
        #[inline(always)]
        fn zero() -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_setzero_pd() })
        }
        #[inline(always)]
        fn splat(value: f64) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_set1_pd(value) })
        }
        #[inline(always)]
        fn load(from: &Quad) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_loadu_pd(from.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, to: &mut Quad) {
            // SAFETY: see above.
            unsafe { _mm256_storeu_pd(to.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_add_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn sub(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_sub_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_mul_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn div(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_div_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn mul_add(self, other: Self, more: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_fmadd_pd(self.0, other.0, more.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_max_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_min_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn all_below(self, limit: Self) -> bool {
            // SAFETY: see above.
            unsafe { _mm256_movemask_pd(_mm256_cmp_pd::<_CMP_LT_OQ>(self.0, limit.0)) == 0xF }
        }
        #[inline(always)]
        fn all_normal(self) -> bool {
            // SAFETY: see above. NaN is neither.
            unsafe {
                let least = _mm256_set1_pd(f64::MIN_POSITIVE);
                let above = _mm256_cmp_pd::<_CMP_GE_OQ>(self.0, least);
                // Infinities are above; the ordered comparisons refuse NaN.
                let below = _mm256_cmp_pd::<_CMP_LE_OQ>(self.0, _mm256_set1_pd(f64::MAX));
                _mm256_movemask_pd(_mm256_and_pd(above, below)) == 0xF
            }
        }
        #[inline(always)]
        fn where_positive(self, other: Self) -> Self {
            // SAFETY: see above.
            unsafe {
                let mask = _mm256_cmp_pd::<_CMP_GT_OQ>(other.0, _mm256_setzero_pd());
                Self(_mm256_and_pd(self.0, mask))
            }
        }
        #[inline(always)]
        fn add_counts(a: &[u16; 4], b: &[u16; 4]) -> [u16; 4] {
            // SAFETY: see above; both loads and the store are of eight bytes.
            unsafe {
                let a = _mm_loadl_epi64(a.as_ptr().cast());
                let b = _mm_loadl_epi64(b.as_ptr().cast());
                let mut sum = [0; 4];
                _mm_storel_epi64(sum.as_mut_ptr().cast(), _mm_adds_epu16(a, b));
                sum
            }
        }
        #[inline(always)]
        fn sums(rows: [Self; 4]) -> Self {
            // SAFETY: see above.
            unsafe {
                // Pairs first, then their sums: the order of `Lanes::sum`, hence its bits.
                let ab = _mm256_hadd_pd(rows[0].0, rows[1].0);
                let cd = _mm256_hadd_pd(rows[2].0, rows[3].0);
                let low = _mm256_permute2f128_pd::<0x20>(ab, cd);
                let high = _mm256_permute2f128_pd::<0x31>(ab, cd);
                Self(_mm256_add_pd(low, high))
            }
        }
        #[inline(always)]
        fn largest(rows: [Self; 4]) -> Self {
            // SAFETY: see above.
            unsafe {
                let [a, b, c, d] = rows.map(|row| row.0);
                let ab = _mm256_max_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
                let cd = _mm256_max_pd(_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
                let low = _mm256_permute2f128_pd::<0x20>(ab, cd);
                let high = _mm256_permute2f128_pd::<0x31>(ab, cd);
                Self(_mm256_max_pd(low, high))
            }
        }
        #[inline(always)]
        fn split(self) -> (Self, Self) {
            // SAFETY: see above.
            unsafe {
                let set = |bits: u64| _mm256_set1_epi64x(bits.cast_signed());
                let bits = _mm256_add_epi64(_mm256_castpd_si256(self.0), set(ROOT_TO_ONE));
                let mantissa = _mm256_and_si256(bits, set(MANTISSA_MASK));
                let mantissa = _mm256_add_epi64(mantissa, set(ROOT_HALF));
                let exponent = _mm256_srli_epi64::<MANTISSA_BITS>(bits);
                // AVX2 has no conversion from 64-bit integers: the bits are set into 2^52.
                let exponent = _mm256_or_si256(exponent, set(WHOLE.to_bits()));
                let offset = _mm256_set1_pd(WHOLE + BIAS);
                let exponent = _mm256_sub_pd(_mm256_castsi256_pd(exponent), offset);
                (Self(_mm256_castsi256_pd(mantissa)), Self(exponent))
            }
        }
        #[inline(always)]
        fn two_to(self) -> Self {
            // SAFETY: see above. The bits above the whole number are shifted out.
            unsafe {
                let whole = _mm256_add_pd(self.0, _mm256_set1_pd(WHOLE + BIAS));
                let bits = _mm256_slli_epi64::<MANTISSA_BITS>(_mm256_castpd_si256(whole));
                Self(_mm256_castsi256_pd(bits))
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Avx2, Batch, Each, Quad};
    use std::arch::x86_64::*;

    /// One register of eight doubles: a class's four below, another's above.
    #[derive(Clone, Copy)]
    pub(in crate::kernel::simd) struct Avx512(__m512d);

    // SAFETY of every block below: the module's rule. `Avx512` lives only under functions that
    // enable `avx512f`; loads go through references to four doubles.
    impl Batch for Avx512 {
        type Lanes = Avx2;
        type Values<'a> = Self;
        const CLASSES: usize = 2;

        #[inline(always)]
        fn same(quad: &Quad) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_broadcast_f64x4(_mm256_loadu_pd(quad.as_ptr())) })
        }
        #[inline(always)]
        fn load(quads: Each<&Quad>) -> Self {
            // SAFETY: see above.
            unsafe {
                let low = _mm256_loadu_pd(quads[0].as_ptr());
                let high = _mm256_loadu_pd(quads[1].as_ptr());
                Self(_mm512_insertf64x4::<1>(_mm512_castpd256_pd512(low), high))
            }
        }
        #[inline(always)]
        unsafe fn together(quads: &[Quad], at: usize) -> Self {
            // SAFETY: the caller's promise: two quads, eight doubles.
            Self(unsafe { _mm512_loadu_pd(quads.as_ptr().add(at).cast()) })
        }
        #[inline(always)]
        unsafe fn put(self, quads: &mut [Quad], at: usize) {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_pd(quads.as_mut_ptr().add(at).cast(), self.0) }
        }
        #[inline(always)]
        fn each<const J: i32>(self) -> Self {
            Self::spread::<J>(self)
        }
        #[inline(always)]
        fn values(quads: Each<&Quad>) -> Self {
            Self::load(quads)
        }
        #[inline(always)]
        fn spread<const J: i32>(values: Self) -> Self {
            // SAFETY: see above. Each half picks its own lane.
            Self(unsafe {
                match J {
                    0 => _mm512_permutex_pd::<0x00>(values.0),
                    1 => _mm512_permutex_pd::<0x55>(values.0),
                    2 => _mm512_permutex_pd::<0xaa>(values.0),
                    _ => _mm512_permutex_pd::<0xff>(values.0),
                }
            })
        }
        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_mul_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn mul_add(self, other: Self, more: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_fmadd_pd(self.0, other.0, more.0) })
        }
        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_max_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn min(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_min_pd(self.0, other.0) })
        }
        #[inline(always)]
        fn class(self, class: usize) -> Avx2 {
            // SAFETY: see above.
            Avx2(unsafe {
                match class {
                    0 => _mm512_castpd512_pd256(self.0),
                    _ => _mm512_extractf64x4_pd::<1>(self.0),
                }
            })
        }
    }
}
