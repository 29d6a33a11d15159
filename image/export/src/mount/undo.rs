//! The steps by which a command undoes a mount or a device of another process.
//!
//! Why here: `umount` and `detach` take them in the order of `ending`, and check the server in the
//! same way.
//!
//! Must stay true: no step of ours waits for a server that does not answer. A flush might, so
//! another process does it (`Flusher`), which is abandoned after [`ANSWER_MAX`] without progress.
//! A stopped server is continued.
//!
//! A detached copy of the mount holds the file system, so that it can be flushed again after the
//! unmount, and put back.

use super::above::{self, root_of};
use super::ending::{Hands, Outcome, Seen, Unmounted};
use super::{By, Undone};
use crate::ExportError;
use crate::fuse::place;
use crate::loopdev;
use crate::state::{self, Entry, Record, table};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the command for a process that calls [`flush_input`]. It ends with status 0, or with
/// another status and a message on standard error.
pub(crate) type Flusher<'f> = dyn Fn() -> Command + 'f;

/// The command of a process that flushes its standard input: `sidecore block umount --flush-input`,
/// which calls [`super::flush_input`].
pub(crate) fn flusher() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["block", "umount", "--flush-input"]);
    command
}

/// Flushes the object open as standard input: the file system of a directory, else the file itself.
///
/// # Errors
/// The system's: some of the written data could not be flushed.
pub fn flush_input() -> io::Result<()> {
    let input = io::stdin();
    let input = input.as_fd();
    let stat = rustix::fs::fstat(input)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => rustix::fs::syncfs(input),
        _ => rustix::fs::fsync(input),
    }?)
}

/// The undoing of one server's set-up.
pub(crate) struct Undoing<'u> {
    entry: &'u Entry,
    flusher: &'u Flusher<'u>,
    looking: Option<Instant>,
    looked_around: Option<Instant>,
    ending: Option<Instant>,
    fault: String,
}

impl<'u> Undoing<'u> {
    pub(crate) fn new(entry: &'u Entry, flusher: &'u Flusher<'u>) -> Self {
        Self {
            entry,
            flusher,
            looking: None,
            looked_around: None,
            ending: None,
            fault: String::new(),
        }
    }

    fn record(&self) -> &Record {
        &self.entry.record
    }

    /// Flushes the object behind `file`; false, with the reason kept, where that failed.
    fn flush(&mut self, file: impl Into<OwnedFd>) -> bool {
        let flushed = self.wake().and_then(|()| self.flush_by(file.into()));
        if let Err(reason) = flushed {
            self.fault = reason;
            return false;
        }
        true
    }

    fn flush_by(&self, file: OwnedFd) -> Result<(), String> {
        let mut command = (self.flusher)();
        command.stdin(file).stdout(Stdio::null());
        // Another process: a flush that hangs in the kernel cannot be interrupted.
        let child = command.stderr(Stdio::piped()).spawn();
        // Otherwise the command keeps the file system for as long as it lives.
        drop(command);
        let mut child = child.map_err(|e| format!("cannot start a process that flushes: {e}"))?;
        let (mut progress, mut since) = (self.progress(), Instant::now());
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(_)) => return Err(said(&mut child)),
                Ok(None) => {}
                Err(error) => return Err(error.to_string()),
            }
            // A server that was being stopped showed it only after the first look.
            self.wake().ok();
            let now = self.progress();
            // The time since the last progress counts, not the total: a disk may need minutes.
            if now != progress {
                (progress, since) = (now, Instant::now());
            } else if since.elapsed() > ANSWER_MAX {
                // It ends once the server continues, or has ended.
                let _ = child.kill();
                return Err(format!(
                    "the server (process {}) has done nothing for {} s",
                    self.record().pid,
                    ANSWER_MAX.as_secs()
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Values that change as long as the server works.
    fn progress(&self) -> [String; 2] {
        let pid = self.record().pid;
        let read = |name| std::fs::read_to_string(format!("/proc/{pid}/{name}"));
        let stat = read("stat").unwrap_or_default();
        // Processor time in user and system mode.
        let times = after_name(&stat).skip(11).take(2).collect();
        [times, read("io").unwrap_or_default()]
    }

    /// Continues a stopped server that was asked to end, and could not.
    fn wake(&self) -> Result<(), String> {
        let pid = self.record().pid;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if !matches!(after_name(&stat).next(), Some("T" | "t")) || !self.entry.is_alive() {
            return Ok(());
        }
        let known = Pid::from_raw(pid.cast_signed());
        let woken = known.map(|pid| kill_process(pid, Signal::CONT));
        match woken {
            Some(Err(error)) => Err(format!(
                "the server (process {pid}) is stopped and cannot be made to go on: {error}"
            )),
            _ => Ok(()),
        }
    }

    /// As [`Hands::look`].
    pub(crate) fn look(&mut self) -> Seen {
        let begun = *self.looking.get_or_insert_with(Instant::now);
        std::thread::sleep(LOOK_AGAIN);
        // A stopped server would never end; a failure shows as no progress.
        let _ = self.wake();
        let is_alive = self.entry.is_alive();
        let record = self.entry.again();
        // A fault is recorded before the server ends, so that no end is taken for success.
        if let Some(fault) = record.as_ref().and_then(|it| it.fault.as_ref()) {
            self.fault.clone_from(fault);
            return Seen::Failing;
        }
        if !is_alive {
            // The last act of a server removes its record. One that is still there is of a server
            // that was killed, perhaps before all was durable; by now another server may have the
            // directory.
            let own = self.record();
            let is_left = |it: &Record| (it.pid, &it.file_name) == (own.pid, &own.file_name);
            if own.writable && record.as_ref().is_some_and(is_left) {
                self.fault = format!(
                    "the server (process {}) was killed before it had made all durable",
                    own.pid
                );
                return Seen::Failing;
            }
            return Seen::Ended;
        }
        if record.is_none_or(|record| record.released) {
            let since = *self.ending.get_or_insert_with(Instant::now);
            return match since.elapsed() > END_MAX {
                true => Seen::Stuck,
                false => Seen::Ending,
            };
        }
        // The kernel needs a moment to release a mount that has no users.
        let last = *self.looked_around.get_or_insert(begun);
        if last.elapsed() > LOOK_AROUND_AGAIN {
            self.looked_around = Some(Instant::now());
            if self.is_held(begun.elapsed()) {
                return Seen::Held;
            }
        }
        match begun.elapsed() > END_MAX {
            true => Seen::Stuck,
            false => Seen::Ending,
        }
    }

    /// True if others still use the file system or the device, some time after it was removed.
    fn is_held(&self, since: Duration) -> bool {
        let record = self.record();
        if self.other().is_some() {
            return true;
        }
        match (record.loop_number, &record.mount) {
            // A mounted file system has its device exclusively.
            (Some(number), Some(_)) => {
                let alone = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
                loopdev::is_on(number, &record.file_name)
                    && rustix::fs::open(loopdev::path(number), alone, Mode::empty())
                        .is_err_and(|error| error == Errno::BUSY)
            }
            (Some(number), None) => loopdev::is_on(number, &record.file_name),
            (None, _) => since > GRACE,
        }
    }

    /// Another mount of it, here or in another namespace.
    fn other(&self) -> Option<By> {
        let record = self.record().mount.as_ref()?;
        let is_it = |mount: &table::Mount| match record.device.or(self.record().fuse) {
            Some(device) => mount.device == device,
            None => mount.source == *record.source,
        };
        let here = table::read().ok().and_then(|it| it.into_iter().find(is_it));
        if let Some(mount) = here {
            return Some(By::Mount(mount.dir));
        }
        // Read last: it looks into every process of the machine.
        let elsewhere = table::everywhere(is_it);
        elsewhere.first().map(|(pid, _)| By::Namespace(*pid))
    }

    pub(crate) fn abort(&self) {
        if let Some(device) = self.record().fuse
            && let Err(error) = place::abort(device.minor)
        {
            tracing::warn!("cannot abort FUSE connection {}: {error}", device.minor);
        }
    }

    /// Messages for the user.
    pub(crate) fn result(&self, outcome: Outcome, place: &Path) -> Result<Undone, ExportError> {
        let pid = self.record().pid;
        let place = place.to_owned();
        match outcome {
            Outcome::Completely => Ok(Undone::Completely),
            Outcome::TakenAway => Ok(Undone::TakenAway),
            Outcome::StillUsed => Ok(Undone::StillUsed(self.other().unwrap_or(By::Programs))),
            Outcome::Busy => Err(ExportError::Busy(place)),
            Outcome::NotFlushed(is_there) => Err(ExportError::NotFlushed {
                place,
                reason: self.fault.clone(),
                state: match (is_there, self.entry.is_alive()) {
                    (true, _) => "nothing was undone; see to that and run this again".into(),
                    (false, true) => {
                        format!("its server (process {pid}) keeps it and tries again; see to that")
                    }
                    (false, false) => "its server has ended".into(),
                },
            }),
            Outcome::NotUnmounted => Err(ExportError::os(
                "cannot unmount, see above",
                io::Error::from(io::ErrorKind::ResourceBusy),
            )),
            Outcome::Stuck => Err(ExportError::Stuck(pid)),
        }
    }
}

/// The fields of `/proc/PID/stat` after the process's name: its state first.
fn after_name(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
}

fn said(child: &mut Child) -> String {
    let mut text = String::new();
    if let Some(mut errors) = child.stderr.take() {
        let _ = errors.read_to_string(&mut text);
    }
    match text.trim() {
        "" => "the process that flushes was killed".into(),
        text => text.to_owned(),
    }
}

/// A mount that is not in this namespace any more.
pub(super) struct Gone<'u>(pub Undoing<'u>);

impl Hands for Gone<'_> {
    fn flush(&mut self) -> bool {
        true
    }

    fn unmount(&mut self) -> Unmounted {
        Unmounted::Gone
    }

    fn detach(&mut self) -> bool {
        true
    }

    fn put_back(&mut self) -> bool {
        false
    }

    fn abort(&mut self) {
        self.0.abort();
    }

    fn look(&mut self) -> Seen {
        self.0.look()
    }
}

/// A mount on a directory.
pub(super) struct Mount<'u> {
    undoing: Undoing<'u>,
    dir: &'u Path,
    found: table::Mount,
    /// A copy of the mount, without a place; needs root.
    copy: Option<OwnedFd>,
}

impl<'u> Mount<'u> {
    pub(super) fn new(
        entry: &'u Entry,
        dir: &'u Path,
        found: table::Mount,
        flusher: &'u Flusher<'u>,
    ) -> Self {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        // Made before the unmount: the copy reaches the file system when its directory does not.
        let copy = match entry.record.writable {
            true => rustix::mount::open_tree(rustix::fs::CWD, dir, flags).ok(),
            // There is nothing to flush.
            false => None,
        };
        Self {
            undoing: Undoing::new(entry, flusher),
            dir,
            copy: copy.filter(|copy| above::is_on(copy, &found)),
            found,
        }
    }

    pub(super) fn into_undoing(self) -> Undoing<'u> {
        self.undoing
    }

    /// The one file of `--file-only`, opened below a directory's descriptor.
    fn one_file(&self, root: &OwnedFd) -> Option<OwnedFd> {
        let record = self.undoing.record();
        if record.loop_number.is_some() {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::openat(root, record.file_name.as_str(), flags, Mode::empty()).ok()
    }
}

impl Hands for Mount<'_> {
    fn flush(&mut self) -> bool {
        if let Err(reason) = self.undoing.wake() {
            self.undoing.fault = reason;
            return false;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match &self.copy {
            Some(copy) => root_of(copy),
            // An unmount has the kernel write it out.
            None if !matches!(table::at(self.dir), Ok(Some(it)) if it == self.found) => {
                return true;
            }
            None => rustix::fs::open(self.dir, flags, Mode::empty()),
        };
        let root = match root {
            Ok(root) => root,
            Err(error) => {
                self.undoing.fault = format!("cannot open the directory: {error}");
                return false;
            }
        };
        // Not every file system flushes the device below it.
        let below = match above::device(self.undoing.record()) {
            Ok(device) => device.map(|(device, _)| device),
            Err(error) => {
                self.undoing.fault = format!("cannot open the loop device: {error}");
                return false;
            }
        };
        // A mount of one file has no device; the file itself is flushed.
        let below = below.or_else(|| self.one_file(&root));
        // The file system first: its dirty pages become writes to what is below.
        self.undoing.flush(root) && below.is_none_or(|below| self.undoing.flush(below))
    }

    /// A refusal as busy is believed only after [`BUSY_GRACE`]: indexers open new mounts for a
    /// moment, and a process that is just being started holds its parent's files.
    fn unmount(&mut self) -> Unmounted {
        let begun = Instant::now();
        loop {
            let result = match rustix::mount::unmount(self.dir, UnmountFlags::NOFOLLOW) {
                Err(Errno::PERM) => unmount_by_helper(self.dir),
                result => result,
            };
            // Another process was faster.
            if matches!(result, Ok(()) | Err(Errno::INVAL)) {
                return Unmounted::Gone;
            }
            if begun.elapsed() > BUSY_GRACE {
                return Unmounted::Busy;
            }
            std::thread::sleep(BUSY_PAUSE);
        }
    }

    fn detach(&mut self) -> bool {
        state::detach_mount(self.dir)
    }

    fn put_back(&mut self) -> bool {
        let Some(copy) = &self.copy else {
            return false;
        };
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        let moved = rustix::mount::move_mount(copy.as_fd(), "", rustix::fs::CWD, self.dir, flags);
        if let Err(error) = &moved {
            tracing::warn!("cannot mount on {} again: {error}", self.dir.display());
        }
        moved.is_ok()
    }

    fn abort(&mut self) {
        self.undoing.abort();
    }

    fn look(&mut self) -> Seen {
        // From now on only other users keep it.
        self.copy = None;
        self.undoing.look()
    }
}

/// Unmounts a mount of a user without rights, by the set-user-id helper. It reports only failure,
/// of which users of the mount are the one cause.
fn unmount_by_helper(dir: &Path) -> Result<(), Errno> {
    let mut helper = Command::new("fusermount3");
    match helper.arg("-uq").arg("--").arg(dir).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Errno::BUSY),
        Err(_) => Err(Errno::PERM),
    }
}

/// A loop device.
pub(crate) struct Device<'u> {
    pub undoing: Undoing<'u>,
    pub number: u32,
    /// File systems on it that are mounted here; they prevent this unless forced.
    pub mounts: Vec<PathBuf>,
    /// Why it could not be cleared.
    pub error: Option<io::Error>,
}

impl Hands for Device<'_> {
    fn flush(&mut self) -> bool {
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for dir in std::mem::take(&mut self.mounts) {
            if let Ok(root) = rustix::fs::open(&dir, directory, Mode::empty())
                && !self.undoing.flush(root)
            {
                return false;
            }
        }
        match above::device(self.undoing.record()) {
            Ok(Some((device, _))) => self.undoing.flush(device),
            // Its last user has closed it, and the kernel has written it out.
            Ok(None) => true,
            Err(error) => {
                self.undoing.fault = format!("cannot open the loop device: {error}");
                false
            }
        }
    }

    fn unmount(&mut self) -> Unmounted {
        if loopdev::is_on(self.number, &self.undoing.record().file_name)
            && let Err(error) = loopdev::clear(self.number)
        {
            self.error = Some(error);
            return Unmounted::Busy;
        }
        Unmounted::Gone
    }

    fn detach(&mut self) -> bool {
        false
    }

    fn put_back(&mut self) -> bool {
        false
    }

    fn abort(&mut self) {
        self.undoing.abort();
    }

    fn look(&mut self) -> Seen {
        self.undoing.look()
    }
}

/// Time limit for a server's progress while a step waits for it.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Time limit for the kernel to release a FUSE file system that has no users left.
const GRACE: Duration = Duration::from_secs(2);
/// Time limit for a server to end once nothing holds it.
const END_MAX: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Time between checks of the other mount namespaces.
const LOOK_AROUND_AGAIN: Duration = Duration::from_millis(250);
/// Time for which a mount must be busy to count as in use.
const BUSY_GRACE: Duration = Duration::from_millis(500);
const BUSY_PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that was killed between the unmount and its last flush.
    #[test]
    fn a_killed_server_has_not_ended_in_order() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("lock"), "").unwrap();
        let own = Record {
            writable: true,
            ..Record::new("/image".into())
        };
        let write = |record: &Record| {
            let text = serde_json::to_vec(record).unwrap();
            std::fs::write(folder.path().join("state.json"), text).unwrap();
        };
        let look = |record: &Record| {
            let entry = Entry::new(folder.path().to_owned(), record.clone());
            let flusher = || Command::new("true");
            let mut undoing = Undoing::new(&entry, &flusher);
            let seen = undoing.look();
            (seen, undoing.fault.contains("was killed"))
        };
        write(&own);
        assert_eq!(look(&own), (Seen::Failing, true));
        // Nothing was written to this one.
        let reading = Record {
            writable: false,
            ..own.clone()
        };
        assert_eq!(look(&reading), (Seen::Ended, false));
        // The directory is another server's, or gone in order.
        write(&Record {
            pid: own.pid + 1,
            ..own.clone()
        });
        assert_eq!(look(&own), (Seen::Ended, false));
        std::fs::remove_file(folder.path().join("state.json")).unwrap();
        assert_eq!(look(&own), (Seen::Ended, false));
    }
}
