//! Makes chosen system calls of a program and its descendants fail.
//!
//! Must stay true: only calls of the program under test count, once its runtime has started, so
//! that the n-th call is the same one in each run of a program with one thread. One thread traces;
//! [`Tracee`] is its owner's handle.

use crate::faults::{FAULTS, Fault, Resource, STARTED};
use anyhow::{Context, Result};
use libc::user_regs_struct;
use nix::unistd::Pid;
use sidecore_torture::{End, Watcher, follow, start};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
    /// A file could not be removed.
    pub(crate) has_kept_a_name: bool,
}

/// A running program.
#[derive(Debug)]
pub(crate) struct Tracee {
    pid: Pid,
    end: Receiver<End>,
    all: Receiver<()>,
    account: Arc<Mutex<Account>>,
}

impl Tracee {
    /// Starts `command` with its output in files of `folder`.
    pub(crate) fn start(
        mut command: Command,
        program: &Path,
        plan: Option<Plan>,
        folder: &Path,
    ) -> Result<Self> {
        let (to_owner, started) = channel();
        let (send_end, end) = channel();
        let (send_all, all) = channel();
        let account = Arc::new(Mutex::new(Account::default()));
        let shared = Arc::clone(&account);
        let program = program.to_owned();
        command
            .env("RUST_BACKTRACE", "0")
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(File::create(folder.join("stdout"))?)
            .stderr(File::create(folder.join("stderr"))?);
        std::thread::Builder::new()
            .name("tracer".into())
            .spawn(move || {
                // ptrace's calls must come from the thread that started the tracee.
                let calls = FAULTS.iter().map(|fault| fault.call).chain([STARTED]);
                let pid = match start(command, calls) {
                    Ok(pid) => pid,
                    Err(error) => {
                        to_owner.send(Err(error)).ok();
                        return;
                    }
                };
                if to_owner.send(Ok(pid)).is_err() {
                    return;
                }
                let mut tracer = Tracer::new(pid, program, plan, send_end, shared);
                // An error of the tracer itself shows as an end that never came.
                if follow(pid, &mut tracer).is_ok() {
                    send_all.send(()).ok();
                }
            })?;
        let pid = started.recv().context("the tracer ended")??;
        Ok(Self {
            pid,
            end,
            all,
            account,
        })
    }

    /// The program's process.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// The program's end; `None` where it did not come in time.
    pub(crate) fn end_within(&self, time: Duration) -> Option<End> {
        self.end.recv_timeout(time).ok()
    }

    /// True once the program and all its descendants have ended; false where that did not come in
    /// time.
    pub(crate) fn all_end_within(&self, time: Duration) -> bool {
        self.all.recv_timeout(time).is_ok()
    }

    /// The account so far.
    pub(crate) fn account(&self) -> Account {
        lock(&self.account).clone()
    }
}

fn lock(account: &Mutex<Account>) -> MutexGuard<'_, Account> {
    // The lock holds no code that could panic.
    account.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Tracer {
    main: Pid,
    program: PathBuf,
    plan: Option<Plan>,
    account: Arc<Mutex<Account>>,
    send_end: Sender<End>,
    /// By thread group: whether its program is the one under test and has started.
    counted: BTreeMap<i32, bool>,
    groups: BTreeMap<Pid, i32>,
}

impl Tracer {
    fn new(
        main: Pid,
        program: PathBuf,
        plan: Option<Plan>,
        send_end: Sender<End>,
        account: Arc<Mutex<Account>>,
    ) -> Self {
        Self {
            main,
            program,
            plan,
            account,
            send_end,
            counted: BTreeMap::new(),
            groups: BTreeMap::new(),
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

impl Watcher for Tracer {
    fn ended(&mut self, pid: Pid, end: End) {
        self.groups.remove(&pid);
        if pid == self.main {
            // The owner may have given up.
            self.send_end.send(end).ok();
        }
    }

    fn executed(&mut self, pid: Pid) {
        let group = self.group(pid);
        self.counted.remove(&group);
    }

    /// A call that could fail.
    fn before(&mut self, pid: Pid, registers: &mut user_regs_struct) -> bool {
        let call = registers.orig_rax.cast_signed();
        let group = self.group(pid);
        if call == STARTED {
            let counts = self.is_program(group);
            self.counted.entry(group).or_insert(counts);
            return false;
        }
        let (Some(true), Some(fault)) = (self.counted.get(&group), Fault::of(call)) else {
            return false;
        };
        let writes_errors = fault.resource == Resource::Writing && registers.rdi == 2;
        let is_duplicate = fault.call == libc::SYS_fcntl;
        if is_duplicate && registers.rsi != u64::from(libc::F_DUPFD_CLOEXEC.unsigned_abs()) {
            return false;
        }
        let mut account = lock(&self.account);
        account.calls += 1;
        let Some(plan) = self.plan else { return false };
        let is_it = account.calls == plan.call;
        let again = plan.manner == Manner::Onwards
            && account.resource == Some(fault.resource)
            && !writes_errors;
        if !is_it && !again {
            return false;
        }
        match plan.manner {
            Manner::Once | Manner::Onwards => fail(registers, fault.errno),
            Manner::Short if fault.moves_bytes() && registers.rdx > 1 => registers.rdx /= 2,
            Manner::Interrupted if fault.can_be_interrupted() => fail(registers, libc::EINTR),
            Manner::Short | Manner::Interrupted => return false,
        }
        account.has_kept_a_name |= fault.name.starts_with("unlink");
        if account.failed.is_none() {
            account.failed = Some((fault.name, writes_errors));
            account.resource = Some(fault.resource);
        }
        true
    }
}

/// Makes the kernel skip the call and return this error.
fn fail(registers: &mut user_regs_struct, errno: i32) {
    registers.rax = (-i64::from(errno)).cast_unsigned();
    registers.orig_rax = u64::MAX;
}
