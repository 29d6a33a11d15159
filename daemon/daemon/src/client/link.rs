//! One attachment to a daemon: its segment, its activity page, its socket; from the handshake to
//! the end.
//!
//! Why here: a client that lost its daemon attaches anew, and threads may still be in calls on the
//! old attachment. So an attachment is one shared value that only ever goes from alive to dead.
//! Must stay true: once dead, nothing is read from its outputs any more. Any thread; a pair only
//! under the lock of its [`Slot`].

use super::ClientOptions;
use super::error::ClientError;
use crate::served::Registry;
use crate::shm::activity::{ActivityView, Doing};
use crate::shm::introduction::{ANSWER_BYTES_MAX, Attached, KernelName, PROTOCOL, Question};
use crate::shm::layout::{CLIENTS_MAX, ENGINES_MAX};
use crate::shm::segment::{Lease, Segment};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sidecore_attach::protocol::KIND_ATTACH;
use sidecore_attach::{Answer, Introduction, Trust};
use sidecore_bare::width::ToUsize;
use sidecore_sys::{clock, local_socket};
use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// An attachment.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) segment: Arc<Segment>,
    pub(crate) activity: ActivityView,
    socket: OwnedFd,
    /// Readable once a job is done for which a thread waits there.
    pub(crate) bell: OwnedFd,
    /// The process that attached. A child has its memory, but not its attachment.
    pub(crate) process: u32,
    pub(crate) client: u32,
    pub(crate) engines: usize,
    /// The daemon's kernels.
    kernels: Vec<KernelName>,
    /// The daemon's number of each kernel of our registry that it has in our version.
    numbers: Vec<Option<u32>>,
    /// See [`ClientOptions::silence_max`] and [`ClientOptions::held_up_max`].
    silence_max: Duration,
    held_up_max: Duration,
}

/// One engine's pair as this process uses it; under a lock, so that one thread at a time does.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    link: Option<Arc<Link>>,
    /// The number of the last request.
    sequence: u32,
    /// A request without a waiter any more, though the engine may still come to it.
    left_behind: Option<LeftBehind>,
    /// Calls that were answered.
    pub(crate) calls: u64,
    waits: Waits,
}

/// A client's slots, by engine. They come in blocks, as attachments have more engines than those
/// before, and stay: a thread may hold one across attachments.
#[derive(Debug)]
pub(super) struct Slots([OnceLock<Block>; ENGINES_MAX / BLOCK_SLOTS]);

type Block = Box<[CachePadded<Mutex<Slot>>]>;

/// Slots of a block.
const BLOCK_SLOTS: usize = 16;

impl Slots {
    /// None.
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| OnceLock::new()))
    }

    /// Makes those of this many engines, where they are missing.
    pub(super) fn grow(&self, engines: usize) {
        for block in self.0.iter().take(engines.div_ceil(BLOCK_SLOTS)) {
            block.get_or_init(|| (0..BLOCK_SLOTS).map(|_| CachePadded::default()).collect());
        }
    }

    /// The slot of an engine; none where no attachment had that many.
    #[inline]
    pub(super) fn get(&self, engine: usize) -> Option<&Mutex<Slot>> {
        let block = self.0.get(engine / BLOCK_SLOTS)?.get()?;
        block.get(engine % BLOCK_SLOTS).map(|slot| &**slot)
    }

    /// All that there are.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Mutex<Slot>> {
        let blocks = self.0.iter().filter_map(OnceLock::get);
        blocks.flat_map(|block| block.iter()).map(|slot| &**slot)
    }
}

/// For how long this thread waits actively here: learned from the answers.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// The wait before the first look for an answer, in turns of an empty loop.
    pub(crate) patience: Cell<u32>,
    /// Halvings of the time for which a thread polls before it sleeps. Polling costs a core that
    /// others may need, the engine among them, and gains nothing where answers come late.
    pub(crate) halvings: Cell<u32>,
    /// Time at which the thread last left the engine's core, in cycles.
    stepped_aside: Cell<u64>,
}

impl Waits {
    /// True if it pays to leave the engine's core: not if that was done a moment ago.
    #[cold]
    pub(crate) fn may_step_aside(&self, now_cycles: u64) -> bool {
        let since = now_cycles.wrapping_sub(self.stepped_aside.get());
        let pays = clock::cycles_to_ns(since) >= STEP_ASIDE_NS;
        if pays {
            self.stepped_aside.set(now_cycles);
        }
        pays
    }
}

/// Least time between two steps aside.
const STEP_ASIDE_NS: u64 = 2_000_000;

/// A request that was left behind at a held-up engine, and where its outputs were: not used for
/// anything else before its answer is there.
#[derive(Debug)]
struct LeftBehind {
    engine: usize,
    sequence: u32,
    _outputs: Arc<Vec<Lease>>,
}

impl Slot {
    /// True if a request that was left behind here is not answered yet: the pair can carry no other
    /// one.
    #[inline]
    pub(crate) fn is_held_up(&mut self) -> bool {
        self.left_behind.is_some() && self.is_still_held_up()
    }

    #[cold]
    fn is_still_held_up(&mut self) -> bool {
        let waits = |left: &LeftBehind, link: &Arc<Link>| {
            let pair = link.segment.pair(left.engine);
            !link.is_dead() && pair.is_some_and(|pair| !pair.call.answered(left.sequence))
        };
        let both = self.left_behind.as_ref().zip(self.link.as_ref());
        let held_up = both.is_some_and(|(left, link)| waits(left, link));
        // Its outputs are free from now on.
        if !held_up {
            self.left_behind = None;
        }
        held_up
    }

    /// Leaves the request that was made last to the engine. Its later writes go to `outputs`, which
    /// no code reads.
    pub(crate) fn leave_behind(&mut self, engine: usize, outputs: Arc<Vec<Lease>>) {
        self.left_behind = Some(LeftBehind {
            engine,
            sequence: self.sequence,
            _outputs: outputs,
        });
    }

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
            self.left_behind = None;
        }
        self.link.as_ref()
    }

    /// Drops a dead attachment, and with it its memory.
    pub(crate) fn forget_dead(&mut self) {
        self.link.take_if(|link| link.is_dead());
    }

    /// The attachment, the number of its next request here, and how long to wait for the answer.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(&Arc<Link>, u32, &Waits)> {
        let sequence = self.next_sequence();
        Some((self.link.as_ref()?, sequence, &self.waits))
    }

    /// The number of the next request here.
    #[inline]
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }
}

impl Link {
    /// True if it is known to be dead.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        // A thread that sees it late makes one futile try and finds out. One that sees it sees, by
        // Acquire, all that came before; nothing of that is read from here.
        self.segment.is_retired() || self.is_ending()
    }

    #[inline]
    fn is_ending(&self) -> bool {
        let is_ending = self.activity.is_ending();
        // A caller that goes by this may free outputs that an engine still writes to.
        if is_ending {
            self.give_up();
        }
        is_ending
    }

    /// Marks the attachment as dead, for all threads. Its arena is not used again: the daemon may
    /// be alive, and write there, to outputs that have moved and been freed since.
    #[cold]
    pub(crate) fn give_up(&self) {
        // One step: from the moment that a request is lost, its memory must not be another's.
        self.segment.retire();
    }

    /// The daemon's number of a kernel of ours.
    #[inline]
    pub(crate) fn number(&self, kernel: usize) -> Option<u32> {
        self.numbers.get(kernel).copied().flatten()
    }

    /// The daemon's number of the kernel of that name.
    pub(crate) fn kernel_of_name(&self, name: &str) -> Option<u32> {
        let mut kernels = self.kernels.iter();
        kernels
            .find(|kernel| kernel.name == name)
            .map(|kernel| kernel.number)
    }

    /// An engine that serves no other client, if `engine` serves one and the activity page shows
    /// such an engine: the last call there was slow.
    pub(crate) fn better_engine(&self, engine: usize) -> Option<usize> {
        let free = |engine: &usize| {
            let serving = self.activity.serving(*engine);
            serving.is_none() || serving == Some(self.client)
        };
        if free(&engine) {
            return None;
        }
        (1..self.engines)
            .map(|step| (engine + step) % self.engines)
            .find(free)
    }

    /// The activity of clients besides this one at this moment.
    pub(crate) fn others(&self) -> Others {
        let heartbeat = self.activity.heartbeat();
        let mut serving: Vec<u32> = (0..self.engines)
            .filter_map(|engine| self.activity.serving(engine))
            .filter(|&client| client != self.client)
            .collect();
        // Engines first, clients behind: one client may have several engines.
        let engines = serving.len() as u32;
        serving.sort_unstable();
        serving.dedup();
        let ready = (0..CLIENTS_MAX as u32)
            .filter(|client| *client != self.client && !serving.contains(client))
            .filter(|&client| self.activity.is_active(client.to_usize(), heartbeat))
            .count() as u32;
        Others {
            engines,
            ready,
            clients: ready + serving.len() as u32,
        }
    }

    /// True once the daemon hung up.
    fn is_hung_up(&self) -> bool {
        local_socket::is_hung_up(self.socket.as_fd())
    }
}

/// The activity of other clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Others {
    /// Engines that serve them.
    pub(crate) engines: u32,
    /// Clients that were served lately and have no engine now: they will want one.
    pub(crate) ready: u32,
    /// Clients that have an engine or will want one.
    pub(crate) clients: u32,
}

/// Watches for the daemon's death while a thread waits for it.
#[derive(Debug)]
pub(crate) struct Watch {
    heartbeat: u64,
    beat_at: Instant,
    pub(crate) nap_us: u64,
}

impl Watch {
    pub(crate) fn new(link: &Link) -> Self {
        Self {
            heartbeat: link.activity.heartbeat(),
            beat_at: Instant::now(),
            nap_us: 0,
        }
    }

    /// Looks; gives the link up where the daemon has ended, is ending, or has shown no sign of life
    /// for [`ClientOptions::silence_max`]. True if the link is dead.
    pub(crate) fn look(&mut self, link: &Link) -> bool {
        if link.is_dead() {
            return true;
        }
        // The time first: if this process is stopped between the two, the heartbeat has advanced.
        let now = Instant::now();
        let heartbeat = link.activity.heartbeat();
        if heartbeat != self.heartbeat {
            self.heartbeat = heartbeat;
            self.beat_at = now;
        }
        let silent = now.duration_since(self.beat_at);
        // A killed daemon hangs up at once; one that is stopped only falls silent.
        if link.is_hung_up() || silent > link.silence_max {
            link.give_up();
            return true;
        }
        false
    }
}

/// Connects to the daemon at `path` and sends the question. Does not block.
pub(crate) fn ask(
    path: &Path,
    trust: &Trust,
    question: Question,
) -> Result<Introduction, ClientError> {
    let question = question.encode();
    Ok(Introduction::begin(
        PROTOCOL,
        path,
        trust,
        &question,
        ANSWER_BYTES_MAX,
    )?)
}

/// The same, and waits for the answer, at most for `timeout`.
pub(crate) fn ask_and_wait(
    path: &Path,
    trust: &Trust,
    question: Question,
    timeout: Duration,
) -> Result<(Introduction, Answer), ClientError> {
    let question = question.encode();
    let asked =
        Introduction::begin_within(PROTOCOL, path, trust, &question, ANSWER_BYTES_MAX, timeout)?;
    let answer = asked.wait(timeout)?;
    Ok((asked, answer))
}

impl Link {
    /// Makes the link that the answer to a question describes.
    pub(crate) fn new(
        asked: Introduction,
        answer: Answer,
        options: &ClientOptions,
    ) -> Result<Self, ClientError> {
        let attached = match answer.kind {
            KIND_ATTACH => Attached::decode(&answer.body).ok_or(ClientError::Nonsense)?,
            _ => return Err(ClientError::Nonsense),
        };
        let Ok([segment, activity, bell]) = <[OwnedFd; 3]>::try_from(answer.descriptors) else {
            return Err(ClientError::Nonsense);
        };
        let engines = attached.engines.to_usize();
        // From here on each number of the answer is checked: it decides on what is mapped.
        if engines == 0 || engines > ENGINES_MAX {
            return Err(ClientError::Nonsense);
        }
        let bytes = |bytes: u64| usize::try_from(bytes).map_err(|_| ClientError::Nonsense);
        let segment_bytes = bytes(attached.segment_bytes)?;
        let segment = Segment::open(segment, segment_bytes, engines, attached.arena_bytes)?
            .ok_or(ClientError::Nonsense)?;
        let activity = ActivityView::open(activity, bytes(attached.activity_bytes)?, engines)?
            .ok_or(ClientError::Nonsense)?;
        Ok(Self {
            segment,
            activity,
            socket: asked.into_socket(),
            bell,
            process: std::process::id(),
            client: attached.client,
            engines,
            numbers: numbers(&attached, &options.registry),
            kernels: attached.kernels,
            silence_max: options.silence_max,
            held_up_max: options.held_up_max,
        })
    }
}

/// Watches one engine while a request waits for it, for one that another client's request keeps for
/// long, or that gets no core.
#[derive(Debug)]
pub(crate) struct Progress {
    doing: Doing,
    since: Instant,
}

impl Progress {
    pub(crate) fn new(link: &Link, engine: usize) -> Self {
        Self {
            doing: link.activity.doing(engine),
            since: Instant::now(),
        }
    }

    /// True if the engine has neither begun nor ended a request for
    /// [`ClientOptions::held_up_max`], and is not at one of this client.
    pub(crate) fn is_held_up(&mut self, link: &Link, engine: usize) -> bool {
        // The time first: if this process is stopped between the two, the engine has moved on.
        let now = Instant::now();
        let doing = link.activity.doing(engine);
        if doing != self.doing || doing.client() == Some(link.client) {
            *self = Self { doing, since: now };
        }
        now.duration_since(self.since) >= link.held_up_max
    }
}

fn numbers(attached: &Attached, registry: &Registry) -> Vec<Option<u32>> {
    let ours = registry.entries().iter();
    ours.map(|ours| {
        let mut theirs = attached.kernels.iter();
        theirs
            // Another version may have another meaning: such a kernel runs here.
            .find(|theirs| theirs.name == ours.name && theirs.version == ours.version)
            .filter(|theirs| ours.expected.is_none_or(|hash| hash == theirs.hash))
            .map(|theirs| theirs.number)
    })
    .collect()
}
