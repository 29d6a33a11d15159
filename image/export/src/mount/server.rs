//! The process that serves a mounted or attached image, from its first check to its last clean-up.
//!
//! Why here: mounting on a directory, exporting one file and making a device differ only in a few
//! lines between the same start and the same end.
//!
//! The order: check everything that can be checked; clean up after dead servers; claim a record;
//! serve the FUSE file; set up the mount or device, each step recorded before others can see it;
//! notify the waiting caller; then wait. Only the mount or device holds the FUSE file. When it
//! goes, by `umount`, by `umount(8)` or `losetup -d`, the kernel ends the session, and that ends
//! the server. A failure half-way drops descriptors, which undoes what they hold.
//!
//! Signals: SIGINT, SIGTERM or SIGHUP undoes the mount, with written data flushed before. Programs
//! with open files keep them for [`PATIENCE`] ([`PATIENCE_READING`] where nothing is written), or
//! until a second signal. Then they get errors, once all their written data are safe (`ending`). A
//! signal that comes during the first steps ends the server wherever it waits.
//!
//! [`serve`] keeps the calling thread, which should be the process's first.

mod set_up;

use super::above::{self, Above};
use super::ending::{Act, Closed, Ending, Event, Terms, Unmounted};
use super::{FileSystem, inner};
use crate::fuse::{self, FuseOptions, Keeping};
use crate::keeper::Kept;
use crate::loopdev;
use crate::state::{self, Claim, Entry, Record, StateDir, table};
use crate::{ExportError, Ready};
use rustix::mount::UnmountFlags;
use sidecore_format::source::{BlockSource, WriteError};
use sidecore_sys::apart;
use sidecore_sys::signals::Signals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Form in which an image is served.
#[derive(Debug, Clone)]
pub enum Target {
    /// The file system inside, on a directory.
    Mount {
        /// The directory.
        dir: PathBuf,
        /// Allow device nodes and set-user-id bits inside.
        trusted: bool,
        /// The file systems that the kernel may mount, of [`FileSystem::NAMES`].
        file_systems: Vec<String>,
    },
    /// The files inside, on a directory, read by this process and not by the kernel.
    Tree {
        /// The directory.
        dir: PathBuf,
    },
    /// The contents as one file in a directory.
    File {
        /// The directory.
        dir: PathBuf,
    },
    /// A block device.
    Device,
}

impl Target {
    /// The file system inside on a directory, of a maker that is not trusted: read by the kernel,
    /// or by this process for users that are not root.
    #[must_use]
    pub fn untrusted(dir: PathBuf, is_rootless: bool) -> Self {
        match is_rootless {
            true => Self::Tree { dir },
            false => Self::Mount {
                dir,
                trusted: false,
                file_systems: FileSystem::NAMES_DEFAULT.map(str::to_owned).to_vec(),
            },
        }
    }

    /// The way of serving, as the list of servers names it.
    #[must_use]
    pub fn way(&self) -> &'static str {
        match self {
            Self::Mount { .. } => "mount",
            Self::Tree { .. } => "rootless",
            Self::File { .. } => "file",
            Self::Device => "attach",
        }
    }
}

/// Serves `source` as `target` until that is undone. `image` is the image's path, for the records.
/// `ready` is called once all is usable; if it fails (the caller has stopped waiting), all is
/// undone.
///
/// Another thread does the work: signals are delivered to the process's first thread, which would
/// not see one while it waits for a disk, perhaps our own.
///
/// # Errors
/// [`ExportError`]; nothing is left then.
pub fn serve(
    source: Arc<dyn BlockSource>,
    image: &Path,
    target: &Target,
    options: FuseOptions,
    ready: impl FnOnce(&Ready) -> io::Result<()> + Send,
) -> Result<(), ExportError> {
    let work = || serve_here(source, image, target, options, ready);
    std::thread::scope(|scope| {
        let server = std::thread::Builder::new().name("server".into());
        let server = server
            .spawn_scoped(scope, work)
            .map_err(|e| ExportError::os("cannot start the server's thread", e))?;
        server.join().unwrap_or_else(|_| {
            let panicked = io::Error::other("its thread panicked");
            Err(ExportError::os("the server failed", panicked))
        })
    })
}

fn serve_here(
    source: Arc<dyn BlockSource>,
    image: &Path,
    target: &Target,
    options: FuseOptions,
    ready: impl FnOnce(&Ready) -> io::Result<()>,
) -> Result<(), ExportError> {
    let (events, inbox) = sync_channel(EVENTS_MAX);
    let signals = events.clone();
    let setting_up = Arc::new(SettingUp::default());
    let watched = Arc::clone(&setting_up);
    on_signals(move || {
        // A full queue already holds enough requests to end.
        let _ = signals.try_send(Event::Signal);
        watched.signal();
    })?;
    // The kernel would refuse as well, but only after the FUSE file is there.
    let root = rustix::process::geteuid().is_root();
    if !root && !matches!(target, Target::File { .. } | Target::Tree { .. }) {
        return Err(ExportError::NotRoot);
    }
    // No sector: neither a device nor a file system.
    if source.size_bytes() == 0 {
        return Err(ExportError::Empty);
    }
    let states = StateDir::of_user();
    if options.keeping == Keeping::Adopt {
        let (server, it) = Server::adopt(source, states, options, events)?;
        setting_up.is_over();
        ready(&it).map_err(|e| ExportError::os("cannot begin again", e))?;
        return server.until_the_end(&inbox);
    }
    // Before the directory is checked: a dead server's mount may be on it.
    states.clean_stale()?;
    check(target)?;
    let mut record = Record::new(absolute(image));
    record.file_name = file_name(&record.image, target);
    record.writable = source.writes().is_some();
    if options.keeping == Keeping::Yes {
        record.identity = source.identity();
    }
    // From here on a later command finds the leftovers of this process.
    let claim = states.claim(&record)?;
    setting_up.begins(claim.path());
    let mut server = Server {
        source,
        claim,
        record,
        states,
        inner: None,
        kept: None,
    };
    let result = server.set_up(target, options, events).and_then(|it| {
        setting_up.is_over();
        ready(&it).map_err(|e| ExportError::os("the command that started this server is gone", e))
    });
    setting_up.is_over();
    match result {
        Ok(()) => server.until_the_end(&inbox),
        Err(error) => {
            // Descriptors are closed by now; this removes the rest.
            server.end();
            Err(error)
        }
    }
}

/// Watches a server's first steps, which may hang in a source that does not answer.
#[derive(Default)]
struct SettingUp {
    is_over: AtomicBool,
    was_asked: AtomicBool,
    place: parking_lot::Mutex<Option<PathBuf>>,
}

impl SettingUp {
    fn begins(&self, place: &Path) {
        *self.place.lock() = Some(place.to_owned());
    }

    fn is_over(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// Ends the process soon, unless the first steps are over by then: no user has the mount or the
    /// device yet, so no data can be lost.
    fn signal(self: &Arc<Self>) {
        if self.is_over.load(Ordering::Acquire) || self.was_asked.swap(true, Ordering::Relaxed) {
            return;
        }
        let watched = Arc::clone(self);
        let leave = move || {
            std::thread::sleep(PATIENCE_READING);
            if watched.is_over.load(Ordering::Acquire) {
                return;
            }
            tracing::error!("a signal came before it was of use");
            if let Some(place) = watched.place.lock().clone() {
                abandon(&place);
            }
            std::process::exit(2);
        };
        let started = std::thread::Builder::new()
            .name("leave".into())
            .spawn(leave);
        if let Err(error) = started {
            tracing::warn!("no thread watches over the start: {error}");
        }
    }
}

/// Undoes the set-up that the record in a server's directory names.
fn abandon(place: &Path) {
    let entry = Entry::new(place.to_owned(), Record::new(PathBuf::new()));
    let Some(record) = entry.again() else { return };
    // Otherwise a mount that waits for our reply would keep this process alive.
    abort(&record);
    let entry = Entry::new(place.to_owned(), record);
    // If no such thread can be started, the record stays.
    apart(|| Ok(state::clean(&entry))).ok();
}

fn abort(record: &Record) {
    if let Some(device) = record.fuse
        && let Err(error) = fuse::place::abort(device.minor)
    {
        tracing::warn!("cannot abort FUSE connection {}: {error}", device.minor);
    }
}

/// Checks that a directory can be a mount point; a device needs none.
fn check(target: &Target) -> Result<(), ExportError> {
    match target {
        Target::Mount { dir, .. } | Target::Tree { dir } | Target::File { dir } => {
            check_free(&directory(dir)?)
        }
        Target::Device => Ok(()),
    }
}

/// Checks that nothing is mounted on a directory.
fn check_free(dir: &Path) -> Result<(), ExportError> {
    match table::at(dir).map_err(|e| ExportError::os("cannot read the mount table", e))? {
        Some(mount) => Err(ExportError::Occupied {
            dir: dir.to_owned(),
            file_system: mount.file_system,
            what: mount.source.to_string_lossy().into_owned(),
        }),
        None => Ok(()),
    }
}

/// The mount point's one absolute name.
fn directory(dir: &Path) -> Result<PathBuf, ExportError> {
    let failed = |source| ExportError::Directory {
        dir: dir.to_owned(),
        source,
    };
    let path = dir.canonicalize().map_err(failed)?;
    if !path.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    if path.to_str().is_none() {
        let text = "its name is not UTF-8, which the records need";
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, text)));
    }
    Ok(path)
}

/// A unique name for the FUSE file, by which users recognise the image in `losetup` and `mount`.
///
/// The process number alone would not do: containers count processes anew and share the loop
/// devices, so the clean-up after one server could clear the device of another's.
fn file_name(image: &Path, target: &Target) -> String {
    if matches!(target, Target::File { .. }) {
        return "image".into();
    }
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    // The name is read in tables of mounts: no spaces, escapes or letters that look like others.
    let plain: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .take(FILE_NAME_CHARS_MAX)
        .collect();
    let (pid, number) = (std::process::id(), RandomState::new().hash_one(&plain));
    format!("sidecore-{pid}-{number:016x}-{plain}")
}

/// Runs `act` on a thread of its own for every SIGINT, SIGTERM and SIGHUP from now on.
pub(crate) fn on_signals(mut act: impl FnMut() + Send + 'static) -> Result<(), ExportError> {
    let failed = |error| ExportError::os("cannot listen for signals", error);
    let signals: Signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || signals.for_each(|_| act()))
        .map_err(failed)?;
    Ok(())
}

/// The image's path as the records name it.
pub(crate) fn absolute(image: &Path) -> PathBuf {
    // The name of a remote image is no path.
    if image.to_string_lossy().contains("://") {
        return image.to_owned();
    }
    std::path::absolute(image).unwrap_or_else(|_| image.to_owned())
}

struct Server {
    source: Arc<dyn BlockSource>,
    claim: Claim,
    record: Record,
    states: StateDir,
    /// The file system that is mounted on a loop device.
    inner: Option<FileSystem>,
    kept: Option<Kept>,
}

impl Server {
    /// Serves until all is undone, and makes written data durable.
    fn until_the_end(mut self, inbox: &Receiver<Event>) -> Result<(), ExportError> {
        // Nothing can be lost of a read-only mount.
        let patience = match self.record.writable {
            true => PATIENCE,
            false => PATIENCE_READING,
        };
        let writable = self.record.writable;
        let mut ending = Ending::new(Terms { writable, patience });
        let begun = Instant::now();
        let mut act = ending.begin();
        loop {
            let event = match act {
                Act::Wait(until) => self.wait(inbox, until, begun),
                Act::Flush => Event::Done(done("cannot flush what was written", self.flush())),
                Act::Unmount => Event::Unmounted(self.unmount()),
                Act::Detach => Event::Done(self.detach()),
                Act::PutBack => Event::Done(done("cannot mount it again", self.put_back())),
                Act::Pull => {
                    let pulled = self.pull();
                    Event::Done(done("programs still use it", pulled))
                }
                Act::Abort => {
                    abort(&self.record);
                    done(
                        "cannot leave the device as it was",
                        away(|| {
                            above::leave_device(&self.record);
                            Ok(())
                        }),
                    );
                    // This ends only the wait that follows.
                    Event::Signal
                }
                Act::Close => Event::Closed(self.close()),
                Act::End { lost: false } => {
                    self.end();
                    return Ok(());
                }
                Act::End { lost: true } => {
                    let reason = self.record.fault.clone().unwrap_or_default();
                    self.claim.leave();
                    return Err(ExportError::Lost(reason));
                }
            };
            act = ending.next(event, begun.elapsed());
            if ending.is_released() && !self.record.released {
                self.record.released = true;
                self.write_record();
            }
        }
    }

    /// Waits for an event, at most until `until`.
    fn wait(&self, inbox: &Receiver<Event>, until: Option<Duration>, begun: Instant) -> Event {
        loop {
            // Woken each TICK, so that memory and the log are looked after where nothing happens.
            let left = until.map(|until| until.saturating_sub(begun.elapsed()));
            match inbox.recv_timeout(left.unwrap_or(TICK).min(TICK)) {
                Ok(event) => return event,
                // The session has reported its end before.
                Err(RecvTimeoutError::Disconnected) => return Event::Released,
                Err(RecvTimeoutError::Timeout) if left.is_some_and(|left| left <= TICK) => {
                    return Event::Time;
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.source.release_idle(IDLE);
                    state::bound_log(self.claim.path());
                }
            }
        }
    }

    fn write_record(&self) {
        if let Err(error) = self.claim.write(&self.record) {
            tracing::warn!("{error}");
        }
    }

    /// Has the kernel write out dirty pages, and makes the data durable.
    fn flush(&self) -> Result<(), ExportError> {
        away(|| self.write_out())?;
        self.make_durable().map_err(ExportError::Write)
    }

    fn write_out(&self) -> Result<(), ExportError> {
        let failed = |error| ExportError::os("cannot write out what programs wrote", error);
        if let Some(file_system) = self.inner {
            match Above::of(&self.record, file_system)? {
                Some(above) => above.write_out().map_err(failed),
                None => Ok(()),
            }
        } else if let Some(mount) = &self.record.mount {
            match mount.find().map_err(failed)? {
                Some(found) => above::write_out_at(&mount.dir, &found).map_err(failed),
                None => Ok(()),
            }
        } else {
            above::write_out_device(&self.record).map_err(failed)
        }
    }

    fn make_durable(&self) -> Result<(), WriteError> {
        match self.source.writes() {
            Some(writes) => writes.flush(),
            None => Ok(()),
        }
    }

    /// Removes the mount or the device, unless programs have files of the mount open; programs that
    /// have the device open keep it.
    fn unmount(&self) -> Unmounted {
        let Some(mount) = &self.record.mount else {
            if let Some(number) = self.record.loop_number
                && loopdev::is_on(number, &self.record.file_name)
                && let Err(error) = apart(|| loopdev::clear(number))
            {
                tracing::warn!("cannot clear /dev/loop{number}: {error}");
            }
            return Unmounted::Gone;
        };
        if matches!(mount.find(), Ok(None)) {
            tracing::warn!("not mounted here any more; served on for others that have it");
            return Unmounted::Gone;
        }
        // The last user of a file system writes it out.
        let unmounted = apart(|| Ok(rustix::mount::unmount(&mount.dir, UnmountFlags::NOFOLLOW)?));
        match unmounted {
            Ok(()) => Unmounted::Gone,
            // Without root only the helper may unmount; `detach` calls it in any case.
            Err(_) => Unmounted::Busy,
        }
    }

    fn detach(&self) -> bool {
        let Some(mount) = &self.record.mount else {
            return true;
        };
        tracing::warn!(
            "{} is in use; its open files are served for a moment",
            mount.dir.display()
        );
        apart(|| Ok(state::detach_mount(&mount.dir))).is_ok_and(|detached| detached)
    }

    /// Mounts the file system again, which other users still have.
    fn put_back(&mut self) -> Result<(), ExportError> {
        let (Some(file_system), Some(record)) = (self.inner, self.record.mount.clone()) else {
            return Err(ExportError::NotShutDown("a device"));
        };
        away(|| {
            let mount = inner::mount_nowhere(file_system, &record.source, false, true)?;
            self.place(&mount, record.dir, record.source.clone())
        })
    }

    /// Makes sure that nothing can be written any more, and that all written data have arrived.
    fn pull(&self) -> Result<(), ExportError> {
        if !self.record.writable {
            return Ok(());
        }
        match (self.inner, &self.record.mount) {
            (Some(file_system), _) => away(|| match Above::of(&self.record, file_system)? {
                Some(above) => above
                    .shut_down()
                    .map_err(|_| ExportError::NotShutDown(file_system.name())),
                None => Ok(()),
            }),
            // Writes to the one file are stored here before a program gets their result.
            (None, Some(_)) => self.flush(),
            (None, None) => away(|| above::shut_down_device(&self.record)),
        }
    }

    /// Makes all writes durable that were acknowledged to the kernel.
    fn close(&mut self) -> Closed {
        let (closed, fault) = match self.make_durable() {
            Ok(()) => (Closed::Durable, None),
            Err(error @ WriteError::NoSpace { .. }) => (Closed::Later, Some(error.to_string())),
            Err(error) => (Closed::Never, Some(error.to_string())),
        };
        // The record is what other processes read; it is written only when something has changed.
        if self.record.fault != fault {
            if let Some(fault) = &fault {
                tracing::error!("what was written cannot be made durable: {fault}");
            }
            self.record.fault = fault;
            self.write_record();
        }
        closed
    }

    /// Removes leftovers of an abort, and the record.
    fn end(self) {
        if let Some(kept) = &self.kept {
            kept.farewell();
        }
        // On another thread: an unmount that waits for our own FUSE session must not keep it open.
        let entry = Entry::new(self.claim.path().to_owned(), self.record);
        match apart(|| Ok(state::clean(&entry))) {
            Ok(true) => self.claim.release(),
            _ => self.claim.leave(),
        }
    }
}

/// Runs a step that waits for the session on a thread without its device ([`apart`]).
fn away<T: Send>(work: impl FnOnce() -> Result<T, ExportError> + Send) -> Result<T, ExportError> {
    apart(|| Ok(work())).map_err(|e| ExportError::os("cannot start a thread for it", e))?
}

/// Logs the reason of a failed step; true if it succeeded.
fn done(what: &str, result: Result<(), ExportError>) -> bool {
    if let Err(error) = &result {
        tracing::warn!("{what}: {error}");
    }
    result.is_ok()
}

/// Most events that wait for the server's thread.
const EVENTS_MAX: usize = 16;
/// Interval at which the source may give memory back, and the log's length is looked at.
const TICK: Duration = Duration::from_secs(5);
/// Time that programs have, from the first signal on, to close the files of a mount that is
/// written; all is flushed before and after.
const PATIENCE: Duration = Duration::from_secs(8);
/// The same where nothing is written.
const PATIENCE_READING: Duration = Duration::from_millis(500);
/// Time without use after which memory is given back.
const IDLE: Duration = Duration::from_secs(30);
/// Characters of the image's name that go into the FUSE file's.
const FILE_NAME_CHARS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// As of two containers, where servers have the same process number.
    #[test]
    fn servers_of_one_image_and_process_number_have_different_files() {
        let name = || file_name(Path::new("/images/a disk.img"), &Target::Device);
        let (one, other) = (name(), name());
        assert_ne!(one, other);
        let (start, end) = (format!("sidecore-{}-", std::process::id()), "-a_disk.img");
        assert!(one.starts_with(&start) && one.ends_with(end), "{one}");
        let file = file_name(Path::new("disk.img"), &Target::File { dir: "/".into() });
        assert_eq!(file, "image");
    }
}
