//! One attachment to a daemon: its segment, its board, its socket; from the handshake to the end.
//!
//! Why here: a client that lost its daemon attaches anew, and threads may still be in calls on the
//! old attachment; so an attachment is one shared value that only ever goes from alive to dead.
//! Must stay true: once dead, nothing is read from its outputs any more. Any thread; a pair only
//! under the lock of its [`Slot`].

use super::error::ClientError;
use crate::served::Registry;
use crate::shm::board::BoardView;
use crate::shm::hello::{ANSWER_BYTES_MAX, Answer, Attached, Question};
use crate::shm::layout::{CLIENTS_MAX, ENGINES_MAX, STALE_MS};
use crate::shm::segment::Segment;
use sidecore_sys::local_socket::{self, Received};
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// An attachment.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) segment: Arc<Segment>,
    pub(crate) board: BoardView,
    socket: OwnedFd,
    pub(crate) client: u32,
    pub(crate) engines: usize,
    /// The daemon's number of each kernel of our registry that it has in our version.
    numbers: Vec<Option<u32>>,
    dead: AtomicBool,
}

/// One engine's pair as this process uses it; under a lock, so that one thread at a time does.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    link: Option<Arc<Link>>,
    /// The number of the last request.
    sequence: u32,
    /// Calls that were answered.
    pub(crate) calls: u64,
    /// How long the first look for an answer waits, in turns of an empty loop.
    patience: Cell<u32>,
}

impl Slot {
    /// The attachment, replaced by `current` if it is dead. `None` where there is no living one
    /// that has this engine.
    #[inline]
    pub(crate) fn link(
        &mut self,
        engine: usize,
        current: impl FnOnce() -> Option<Arc<Link>>,
    ) -> Option<&Arc<Link>> {
        if self.link.as_ref().is_none_or(|link| link.is_dead()) {
            // A pair with a request that was given up is not used again: the new one is zeroed.
            self.link = current().filter(|link| engine < link.engines);
            self.sequence = 0;
        }
        self.link.as_ref()
    }

    /// Lets go of a dead attachment, and so of its memory.
    pub(crate) fn forget_dead(&mut self) {
        self.link.take_if(|link| link.is_dead());
    }

    /// The attachment, the number of its next request here, and how long to wait for the answer
    /// before the first look.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(&Arc<Link>, u32, &Cell<u32>)> {
        let sequence = self.next_sequence();
        Some((self.link.as_ref()?, sequence, &self.patience))
    }

    /// The number of the next request here.
    #[inline]
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

impl Link {
    /// Whether it is known to be dead.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        // Relaxed: who sees it late tries in vain and finds out.
        self.dead.load(Ordering::Relaxed) || self.board.is_ending()
    }

    /// Gives it up, for all threads.
    pub(crate) fn give_up(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// The daemon's number of a kernel of ours.
    #[inline]
    pub(crate) fn number(&self, kernel: usize) -> Option<u32> {
        self.numbers.get(kernel).copied().flatten()
    }

    /// An engine that serves nobody else, if `engine` does and the board shows one: the last call
    /// there was slow.
    pub(crate) fn better_engine(&self, engine: usize) -> Option<usize> {
        let free = |engine: &usize| {
            let serving = self.board.serving(*engine);
            serving.is_none() || serving == Some(self.client)
        };
        if free(&engine) {
            return None;
        }
        (1..self.engines)
            .map(|step| (engine + step) % self.engines)
            .find(free)
    }

    /// What clients besides this one do at this moment.
    pub(crate) fn others(&self) -> Others {
        let heartbeat = self.board.heartbeat();
        let mut serving: Vec<u32> = (0..self.engines)
            .filter_map(|engine| self.board.serving(engine))
            .filter(|&client| client != self.client)
            .collect();
        let engines = serving.len() as u32;
        serving.sort_unstable();
        serving.dedup();
        let ready = (0..CLIENTS_MAX as u32)
            .filter(|client| *client != self.client && !serving.contains(client))
            .filter(|&client| self.board.is_active(client as usize, heartbeat))
            .count() as u32;
        Others {
            engines,
            ready,
            clients: ready + serving.len() as u32,
        }
    }

    /// Whether the daemon hung up.
    fn is_hung_up(&self) -> bool {
        local_socket::is_hung_up(self.socket.as_fd())
    }
}

/// What other clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Others {
    /// Engines that serve them.
    pub(crate) engines: u32,
    /// Clients that were served lately and have no engine now: they will want one.
    pub(crate) ready: u32,
    /// Clients that have an engine or will want one.
    pub(crate) clients: u32,
}

/// Watches over a daemon while a thread waits for it.
#[derive(Debug)]
pub(crate) struct Watch {
    heartbeat: u64,
    beat_at: Instant,
    pub(crate) nap_us: u64,
}

impl Watch {
    pub(crate) fn new(link: &Link) -> Self {
        Self {
            heartbeat: link.board.heartbeat(),
            beat_at: Instant::now(),
            nap_us: 0,
        }
    }

    /// Looks; gives the link up where the daemon is gone, ends, or has not shown a sign of life for
    /// 85 ms. Whether the link is dead.
    pub(crate) fn look(&mut self, link: &Link) -> bool {
        if link.is_dead() {
            link.give_up();
            return true;
        }
        // The time first: if we are stopped between the two, the heart has gone on.
        let now = Instant::now();
        let heartbeat = link.board.heartbeat();
        if heartbeat != self.heartbeat {
            self.heartbeat = heartbeat;
            self.beat_at = now;
        }
        let silent = now.duration_since(self.beat_at);
        if link.is_hung_up() || silent > Duration::from_millis(STALE_MS) {
            link.give_up();
            return true;
        }
        false
    }
}

/// A handshake under way. Nothing here blocks.
#[derive(Debug)]
pub(crate) struct Handshake {
    socket: OwnedFd,
}

impl Handshake {
    /// Connects and asks.
    pub(crate) fn begin(path: &Path, question: Question) -> Result<Self, ClientError> {
        let none = |source| ClientError::NoDaemon {
            socket: path.to_owned(),
            source,
        };
        let socket = local_socket::connect(path).map_err(none)?;
        // Who refuses us may have hung up by now, and left its reason for us to read.
        local_socket::send(socket.as_fd(), &question.encode(), &[]).ok();
        Ok(Self { socket })
    }

    /// The answer, if it is there.
    pub(crate) fn poll(&self) -> Result<Option<(Answer, Vec<OwnedFd>)>, ClientError> {
        let mut bytes = vec![0; ANSWER_BYTES_MAX];
        match local_socket::receive(self.socket.as_fd(), &mut bytes)? {
            Received::Nothing => Ok(None),
            Received::End => Err(ClientError::Refused {
                reason: "it hung up".to_owned(),
            }),
            Received::Message(length, descriptors) => match Answer::decode(&bytes[..length]) {
                Some(Answer::Refused(reason)) => Err(ClientError::Refused { reason }),
                Some(answer) => Ok(Some((answer, descriptors))),
                None => Err(ClientError::Nonsense),
            },
        }
    }

    /// The answer, within `timeout`.
    pub(crate) fn wait(
        &self,
        path: &Path,
        timeout: Duration,
    ) -> Result<(Answer, Vec<OwnedFd>), ClientError> {
        let begun = Instant::now();
        loop {
            if let Some(answer) = self.poll()? {
                return Ok(answer);
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(ClientError::Silent {
                    socket: path.to_owned(),
                    waited_ms: timeout.as_millis() as u64,
                });
            }
            local_socket::poll(&[self.socket.as_fd()], &mut Vec::new(), left)?;
        }
    }

    /// Makes the link that the answer describes.
    pub(crate) fn link(
        self,
        answer: Answer,
        descriptors: Vec<OwnedFd>,
        registry: &Registry,
    ) -> Result<Link, ClientError> {
        let Answer::Attached(attached) = answer else {
            return Err(ClientError::Nonsense);
        };
        let Ok([segment, board]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(ClientError::Nonsense);
        };
        let engines = attached.engines as usize;
        if engines == 0 || engines > ENGINES_MAX {
            return Err(ClientError::Nonsense);
        }
        let bytes = |bytes: u64| usize::try_from(bytes).map_err(|_| ClientError::Nonsense);
        let segment_bytes = bytes(attached.segment_bytes)?;
        let segment = Segment::open(segment, segment_bytes, engines, attached.arena_bytes)?
            .ok_or(ClientError::Nonsense)?;
        let board = BoardView::open(board, bytes(attached.board_bytes)?, engines)?
            .ok_or(ClientError::Nonsense)?;
        Ok(Link {
            segment,
            board,
            socket: self.socket,
            client: attached.client,
            engines,
            numbers: numbers(&attached, registry),
            dead: AtomicBool::new(false),
        })
    }
}

fn numbers(attached: &Attached, registry: &Registry) -> Vec<Option<u32>> {
    let ours = registry.entries().iter();
    ours.map(|ours| {
        let mut theirs = attached.kernels.iter();
        theirs
            .find(|theirs| theirs.name == ours.name && theirs.version == ours.version)
            .map(|theirs| theirs.number)
    })
    .collect()
}
