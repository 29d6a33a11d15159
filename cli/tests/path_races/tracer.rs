//! Stops a program and its descendants before each system call that takes a path.
//!
//! Why here: an exchange can then be tried between any two system calls of a program, and not only
//! where a busy machine happens to interrupt it.

use libc::user_regs_struct;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sidecore_torture::{End as Ended, Watcher, follow, start};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A call, and its arguments that are a folder's descriptor (none: the working folder) and a path.
struct Call {
    number: i64,
    paths: &'static [(Option<usize>, usize)],
}

const fn call(number: i64, paths: &'static [(Option<usize>, usize)]) -> Call {
    Call { number, paths }
}

const AT: &[(Option<usize>, usize)] = &[(Some(0), 1)];
const ALONE: &[(Option<usize>, usize)] = &[(None, 0)];
const BOTH: &[(Option<usize>, usize)] = &[(None, 0), (None, 1)];
const BOTH_AT: &[(Option<usize>, usize)] = &[(Some(0), 1), (Some(2), 3)];

const CALLS: &[Call] = &[
    call(libc::SYS_open, ALONE),
    call(libc::SYS_creat, ALONE),
    call(libc::SYS_openat, AT),
    call(libc::SYS_openat2, AT),
    call(libc::SYS_stat, ALONE),
    call(libc::SYS_lstat, ALONE),
    call(libc::SYS_newfstatat, AT),
    call(libc::SYS_statx, AT),
    call(libc::SYS_access, ALONE),
    call(libc::SYS_faccessat, AT),
    call(libc::SYS_faccessat2, AT),
    call(libc::SYS_readlink, ALONE),
    call(libc::SYS_readlinkat, AT),
    call(libc::SYS_rename, BOTH),
    call(libc::SYS_renameat, BOTH_AT),
    call(libc::SYS_renameat2, BOTH_AT),
    call(libc::SYS_link, BOTH),
    call(libc::SYS_linkat, BOTH_AT),
    call(libc::SYS_symlink, &[(None, 1)]),
    call(libc::SYS_symlinkat, &[(Some(1), 2)]),
    call(libc::SYS_unlink, ALONE),
    call(libc::SYS_unlinkat, AT),
    call(libc::SYS_rmdir, ALONE),
    call(libc::SYS_mkdir, ALONE),
    call(libc::SYS_mkdirat, AT),
    call(libc::SYS_mknodat, AT),
    call(libc::SYS_truncate, ALONE),
    call(libc::SYS_chmod, ALONE),
    call(libc::SYS_fchmodat, AT),
    call(libc::SYS_chown, ALONE),
    call(libc::SYS_lchown, ALONE),
    call(libc::SYS_fchownat, AT),
    call(libc::SYS_utimensat, AT),
    call(libc::SYS_chdir, ALONE),
    call(libc::SYS_statfs, ALONE),
    call(libc::SYS_getxattr, ALONE),
    call(libc::SYS_lgetxattr, ALONE),
    call(libc::SYS_listxattr, ALONE),
    call(libc::SYS_llistxattr, ALONE),
    call(libc::SYS_open_tree, AT),
];

/// The end of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exit(i32),
    Signal(Signal),
    /// It did not end in time and was killed.
    HeldUp,
}

/// Runs `command` to its end; `before` gets the paths of each call just before it runs.
pub(crate) fn run(command: Command, before: &mut dyn FnMut(&[PathBuf])) -> End {
    let main = start(command, CALLS.iter().map(|call| call.number)).unwrap();
    let alive = Arc::new(Mutex::new(BTreeSet::new()));
    let (done, is_done) = channel::<()>();
    let watched = Arc::clone(&alive);
    let watch = std::thread::spawn(move || {
        let late = is_done.recv_timeout(RUN_MAX) == Err(RecvTimeoutError::Timeout);
        if late {
            for pid in watched.lock().unwrap().iter() {
                let _ = kill(*pid, Signal::SIGKILL);
            }
        }
        late
    });
    let mut paths = Paths {
        main,
        alive,
        before,
        end: End::Exit(-1),
    };
    follow(main, &mut paths).unwrap();
    drop(done);
    match watch.join().unwrap() {
        true => End::HeldUp,
        false => paths.end,
    }
}

struct Paths<'b> {
    main: Pid,
    alive: Arc<Mutex<BTreeSet<Pid>>>,
    before: &'b mut dyn FnMut(&[PathBuf]),
    end: End,
}

impl Watcher for Paths<'_> {
    fn before(&mut self, thread: Pid, registers: &mut user_regs_struct) -> bool {
        (self.before)(&paths(thread, registers));
        false
    }

    fn began(&mut self, thread: Pid) {
        self.alive.lock().unwrap().insert(thread);
    }

    fn ended(&mut self, thread: Pid, end: Ended) {
        self.alive.lock().unwrap().remove(&thread);
        if thread == self.main {
            self.end = match end {
                Ended::Exit(code) => End::Exit(code),
                Ended::Signal(signal) => End::Signal(signal),
            };
        }
    }
}

/// Absolute paths of the call before which a thread stands; `..` and links are left in them.
fn paths(pid: Pid, registers: &user_regs_struct) -> Vec<PathBuf> {
    let number = registers.orig_rax.cast_signed();
    let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10];
    let Some(call) = CALLS.iter().find(|call| call.number == number) else {
        return Vec::new();
    };
    let each = call.paths.iter().filter_map(|&(folder, path)| {
        let path = PathBuf::from(std::ffi::OsString::from_vec(text(pid, arguments[path])?));
        if path.is_absolute() {
            return Some(path);
        }
        let folder = match folder.map(|at| arguments[at] as i32) {
            Some(folder) if folder != libc::AT_FDCWD => format!("/proc/{pid}/fd/{folder}"),
            _ => format!("/proc/{pid}/cwd"),
        };
        Some(std::fs::read_link(folder).ok()?.join(path))
    });
    each.collect()
}

/// A text of the tracee's memory.
fn text(pid: Pid, at: u64) -> Option<Vec<u8>> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut bytes = Vec::new();
    while bytes.len() < 4096 {
        let mut piece = [0; 64];
        let at = at + bytes.len() as u64;
        // Not beyond the page's end: the next page may not be mapped.
        let room = (4096 - at % 4096).min(64) as usize;
        memory.read_exact_at(&mut piece[..room], at).ok()?;
        if let Some(end) = piece[..room].iter().position(|&byte| byte == 0) {
            bytes.extend(&piece[..end]);
            return Some(bytes);
        }
        bytes.extend(&piece[..room]);
    }
    None
}

/// Longest run; each takes less than a second on a quiet machine.
const RUN_MAX: Duration = Duration::from_secs(60);
