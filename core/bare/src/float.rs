//! The processor's control words of floating-point arithmetic: rounding, subnormal numbers, traps.
//!
//! Why here: they are a thread's, and every function on it computes by them. Foreign code may
//! leave them changed: an object that was linked with `-Ofast` has a constructor that turns
//! subnormal numbers off for good (GCC's `crtfastmath`), and a thread begins with the words of the
//! one that started it. Then all later results on that thread are others.
//! Must stay true: [`isolated`] runs foreign code with the words that every function may rely on,
//! and leaves the thread with them. Only control bits are looked at, never the flags that
//! arithmetic raises.
//! Source: System V ABI, AMD64 supplement, 3.2.1 (control bits of MXCSR and the x87 control word
//! are the callee's to keep); Intel SDM, volume 1, 8.1.5 and 10.2.3; Procedure Call Standard for
//! the Arm 64-bit Architecture, 6.1.2 (FPCR).
#![allow(unsafe_code)] // Reads and writes these registers.

use std::fmt;

/// The control words of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modes {
    /// Control bits of MXCSR; FPCR on aarch64.
    vector: u32,
    /// The x87 control word; 0 on aarch64.
    x87: u16,
}

#[cfg(target_arch = "x86_64")]
impl Modes {
    /// The words that a process begins with: nearest rounding, subnormal numbers, no traps.
    pub const DEFAULT: Self = Self {
        vector: 0x1f80,
        x87: 0x037f,
    };
    /// Control bits of MXCSR: DAZ, masks, rounding, FTZ. The others are flags.
    const CONTROL: u32 = 0xffc0;

    /// The words of this thread.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        let (mut vector, mut x87) = (0_u32, 0_u16);
        // SAFETY: both instructions store a register in the place that they are given, 4 and 2
        // bytes, and change nothing else.
        unsafe {
            std::arch::asm!(
                "stmxcsr [{vector}]",
                "fnstcw [{x87}]",
                vector = in(reg) &raw mut vector,
                x87 = in(reg) &raw mut x87,
                options(nostack, preserves_flags)
            );
        }
        Self {
            vector: vector & Self::CONTROL,
            x87,
        }
    }

    /// Sets the default words, and empties the x87 registers, which MMX code may have left in use.
    #[inline]
    pub fn reset() {
        let (vector, x87) = (Self::DEFAULT.vector, Self::DEFAULT.x87);
        // SAFETY: the words that Rust and C assume at every call; `emms` marks registers as empty
        // that are empty between functions.
        unsafe {
            std::arch::asm!(
                "emms",
                "ldmxcsr [{vector}]",
                "fldcw [{x87}]",
                vector = in(reg) &raw const vector,
                x87 = in(reg) &raw const x87,
                options(nostack, readonly)
            );
        }
    }

    /// Marks the x87 registers as empty, as they are between functions.
    #[inline]
    fn empty_x87() {
        // SAFETY: no value lives there while Rust code runs.
        unsafe { std::arch::asm!("emms", options(nostack, nomem)) };
    }
}

#[cfg(target_arch = "aarch64")]
impl Modes {
    /// The words that a process begins with: nearest rounding, subnormal numbers, no traps.
    pub const DEFAULT: Self = Self { vector: 0, x87: 0 };

    /// The words of this thread.
    #[inline]
    #[must_use]
    pub fn current() -> Self {
        let word: u64;
        // SAFETY: reads a register.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) word, options(nostack, nomem)) };
        let vector = u32::try_from(word & 0xffff_ffff).unwrap_or(u32::MAX);
        Self { vector, x87: 0 }
    }

    /// Sets the default words.
    #[inline]
    pub fn reset() {
        // SAFETY: the word that Rust and C assume at every call.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) 0_u64, options(nostack, nomem)) };
    }

    #[inline]
    fn empty_x87() {}
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
impl Modes {
    /// Not known on this machine.
    pub const DEFAULT: Self = Self { vector: 0, x87: 0 };

    /// The words of this thread: always the default here.
    #[must_use]
    pub fn current() -> Self {
        Self::DEFAULT
    }

    /// Does nothing here.
    pub fn reset() {}

    fn empty_x87() {}
}

impl Modes {
    /// Sets the default words where they are others; true where they were.
    #[inline]
    pub fn restore() -> bool {
        let changed = Self::current() != Self::DEFAULT;
        if changed {
            Self::reset();
        }
        changed
    }
}

impl fmt::Display for Modes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match cfg!(target_arch = "x86_64") {
            true => write!(f, "MXCSR 0x{:04x}, x87 0x{:04x}", self.vector, self.x87),
            false => write!(f, "FPCR 0x{:08x}", self.vector),
        }
    }
}

/// Calls foreign code with the default words, whatever this thread had, and leaves the thread with
/// them. Also the words that the call left, where they are others. Costs some nanoseconds.
///
/// ```
/// use sidecore_bare::float::{Modes, isolated};
/// assert_eq!(isolated(|| 2.0 + 2.0), (4.0, None));
/// assert_eq!(Modes::current(), Modes::DEFAULT);
/// ```
#[inline]
pub fn isolated<T>(call: impl FnOnce() -> T) -> (T, Option<Modes>) {
    Modes::restore();
    let value = call();
    // MMX code may have left the registers in use, which spoils later x87 arithmetic.
    Modes::empty_x87();
    let left = Modes::current();
    let changed = left != Modes::DEFAULT;
    if changed {
        Modes::reset();
    }
    (value, changed.then_some(left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    /// As `fesetround` and `crtfastmath` do.
    #[cfg(target_arch = "x86_64")]
    fn spoil() {
        let (vector, x87) = (0xdfc0_u32, 0x0b7f_u16);
        // SAFETY: control words alone; every caller has them set back.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const vector, options(nostack));
            std::arch::asm!("fldcw [{}]", in(reg) &raw const x87, options(nostack));
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn spoil() {
        // SAFETY: flush to zero and another rounding; every caller has them set back.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) 0x0140_0000_u64) };
    }

    /// The sum of two subnormal numbers, which is 0 where they are flushed.
    fn subnormal_sum() -> f64 {
        black_box(f64::from_bits(black_box(1))) + black_box(f64::from_bits(black_box(2)))
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn modes_that_foreign_code_leaves_are_found_and_set_back() {
        assert_eq!(Modes::current(), Modes::DEFAULT);
        let ((), left) = isolated(spoil);
        assert!(left.is_some_and(|left| left != Modes::DEFAULT));
        assert_eq!(Modes::current(), Modes::DEFAULT);
        assert_eq!(subnormal_sum().to_bits(), 3);
        // A thread that comes with other modes runs foreign code with the default ones.
        spoil();
        let (sum, left) = isolated(subnormal_sum);
        assert_eq!((sum.to_bits(), left), (3, None));
        spoil();
        assert!(Modes::restore() && !Modes::restore());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn registers_that_mmx_code_left_in_use_are_emptied() {
        // SAFETY: the code writes an MMX register; the tested function marks it as empty.
        let ((), left) = isolated(|| unsafe {
            std::arch::asm!("pxor mm0, mm0", options(nostack, nomem));
        });
        assert_eq!(left, None);
        let mut environment = [0_u16; 14];
        // SAFETY: 28 bytes are stored; the control word, which it masks, is set back.
        unsafe {
            std::arch::asm!("fnstenv [{}]", in(reg) &raw mut environment, options(nostack));
        }
        Modes::reset();
        assert_eq!(environment[4], 0xffff, "tags: 11 is empty");
    }
}
