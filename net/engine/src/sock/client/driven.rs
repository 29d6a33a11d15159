//! A client whose engine runs on the same thread, in rounds between the application's work.
//!
//! Must stay true: an engine's round and the application's work never overlap; the engine checks
//! these rings like those of other processes, without a special case.

use super::EventSource;
use super::link::{Driver, Engine};
use super::waiting::NAP;
use super::{Client, ClientError, ClientOptions};
use crate::sock::control::SockError;
use crate::sock::layout::{CHUNKS_MAX, segment_bytes};
use crate::sock::mailbox::Attachment;
use crate::sock::server::Server;
use sidecore_attach::Segment;
use sidecore_sys::local_socket::{self, Peer, effective_uid};
use sidecore_sys::{SharedMap, Sharing, SysError};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// An attachment to an engine of this process.
pub(crate) struct OwnEngine {
    map: SharedMap,
    chunks: u32,
}

impl OwnEngine {
    /// Attaches to the engine of `server`, with `chunks` chunks for each direction.
    ///
    /// # Errors
    /// No memory, or more chunks than are allowed.
    pub(crate) fn of(server: &mut Server, chunks: u32) -> Result<Self, SockError> {
        // The same limits as for other processes, of which the layout is made.
        if chunks == 0 || chunks > CHUNKS_MAX {
            return Err(SockError::Refused {
                reason: format!("{chunks} chunks; allowed are 1 to {CHUNKS_MAX}"),
            });
        }
        let bytes = segment_bytes(chunks);
        // Two mappings of one memory: each side has a view of its own, as between processes. Its
        // pages come as they are used: to clear them all first took most of a program's start.
        let theirs = SharedMap::on_demand("sidecore-net", bytes, Sharing::ReadWrite)?;
        let file = theirs.file().try_clone_to_owned();
        let file = file.map_err(|source| SysError::Call {
            call: "dup",
            source,
        })?;
        let map = SharedMap::open_on_demand(file, bytes, Sharing::ReadWrite)?;
        let peer = Peer {
            pid: std::process::id().cast_signed(),
            uid: effective_uid(),
            gid: rustix::process::getegid().as_raw(),
        };
        server.admit(Arc::new(Attachment {
            wake: None,
            map: Segment::uncharged(theirs),
            chunks,
            peer,
            gone: AtomicBool::new(false),
        }));
        Ok(Self { map, chunks })
    }
}

impl Client {
    /// A client of an engine in this process, which runs while the client waits.
    pub(crate) fn drive(own: OwnEngine, driver: Box<dyn Driver>, options: &ClientOptions) -> Self {
        Self::over(own.map, Engine::Here(driver), own.chunks, options)
    }

    /// [`Client::poll`], by the engine's rounds.
    pub(super) fn poll_here(
        &mut self,
        other: Option<&dyn EventSource>,
        timeout: Duration,
    ) -> Result<usize, ClientError> {
        self.give_back(0)?;
        let mut begun = None;
        let mut rest = Duration::ZERO;
        let mut looks = 0_u32;
        // The look at the descriptor is a system call, which took a tenth of a busy engine's time:
        // only after a sleep, which may have ended by it, or now and then.
        let mut has_news = |other: &dyn EventSource, has_slept: bool| {
            // A poll without a limit may have more rounds than the number counts.
            looks = looks.wrapping_add(1);
            other.is_ready()
                || ((has_slept || looks.is_multiple_of(ROUNDS_A_LOOK))
                    && local_socket::is_readable(other.descriptor()))
        };
        loop {
            // First, so that requests are sent before the client waits.
            let has_slept = self.link.turn(other, rest)?;
            let taken = self.take_events();
            if taken > 0 || timeout.is_zero() || other.is_some_and(|it| has_news(it, has_slept)) {
                return Ok(taken);
            }
            // The clock is read only once there was nothing to take.
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                return Ok(0);
            }
            rest = left.min(NAP);
        }
    }
}

/// Polling rounds for each look at another source's descriptor.
const ROUNDS_A_LOOK: u32 = 16;
