//! Runs a program with its descendants under ptrace(2) and makes chosen system calls fail.
//!
//! Why here: a library that is preloaded sees the C library's functions alone, and this program
//! makes most of its system calls itself. Must stay true: only calls of the program under test
//! count, once its runtime has started, so that the n-th call is the same one in each run of a
//! program with one thread; a tracee never stays stopped while the tracer lives, and none outlives
//! it. One thread traces and waits; [`Tracee`] is its owner's handle. Source: ptrace(2).

use crate::faults::{Fault, Resource, STARTED};
use anyhow::{Context, Result, bail};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The manner in which calls fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The one call.
    Once,
    /// That call, and from there on all that need the same resource.
    Onwards,
    /// The call moves half of the bytes.
    Short,
    /// The call is interrupted by a signal, once.
    Interrupted,
}

/// The call that fails, counted from 1, and the manner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) call: u64,
    pub(crate) manner: Manner,
}

/// The tracer's account of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Account {
    /// Calls that could have failed.
    pub(crate) calls: u64,
    /// The first call that was made to fail, and whether it wrote to standard error.
    pub(crate) failed: Option<(&'static str, bool)>,
    /// The resource of that call.
    pub(crate) resource: Option<Resource>,
}

/// The end of the program itself; its descendants may live on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Exit(i32),
    Signal(Signal),
}

/// A running program.
#[derive(Debug)]
pub(crate) struct Tracee {
    pid: Pid,
    end: Receiver<End>,
    all: Receiver<Account>,
}

impl Tracee {
    /// Starts `command` with its output in files of `folder`.
    pub(crate) fn start(
        command: &[OsString],
        program: &Path,
        plan: Option<Plan>,
        folder: &Path,
        environment: &[(String, OsString)],
    ) -> Result<Self> {
        let (to_owner, started) = channel();
        let (send_end, end) = channel();
        let (send_account, all) = channel();
        let command = command.to_owned();
        let program = program.to_owned();
        let streams = ["stdout", "stderr"].map(|name| File::create(folder.join(name)));
        let [stdout, stderr] = streams;
        let (stdout, stderr) = (stdout?, stderr?);
        let environment = environment.to_owned();
        let place = folder.to_owned();
        std::thread::Builder::new()
            .name("tracer".into())
            .spawn(move || {
                // ptrace's calls must come of the thread that started the tracee.
                let launched = spawn(&command, stdout, stderr, &environment, &place);
                let pid = match launched {
                    Ok(pid) => pid,
                    Err(error) => {
                        to_owner.send(Err(error)).ok();
                        return;
                    }
                };
                if to_owner.send(Ok(pid)).is_err() {
                    return;
                }
                let mut tracer = Tracer::new(pid, program, plan);
                // An error of the tracer itself shows as an end that never came.
                if tracer.run(|end| _ = send_end.send(end)).is_ok() {
                    send_account.send(tracer.account).ok();
                }
            })?;
        let pid = started.recv().context("the tracer ended")??;
        Ok(Self { pid, end, all })
    }

    /// The program's process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// The program's end; `None` where it did not come in time.
    pub(crate) fn end_within(&self, time: Duration) -> Option<End> {
        self.end.recv_timeout(time).ok()
    }

    /// The account, once the program and all its descendants have ended; `None` where that did not
    /// come in time.
    pub(crate) fn all_within(&self, time: Duration) -> Option<Account> {
        self.all.recv_timeout(time).ok()
    }
}

fn spawn(
    command: &[OsString],
    stdout: File,
    stderr: File,
    environment: &[(String, OsString)],
    place: &Path,
) -> Result<Pid> {
    let own = std::env::current_exe()?;
    let child = Command::new(own)
        .arg("launch")
        .arg("--")
        .args(command)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .env("RUST_BACKTRACE", "0")
        .current_dir(place)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .context("starting the launcher")?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    match waitpid(pid, Some(WaitPidFlag::__WALL))? {
        WaitStatus::Stopped(_, Signal::SIGSTOP) => {}
        other => bail!("the launcher did not stop: {other:?}"),
    }
    ptrace::setoptions(
        pid,
        Options::PTRACE_O_TRACESECCOMP
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL,
    )?;
    ptrace::cont(pid, None)?;
    Ok(pid)
}

struct Tracer {
    main: Pid,
    program: PathBuf,
    plan: Option<Plan>,
    account: Account,
    alive: BTreeSet<Pid>,
    /// By thread group: whether its program is the one under test and has started.
    counted: BTreeMap<i32, bool>,
    groups: BTreeMap<Pid, i32>,
}

impl Tracer {
    fn new(main: Pid, program: PathBuf, plan: Option<Plan>) -> Self {
        Self {
            main,
            program,
            plan,
            account: Account::default(),
            alive: BTreeSet::from([main]),
            counted: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }

    fn run(&mut self, mut ended: impl FnMut(End)) -> Result<()> {
        let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        while !self.alive.is_empty() {
            let status = match waitpid(Pid::from_raw(-1), Some(flags)) {
                Err(Errno::ECHILD) => break,
                Err(Errno::EINTR) => continue,
                // Signals that nix has no name for (real-time ones) are passed on below.
                status => status?,
            };
            match status {
                WaitStatus::Exited(pid, code) => self.gone(pid, End::Exit(code), &mut ended),
                WaitStatus::Signaled(pid, signal, _) => {
                    self.gone(pid, End::Signal(signal), &mut ended);
                }
                WaitStatus::PtraceEvent(pid, _, event) => self.event(pid, event),
                WaitStatus::Stopped(pid, signal) => {
                    // A new tracee begins with a SIGSTOP that is the tracer's own.
                    let is_new = self.alive.insert(pid);
                    let own = signal == Signal::SIGSTOP && is_new || signal == Signal::SIGTRAP;
                    go_on(pid, (!own).then_some(signal));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn gone(&mut self, pid: Pid, end: End, ended: &mut impl FnMut(End)) {
        self.alive.remove(&pid);
        self.groups.remove(&pid);
        if pid == self.main {
            ended(end);
        }
    }

    fn event(&mut self, pid: Pid, event: i32) {
        match event {
            libc::PTRACE_EVENT_EXEC => {
                let group = self.group(pid);
                self.counted.remove(&group);
            }
            libc::PTRACE_EVENT_SECCOMP => self.call(pid),
            _ => {}
        }
        go_on(pid, None);
    }

    /// A call that could fail.
    fn call(&mut self, pid: Pid) {
        // A tracee that was killed meanwhile has no registers any more.
        let Ok(mut registers) = ptrace::getregs(pid) else {
            return;
        };
        let call = registers.orig_rax.cast_signed();
        let group = self.group(pid);
        if call == STARTED {
            let counts = self.is_program(group);
            self.counted.entry(group).or_insert(counts);
            return;
        }
        let (Some(true), Some(fault)) = (self.counted.get(&group), Fault::of(call)) else {
            return;
        };
        let writes_errors = fault.resource == Resource::Writing && registers.rdi == 2;
        let is_duplicate = fault.call == libc::SYS_fcntl;
        if is_duplicate && registers.rsi != u64::from(libc::F_DUPFD_CLOEXEC.unsigned_abs()) {
            return;
        }
        self.account.calls += 1;
        let Some(plan) = self.plan else { return };
        let is_it = self.account.calls == plan.call;
        let again = plan.manner == Manner::Onwards
            && self.account.resource == Some(fault.resource)
            && !writes_errors;
        if !is_it && !again {
            return;
        }
        match plan.manner {
            Manner::Once | Manner::Onwards => {
                registers.rax = (-i64::from(fault.errno)).cast_unsigned();
                registers.orig_rax = u64::MAX;
            }
            Manner::Short if fault.moves_bytes() && registers.rdx > 1 => registers.rdx /= 2,
            Manner::Interrupted if fault.can_be_interrupted() => {
                registers.rax = (-i64::from(libc::EINTR)).cast_unsigned();
                registers.orig_rax = u64::MAX;
            }
            Manner::Short | Manner::Interrupted => return,
        }
        if ptrace::setregs(pid, registers).is_ok() && self.account.failed.is_none() {
            self.account.failed = Some((fault.name, writes_errors));
            self.account.resource = Some(fault.resource);
        }
    }

    fn group(&mut self, pid: Pid) -> i32 {
        *self.groups.entry(pid).or_insert_with(|| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status
                .ok()
                .and_then(|text| {
                    let line = text.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
                    line.trim().parse().ok()
                })
                .unwrap_or_else(|| pid.as_raw())
        })
    }

    fn is_program(&self, group: i32) -> bool {
        std::fs::read_link(format!("/proc/{group}/exe")).is_ok_and(|exe| exe == self.program)
    }
}

/// Lets a tracee go on. One that was killed meanwhile is waited for as any.
fn go_on(pid: Pid, signal: Option<Signal>) {
    ptrace::cont(pid, signal).ok();
}
