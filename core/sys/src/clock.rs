//! Time, processor time, cycles, and memory in use.
//!
//! Why here: stage times of a request are tens of nanoseconds, so the clock that measures them must
//! be cheaper still: a cycle count costs about 10 ns, `clock_gettime` about 25 ns without a system
//! call. Source: clock_gettime(2), Intel SDM (RDTSC), proc_pid_status(5).
//!
//! The clock is the C library's: it knows where the kernel's vDSO is, and whether there is one.
//! Under valgrind, gVisor and some emulators there is none; it is a system call there. A parser of
//! our own (rustix has one) would follow the address that the kernel gave the process, which
//! valgrind has unmapped.
//!
//! ```
//! use sidecore_sys::clock;
//!
//! let (begun_ns, used_ns, cycles) = (clock::now_ns(), clock::thread_cpu_ns(), clock::cycles());
//! let sum: u64 = (0..10_000_u64).map(std::hint::black_box).sum();
//! let spent = clock::cycles().wrapping_sub(cycles);
//! assert_eq!(sum, 49_995_000);
//! assert!(clock::now_ns() >= begun_ns && clock::thread_cpu_ns() >= used_ns);
//! println!("{} ns", clock::cycles_to_ns(spent));
//! ```
#![allow(unsafe_code)] // The cycle counter's instruction, the C library's clock.

use crate::SysError;
use std::sync::OnceLock;
use std::time::Duration;

/// Nanoseconds since some fixed moment; never goes back, the same for all threads.
#[inline]
#[must_use]
pub fn now_ns() -> u64 {
    read_ns(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of processor time that this thread has used.
#[inline]
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Nanoseconds of processor time that a process has used; `None` where there is none of that
/// number.
#[must_use]
pub fn process_cpu_ns(process: i32) -> Option<u64> {
    let mut clock = 0;
    // SAFETY: it writes one number.
    let found = unsafe { libc::clock_getcpuclockid(process, &raw mut clock) };
    (found == 0).then(|| read_ns(clock))
}

/// The processor's own counter. It runs at a constant rate (see [`cycles_per_us`]), not at the
/// core's momentary speed; where a processor has none that a program can read, nanoseconds.
#[cfg(target_arch = "x86_64")]
#[inline]
#[must_use]
pub fn cycles() -> u64 {
    // SAFETY: reading the time stamp counter is allowed to user programs on Linux and touches no
    // memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The processor's cycle counter; on this architecture the clock, in nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
#[must_use]
pub fn cycles() -> u64 {
    now_ns()
}

/// Frequency of [`cycles`] in ticks per microsecond. Measured against the clock at the first call,
/// which takes 5 ms; within about 0.1 %.
#[must_use]
pub fn cycles_per_us() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    *RATE.get_or_init(|| {
        let (clock, counter) = (now_ns(), cycles());
        // Long enough that the two readings' own time is below a thousandth.
        std::thread::sleep(Duration::from_millis(5));
        let (clock_later, counter_later) = (now_ns(), cycles());
        let elapsed_us = (clock_later - clock).max(1) as f64 / 1000.0;
        (counter_later.wrapping_sub(counter) as f64 / elapsed_us).max(1.0)
    })
}

/// Dependent additions that this core does per tick of [`cycles`]. This is its clock frequency
/// divided by the counter's, since every processor does one dependent addition in a clock cycle.
/// Measured over `ADDITIONS` additions, about a microsecond. Too small if the thread was
/// interrupted meanwhile; never too large.
#[must_use]
pub fn additions_per_cycle() -> f64 {
    let begun = cycles();
    std::hint::black_box(add_in_turn(ADDITIONS));
    let counted = cycles().wrapping_sub(begun).max(1);
    ADDITIONS as f64 / counted as f64
}

/// Additions in one measurement of [`additions_per_cycle`].
pub(crate) const ADDITIONS: u64 = 4096;

/// Adds a register to another, `count` times (a multiple of 16). Not an immediate value: some
/// processors fold chains of those.
#[cfg(target_arch = "x86_64")]
#[inline]
fn add_in_turn(count: u64) -> u64 {
    let mut sum = 0u64;
    for _ in 0..count / 16 {
        // SAFETY: additions between two registers; no memory, no stack.
        unsafe {
            std::arch::asm!(
                ".rept 16",
                "add {sum}, {one}",
                ".endr",
                sum = inout(reg) sum,
                one = in(reg) 1u64,
                options(pure, nomem, nostack),
            );
        }
    }
    sum
}

/// Adds a register to another, `count` times (a multiple of 16).
#[cfg(target_arch = "aarch64")]
#[inline]
fn add_in_turn(count: u64) -> u64 {
    let mut sum = 0u64;
    for _ in 0..count / 16 {
        // SAFETY: additions between two registers; no memory, no stack.
        unsafe {
            std::arch::asm!(
                ".rept 16",
                "add {sum}, {sum}, {one}",
                ".endr",
                sum = inout(reg) sum,
                one = in(reg) 1u64,
                options(pure, nomem, nostack),
            );
        }
    }
    sum
}

/// Adds one, `count` times, as well as the language can be made to.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn add_in_turn(count: u64) -> u64 {
    (0..count).fold(0, |sum, _| std::hint::black_box(sum) + 1)
}

/// A number of [`cycles`] in nanoseconds.
#[must_use]
pub fn cycles_to_ns(cycles: u64) -> u64 {
    (cycles as f64 * 1000.0 / cycles_per_us()) as u64
}

/// Bytes of physical memory that this process has mapped, as the kernel counts them: those of its
/// own (heap, stacks, regions), and all, with mapped files and shared memory. Costs tens of
/// microseconds; not for the data path.
///
/// # Errors
/// [`SysError::Call`] where `/proc/self/status` cannot be read.
pub fn memory_in_use() -> Result<(u64, u64), SysError> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|source| SysError::Call {
        call: "reading /proc/self/status",
        source,
    })?;
    let bytes = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.trim_start_matches(':').trim().split(' ').next())
            .and_then(|kib| kib.parse::<u64>().ok())
            .map_or(0, |kib| kib * 1024)
    };
    let own = bytes("RssAnon");
    Ok((own, own + bytes("RssFile") + bytes("RssShmem")))
}

#[inline]
fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the C library writes the time to the place that is given. These clocks exist, so
    // that it does not fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance_and_agree() {
        // The count lies between two readings of the clock, however long the thread is without a
        // core between one reading and the next.
        let (outside, cpu) = (now_ns(), thread_cpu_ns());
        let counter = cycles();
        let inside = now_ns();
        let mut sum = 0u64;
        while now_ns() - inside < 20_000_000 {
            sum = std::hint::black_box(sum + 1);
        }
        let inside = now_ns() - inside;
        let counted = cycles_to_ns(cycles() - counter) as f64;
        let used = thread_cpu_ns() - cpu;
        let outside = now_ns() - outside;
        let (least, most) = (0.9 * inside as f64, 1.1 * outside as f64);
        assert!(
            (least..most).contains(&counted),
            "{counted} ns counted in {inside} to {outside} ns"
        );
        assert!(0 < used && used <= 2 * outside);
    }

    #[test]
    fn additions_are_done_in_turn() {
        assert_eq!(add_in_turn(ADDITIONS), ADDITIONS);
        let best = (0..200).map(|_| additions_per_cycle()).fold(0.0, f64::max);
        // A core's clock is between a tenth and ten times its counter's.
        assert!((0.1..10.0).contains(&best), "{best} a cycle");
    }

    #[test]
    fn memory_in_use_is_counted() {
        let (own, all) = memory_in_use().unwrap();
        // The program's file is mapped, too.
        assert!(0 < own && own < all, "{own} of {all}");
    }
}
