//! A keeper: a small process that holds a mount's FUSE device, and starts another server where one
//! is killed.
//!
//! Why here: the kernel ends a FUSE file system with the last descriptor of its device, and all
//! its users get errors. As long as one is open, they wait. A server starts a keeper once its mount
//! is there, and hands it the device, the lock of its record and its own command line. Where the
//! server ends without a farewell, the keeper starts it again with all of that. The new server
//! [adopts](crate::fuse::Keeping::Adopt) the session: the kernel sends again what was read and not
//! answered. Where the keeper is killed, the server starts another one.
//!
//! Both sides are joined by a socket; its hang-up is a death, also that by `kill -9`. A message is
//! a farewell, or what is held: the process that starts the other one sends it.
//!
//! Must stay true: one of both has the device at any time, unless both are killed at once; a mount
//! that takes writes has no keeper, since a killed server has lost what it had not stored; the
//! lock of the record is held as long as one of both lives, so that no command undoes the mount.
//!
//! Threads: a server has one that waits for its keeper's end. [`keep`] is a process of its own.
//! Source: `fuse_dev_release` and `fuse_resend` in `fs/fuse/dev.c` of Linux 6.9.

use crate::state::{Claim, Record, StateDir};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use sidecore_sys::local_socket::{self, Received};
use sidecore_sys::signals::Signals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// A server's keeper.
#[derive(Debug)]
pub(crate) struct Kept(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    estate: Estate,
    socket: Mutex<Option<OwnedFd>>,
    is_over: AtomicBool,
}

/// The end of the other side.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// It ended in order.
    Farewell,
    /// It was killed, or failed.
    Death,
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
    /// also the socket.
    ///
    /// # Errors
    /// The system's, or what came is no estate.
    fn receive() -> io::Result<(Self, OwnedFd)> {
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
        let Ok([device, lock]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(none());
        };
        let estate = Self {
            held,
            device,
            lock: lock.into(),
        };
        Ok((estate, socket))
    }

    /// Starts a program and hands the estate over to it.
    fn hand(&self, mut command: Command) -> io::Result<(OwnedFd, Child)> {
        let (own, other) = local_socket::pair().map_err(io::Error::other)?;
        let message = serde_json::to_vec(&self.held)?;
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::other("the command line is too long"));
        }
        // Before the start: the program finds it there.
        let descriptors = [self.device.as_fd(), self.lock.as_fd()];
        local_socket::send(own.as_fd(), &message, &descriptors).map_err(io::Error::other)?;
        command.stdin(Stdio::from(other)).stdout(Stdio::null());
        Ok((own, command.spawn()?))
    }

    fn start_keeper(&self) -> io::Result<(OwnedFd, Child)> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME);
        // Not the caller's: its reader would wait for the keeper's end.
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.held.state.join("log"))?;
        command.stderr(log);
        self.hand(command)
    }

    fn start_server(&self) -> io::Result<(OwnedFd, Child)> {
        let mut command = Command::new("/proc/self/exe");
        command.args(&self.held.arguments);
        let folder = PathBuf::from(&self.held.folder);
        command.current_dir(if folder.is_dir() { folder } else { "/".into() });
        self.hand(command)
    }

    /// False once the file system is gone.
    fn is_mounted(&self) -> bool {
        let mut polled = [PollFd::new(&self.device, PollFlags::empty())];
        let looked = poll(&mut polled, Some(&Timespec::default()));
        looked.is_err() || !polled[0].revents().contains(PollFlags::ERR)
    }
}

impl Kept {
    /// Starts a keeper for this server's mount.
    ///
    /// # Errors
    /// The system's: the mount is served without one then.
    pub(crate) fn begin(estate: Estate) -> io::Result<Self> {
        let (socket, child) = estate.start_keeper()?;
        Self::watch(estate, socket, Some(child))
    }

    /// Takes a mount over from the keeper that started this process; also its device, and the
    /// record of the server before.
    ///
    /// # Errors
    /// The system's; nothing was taken over then.
    pub(crate) fn take_over() -> io::Result<(Self, OwnedFd, Claim, Record)> {
        let (estate, socket) = Estate::receive()?;
        let record = std::fs::read(estate.held.state.join("state.json"))?;
        let mut record: Record = serde_json::from_slice(&record)?;
        record.pid = std::process::id();
        let device = estate.device.try_clone()?;
        let claim = Claim::of(estate.held.state.clone(), estate.lock.try_clone()?);
        let kept = Self::watch(estate, socket, None)?;
        Ok((kept, device, claim, record))
    }

    fn watch(estate: Estate, socket: OwnedFd, child: Option<Child>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            estate,
            socket: Mutex::new(Some(socket)),
            is_over: AtomicBool::new(false),
        });
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("keeper".into());
        thread.spawn(move || watched.watch(child))?;
        Ok(Self(shared))
    }

    /// Says that this server ends in order; the keeper ends, too.
    pub(crate) fn farewell(&self) {
        // Before the message: the keeper's end is no death after it.
        self.0.is_over.store(true, Ordering::SeqCst);
        if let Some(socket) = &*self.0.socket.lock() {
            // A keeper that is gone needs none.
            let _ = local_socket::send(socket.as_fd(), FAREWELL, &[]);
        }
    }
}

impl Shared {
    /// Starts another keeper whenever one ends.
    fn watch(&self, mut child: Option<Child>) {
        let mut pause = Duration::ZERO;
        loop {
            let begun = Instant::now();
            let socket = self.socket.lock().as_ref().map(|it| it.try_clone());
            if let Some(Ok(socket)) = socket {
                wait_for_end(socket.as_fd());
            }
            // A zombie would keep its number.
            if let Some(mut child) = child.take() {
                child.wait().ok();
            }
            pause = next_pause(pause, begun.elapsed());
            std::thread::sleep(pause);
            // The lock: a farewell goes to the new one.
            let mut socket = self.socket.lock();
            if self.is_over.load(Ordering::SeqCst) {
                return;
            }
            match self.estate.start_keeper() {
                Ok((own, started)) => (*socket, child) = (Some(own), Some(started)),
                Err(error) => {
                    tracing::warn!("no keeper: a kill of this server ends its mount: {error}");
                    *socket = None;
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
    let (estate, mut socket) = Estate::receive()?;
    // Neither that standard input nor a directory may stay in use.
    let null = File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::process::setsid().ok();
    rustix::process::chdir("/")?;
    let mut child: Option<Child> = None;
    let mut pause = Duration::ZERO;
    loop {
        let begun = Instant::now();
        let end = wait_for_end(socket.as_fd());
        // A zombie would keep its number.
        if let Some(mut child) = child.take() {
            child.wait().ok();
        }
        if end == End::Farewell {
            return Ok(());
        }
        pause = next_pause(pause, begun.elapsed());
        std::thread::sleep(pause);
        let started = loop {
            if !estate.is_mounted() {
                // Without the lock its record is a dead server's.
                drop(estate);
                return StateDir::of_user().clean_stale().map_err(io::Error::other);
            }
            match estate.start_server() {
                Ok(started) => break started,
                Err(error) => {
                    tracing::warn!("cannot start the server again: {error}");
                    std::thread::sleep(PAUSE_MAX);
                }
            }
        };
        (socket, child) = (started.0, Some(started.1));
    }
}

/// Waits until the other side has said farewell or is gone.
fn wait_for_end(socket: BorrowedFd<'_>) -> End {
    let mut message = [0; 64];
    loop {
        let mut ready = Vec::new();
        if local_socket::poll(&[socket], &mut ready, LOOK_AGAIN).is_err() {
            std::thread::sleep(PAUSE_MIN);
        }
        match local_socket::receive(socket, &mut message) {
            Ok(Received::Message(len, _)) if &message[..len] == FAREWELL => return End::Farewell,
            Ok(Received::Message(..) | Received::Nothing) => {}
            Ok(Received::End) | Err(_) => return End::Death,
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

const FAREWELL: &[u8] = b"farewell";
/// Longest message: a command line, a directory.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Time to wait for what is handed over; it is there before the start.
const HANDING_TIME: Duration = Duration::from_secs(10);
/// Interval at which a wait begins again.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);
/// A process that lived shorter has failed, rather than been killed.
const SERVICE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_farewell_is_no_death() {
        let (own, other) = local_socket::pair().unwrap();
        local_socket::send(other.as_fd(), FAREWELL, &[]).unwrap();
        drop(other);
        assert_eq!(wait_for_end(own.as_fd()), End::Farewell);
        assert_eq!(wait_for_end(own.as_fd()), End::Death);
    }
}
