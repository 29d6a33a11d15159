//! Keepers: small processes that hold a mount's FUSE device, and start another server where one is
//! killed.
//!
//! Why here: the kernel ends a FUSE file system with the last descriptor of its device, and all
//! its users get errors. As long as one is open, they wait. A server starts two keepers
//! once its mount is there, and hands each the device, the lock of its record and its own command
//! line. Where the server ends without a farewell, one of them starts it again with all of that.
//! The new server [adopts](crate::fuse::Keeping::Adopt) the session: the kernel sends again what
//! was read and not answered. Where a keeper is killed, the server starts another one.
//!
//! Deaths are noticed by locks (`flock`) on files in the record's directory, which the kernel
//! releases with the last descriptor, also after `kill -9`:
//!
//! | file | held by | waited for by |
//! |---|---|---|
//! | `serving` | the server | each keeper: the one that gets it starts the next server |
//! | `keeper-N` | keeper N | a thread of the server, which then starts keeper N again |
//!
//! A lock goes to the process that is started as a descriptor in a message, so that it is free at
//! no moment in between. So at most one server and one keeper of each number live.
//!
//! Must stay true: one of all has the device at any time, unless all are killed at once; a mount
//! that takes writes has no keeper, since a killed server has lost what it had not stored; the
//! lock of the record is held as long as one of them lives, so that no command undoes the mount.
//!
//! Threads: a server has one that waits for each keeper's end. [`keep`] is a process of its own.
//! Source: `fuse_dev_release` and `fuse_resend` in `fs/fuse/dev.c` of Linux 6.9; flock(2).

use crate::state::{Claim, FAREWELL, KEEPERS, Record, SERVING, StateDir, bound_log, keeper_name};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sidecore_sys::local_socket::{self, Received};
use sidecore_sys::signals::Signals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name (`argv[0]`) by which the program is a keeper.
pub const NAME: &str = "sidecore-keeper";

/// The flag of a server that goes on with another one's mount.
const ADOPT_FLAG: &str = "--adopt";

/// The command line that starts a server again, and its places.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Held {
    /// Its arguments.
    arguments: Vec<OsString>,
    /// The directory that they are relative to.
    folder: OsString,
    /// Its directory of records.
    state: PathBuf,
}

/// All that survives a server.
#[derive(Debug)]
pub(crate) struct Estate {
    held: Held,
    device: OwnedFd,
    lock: File,
}

/// A server's keepers.
#[derive(Debug)]
pub(crate) struct Kept(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    estate: Estate,
    /// Keepers start the next server once it is closed.
    _serving: File,
    is_over: Mutex<bool>,
}

impl Estate {
    /// The estate of this process, which serves the session of `device`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn new(device: OwnedFd, claim: &Claim) -> io::Result<Self> {
        let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let flag = crate::background::CHILD_FLAG;
        let at = arguments.iter().position(|it| it == flag);
        let at = at.ok_or_else(|| io::Error::other("it runs in the foreground"))?;
        arguments.insert(at, ADOPT_FLAG.into());
        Ok(Self {
            held: Held {
                arguments,
                folder: std::env::current_dir()?.into(),
                state: claim.path().to_owned(),
            },
            device,
            lock: claim.lock()?,
        })
    }

    /// Takes the estate that the process which started this one hands over by standard input;
    /// also the lock of this process.
    ///
    /// # Errors
    /// The system's, or what came is no estate.
    fn receive() -> io::Result<(Self, File)> {
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        let mut ready = Vec::new();
        local_socket::poll(&[socket.as_fd()], &mut ready, HANDING_TIME)
            .map_err(io::Error::other)?;
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        let none = || io::Error::other("no mount was handed over");
        let Received::Message(len, descriptors) =
            local_socket::receive(socket.as_fd(), &mut message).map_err(io::Error::other)?
        else {
            return Err(none());
        };
        let held = serde_json::from_slice(&message[..len])?;
        let Ok([device, lock, own]) = <[OwnedFd; 3]>::try_from(descriptors) else {
            return Err(none());
        };
        let estate = Self {
            held,
            device,
            lock: lock.into(),
        };
        Ok((estate, own.into()))
    }

    /// Starts a program and hands the estate over to it, with the lock that it is to hold.
    fn hand(&self, mut command: Command, lock: &File) -> io::Result<Child> {
        let (own, other) = local_socket::pair().map_err(io::Error::other)?;
        let message = serde_json::to_vec(&self.held)?;
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("the command line is too long"));
        }
        // Before the start: the program finds it there.
        let descriptors = [self.device.as_fd(), self.lock.as_fd(), lock.as_fd()];
        local_socket::send(own.as_fd(), &message, &descriptors).map_err(io::Error::other)?;
        command.stdin(Stdio::from(other)).stdout(Stdio::null());
        command.spawn()
    }

    /// The file of a lock.
    fn lock_file(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        options.open(self.held.state.join(name))
    }

    fn start_keeper(&self, lock: &File) -> io::Result<Child> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME);
        // Not the caller's: its reader would wait for the keeper's end.
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.held.state.join("log"))?;
        command.stderr(log);
        self.hand(command, lock)
    }

    fn start_server(&self, lock: &File) -> io::Result<Child> {
        // One that fails is started again for as long as the mount is there.
        bound_log(&self.held.state);
        let mut command = Command::new("/proc/self/exe");
        command.args(&self.held.arguments);
        let folder = PathBuf::from(&self.held.folder);
        command.current_dir(if folder.is_dir() { folder } else { "/".into() });
        self.hand(command, lock)
    }

    /// True once a server has ended in order: it said so, or the record's directory is gone, or is
    /// another server's.
    fn is_over(&self) -> bool {
        let own = self.lock.metadata();
        let found = std::fs::metadata(self.held.state.join("lock"));
        let is_same = match (own, found) {
            (Ok(own), Ok(found)) => (own.dev(), own.ino()) == (found.dev(), found.ino()),
            _ => false,
        };
        !is_same || self.held.state.join(FAREWELL).exists()
    }

    /// False once the file system is gone.
    fn is_mounted(&self) -> bool {
        let mut polled = [PollFd::new(&self.device, PollFlags::empty())];
        let looked = poll(&mut polled, Some(&Timespec::default()));
        looked.is_err() || !polled[0].revents().contains(PollFlags::ERR)
    }
}

impl Kept {
    /// Starts keepers for this server's mount.
    ///
    /// # Errors
    /// The system's: the mount is served without one then.
    pub(crate) fn begin(estate: Estate) -> io::Result<Self> {
        let serving = estate.lock_file(SERVING)?;
        rustix::fs::flock(&serving, FlockOperation::NonBlockingLockExclusive)?;
        let mut children = Vec::new();
        for number in 0..KEEPERS {
            let lock = estate.lock_file(&keeper_name(number))?;
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            children.push(Some(estate.start_keeper(&lock)?));
        }
        Self::watch(estate, serving, children)
    }

    /// Takes a mount over from the keeper that started this process; also its device, and the
    /// record of the server before.
    ///
    /// # Errors
    /// The system's; nothing was taken over then.
    pub(crate) fn take_over() -> io::Result<(Self, OwnedFd, Claim, Record)> {
        let (estate, serving) = Estate::receive()?;
        let record = std::fs::read(estate.held.state.join("state.json"))?;
        let mut record: Record = serde_json::from_slice(&record)?;
        record.pid = std::process::id();
        let device = estate.device.try_clone()?;
        let claim = Claim::of(estate.held.state.clone(), estate.lock.try_clone()?);
        let children = (0..KEEPERS).map(|_| None).collect();
        let kept = Self::watch(estate, serving, children)?;
        Ok((kept, device, claim, record))
    }

    fn watch(estate: Estate, serving: File, children: Vec<Option<Child>>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            estate,
            _serving: serving,
            is_over: Mutex::new(false),
        });
        for (number, child) in children.into_iter().enumerate() {
            let watched = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(keeper_name(number));
            thread.spawn(move || watched.watch(number, child))?;
        }
        Ok(Self(shared))
    }

    /// Says that this server ends in order; the keepers end after it.
    pub(crate) fn farewell(&self) {
        *self.0.is_over.lock() = true;
        let path = self.0.estate.held.state.join(FAREWELL);
        if let Err(error) = File::create(path) {
            // Where the mount goes, too, they see that.
            tracing::warn!("keepers are not told: {error}");
        }
    }
}

impl Shared {
    /// Starts another keeper of a number whenever one ends.
    fn watch(&self, number: usize, mut child: Option<Child>) {
        let mut pause = Duration::ZERO;
        loop {
            let begun = Instant::now();
            let lock = self.estate.lock_file(&keeper_name(number)).and_then(wait);
            let lived = begun.elapsed();
            // A zombie would keep its number.
            if let Some(mut child) = child.take() {
                child.wait().ok();
            }
            pause = next_pause(pause, lived);
            std::thread::sleep(pause);
            // Held: a farewell comes before the start, or after it.
            let is_over = self.is_over.lock();
            if *is_over {
                return;
            }
            match lock.and_then(|lock| self.estate.start_keeper(&lock)) {
                Ok(started) => child = Some(started),
                Err(error) => {
                    tracing::warn!("one keeper less looks after this server's mount: {error}");
                    drop(is_over);
                    std::thread::sleep(PAUSE_MAX);
                }
            }
        }
    }
}

/// Is a keeper until its mount is gone or its server ends in order. Call it in a process of its
/// own, whose standard input is the server's socket.
///
/// # Errors
/// The system's, or nothing was handed over.
pub fn keep() -> io::Result<()> {
    // A service manager signals the whole group: the server ends in order then, and says so.
    let _signals: Signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let (estate, _own) = Estate::receive()?;
    // Neither that standard input nor a directory may stay in use.
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::process::setsid().ok();
    rustix::process::chdir("/")?;
    let mut child: Option<Child> = None;
    let mut pause = Duration::ZERO;
    loop {
        let begun = Instant::now();
        if estate.is_over() {
            return Ok(());
        }
        let serving = wait(estate.lock_file(SERVING)?)?;
        let lived = begun.elapsed();
        // A zombie would keep its number.
        if let Some(mut child) = child.take() {
            child.wait().ok();
        }
        if estate.is_over() {
            return Ok(());
        }
        pause = next_pause(pause, lived);
        std::thread::sleep(pause);
        let started = loop {
            if !estate.is_mounted() {
                // Without the lock its record is a dead server's.
                drop(estate);
                return StateDir::of_user().clean_stale().map_err(io::Error::other);
            }
            match estate.start_server(&serving) {
                Ok(started) => break started,
                Err(error) => {
                    tracing::warn!("cannot start the server again: {error}");
                    std::thread::sleep(PAUSE_MAX);
                }
            }
        };
        child = Some(started);
    }
}

/// Waits until no other process holds a lock, and holds it.
fn wait(file: File) -> io::Result<File> {
    loop {
        match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The pause before the next start: none after a while of service, and more after each failure.
fn next_pause(last: Duration, lived: Duration) -> Duration {
    match lived < SERVICE_MIN {
        true => (last * 2).clamp(PAUSE_MIN, PAUSE_MAX),
        false => Duration::ZERO,
    }
}

/// Longest message: a command line, a directory.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Time to wait for what is handed over; it is there before the start.
const HANDING_TIME: Duration = Duration::from_secs(10);
/// A process that lived shorter has failed, rather than been killed.
const SERVICE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn failures_are_answered_by_longer_pauses_and_a_kill_by_none() {
        let mut pause = Duration::ZERO;
        let mut all = Vec::new();
        for _ in 0..9 {
            pause = next_pause(pause, Duration::from_millis(1));
            all.push(pause);
        }
        assert_eq!((all[0], all[1]), (PAUSE_MIN, 2 * PAUSE_MIN));
        assert_eq!(all[8], PAUSE_MAX);
        assert_eq!(next_pause(pause, SERVICE_MIN), Duration::ZERO);
    }

    fn estate(state: &Path) -> Estate {
        Estate {
            held: Held {
                arguments: Vec::new(),
                folder: OsString::new(),
                state: state.to_owned(),
            },
            device: File::open("/dev/null").unwrap().into(),
            lock: File::create(state.join("lock")).unwrap(),
        }
    }

    #[test]
    fn a_lock_goes_on_in_a_message_and_is_free_with_its_last_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let estate = estate(folder.path());
        let is_free = || {
            let file = estate.lock_file(SERVING).unwrap();
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        };
        let lock = wait(estate.lock_file(SERVING).unwrap()).unwrap();
        let (own, other) = local_socket::pair().unwrap();
        local_socket::send(own.as_fd(), b"x", &[lock.as_fd()]).unwrap();
        drop((lock, own));
        // On its way in the socket, which the program that is started has not read yet.
        assert!(!is_free());
        drop(other);
        assert!(is_free());
    }

    #[test]
    fn a_server_that_ended_in_order_is_not_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let of_first = estate(folder.path());
        assert!(!of_first.is_over());
        File::create(folder.path().join(FAREWELL)).unwrap();
        assert!(of_first.is_over());
        std::fs::remove_file(folder.path().join(FAREWELL)).unwrap();
        assert!(!of_first.is_over());
        // Its directory is gone, and then another server's.
        std::fs::remove_file(folder.path().join("lock")).unwrap();
        assert!(of_first.is_over());
        let of_second = estate(folder.path());
        assert!(of_first.is_over() && !of_second.is_over());
    }
}
