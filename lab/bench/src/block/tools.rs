//! Other programs: found, started, waited for, ended.
//!
//! Why here: the bench starts dozens of servers, mounts and clients, and must leave none behind.
//! Must stay true: every program has a time limit; it is ended by its own PID, by SIGTERM first and
//! then by SIGKILL; its mounts are unmounted; a wait ends soon after the run is cancelled, without
//! costing a measured program any precision (the wait is for the process itself, not for a clock).
//! One thread. Source: pidfd_open(2), umount2(2), proc(5).

use super::{BenchError, interrupted};
use crate::measure::child;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::cell::Cell;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Starts programs, in a directory of its own that goes when this does.
pub(crate) struct Runner {
    directory: PathBuf,
    cancel: Arc<AtomicBool>,
    serial: Cell<u32>,
}

impl Runner {
    pub(crate) fn new(base: &Path, cancel: Arc<AtomicBool>) -> Result<Self, BenchError> {
        remove_abandoned(base);
        let directory = base.join(format!("{DIRECTORY_PREFIX}{}", std::process::id()));
        fs::create_dir(&directory)
            .map_err(BenchError::io(format!("make {}", directory.display())))?;
        Ok(Self {
            directory,
            cancel,
            serial: Cell::new(0),
        })
    }

    /// The directory of this run.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Flag that is set when the run is to end.
    pub(crate) fn cancel(&self) -> &AtomicBool {
        &self.cancel
    }

    /// Fails once the run is cancelled.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`].
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        interrupted(&self.cancel)
    }

    /// An unused name in the run's directory.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        let serial = self.serial.get();
        self.serial.set(serial + 1);
        self.directory.join(format!("{serial}.{name}"))
    }

    /// An empty directory.
    pub(crate) fn fresh_directory(&self, name: &str) -> Result<PathBuf, BenchError> {
        let path = self.fresh(name);
        fs::create_dir(&path).map_err(BenchError::io(format!("make {}", path.display())))?;
        Ok(path)
    }

    /// Runs a program to its end, which must be a success. Returns its wall-clock time in seconds.
    pub(crate) fn time(&self, command: &mut Command) -> Result<f64, BenchError> {
        let log = self.fresh("log");
        let text = child::describe(command);
        let errors = File::create(&log).map_err(BenchError::io("make a log"))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors);
        let began = Instant::now();
        let mut process = Process::spawn(command, text)?;
        let status = process.wait(&self.cancel, PROGRAM_TIME_MAX);
        let seconds = began.elapsed().as_secs_f64();
        let said = last_words(&log);
        let _ = fs::remove_file(&log);
        match status? {
            Some(status) if status.success() => Ok(seconds),
            Some(status) => Err(process.fault(format!("failed with {status}: {said}"))),
            None => Err(process.fault(format!("took longer than {PROGRAM_TIME_MAX:?}"))),
        }
    }

    /// Runs a program to its end, which must be a success. Returns its output.
    pub(crate) fn output(&self, command: &mut Command) -> Result<String, BenchError> {
        let out = self.fresh("out");
        // Through a shell's redirection, so that the one waiting loop serves both.
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "out=$1; shift; exec \"$@\" >\"$out\"", "sh"])
            .arg(&out);
        shell.arg(command.get_program()).args(command.get_args());
        self.time(&mut shell)?;
        let text = fs::read_to_string(&out).map_err(BenchError::io("read a program's output"))?;
        let _ = fs::remove_file(&out);
        Ok(text)
    }

    /// Starts a program that stays, and waits until `ready` is true of its output so far.
    pub(crate) fn serve(
        &self,
        command: &mut Command,
        mount: Option<&Path>,
        mut ready: impl FnMut(&str) -> bool,
    ) -> Result<Server, BenchError> {
        // To a file: a full pipe would block the server.
        let log = self.fresh("log");
        let text = child::describe(command);
        let out = File::create(&log).map_err(BenchError::io("make a log"))?;
        let errors = out.try_clone().map_err(BenchError::io("share a log"))?;
        command.stdin(Stdio::null()).stdout(out).stderr(errors);
        let process = Process::spawn(command, text)?;
        let mut server = Server {
            process,
            log,
            mount: mount.map(Path::to_owned),
        };
        let until = Instant::now() + READY_TIME_MAX;
        loop {
            if ready(&server.said()) {
                return Ok(server);
            }
            // The poll waits for the process, so that the death of a server is noticed at once.
            let ended = server.process.wait(&self.cancel, READY_POLL)?;
            let said = last_words(&server.log);
            if let Some(status) = ended {
                return Err(server.process.fault(format!("ended with {status}: {said}")));
            }
            if Instant::now() > until {
                let what = format!("was not ready after {READY_TIME_MAX:?}: {said}");
                return Err(server.process.fault(what));
            }
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // A mount that could not be undone must not have its contents removed.
        if !mount_points()
            .iter()
            .any(|point| point.starts_with(&self.directory))
        {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Removes the remains of an earlier run that was killed.
fn remove_abandoned(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(DIRECTORY_PREFIX));
        let Some(pid) = number.and_then(|number| number.parse::<u32>().ok()) else {
            continue;
        };
        // A run that still lives, at the same time as this one.
        if Path::new(&format!("/proc/{pid}")).exists() {
            continue;
        }
        let path = entry.path();
        // Later mounts may lie inside earlier ones.
        for point in mount_points()
            .iter()
            .rev()
            .filter(|point| point.starts_with(&path))
        {
            let _ = rustix::mount::unmount(point.as_path(), UnmountFlags::DETACH);
        }
        if !mount_points().iter().any(|point| point.starts_with(&path)) {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// A program that runs until this is dropped.
pub(crate) struct Server {
    process: Process,
    log: PathBuf,
    mount: Option<PathBuf>,
}

impl Server {
    /// CPU time in seconds that its threads have used, ended ones included, to about 10 ms.
    pub(crate) fn cpu_s(&self) -> f64 {
        let path = format!("/proc/{}/stat", self.process.child.id());
        let text = fs::read_to_string(path).unwrap_or_default();
        // The name in parentheses may hold anything; fields 14 and 15 of the whole line follow it.
        let after = text.rsplit_once(')').map_or("", |(_, after)| after);
        let ticks: u64 = (after.split_whitespace().skip(11).take(2))
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        ticks as f64 / rustix::param::clock_ticks_per_second() as f64
    }

    /// Readable once it has ended.
    pub(crate) fn ended(&self) -> BorrowedFd<'_> {
        self.process.handle.as_fd()
    }

    /// Its output so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.end();
        if let Some(mount) = &self.mount {
            unmount(mount);
        }
        let _ = fs::remove_file(&self.log);
    }
}

/// A mount of the kernel's own, undone when this is dropped.
pub(crate) struct KernelMount {
    directory: PathBuf,
}

impl KernelMount {
    /// Mounts a file system image through a loop device.
    pub(crate) fn new(
        runner: &Runner,
        kind: &str,
        image: &Path,
        directory: &Path,
    ) -> Result<Self, BenchError> {
        let mut command = tool("mount")?;
        command
            .args(["-o", "loop,ro", "-t", kind])
            .arg(image)
            .arg(directory);
        // Held before the attempt: a mount that succeeds late is undone, too.
        let mount = Self {
            directory: directory.to_owned(),
        };
        runner.time(&mut command)?;
        Ok(mount)
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        unmount(&self.directory);
    }
}

/// Unmounts a directory, if something is mounted there; lazily where it is still in use.
fn unmount(directory: &Path) {
    for _ in 0..UNMOUNT_TRIES_MAX {
        if !is_mounted(directory) {
            return;
        }
        if rustix::mount::unmount(directory, UnmountFlags::empty()).is_err() {
            std::thread::sleep(READY_POLL);
        }
    }
    let _ = rustix::mount::unmount(directory, UnmountFlags::DETACH);
    if is_mounted(directory) {
        // Without privilege only FUSE's own helper may unmount.
        let mut helper = Command::new("fusermount3");
        let _ = helper
            .args(["-u", "-z"])
            .arg(directory)
            .stderr(Stdio::null())
            .status();
    }
}

/// True where something is mounted there.
pub(crate) fn is_mounted(directory: &Path) -> bool {
    mount_points().iter().any(|point| point == directory)
}

fn mount_points() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points
        // mountinfo escapes blanks: proc(5).
        .map(|point| point.replace("\\040", " ").into())
        .collect()
}

/// A child, ended when this is dropped.
struct Process {
    child: Child,
    handle: OwnedFd,
    text: String,
    ended: bool,
}

impl Process {
    fn spawn(command: &mut Command, text: String) -> Result<Self, BenchError> {
        // A group of its own: Ctrl-C reaches us alone, and we end things in order.
        let child = command.process_group(0).spawn();
        let mut child = child.map_err(BenchError::io(format!("start `{text}`")))?;
        let pid = Pid::from_child(&child);
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok(Self {
                child,
                handle,
                text,
                ended: false,
            }),
            Err(error) => {
                // Without a handle it could not be waited for.
                let _ = child.kill();
                let _ = child.wait();
                Err(BenchError::io(format!("watch `{text}`"))(error.into()))
            }
        }
    }

    /// Waits for the end, for at most `limit`.
    fn wait(
        &mut self,
        cancel: &AtomicBool,
        limit: Duration,
    ) -> Result<Option<ExitStatus>, BenchError> {
        let until = Instant::now() + limit;
        loop {
            interrupted(cancel)?;
            let left = until.saturating_duration_since(Instant::now());
            if self.has_ended_within(left.min(CANCEL_POLL)) {
                self.ended = true;
                let status = self.child.wait();
                return status
                    .map(Some)
                    .map_err(BenchError::io("wait for a program"));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    fn has_ended_within(&self, time: Duration) -> bool {
        let time = Timespec {
            tv_sec: time.as_secs() as i64,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut fds, Some(&time)).is_ok_and(|ready| ready > 0)
    }

    /// Ends it: SIGTERM, and after a while SIGKILL.
    fn end(&mut self) {
        if self.ended {
            return;
        }
        let pid = Pid::from_child(&self.child);
        let _ = kill_process(pid, Signal::TERM);
        let until = Instant::now() + END_TIME_MAX;
        let mut gone = false;
        while !gone && Instant::now() < until {
            gone = self.has_ended_within(CANCEL_POLL);
        }
        if !gone {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.child.wait();
        self.ended = true;
    }

    fn fault(&self, what: String) -> BenchError {
        BenchError::Program {
            command: self.text.clone(),
            what,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A command that starts `name`, if it is installed.
///
/// # Errors
/// [`BenchError::Missing`] with the package to install.
pub(crate) fn tool(name: &str) -> Result<Command, BenchError> {
    child::tool(name, &PACKAGES).map_err(BenchError::Missing)
}

/// Drops every cached page, entry and inode.
///
/// # Errors
/// [`BenchError::Missing`] where this process may not.
pub(crate) fn drop_caches() -> Result<(), BenchError> {
    // Dirty pages would stay in the cache.
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| {
        BenchError::Missing(format!("cold caches need root (drop_caches: {error})"))
    })
}

/// Fails where this process may not mount.
///
/// # Errors
/// [`BenchError::Missing`] where it may not.
pub(crate) fn need_root() -> Result<(), BenchError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(BenchError::Missing("mounting needs root".into()))
}

/// Reads a file into the page cache.
pub(crate) fn warm(path: &Path) -> Result<(), BenchError> {
    let failed = || BenchError::io(format!("read {}", path.display()));
    let mut file = File::open(path).map_err(failed())?;
    let mut buffer = vec![0; 1 << 20];
    while std::io::Read::read(&mut file, &mut buffer).map_err(failed())? > 0 {}
    Ok(())
}

fn last_words(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    match lines.as_slice() {
        [] => "it said nothing".into(),
        lines => lines[lines.len().saturating_sub(3)..].join("; "),
    }
}

/// Prefix of the run's directory, before our process id.
const DIRECTORY_PREFIX: &str = "sidecore-bench.";
/// Longest time of a measured program.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(300);
/// Longest time until a server is ready.
const READY_TIME_MAX: Duration = Duration::from_secs(20);
/// Interval of checks for readiness.
const READY_POLL: Duration = Duration::from_millis(5);
/// Interval of checks for cancellation.
const CANCEL_POLL: Duration = Duration::from_millis(200);
/// Time after SIGTERM at which a program is killed.
const END_TIME_MAX: Duration = Duration::from_secs(5);
/// Tries before a mount is detached lazily.
const UNMOUNT_TRIES_MAX: usize = 200;
/// Programs and their Debian packages.
const PACKAGES: [(&str, &str); 13] = [
    ("cc", "build-essential"),
    ("cmp", "diffutils"),
    ("diff", "diffutils"),
    ("dd", "coreutils"),
    ("mksquashfs", "squashfs-tools"),
    ("mkfs.erofs", "erofs-utils"),
    ("mount", "mount"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("qemu-img", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("squashfuse_ll", "squashfuse"),
    ("taskset", "util-linux"),
];
