//! Letting processes in, and noticing when they end.
//!
//! Why a thread of its own: making a segment and looking after connections take system calls, of which
//! the engine's loop makes none. Must stay true: nothing here waits for a process; who says nothing,
//! or nonsense, is cut off; a process that ends, however it ends, has its sessions reset within
//! moments. Words between this thread and the engine's go through `News`.

use super::layout::{CHUNKS_MAX, MAGIC, VERSION, segment_bytes};
use super::server::{Attachment, Server};
use sidecore_sys::local_socket::{self, Peer, Received};
use sidecore_sys::place::{self, Place, PlaceError};
use sidecore_sys::{SharedMap, Sharing, SysError};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What can go wrong while the engine's side is set up, or while a process attaches.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SockError {
    /// Another engine serves there.
    #[error("another engine serves at {socket}; end that one, or choose another socket")]
    InUse {
        /// Where.
        socket: PathBuf,
    },
    /// The path holds something that is not ours to replace.
    #[error("{socket} is no socket of this user; remove it, or choose another path")]
    NotOurs {
        /// Where.
        socket: PathBuf,
    },
    /// The socket cannot be made.
    #[error("cannot listen for processes at {socket}: {source}")]
    Place {
        /// Where.
        socket: PathBuf,
        /// Why.
        source: SysError,
    },
    /// No engine there.
    #[error("no engine serves at {socket} ({source}); start one with `sidecore net up`")]
    NoEngine {
        /// Where.
        socket: PathBuf,
        /// What connecting said.
        source: SysError,
    },
    /// The engine said no.
    #[error("the engine refuses: {reason}")]
    Refused {
        /// Why, in its words.
        reason: String,
    },
    /// The engine said what makes no sense.
    #[error("what answers at {socket} is no engine of this version; use the same release for both")]
    Nonsense {
        /// Where.
        socket: PathBuf,
    },
    /// No answer in time.
    #[error("the engine at {socket} did not answer for {waited_ms} ms; is it stopped?")]
    Silent {
        /// Where.
        socket: PathBuf,
        /// How long was waited.
        waited_ms: u64,
    },
    /// The operating system refused.
    #[error(transparent)]
    Sys(#[from] SysError),
    /// A thread cannot be had.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

impl SockError {
    /// Why `socket` could not be taken.
    fn of_place(error: PlaceError, socket: &Path) -> Self {
        let socket = socket.to_owned();
        match error {
            PlaceError::InUse { .. } => Self::InUse { socket },
            PlaceError::NotOurs { path, .. } => Self::NotOurs { socket: path },
            PlaceError::NotASocket => Self::NotOurs { socket },
            PlaceError::Sys(source) => Self::Place { socket, source },
        }
    }
}

/// Where processes attach unless told otherwise ([`place::default_socket`]).
#[must_use]
pub fn default_socket() -> PathBuf {
    place::default_socket("net")
}

/// Words between the engine's thread and this one.
#[derive(Debug)]
pub(crate) struct News {
    flag: AtomicBool,
    arrived: Mutex<Vec<Arc<Attachment>>>,
    asked: AtomicBool,
    answer: Mutex<Option<String>>,
    control: OwnedFd,
    engine: Arc<OwnedFd>,
}

impl News {
    /// Nothing yet; and the engine's bell.
    pub(crate) fn new() -> Result<(Arc<Self>, Arc<OwnedFd>), SysError> {
        let engine = Arc::new(local_socket::bell()?);
        let news = Self {
            flag: AtomicBool::new(false),
            arrived: Mutex::new(Vec::new()),
            asked: AtomicBool::new(false),
            answer: Mutex::new(None),
            control: local_socket::bell()?,
            engine: Arc::clone(&engine),
        };
        Ok((Arc::new(news), engine))
    }

    pub(crate) fn take_flag(&self) -> bool {
        // Looked at first: a load of a line that nobody writes costs nothing.
        self.is_flagged() && self.flag.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_flagged(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    pub(crate) fn take_arrived(&self) -> Vec<Arc<Attachment>> {
        std::mem::take(&mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    pub(crate) fn answer(&self, text: String) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        self.asked.store(false, Ordering::Release);
        self.poke_control();
    }

    pub(crate) fn poke_control(&self) {
        local_socket::poke(self.control.as_fd());
    }

    fn tell_engine(&self) {
        self.flag.store(true, Ordering::Release);
        local_socket::poke(self.engine.as_fd());
    }
}

/// Who may attach besides this user and root.
#[derive(Debug, Clone, Default)]
pub struct Admission {
    /// Users, by number.
    pub uids: Vec<u32>,
}

/// The thread; dropping it ends it and removes the socket.
#[derive(Debug)]
pub struct Control {
    news: Arc<News>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Takes the socket at `path` and lets processes in from now on; the [`Server`] goes to the
    /// engine's loop.
    ///
    /// # Errors
    /// [`SockError`] with the remedy.
    pub fn start(path: &Path, admission: Admission) -> Result<(Self, Server), SockError> {
        let place = place::take(path, admission.uids.is_empty())
            .map_err(|error| SockError::of_place(error, path))?;
        let (news, engine) = News::new()?;
        let stop = Arc::new(AtomicBool::new(false));
        let doorkeeper = Doorkeeper {
            place,
            admission,
            news: Arc::clone(&news),
            stop: Arc::clone(&stop),
            connections: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("sidecore-net-door".to_owned())
            .spawn(move || doorkeeper.run())
            .map_err(SockError::Thread)?;
        let server = Server::new(Arc::clone(&news), engine);
        let thread = Some(thread);
        Ok((Self { news, stop, thread }, server))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.news.poke_control();
        if let Some(thread) = self.thread.take() {
            // Its panic was printed; there is nothing to undo.
            thread.join().ok();
        }
    }
}

struct Doorkeeper {
    place: Place,
    admission: Admission,
    news: Arc<News>,
    stop: Arc<AtomicBool>,
    connections: Vec<Connection>,
}

struct Connection {
    socket: OwnedFd,
    peer: Peer,
    since: Instant,
    /// Readable when the process ends: a child that inherited the socket does not keep it attached.
    process_end: Option<OwnedFd>,
    attachment: Option<Arc<Attachment>>,
    asked: bool,
}

impl Doorkeeper {
    fn run(mut self) {
        let mut ready = Vec::new();
        while !self.stop.load(Ordering::Acquire) {
            let polled = local_socket::poll(&self.descriptors(), &mut ready, TICK);
            if polled.is_err() {
                std::thread::sleep(TICK);
                continue;
            }
            if ready[0] {
                local_socket::hush(self.news.control.as_fd());
            }
            self.look_at_connections(&ready[2..]);
            self.pass_answer_on();
            if ready[1] {
                self.accept();
            }
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.news.control.as_fd(), self.place.listener()];
        for connection in &self.connections {
            let socket = connection.socket.as_fd();
            let end = connection.process_end.as_ref();
            all.push(socket);
            all.push(end.map_or(socket, |end| end.as_fd()));
        }
        all
    }

    fn accept(&mut self) {
        for _ in 0..8 {
            let Ok(Some(socket)) = local_socket::accept(self.place.listener()) else {
                return;
            };
            let Ok(peer) = local_socket::peer(socket.as_fd()) else {
                continue;
            };
            let refusal = if self.connections.len() >= CONNECTIONS_MAX {
                Some(format!(
                    "{CONNECTIONS_MAX} processes are attached, the most"
                ))
            } else {
                self.admission.refusal(&peer)
            };
            if let Some(reason) = refusal {
                let answer = message(KIND_REFUSED, reason.as_bytes());
                local_socket::send(socket.as_fd(), &answer, &[]).ok();
                continue;
            }
            self.connections.push(Connection {
                socket,
                peer,
                since: Instant::now(),
                process_end: local_socket::process_end(peer.pid),
                attachment: None,
                asked: false,
            });
        }
    }

    fn look_at_connections(&mut self, ready: &[bool]) {
        let mut parted = false;
        let news = &self.news;
        let mut pairs = ready.as_chunks::<2>().0.iter();
        self.connections.retain_mut(|connection| {
            let &[socket, end] = pairs.next().unwrap_or(&[false; 2]);
            let gone = |it: &Arc<Attachment>| it.gone.load(Ordering::Acquire);
            let stays = if connection.attachment.as_ref().is_some_and(gone) {
                false
            } else if socket {
                !local_socket::is_hung_up(connection.socket.as_fd()) && connection.answer(news)
            } else {
                !end && (connection.attachment.is_some()
                    || connection.since.elapsed() < STRANGER_TIME_MAX)
            };
            if let (false, Some(attachment)) = (stays, &connection.attachment) {
                attachment.gone.store(true, Ordering::Release);
                parted = true;
            }
            stays
        });
        if parted {
            self.news.tell_engine();
        }
    }

    fn pass_answer_on(&mut self) {
        let mut answer = self
            .news
            .answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(text) = answer.take() else {
            return;
        };
        for connection in self.connections.iter_mut().filter(|it| it.asked) {
            let status = message(KIND_STATUS, text.as_bytes());
            local_socket::send(connection.socket.as_fd(), &status, &[]).ok();
            connection.asked = false;
        }
    }
}

impl Connection {
    /// Reads and answers one question; false where the connection is to end.
    fn answer(&mut self, news: &News) -> bool {
        let mut question = [0; QUESTION_BYTES + 1];
        let length = match local_socket::receive(self.socket.as_fd(), &mut question) {
            Ok(Received::Message(length, _)) => length,
            Ok(Received::Nothing) => return true,
            Ok(Received::End) | Err(_) => return false,
        };
        match parse(&question[..length]) {
            Ok((KIND_STATUS, _)) => {
                self.asked = true;
                news.asked.store(true, Ordering::Release);
                local_socket::poke(news.engine.as_fd());
                true
            }
            Ok((KIND_ATTACH, chunks)) if self.attachment.is_none() => self.attach(chunks, news),
            Ok(_) => self.refuse("an unknown question"),
            Err(reason) => self.refuse(&reason),
        }
    }

    fn attach(&mut self, chunks: u32, news: &News) -> bool {
        if chunks == 0 || chunks > CHUNKS_MAX {
            return self.refuse(&format!("{chunks} chunks; allowed are 1 to {CHUNKS_MAX}"));
        }
        let bytes = segment_bytes(chunks);
        let map = match SharedMap::create("sidecore-net", bytes, Sharing::ReadWrite) {
            Ok(map) => map,
            Err(error) => return self.refuse(&error.to_string()),
        };
        let attachment = Arc::new(Attachment {
            map,
            chunks,
            peer: self.peer,
            gone: AtomicBool::new(false),
        });
        let terms = [u64::from(chunks), bytes as u64]
            .map(u64::to_le_bytes)
            .concat();
        let answer = message(KIND_ATTACH, &terms);
        let files = [attachment.map.file(), news.engine.as_fd()];
        if local_socket::send(self.socket.as_fd(), &answer, &files).is_err() {
            return false;
        }
        self.attachment = Some(Arc::clone(&attachment));
        let mut arrived = news.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.push(attachment);
        drop(arrived);
        news.tell_engine();
        true
    }

    fn refuse(&self, reason: &str) -> bool {
        let answer = message(KIND_REFUSED, reason.as_bytes());
        local_socket::send(self.socket.as_fd(), &answer, &[]).ok();
        false
    }
}

impl Admission {
    fn refusal(&self, peer: &Peer) -> Option<String> {
        let own_uid = local_socket::effective_uid();
        let allowed = peer.uid == own_uid || peer.uid == 0 || self.uids.contains(&peer.uid);
        (!allowed).then(|| {
            format!(
                "user {} may not attach to the engine of user {own_uid}; add it to `allow_uids` in \
                 the engine's configuration",
                peer.uid
            )
        })
    }
}

/// A question: of what kind, and for how many chunks.
pub(super) fn question(kind: u32, chunks: u32) -> [u8; QUESTION_BYTES] {
    let mut question = [0; QUESTION_BYTES];
    question[..16].copy_from_slice(&message(kind, &[]));
    question[16..20].copy_from_slice(&chunks.to_le_bytes());
    question
}

fn parse(question: &[u8]) -> Result<(u32, u32), String> {
    let (kind, version) = head(question).ok_or("this is no message of a sidecore process")?;
    if version != VERSION {
        return Err(format!(
            "the process speaks version {version}, this engine version {VERSION}; use the same \
             release for both"
        ));
    }
    let chunks = question.get(16..20).and_then(|it| it.try_into().ok());
    let chunks = chunks.map(u32::from_le_bytes);
    match (question.len(), chunks) {
        (QUESTION_BYTES, Some(chunks)) => Ok((kind, chunks)),
        _ => Err("a question of the wrong length".to_owned()),
    }
}

/// Kind and version of a message.
pub(super) fn head(message: &[u8]) -> Option<(u32, u32)> {
    let magic = u64::from_le_bytes(message.get(..8)?.try_into().ok()?);
    let kind = u32::from_le_bytes(message.get(8..12)?.try_into().ok()?);
    let version = u32::from_le_bytes(message.get(12..16)?.try_into().ok()?);
    (magic == MAGIC).then_some((kind, version))
}

fn message(kind: u32, rest: &[u8]) -> Vec<u8> {
    let mut message = MAGIC.to_le_bytes().to_vec();
    message.extend(kind.to_le_bytes());
    message.extend(VERSION.to_le_bytes());
    message.extend(rest);
    message
}

/// To attach.
pub(super) const KIND_ATTACH: u32 = 1;
/// For the engine's status.
pub(super) const KIND_STATUS: u32 = 2;
/// An answer: no, and why.
pub(super) const KIND_REFUSED: u32 = 255;
/// Bytes of a question.
pub(super) const QUESTION_BYTES: usize = 32;
const CONNECTIONS_MAX: usize = 256;
const TICK: Duration = Duration::from_millis(50);
/// So long a connection may stay without attaching.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(5);
