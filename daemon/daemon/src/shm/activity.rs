//! The activity page: the daemon's published state for all clients. The kernel makes it read-only
//! for them.
//!
//! Why here: one page that every client sees shows whether the daemon lives and which client has
//! which engine, without a question and an answer. The heartbeat is written by the daemon's control
//! thread; an engine writes its own line and the line of the client that it serves.
//! Any thread.

use super::layout::{self, activity};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::{SharedMap, Sharing, SysError, cpu};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// The daemon's side.
#[derive(Debug)]
pub struct ActivityPage {
    map: SharedMap,
    engines: usize,
}

impl ActivityPage {
    /// A page for engines on these processors.
    ///
    /// # Errors
    /// The system's, where it has no memory.
    pub fn new(cpus: &[usize]) -> Result<Self, SysError> {
        let engines = cpus.len();
        let bytes = activity::bytes(engines);
        // Sealed so that clients can map it to read only: one that could write here could make all
        // others believe that the daemon is dead.
        let map = SharedMap::create("sidecore-activity", bytes, Sharing::ReadOnly)?;
        let activity = Self { map, engines };
        let shape = u64::from(layout::VERSION) | (engines.to_u64()) << 32;
        activity.store(activity::MAGIC, layout::MAGIC);
        activity.store(activity::SHAPE, shape);
        // Not 0, which stands for "never" where the heartbeat of a client's last service is noted.
        activity.store(activity::HEARTBEAT, 1);
        activity.move_to(cpus);
        Ok(activity)
    }

    /// Says which processors the engines have from now on.
    pub(crate) fn move_to(&self, cpus: &[usize]) {
        for (engine, &cpu) in cpus.iter().enumerate().take(self.engines) {
            let place = activity::cpu(engine);
            // Clients keep the line in their caches.
            if self.load(place) != cpu.to_u64() {
                self.store(place, cpu.to_u64());
            }
        }
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.map.file()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.map.slice().len()
    }

    /// Advances the heartbeat. Its thread only.
    pub(crate) fn beat(&self) {
        self.store(activity::HEARTBEAT, self.load(activity::HEARTBEAT) + 1);
    }

    /// Announces that the daemon is about to end: clients go on by themselves.
    pub(crate) fn end(&self) {
        self.store(activity::ENDING, 1);
    }

    /// `engine` begins its request number `count` (modulo 2^32), of `client`. That engine's thread
    /// only.
    #[inline]
    pub(crate) fn serve(&self, engine: usize, client: u32, count: u32) {
        // One more than the number, so that a page of zeros means that no client is served.
        let word = (u64::from(client) + 1) | (u64::from(count) << 32);
        self.store(activity::serving(engine), word);
        let beat = self.load(activity::HEARTBEAT);
        let active = activity::active(self.engines, client.to_usize());
        // Looked at first: several engines may serve one client, and need not fight for the line.
        if self.load(active) != beat {
            self.store(active, beat);
        }
    }

    /// `engine` has ended its request number `count`, and serves no client from now on.
    #[inline]
    pub(crate) fn rest(&self, engine: usize, count: u32) {
        self.store(activity::serving(engine), u64::from(count) << 32);
    }

    /// The client that `engine` serves.
    pub(crate) fn serving(&self, engine: usize) -> Option<u32> {
        Doing(self.load(activity::serving(engine))).client()
    }

    /// Resets the activity of a number that was given to a client before.
    pub(crate) fn forget(&self, client: u32) {
        self.store(activity::active(self.engines, client.to_usize()), 0);
    }

    #[inline]
    fn store(&self, offset: usize, value: u64) {
        if let Some(word) = self.map.slice().overlay::<AtomicU64>(offset) {
            // Release: partner of the Acquire in `load_u64`; a client that sees the daemon's end
            // sees all of its writes before that.
            word.store(value, Ordering::Release);
        }
    }

    #[inline]
    fn load(&self, offset: usize) -> u64 {
        self.map.slice().load_u64(offset)
    }
}

/// Progress of an engine: equal at two moments if it has neither begun nor ended a request between
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Doing(u64);

impl Doing {
    /// The client that is served; `None` between requests.
    pub(crate) fn client(self) -> Option<u32> {
        (self.0 as u32).checked_sub(1)
    }
}

/// A client's side.
#[derive(Debug)]
pub(crate) struct ActivityView {
    map: SharedMap,
    engines: usize,
}

impl ActivityView {
    /// Maps the activity page that the daemon handed over. `None` where it is of another layout.
    pub(crate) fn open(
        file: OwnedFd,
        bytes: usize,
        engines: usize,
    ) -> Result<Option<Self>, SysError> {
        let map = SharedMap::open(file, bytes, Sharing::ReadOnly)?;
        let shape = u64::from(layout::VERSION) | (engines.to_u64()) << 32;
        let fits = bytes >= activity::bytes(engines)
            && map.slice().load_u64(activity::MAGIC) == layout::MAGIC
            && map.slice().load_u64(activity::SHAPE) == shape;
        Ok(fits.then_some(Self { map, engines }))
    }

    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.map.slice().load_u64(activity::ENDING) != 0
    }

    pub(crate) fn heartbeat(&self) -> u64 {
        self.map.slice().load_u64(activity::HEARTBEAT)
    }

    /// The client that `engine` serves.
    pub(crate) fn serving(&self, engine: usize) -> Option<u32> {
        self.doing(engine).client()
    }

    /// The core of `engine`, if this thread runs on it: the engine cannot run meanwhile.
    #[inline]
    pub(crate) fn in_the_way(&self, engine: usize) -> Option<usize> {
        let here = cpu::current();
        (self.map.slice().load_u64(activity::cpu(engine)) == here as u64).then_some(here)
    }

    /// The request that `engine` is at, or was at last.
    pub(crate) fn doing(&self, engine: usize) -> Doing {
        Doing(self.map.slice().load_u64(activity::serving(engine)))
    }

    /// True if `client` was served within the last heartbeat or two.
    pub(crate) fn is_active(&self, client: usize, heartbeat: u64) -> bool {
        let active = self
            .map
            .slice()
            .load_u64(activity::active(self.engines, client));
        active != 0 && heartbeat.saturating_sub(active) <= 1
    }
}
