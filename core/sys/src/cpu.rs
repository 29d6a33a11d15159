//! Cores: which this thread may use, is on, and must stay on; its name and niceness.
//!
//! Why here: an engine is a thread that stays on one core. Source: sched_setaffinity(2),
//! setpriority(2), sched(7).
//!
//! ```
//! use sidecore_sys::cpu;
//!
//! let last = *cpu::allowed()?.last().expect("a thread runs somewhere");
//! let thread = std::thread::spawn(move || cpu::pin(last).map(|()| cpu::current()));
//! assert_eq!(thread.join().expect("no panic")?, last);
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```
#![allow(unsafe_code)] // System calls that no safe crate offers, or not without a vDSO.

use crate::SysError;
use rustix::thread::{self, CpuSet};
use std::ffi::CString;

/// The cores that this thread may run on, ascending. At least one.
///
/// # Errors
/// [`SysError::Call`] where the kernel has more cores than its interface for sets of them.
pub fn allowed() -> Result<Vec<usize>, SysError> {
    let set = thread::sched_getaffinity(None).map_err(|source| SysError::Call {
        call: "sched_getaffinity",
        source: source.into(),
    })?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

/// The number of cores whose time this process may have: those of [`allowed`], or fewer where a
/// control group's quota gives less (`cpu.max`; `cpu.cfs_quota_us` of version 1). Rounded down, at
/// least 1. Reads the quota anew each time.
///
/// More engines than that would be stopped together for the rest of each period, with all that
/// wait for them. Source: Documentation/admin-guide/cgroup-v2.rst, sched-bwc.rst.
#[must_use]
pub fn affordable() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The cores that this process may use at this moment, and the number of them whose time it may
/// have ([`affordable`]): those of its first thread, since this one may be pinned. Takes some
/// 100 us, on a thread of its own.
///
/// # Errors
/// [`SysError::Call`] where the operating system refuses.
pub fn of_process() -> Result<(Vec<usize>, usize), SysError> {
    let refused = |call| move |source: std::io::Error| SysError::Call { call, source };
    let first = Some(rustix::process::getpid());
    let set = thread::sched_getaffinity(first)
        .map_err(|source| refused("sched_getaffinity")(source.into()))?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect();
    let own = cpus.clone();
    let look = std::thread::Builder::new().spawn(move || {
        // The library counts what this very thread may use.
        stay_on(&own).ok();
        affordable()
    });
    let count = look.map_err(refused("clone"))?.join();
    let count = count.unwrap_or(cpus.len()).clamp(1, cpus.len().max(1));
    Ok((cpus, count))
}

/// Microseconds since the machine's start for which some runnable thread of it waited for a core.
/// `None` where the kernel does not count them. Takes some 20 us.
///
/// Source: Documentation/accounting/psi.rst.
#[must_use]
pub fn waited_us() -> Option<u64> {
    waited_in(&std::fs::read_to_string("/proc/pressure/cpu").ok()?)
}

fn waited_in(pressure: &str) -> Option<u64> {
    let some = pressure
        .lines()
        .find_map(|line| line.strip_prefix("some "))?;
    let (_, total) = some.rsplit_once("total=")?;
    total.trim_end().parse().ok()
}

/// The core that this thread runs on at this moment; unless pinned it may be on another when the
/// call returns.
#[inline]
#[must_use]
pub fn current() -> usize {
    // The C library's, for the reason that `clock` has.
    // SAFETY: it takes nothing and gives a number.
    let cpu = unsafe { libc::sched_getcpu() };
    // It fails on kernels without the call alone, which are older than all that we run on.
    usize::try_from(cpu).unwrap_or(0)
}

/// Keeps this thread on one core from now on.
///
/// # Errors
/// [`SysError::Pin`] where the core does not exist or is not allowed to this process.
pub fn pin(cpu: usize) -> Result<(), SysError> {
    let refuse = |source: rustix::io::Errno| SysError::Pin {
        cpu,
        source: source.into(),
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(refuse(rustix::io::Errno::INVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    thread::sched_setaffinity(None, &set).map_err(refuse)
}

/// Keeps this thread on these cores from now on.
///
/// # Errors
/// [`SysError::Pin`], with the first of them, where none exists or is allowed to this process.
pub fn stay_on(cpus: &[usize]) -> Result<(), SysError> {
    let mut set = thread::CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < thread::CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    thread::sched_setaffinity(None, &set).map_err(|source| SysError::Pin {
        cpu: cpus.first().copied().unwrap_or(0),
        source: source.into(),
    })
}

/// Moves this thread away from a core that it need not use, at once; its allowed cores stay the
/// same. Does nothing for one that may run there only. Takes some 10 us.
///
/// # Errors
/// [`SysError::Pin`] where the operating system refuses.
pub fn step_aside(cpu: usize) -> Result<(), SysError> {
    let refuse = |source: rustix::io::Errno| SysError::Pin {
        cpu,
        source: source.into(),
    };
    let allowed = thread::sched_getaffinity(None).map_err(refuse)?;
    if cpu >= thread::CpuSet::MAX_CPU || !allowed.is_set(cpu) || allowed.count() < 2 {
        return Ok(());
    }
    let mut others = allowed;
    others.unset(cpu);
    // Moved away at once; the second call only allows it to come back.
    thread::sched_setaffinity(None, &others).map_err(refuse)?;
    thread::sched_setaffinity(None, &allowed).map_err(refuse)
}

/// Sets this thread's niceness, -20 (most favoured, needs privilege) to 19.
///
/// # Errors
/// [`SysError::Call`] where the process may not.
pub fn set_nice(nice: i32) -> Result<(), SysError> {
    // On Linux the niceness belongs to the thread, and a process identifier names a thread here.
    let thread = thread::gettid();
    rustix::process::setpriority_process(Some(thread), nice).map_err(|source| SysError::Call {
        call: "setpriority",
        source: source.into(),
    })
}

/// Lets this thread run at once whenever it wants to, before all ordinary threads. For threads that
/// do very little at a time: one that does not sleep takes its core from all others.
///
/// # Errors
/// [`SysError::Call`] where the process may not (it needs `CAP_SYS_NICE`, and a control group with
/// real-time shares).
pub fn run_first() -> Result<(), SysError> {
    // SAFETY: a struct of integers, for which zero is a value.
    let mut param: libc::sched_param = unsafe { std::mem::zeroed() };
    param.sched_priority = 1;
    // Children start in the usual class: a program that this thread starts must not block the core.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is this thread; the kernel only reads the struct, which lives through the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(SysError::Call {
            call: "sched_setscheduler",
            source: std::io::Error::last_os_error(),
        }),
    }
}

/// This thread's number in the system, for [`run_last`].
#[must_use]
pub fn thread_id() -> i32 {
    thread::gettid().as_raw_nonzero().get()
}

/// Lets a thread of this process run only where no ordinary thread wants its core.
///
/// # Errors
/// [`SysError::Call`] where there is no such thread.
pub fn run_last(thread_id: i32) -> Result<(), SysError> {
    // SAFETY: a struct of integers, for which zero is a value, and the only one for this policy.
    let param: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only reads the struct, which lives through the call.
    match unsafe { libc::sched_setscheduler(thread_id, libc::SCHED_IDLE, &raw const param) } {
        0 => Ok(()),
        _ => Err(SysError::Call {
            call: "sched_setscheduler",
            source: std::io::Error::last_os_error(),
        }),
    }
}

/// Names this thread, as `top -H` shows it; cut to the 15 bytes that the kernel keeps.
pub fn set_thread_name(name: &str) {
    // The kernel keeps 15 bytes (TASK_COMM_LEN).
    let bytes: Vec<u8> = name.bytes().filter(|&byte| byte != 0).take(15).collect();
    if let Ok(name) = CString::new(bytes) {
        // A thread without its name works as well.
        thread::set_name(&name).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_where_it_was_put() {
        std::thread::spawn(|| {
            for cpu in allowed().unwrap() {
                pin(cpu).unwrap();
                assert_eq!(current(), cpu);
                assert_eq!(allowed().unwrap(), [cpu]);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn waiting_time_is_read_where_the_kernel_counts_it() {
        let text = "some avg10=67.29 avg60=76.84 avg300=80.77 total=33103166940\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(waited_in(text), Some(33_103_166_940));
        for bad in ["", "full total=1\n", "some avg10=1.00\n", "some total=x\n"] {
            assert_eq!(waited_in(bad), None, "{bad}");
        }
        // It only grows.
        if let (Some(before), Some(after)) = (waited_us(), waited_us()) {
            assert!(before <= after);
        }
    }

    #[test]
    fn a_core_that_is_not_there_is_refused_by_number() {
        let error = pin(100_000).unwrap_err().to_string();
        assert!(error.contains("core 100000"), "{error}");
    }

    #[test]
    fn nice_and_name_are_the_threads_own() {
        let of_main = || rustix::process::getpriority_process(Some(rustix::process::getpid()));
        let before = of_main().unwrap();
        std::thread::spawn(move || {
            // Upwards from where we are: that needs no privilege.
            let nice = (before + 5).min(19);
            set_nice(nice).unwrap();
            let own = rustix::process::getpriority_process(Some(thread::gettid())).unwrap();
            assert_eq!(own, nice);
            set_thread_name("an-engine-with-a-long-name");
            assert_eq!(thread::name().unwrap().to_bytes(), b"an-engine-with-");
        })
        .join()
        .unwrap();
        assert_eq!(of_main().unwrap(), before);
    }
}
