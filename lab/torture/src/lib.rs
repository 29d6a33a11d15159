//! Runs a program and its descendants under ptrace(2), and stops them before chosen system calls.
//!
//! Why here: a preloaded library sees the C library's functions alone, and programs in Rust make
//! most of their system calls themselves. Must stay true: a tracee never stays stopped while its
//! tracer lives, and none outlives it. One thread starts a program and follows it. Source:
//! ptrace(2), seccomp(2) (`SECCOMP_RET_TRACE`).

#![allow(unsafe_code)] // `pre_exec`: the program asks to be traced and puts its filter on.

use nix::errno::Errno;
use nix::libc::{PTRACE_EVENT_EXEC, PTRACE_EVENT_SECCOMP, user_regs_struct};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The end of a thread or process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With this status.
    Exit(i32),
    /// By this signal.
    Signal(Signal),
}

/// Observer of a program's threads. All calls come from the thread that follows the program, while
/// the observed thread stands still.
pub trait Watcher {
    /// A thread is about to make one of the chosen calls. True where `registers` were changed, and
    /// are to be the thread's.
    fn before(&mut self, thread: Pid, registers: &mut user_regs_struct) -> bool;

    /// A process has executed another program.
    fn executed(&mut self, _thread: Pid) {}

    /// A thread has begun.
    fn began(&mut self, _thread: Pid) {}

    /// A thread has ended; the process, where it is its first one.
    fn ended(&mut self, _thread: Pid, _end: End) {}
}

/// Starts `command`, stopped at its first instruction, with these calls chosen by number.
///
/// # Errors
/// Those of spawning it, and of ptrace(2).
pub fn start(mut command: Command, calls: impl IntoIterator<Item = i64>) -> io::Result<Pid> {
    let rules = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let machine = std::env::consts::ARCH.try_into();
    let machine = machine.map_err(io::Error::other)?;
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Trace(0),
        machine,
    );
    let filter: BpfProgram = filter
        .and_then(TryInto::try_into)
        .map_err(io::Error::other)?;
    let traced = move || {
        ptrace::traceme()?;
        seccompiler::apply_filter(&filter).map_err(io::Error::other)
    };
    // SAFETY: between fork and exec it makes two system calls; it allocates only where one of them
    // fails, in a run that fails then.
    unsafe { command.pre_exec(traced) };
    // Becoming the program stops it.
    let child = command.spawn()?;
    let main = Pid::from_raw(child.id().cast_signed());
    match waitpid(main, Some(WaitPidFlag::__WALL))? {
        WaitStatus::Stopped(..) => {}
        other => return Err(io::Error::other(format!("it did not stop: {other:?}"))),
    }
    let options = Options::PTRACE_O_TRACESECCOMP
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(main, options)?;
    Ok(main)
}

/// Runs a started program until it and all its descendants have ended. Blocks.
///
/// # Errors
/// Those of waitpid(2).
pub fn follow(main: Pid, watcher: &mut impl Watcher) -> io::Result<()> {
    let mut alive = BTreeSet::from([main]);
    watcher.began(main);
    go_on(main, None);
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    while !alive.is_empty() {
        let status = match waitpid(Pid::from_raw(-1), Some(flags)) {
            Err(Errno::ECHILD) => break,
            Err(Errno::EINTR) => continue,
            status => status?,
        };
        match status {
            WaitStatus::Exited(thread, code) => {
                alive.remove(&thread);
                watcher.ended(thread, End::Exit(code));
            }
            WaitStatus::Signaled(thread, signal, _) => {
                alive.remove(&thread);
                watcher.ended(thread, End::Signal(signal));
            }
            WaitStatus::PtraceEvent(thread, _, event) => {
                match event {
                    PTRACE_EVENT_SECCOMP => call(thread, watcher),
                    PTRACE_EVENT_EXEC => watcher.executed(thread),
                    _ => {}
                }
                go_on(thread, None);
            }
            WaitStatus::Stopped(thread, signal) => {
                // A new tracee begins with a stop that is the tracer's own.
                let is_new = alive.insert(thread);
                if is_new {
                    watcher.began(thread);
                }
                let own = signal == Signal::SIGSTOP && is_new || signal == Signal::SIGTRAP;
                go_on(thread, (!own).then_some(signal));
            }
            _ => {}
        }
    }
    Ok(())
}

fn call(thread: Pid, watcher: &mut impl Watcher) {
    // A killed tracee has no registers any more.
    let Ok(mut registers) = ptrace::getregs(thread) else {
        return;
    };
    if watcher.before(thread, &mut registers) {
        ptrace::setregs(thread, registers).ok();
    }
}

/// Resumes a tracee. A killed one is waited for like any other.
fn go_on(thread: Pid, signal: Option<Signal>) {
    ptrace::cont(thread, signal).ok();
}
