//! Admission of processes, and detection of their end.
//!
//! A thread of its own, because creating segments and watching connections take system calls, which
//! the engine's loop must not make. Must stay true: nothing here waits for a process; a process
//! that sends nothing, or nonsense, is cut off; when a process ends, however it ends, its sessions
//! are reset within moments. This thread and the engine's communicate through `Mailbox`.

use super::layout::{
    CHUNKS_MAX, KIND_CAPTURE, KIND_SESSIONS, MAGIC, VERSION, WISH_WAKE_DESCRIPTOR, segment_bytes,
};
use super::mailbox::{Attachment, Mailbox, Question};
use super::server::Server;
use super::taps;
use sidecore_attach::ConnectionId;
use sidecore_attach::protocol::{KIND_ATTACH, KIND_STATUS};
use sidecore_attach::{
    Acceptor, AcceptorOptions, Allow, AttachError, Event, ListenError, Protocol, Quota, Segment,
    Trust,
};
use sidecore_bare::width::ToU64;
use sidecore_sys::SysError;
use sidecore_sys::local_socket::{self, Peer};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// An error of setting up the engine's side, or of attaching.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SockError {
    /// Another engine listens there.
    #[error("another engine serves at {socket}; end that one, or choose another socket")]
    InUse {
        /// The socket.
        socket: PathBuf,
    },
    /// The path holds a file that must not be replaced, or other users may write to its folder.
    #[error("cannot serve at {socket}: {source}")]
    NotOurs {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        source: ListenError,
    },
    /// The socket cannot be created.
    #[error("cannot listen for processes at {socket}: {source}")]
    Listen {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        source: SysError,
    },
    /// No engine listens there.
    #[error("no engine serves at {socket} ({source}); start one with `sidecore net up`")]
    NoEngine {
        /// The socket.
        socket: PathBuf,
        /// The error of connecting.
        source: SysError,
    },
    /// The permissions of the socket or its folder exclude this user.
    #[error(
        "not allowed: user {own_uid} may not attach at {socket} ({source}); add the user to \
         `allow_uids` of the engine's configuration and start it again, or run this as its user"
    )]
    NotAllowed {
        /// The socket.
        socket: PathBuf,
        /// The user of this process.
        own_uid: u32,
        /// The error of connecting.
        source: SysError,
    },
    /// The engine there runs as a user that is not trusted; nothing was sent to it.
    #[error(
        "{socket} is served by user {uid}, who is neither this user ({own_uid}) nor root; nothing \
         was sent there; remove it, give another socket, or name the user with `--server-uid {uid}`"
    )]
    Untrusted {
        /// The socket.
        socket: PathBuf,
        /// The engine's user.
        uid: u32,
        /// The user of this process.
        own_uid: u32,
    },
    /// The engine's user is not mapped in this process's user namespace; nothing was sent to it.
    #[error(
        "{socket} is served by a user whom this user namespace does not map (shown as {uid}), so \
         that it cannot be told from others; nothing was sent there; map the user, or run this \
         outside"
    )]
    Unmapped {
        /// The socket.
        socket: PathBuf,
        /// The overflow uid, which represents all unmapped users.
        uid: u32,
    },
    /// The engine refused.
    #[error("the engine refuses: {reason}")]
    Refused {
        /// The reason, in the engine's words.
        reason: String,
    },
    /// The engine's reply was invalid.
    #[error("what answers at {socket} is no engine of this version; use the same release for both")]
    Nonsense {
        /// The socket.
        socket: PathBuf,
    },
    /// No answer in time.
    #[error("the engine at {socket} did not answer for {waited_ms} ms; is it stopped?")]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// The time waited, in milliseconds.
        waited_ms: u64,
    },
    /// The operating system refused.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// The engine serves no other process.
    #[error("the engine was made without a socket for applications")]
    Closed,
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl SockError {
    /// The reason why `socket` could not be opened.
    fn of_socket(error: ListenError, socket: &Path) -> Self {
        let socket = socket.to_owned();
        match error {
            ListenError::InUse { .. } => Self::InUse { socket },
            ListenError::System(source) => Self::Listen { socket, source },
            source => Self::NotOurs { socket, source },
        }
    }
}

impl From<AttachError> for SockError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Nobody {
                socket,
                source: source @ SysError::Call { .. },
            } if is_denied(&source) => Self::NotAllowed {
                socket,
                own_uid: sidecore_sys::local_socket::effective_uid(),
                source,
            },
            AttachError::Nobody { socket, source } => Self::NoEngine { socket, source },
            AttachError::Untrusted {
                socket,
                uid,
                own_uid,
            } => Self::Untrusted {
                socket,
                uid,
                own_uid,
            },
            AttachError::Unmapped { socket, uid } => Self::Unmapped { socket, uid },
            AttachError::Refused { reason } => Self::Refused { reason },
            AttachError::Silent { socket, waited_ms } => Self::Silent { socket, waited_ms },
            AttachError::Nonsense { socket } => Self::Nonsense { socket },
            AttachError::System(source) => Self::Sys(source),
            other => Self::Refused {
                reason: other.to_string(),
            },
        }
    }
}

/// True if the kernel denies this user permission.
fn is_denied(error: &SysError) -> bool {
    matches!(error, SysError::Call { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied)
}

/// The default path of an engine's socket ([`sidecore_attach::default_socket`]).
#[must_use]
pub fn default_socket() -> PathBuf {
    sidecore_attach::default_socket("net")
}

/// The default socket for an application: that of the own user's engine if one listens, else of
/// root's in `/run/sidecore` ([`sidecore_attach::find_socket`]).
#[must_use]
pub fn find_socket(trust: &Trust) -> PathBuf {
    sidecore_attach::find_socket("net", trust)
}

/// Socket of engine `index` among those that share an address, the first of which listens at
/// `socket`: `socket` itself for 0, else its path followed by `.` and the number.
#[must_use]
pub(crate) fn sibling_socket(socket: &Path, index: usize) -> PathBuf {
    if index == 0 {
        return socket.to_owned();
    }
    let mut path = socket.as_os_str().to_owned();
    path.push(format!(".{index}"));
    path.into()
}

/// The users that may attach in addition to this user and root, and the limits of each.
#[derive(Debug, Clone)]
pub struct Admission {
    /// Users, by number.
    pub uids: Vec<u32>,
    /// Processes at the same time, including those that have left while their memory is still in
    /// use. A quarter is reserved for root and the engine's own user.
    pub connections_max: usize,
    /// Of these, the most of one user other than root and the engine's own.
    pub user_connections_max: usize,
    /// Bytes of all segments. A quarter is reserved as above.
    pub bytes_max: u64,
    /// Of these, the most of one user other than root and the engine's own.
    pub user_bytes_max: u64,
    /// Engines of this process, each with a socket: they share its descriptors.
    pub engines: usize,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            uids: Vec::new(),
            connections_max: 256,
            user_connections_max: 64,
            bytes_max: 2 << 30,
            user_bytes_max: 512 << 20,
            engines: 1,
        }
    }
}

impl Admission {
    fn door(self) -> AcceptorOptions {
        AcceptorOptions {
            allow: Allow {
                uids: self.uids,
                gids: Vec::new(),
            },
            quota: Quota {
                places_max: self.connections_max,
                user_places_max: self.user_connections_max,
                bytes_max: self.bytes_max,
                user_bytes_max: self.user_bytes_max,
            },
            cpus: Vec::new(),
            acceptors: self.engines,
            remedy: |_| "add it to `allow_uids` in the engine's configuration".to_owned(),
        }
    }
}

/// The frame of the messages.
pub(crate) const PROTOCOL: Protocol = Protocol {
    magic: MAGIC,
    version: VERSION,
    server: "engine",
};

/// The thread; dropping this ends it and removes the socket.
#[derive(Debug)]
pub struct Control {
    mailbox: Arc<Mailbox>,
    stop: Arc<AtomicBool>,
    failure: Arc<Mutex<Option<SysError>>>,
    failed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Opens the socket at `path` and admits processes from now on; the [`Server`] belongs in the
    /// engine's loop.
    ///
    /// # Errors
    /// [`SockError`] with the remedy.
    pub fn start(path: &Path, admission: Admission) -> Result<(Self, Server), SockError> {
        let door = Acceptor::open(PROTOCOL, path, admission.door())
            .map_err(|error| SockError::of_socket(error, path))?;
        let (mailbox, engine) = Mailbox::new()?;
        let stop = Arc::new(AtomicBool::new(false));
        let failure = Arc::new(Mutex::new(None));
        // The flag makes the engine's frequent check one load, without the lock.
        let failed = Arc::new(AtomicBool::new(false));
        let (fails, has_failed) = (Arc::clone(&failure), Arc::clone(&failed));
        let doorkeeper = Doorkeeper {
            door,
            mailbox: Arc::clone(&mailbox),
            stop: Arc::clone(&stop),
            asking: Vec::new(),
            is_asked: false,
        };
        let thread = std::thread::Builder::new()
            .name("sidecore-net-door".to_owned())
            .spawn(move || {
                if let Err(error) = doorkeeper.run() {
                    *fails.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    // Release: partner of the Acquire in `failure`.
                    has_failed.store(true, Ordering::Release);
                }
            })
            .map_err(SockError::Thread)?;
        let server = Server::new(Arc::clone(&mailbox), engine);
        let thread = Some(thread);
        Ok((
            Self {
                mailbox,
                stop,
                failure,
                failed,
                thread,
            },
            server,
        ))
    }

    /// Rings to end a sleep of the engine.
    pub(crate) fn bell(&self) -> Arc<OwnedFd> {
        self.mailbox.shared_engine_bell()
    }

    /// The permanent error because of which no process can attach any more; once. The engine has to
    /// end with it. Costs one load if there is none.
    #[must_use]
    pub fn failure(&self) -> Option<SysError> {
        // Acquire: partner of the Release in the door's thread.
        if !self.failed.load(Ordering::Acquire) {
            return None;
        }
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Release: partner of the Acquire in the thread's loop.
        self.stop.store(true, Ordering::Release);
        self.mailbox.poke_control();
        if let Some(thread) = self.thread.take() {
            // The panic was printed already; there is nothing to undo.
            thread.join().ok();
        }
    }
}

struct Doorkeeper {
    door: Acceptor<Arc<Attachment>>,
    mailbox: Arc<Mailbox>,
    stop: Arc<AtomicBool>,
    /// The connections that wait for answers of the engine, in order.
    asking: Vec<(ConnectionId, Question)>,
    /// The engine is asked the first of them.
    is_asked: bool,
}

impl Doorkeeper {
    fn run(mut self) -> Result<(), SysError> {
        while !self.stop.load(Ordering::Acquire) {
            let woken = self.door.wait(&[self.mailbox.control_bell()], TICK)?;
            if woken == [true] {
                self.mailbox.drain_control();
            }
            self.look_at_door();
            self.pass_answer_on();
        }
        Ok(())
    }

    fn look_at_door(&mut self) {
        // Cut off by the engine's side because the process violated the protocol.
        // Acquire: partner of the Release of the engine's side.
        self.door.part_where(|it| it.gone.load(Ordering::Acquire));
        let mut parted = false;
        while let Some(event) = self.door.next_event() {
            match event {
                Event::Question {
                    from,
                    peer,
                    is_attached,
                    kind,
                    // The engine writes the status in its loop; the answer is passed on when it is
                    // ready.
                    body,
                    ..
                } => match kind {
                    KIND_STATUS => self.ask(from, Question::Status),
                    KIND_SESSIONS => {
                        let [a, b, c, d, ..] = body;
                        let first = u32::from_le_bytes([a, b, c, d]);
                        self.ask(from, Question::Sessions(first));
                    }
                    KIND_ATTACH if !is_attached => {
                        let [a, b, c, d, e, f, g, h, ..] = body;
                        let chunks = u32::from_le_bytes([a, b, c, d]);
                        let wishes = u32::from_le_bytes([e, f, g, h]);
                        self.order(from, chunks, wishes);
                    }
                    KIND_CAPTURE if !is_attached => self.order_capture(from, &peer),
                    _ => self.door.refuse(from, "an unknown question"),
                },
                Event::Made {
                    to,
                    peer,
                    tag,
                    made,
                } => match made {
                    Ok(made) => self.attach(to, peer, tag, made),
                    Err(reason) => self.door.refuse(to, &reason),
                },
                Event::Parted(attachment) => {
                    attachment.gone.store(true, Ordering::Release);
                    parted = true;
                }
            }
        }
        // The engine releases the sockets of processes that are gone.
        if parted {
            self.mailbox.notify_engine();
        }
    }

    /// Has the memory for an attachment created.
    fn order(&mut self, from: ConnectionId, chunks: u32, wishes: u32) {
        if chunks == 0 || chunks > CHUNKS_MAX {
            let reason = format!("{chunks} chunks; allowed are 1 to {CHUNKS_MAX}");
            self.door.refuse(from, &reason);
            return;
        }
        let bytes = segment_bytes(chunks);
        // The door returns it when the memory is made, so no request has to be remembered.
        let tag = u64::from(chunks) | u64::from(wishes) << 32;
        // Made by another thread: clearing hundreds of megabytes would stop all attachments.
        self.door.order(from, "sidecore-net", bytes, tag);
    }

    /// Has the memory for captured frames created, which are all users'.
    fn order_capture(&mut self, from: ConnectionId, peer: &Peer) {
        // Frames are of all users, so `allow_uids` is not enough.
        if peer.uid == 0 || peer.uid == local_socket::effective_uid() {
            self.door
                .order(from, "sidecore-capture", taps::SEGMENT_BYTES, 0);
        } else {
            let reason = "frames are only for root and the engine's own user";
            self.door.refuse(from, reason);
        }
    }

    fn attach(&mut self, to: ConnectionId, peer: Peer, tag: u64, (map, lent): (Segment, OwnedFd)) {
        let (chunks, wishes) = (tag as u32, (tag >> 32) as u32);
        let wake = if wishes & WISH_WAKE_DESCRIPTOR == 0 {
            None
        } else {
            match local_socket::bell() {
                Ok(bell) => Some(bell),
                Err(error) => return self.door.refuse(to, &error.to_string()),
            }
        };
        let attachment = Arc::new(Attachment {
            map,
            chunks,
            peer,
            wake,
            gone: AtomicBool::new(false),
        });
        let bytes = match chunks {
            0 => taps::SEGMENT_BYTES,
            _ => segment_bytes(chunks),
        };
        let terms = [u64::from(chunks), bytes.to_u64()];
        let terms = terms.map(u64::to_le_bytes).concat();
        let mut files = vec![lent.as_fd(), self.mailbox.engine_bell()];
        files.extend(attachment.wake.as_ref().map(AsFd::as_fd));
        let session = Arc::clone(&attachment);
        // Passed on last: the engine serves only processes that have their answer.
        if self.door.attach(to, session, &terms, &files).is_ok() {
            self.mailbox.add_arrived(attachment);
        }
    }

    /// Asks the engine for a connection, after the questions before.
    fn ask(&mut self, from: ConnectionId, question: Question) {
        // Bounded: any number of processes may ask at once.
        if self.asking.len() == QUESTIONS_MAX {
            return self.door.refuse(from, "too many questions wait; ask again");
        }
        self.asking.push((from, question));
        self.ask_next();
    }

    fn ask_next(&mut self) {
        if let Some((_, question)) = self.asking.first()
            && !self.is_asked
        {
            self.is_asked = true;
            self.mailbox.ask(*question);
        }
    }

    fn pass_answer_on(&mut self) {
        let Some(text) = self.mailbox.take_answer() else {
            return;
        };
        // Before the next question, of which the engine has one at a time.
        self.is_asked = false;
        let Some((_, answered)) = self.asking.first().copied() else {
            return;
        };
        let kind = match answered {
            Question::Status => KIND_STATUS,
            Question::Sessions(_) => KIND_SESSIONS,
        };
        // Others with the same question get the same answer.
        let waiting = self
            .asking
            .extract_if(.., |(_, question)| *question == answered);
        for (asking, _) in waiting {
            self.door.answer(asking, kind, text.as_bytes());
        }
        self.ask_next();
    }
}

/// Questions that wait for the engine.
const QUESTIONS_MAX: usize = 256;
const TICK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn who_is_kept_out_is_not_told_that_nobody_serves() {
        let told = |kind| {
            let nobody = AttachError::Nobody {
                socket: "net.sock".into(),
                source: SysError::Call {
                    call: "connect",
                    source: Error::from(kind),
                },
            };
            SockError::from(nobody).to_string()
        };
        assert!(told(ErrorKind::PermissionDenied).starts_with("not allowed: user "));
        assert!(told(ErrorKind::PermissionDenied).contains("`allow_uids`"));
        assert!(told(ErrorKind::ConnectionRefused).starts_with("no engine serves at net.sock"));
    }
}
