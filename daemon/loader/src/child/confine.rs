//! Confinement of a worker: its limits, the signals that end it, and the system calls that it has.
//!
//! Why here: a kernel's mistakes and its will must end in its own process, with a reason. Must stay
//! true: no file is open in a worker once a kernel runs; memory that it gets is private and counted
//! (`RLIMIT_DATA`), the stack has its own limit. Every signal that a fault raises is caught on a
//! stack of its own, noted in the page, and ends the process. One thread: a host process has no
//! other, so a fork copies all of it. Source: seccomp(2), setrlimit(2), sigaltstack(2),
//! get_robust_list(2).
#![allow(unsafe_code)] // fork, signal handlers and lists that the kernel walks.

use super::protocol::{CALL, MEMORY, Page, STACK};
use crate::error::ObjectError;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, apply_filter,
};
use sidecore_bare::width::{ToU64, ToUsize};
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::Duration;

/// Limits of the process that runs an object's kernels for one client at one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Processor time of one request. Ten times as long by the clock.
    pub time: Duration,
    /// Memory that kernels allocate, in bytes.
    pub memory_bytes: u64,
    /// Their stack, in bytes.
    pub stack_bytes: u64,
}

impl Limits {
    /// The most that an object may ask for, unless a daemon says otherwise.
    pub const MOST: Self = Self {
        time: Duration::from_secs(10),
        memory_bytes: 1 << 30,
        stack_bytes: 64 << 20,
    };

    /// The limits of an object that asks for none.
    pub const DEFAULT: Self = Self {
        time: Duration::from_secs(1),
        memory_bytes: 256 << 20,
        stack_bytes: 2 << 20,
    };

    /// The limits of an object that asks for these: microseconds, bytes of memory, of stack.
    pub(super) fn of(
        &self,
        [time_us, memory_bytes, stack_bytes]: &[u64; 3],
    ) -> Result<Self, ObjectError> {
        let amount = |asked: u64, usual: u64, most: u64, what, option| match asked {
            // The operator's limit holds for objects that ask for nothing, too.
            0 => Ok(usual.min(most)),
            asked if asked <= most => Ok(asked),
            asked => Err(ObjectError::Limit {
                what,
                asked,
                most,
                option,
            }),
        };
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let (usual, memory, stack) = (Self::DEFAULT, "bytes of memory", "bytes of stack");
        let time = amount(
            *time_us,
            us(usual.time),
            us(self.time),
            "us of processor time",
            "--kernel-ms",
        )?;
        Ok(Self {
            time: Duration::from_micros(time),
            memory_bytes: amount(
                *memory_bytes,
                usual.memory_bytes,
                self.memory_bytes,
                memory,
                "--kernel-memory",
            )?,
            stack_bytes: amount(
                *stack_bytes,
                usual.stack_bytes,
                self.stack_bytes,
                stack,
                "--kernel-stack",
            )?,
        })
    }
}

/// Filters of system calls, made before a worker is.
pub(super) struct Filters {
    allowed: BpfProgram,
    refused: BpfProgram,
}

impl Filters {
    /// The calls that the C library makes for code that computes and allocates: the others end the
    /// process.
    pub(super) fn new() -> Result<Self, String> {
        let machine = std::env::consts::ARCH
            .try_into()
            .map_err(|error| format!("no filter of system calls for this machine: {error}"))?;
        let build = |rules, other, listed| {
            let filter = SeccompFilter::new(rules, other, listed, machine);
            filter
                .and_then(BpfProgram::try_from)
                .map_err(|error| error.to_string())
        };
        // Memory that others could map, or code made at run time, is not to be had.
        let private = [
            zero_bits(2, libc::PROT_EXEC),
            zero_bits(3, libc::MAP_SHARED | libc::MAP_GROWSDOWN),
        ];
        let private = private.into_iter().collect::<Result<Vec<_>, _>>()?;
        let data = vec![zero_bits(2, libc::PROT_EXEC)?];
        let rule = |conditions| SeccompRule::new(conditions).map_err(|error| error.to_string());
        let mut rules: std::collections::BTreeMap<_, _> =
            ALLOWED.iter().map(|&call| (call, vec![])).collect();
        rules.insert(libc::SYS_mmap, vec![rule(private)?]);
        rules.insert(libc::SYS_mprotect, vec![rule(data)?]);
        // A library's message about its end is not the reason of the end, but has nowhere to go.
        rules.extend(QUIET.map(|call| (call, vec![])));
        let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        Ok(Self {
            allowed: build(rules, SeccompAction::Trap, SeccompAction::Allow)?,
            refused: build(
                QUIET.map(|call| (call, vec![])).into(),
                SeccompAction::Allow,
                refuse,
            )?,
        })
    }
}

/// The condition that an argument has none of these bits.
fn zero_bits(argument: u8, bits: i32) -> Result<SeccompCondition, String> {
    let mask = SeccompCmpOp::MaskedEq(bits.unsigned_abs().into());
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, mask, 0)
        .map_err(|error| error.to_string())
}

/// Makes a child process, which runs `work` and ends; its number.
pub(super) fn fork(work: impl FnOnce()) -> io::Result<i32> {
    // SAFETY: this process has one thread, so the child is a whole copy of it.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            work();
            end()
        }
        child => Ok(child),
    }
}

/// Waits until a child has ended; its status.
pub(super) fn wait(child: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the kernel writes one number.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    (ended == child).then_some(status)
}

/// The text that says how a process ended, by its status.
pub(super) fn ending(status: i32) -> String {
    if libc::WIFEXITED(status) {
        return format!("ended its process (status {})", libc::WEXITSTATUS(status));
    }
    match libc::WTERMSIG(status) {
        libc::SIGKILL => "killed (SIGKILL); out of memory?".to_owned(),
        libc::SIGSEGV => "bad address (SIGSEGV)".to_owned(),
        signal => format!("ended by signal {signal}"),
    }
}

/// The text for what a handler noted.
pub(super) fn fault(page: &Page, limits: Limits) -> Option<String> {
    let signal = i32::try_from(page.signal.load(Ordering::Relaxed)).ok()?;
    let detail = page.detail.load(Ordering::Relaxed);
    Some(match (signal, page.cause.load(Ordering::Relaxed)) {
        (0, _) => return None,
        (_, STACK) => format!("out of stack ({} KiB)", limits.stack_bytes >> 10),
        (_, MEMORY) => format!("out of memory ({} KiB)", limits.memory_bytes >> 10),
        (libc::SIGSYS, _) if detail == libc::SYS_tgkill.unsigned_abs() => "aborted".to_owned(),
        (libc::SIGSYS, _) => format!("system call {detail} is not allowed"),
        (libc::SIGSEGV, _) => format!("bad address {detail:#x} (SIGSEGV)"),
        (libc::SIGBUS, _) => format!("bad address {detail:#x} (SIGBUS)"),
        (libc::SIGILL, _) => "illegal instruction (SIGILL)".to_owned(),
        (libc::SIGFPE, _) => "arithmetic fault (SIGFPE)".to_owned(),
        (signal, _) => format!("ended by signal {signal}"),
    })
}

/// Confines this process from now on. The maps that it needs are made.
///
/// # Errors
/// The text of what the operating system refused: then no kernel may run.
pub(super) fn confine(
    page: &'static Page,
    limits: Limits,
    filters: &Filters,
    host: Option<Pid>,
) -> Result<(), String> {
    close_all()?;
    let refused = |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
    let kill = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    kill.map_err(refused("prctl"))?;
    // Nothing tells of a host process that ended before.
    if rustix::process::getppid() != host {
        return Err("its host process has ended".to_owned());
    }
    // Before the filters, which allow neither `sigaltstack` nor `sigaction`.
    catch_signals(page, limits);
    // The limit counts the memory that this process has already.
    let own_bytes = data_bytes().unwrap_or(0);
    for (resource, bytes) in [
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (
            Resource::Data,
            own_bytes.saturating_add(limits.memory_bytes),
        ),
        (Resource::Stack, limits.stack_bytes),
    ] {
        // Not above what this process may have at most.
        let most = rustix::process::getrlimit(resource).maximum;
        let bytes = most.map_or(bytes, |most| bytes.min(most));
        let limit = Rlimit {
            current: Some(bytes),
            maximum: Some(bytes),
        };
        rustix::process::setrlimit(resource, limit).map_err(refused("setrlimit"))?;
    }
    // As above: the filters do not allow `set_robust_list`.
    watch_turn(page)?;
    // The strict one last: it does not allow the call that installs a filter.
    for filter in [&filters.refused, &filters.allowed] {
        apply_filter(filter).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Makes the part of a map that ends at `bytes` unusable.
pub(super) fn hide(start: *mut u8, bytes: u64) -> io::Result<()> {
    let flags = rustix::mm::MprotectFlags::empty();
    // SAFETY: the caller's own map, of whose first bytes nothing is used any more.
    Ok(unsafe { rustix::mm::mprotect(start.cast(), bytes.to_usize(), flags) }?)
}

fn close_all() -> Result<(), String> {
    // SAFETY: nothing of this process uses a descriptor from here on.
    match unsafe { libc::syscall(libc::SYS_close_range, 0_u32, u32::MAX, 0_u32) } {
        0 => Ok(()),
        _ => Err(format!("close_range: {}", io::Error::last_os_error())),
    }
}

/// Bytes of private memory that this process has now.
fn data_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(5)?.parse().ok()?;
    Some(pages * rustix::param::page_size().to_u64())
}

/// The page and the stack of the one worker that this process is.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());
static STACK_TOP: AtomicUsize = AtomicUsize::new(0);
static STACK_BYTES: AtomicUsize = AtomicUsize::new(0);

fn catch_signals(page: &'static Page, limits: Limits) {
    let here = 0_u8;
    PAGE.store(ptr::from_ref(page).cast_mut(), Ordering::Relaxed);
    STACK_TOP.store((&raw const here).addr(), Ordering::Relaxed);
    STACK_BYTES.store(limits.stack_bytes.to_usize(), Ordering::Relaxed);
    let stack = vec![0_u8; SIGNAL_STACK_BYTES].leak();
    let stack = libc::stack_t {
        ss_sp: stack.as_mut_ptr().cast(),
        ss_flags: 0,
        ss_size: stack.len(),
    };
    // SAFETY: the stack lives as long as the process; a struct of plain values, for which zeros
    // are ones; the handler makes no call that is unsafe in a handler.
    unsafe {
        libc::sigaltstack(&raw const stack, ptr::null_mut());
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_signal;
        action.sa_sigaction = handler as libc::sighandler_t;
        // On a stack of its own, since the other may be full. Once, so
        // that a fault in it ends the process.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND;
        for signal in CAUGHT {
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

/// Notes why the process ends, and ends it.
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let page = PAGE.load(Ordering::Relaxed);
    // SAFETY: set before the handler was, to a map that stays; `info` is the kernel's, and has the
    // number of a refused call behind its address (sigaction(2), `si_syscall`).
    let (page, address, call) = unsafe {
        let call = info.byte_add(24).cast::<i32>().read();
        (&*page, (*info).si_addr().addr(), call)
    };
    let top = STACK_TOP.load(Ordering::Relaxed);
    let lowest = top.saturating_sub(STACK_BYTES.load(Ordering::Relaxed) + STACK_LEAP);
    let (cause, detail) = match signal {
        // `abort` raises its signal by `tgkill`, which is trapped as any
        // other call; its cause comes below.
        libc::SIGSYS if u64::from(call.unsigned_abs()) != libc::SYS_tgkill.unsigned_abs() => {
            (CALL, call.unsigned_abs().into())
        }
        libc::SIGSEGV if (lowest..top).contains(&address) => (STACK, 0),
        // An allocation that failed is the reason of what came of it.
        libc::SIGSEGV | libc::SIGSYS | libc::SIGABRT if !has_memory() => (MEMORY, 0),
        libc::SIGSYS => (CALL, call.unsigned_abs().into()),
        _ => (0, address.to_u64()),
    };
    page.cause.store(cause, Ordering::Relaxed);
    page.detail.store(detail, Ordering::Relaxed);
    page.signal.store(signal.unsigned_abs(), Ordering::Relaxed);
    // The end of this thread marks the turn and wakes the engine: stores before it are seen.
    end()
}

/// Ends this process at once; nothing else of it runs.
pub(super) fn end() -> ! {
    // SAFETY: it takes a number, and may be called in a handler.
    unsafe { libc::_exit(1) }
}

/// True where some memory is still to be had.
fn has_memory() -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new map, which nothing uses; the process is about to end.
    let map = unsafe { libc::mmap(ptr::null_mut(), MEMORY_PROBE, access, flags, -1, 0) };
    map != libc::MAP_FAILED
}

/// The kernel's list of words that are marked where this thread ends: here, the turn alone.
#[repr(C)]
struct Robust {
    first: *const Robust,
    offset: libc::c_long,
    pending: *const Robust,
    /// The one entry: a pointer back to the list's head.
    entry: *const Robust,
}

fn watch_turn(page: &'static Page) -> Result<(), String> {
    let list = Box::leak(Box::new(Robust {
        first: ptr::null(),
        offset: 0,
        pending: ptr::null(),
        entry: ptr::null(),
    }));
    let head: *mut Robust = list;
    // SAFETY: the list lives as long as the process. Its entry points back to its head, as the
    // kernel expects of the last one; the offset leads from the entry to the turn.
    let done = unsafe {
        let entry = &raw const (*head).entry;
        (*head).entry = head;
        (*head).first = entry.cast();
        let way = (&raw const page.turn).addr().wrapping_sub(entry.addr());
        (*head).offset = way.cast_signed() as libc::c_long;
        libc::syscall(libc::SYS_set_robust_list, head, LIST_HEAD_BYTES)
    };
    match done {
        0 => Ok(()),
        _ => Err(format!("set_robust_list: {}", io::Error::last_os_error())),
    }
}

/// Size of `struct robust_list_head`.
const LIST_HEAD_BYTES: usize = 24;
const SIGNAL_STACK_BYTES: usize = 64 << 10;
/// The farthest that one frame may reach below the stack's limit to count as the stack's end.
const STACK_LEAP: usize = 64 << 20;
const MEMORY_PROBE: usize = 1 << 20;
const CAUGHT: [i32; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
    libc::SIGTRAP,
    libc::SIGSYS,
];
/// Calls of a message to a terminal, which fail.
const QUIET: [i64; 7] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_ioctl,
];
/// Calls of the C library for memory, locks, time, random numbers and the end; `mmap` and
/// `mprotect` have conditions of their own.
const ALLOWED: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
];
