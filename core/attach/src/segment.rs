//! Segments of shared memory for clients, and the threads that make and free them.
//!
//! ```text
//! Acceptor ── make ──► maker of root and the own user ─┐
//!      └─ make ──► maker of all other users ───────┴─► made, and the acceptor is woken
//! Segment dropped ──► its maker: unmap, end the charge
//! ```
//!
//! Why here: making 256 MiB present takes some hundred milliseconds, unmapping and freeing it some
//! ten. All clients wait for the acceptor's thread and for the serving threads, so neither does
//! this work. Must stay true: root and the server's own user wait for no other user's memory. Other
//! users take turns, so an endless series of requests delays another user by one segment. No memory
//! is made that was not booked before, except each maker's [`Spare`]: a client often comes again,
//! or with many others, and prepared memory saves it the wait. Any thread.

use crate::protocol::ConnectionId;
use crate::quota::{Charge, Ledger};
use parking_lot::{Condvar, Mutex};
use sidecore_bare::width::ToU64;
use sidecore_sys::{SharedMap, Sharing, SysError, cpu, local_socket};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Memory that is shared with one client and charged to its user.
///
/// Dropping it takes no time worth mentioning: it is unmapped and freed by another thread, for as
/// long as the [`crate::Acceptor`] that made it lives.
#[derive(Debug)]
pub struct Segment {
    /// None only while it is dropped.
    map: Option<Arc<SharedMap>>,
    charge: Option<Charge>,
    maker: Weak<Maker>,
}

impl Segment {
    /// A segment that is not charged, and unmapped where it is dropped: for tests, and for memory
    /// that a process shares with itself.
    #[must_use]
    pub fn uncharged(map: SharedMap) -> Self {
        Self {
            map: Some(Arc::new(map)),
            charge: None,
            maker: Weak::new(),
        }
    }
}

impl Deref for Segment {
    type Target = SharedMap;

    #[inline]
    fn deref(&self) -> &SharedMap {
        match &self.map {
            Some(map) => map,
            None => unreachable!("only `drop` takes it"),
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let Some(map) = self.map.take() else {
            return;
        };
        // Unmapping takes milliseconds for each 16 MiB: not on the thread that drops it.
        let free = Task::Free(map, self.charge.take());
        match self.maker.upgrade() {
            Some(maker) => maker.add(free),
            None => free.run_here(),
        }
    }
}

/// An ordered segment with the descriptor to hand over, or the reason of the failure for the
/// client.
pub(crate) type Outcome = Result<(Segment, OwnedFd), String>;

/// A segment to be made.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) to: ConnectionId,
    pub(crate) uid: u32,
    /// Name in lists of the system's open files.
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    /// Whatever the service said with it.
    pub(crate) tag: u64,
}

#[derive(Debug)]
enum Task {
    Make(Order),
    /// Make memory of this name and size ready.
    Expect(&'static str, usize),
    /// Map and lock the pages of a segment here, if it still exists. No client waits for this, but
    /// it is not put off beyond that turn.
    Present(Weak<SharedMap>, u64),
    /// The mapping ends before the charge: a mapped segment cannot be given back.
    Free(Arc<SharedMap>, Option<Charge>),
    Settle,
}

impl Task {
    /// Frees on this thread; makes nothing.
    fn run_here(self) {
        if let Self::Free(map, charge) = self {
            drop(map);
            drop(charge);
        }
    }
}

/// State shared by two makers and the acceptor.
#[derive(Debug)]
struct Counter {
    ledger: Mutex<Ledger>,
    made: Mutex<Vec<(Order, Outcome)>>,
    /// Wakes the acceptor.
    bell: OwnedFd,
}

/// One thread's tasks.
#[derive(Debug)]
struct Maker {
    counter: Arc<Counter>,
    tasks: Mutex<Tasks>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct Tasks {
    queue: VecDeque<Task>,
    /// The turn that each user had last, of those that ordered since the queue was empty.
    turns: BTreeMap<u32, u64>,
    turn: u64,
    is_over: bool,
}

impl Tasks {
    /// The next task: memory to be freed first, then the user whose last turn is the longest ago,
    /// then work that no client waits for.
    fn next(&mut self) -> Option<Task> {
        let rank = |task: &Task| match task {
            Task::Make(order) => self.turns.get(&order.uid).map_or(1, |turn| turn + 1),
            Task::Present(_, turn) => *turn,
            Task::Expect(..) => u64::MAX,
            Task::Free(..) | Task::Settle => 0,
        };
        let ranks = self.queue.iter().map(rank);
        // The first of those that are equal.
        let Some((at, _)) = ranks.enumerate().min_by_key(|&(at, rank)| (rank, at)) else {
            self.turns.clear();
            return None;
        };
        let task = self.queue.remove(at)?;
        if let Task::Make(order) = &task {
            self.turn += 1;
            // Whoever was served last comes last.
            self.turns.insert(order.uid, self.turn);
        }
        Some(task)
    }

    fn present_later(&mut self, map: Weak<SharedMap>) {
        let turn = self.turn + PRESENT_TURNS_MAX;
        self.queue.push_back(Task::Present(map, turn));
    }
}

impl Maker {
    fn add(&self, task: Task) {
        let mut tasks = self.tasks.lock();
        if tasks.is_over {
            drop(tasks);
            task.run_here();
        } else {
            tasks.queue.push_back(task);
            self.news.notify_one();
        }
    }

    fn run(self: &Arc<Self>) {
        let mut spare = Spare::default();
        while let Some(next) = self.next(&spare) {
            let task = match next {
                Next::Task(task) => task,
                Next::Prepare => {
                    spare.prepare(&mut || self.let_others());
                    continue;
                }
                Next::Release => {
                    spare.map = None;
                    continue;
                }
            };
            match task {
                Task::Make(order) => {
                    let outcome = self.make(&order, &mut spare);
                    let made = outcome.as_ref().ok();
                    let map = made.and_then(|(segment, _)| segment.map.as_ref());
                    // Weak: a client that has left meanwhile must not keep its memory through this
                    // task.
                    let map = map.map(Arc::downgrade);
                    self.counter.made.lock().push((order, outcome));
                    // After the push, so that the acceptor finds the segment when it wakes.
                    local_socket::poke(self.counter.bell.as_fd());
                    if let Some(map) = map {
                        self.tasks.lock().present_later(map);
                    }
                }
                // If the segment is dropped meanwhile, this thread does the rest, so the mapping
                // ends before its charge.
                Task::Present(map, _) => {
                    if let Some(map) = map.upgrade() {
                        map.make_present_in_steps(&mut || self.let_others());
                    }
                }
                free @ Task::Free(..) => {
                    free.run_here();
                    self.counter.settle();
                }
                Task::Expect(name, bytes) => spare.expect(name, bytes),
                Task::Settle => self.counter.settle(),
            }
        }
    }

    /// Leaves the core to others for a moment, unless a client waits. A thread that makes pages
    /// present for ten milliseconds keeps clients that want to call from this core as long.
    fn let_others(&self) {
        let is_waited_for = |task: &Task| matches!(task, Task::Make(_));
        if !self.tasks.lock().queue.iter().any(is_waited_for) {
            std::thread::sleep(PAUSE);
        }
    }

    /// The next thing to be done; blocks until there is one. `None` at the end.
    fn next(&self, spare: &Spare) -> Option<Next> {
        let mut tasks = self.tasks.lock();
        loop {
            if tasks.is_over {
                return None;
            }
            if let Some(task) = tasks.next() {
                return Some(Next::Task(task));
            }
            if spare.is_wanted {
                return Some(Next::Prepare);
            }
            if spare.map.is_none() {
                self.news.wait(&mut tasks);
            } else if self.news.wait_for(&mut tasks, SPARE_KEPT_MAX).timed_out() {
                return Some(Next::Release);
            }
        }
    }

    fn make(self: &Arc<Self>, order: &Order, spare: &mut Spare) -> Outcome {
        let bytes = order.bytes.next_multiple_of(PAGE_BYTES).to_u64();
        let reserve = || self.counter.ledger.lock().reserve(order.uid, bytes);
        let reserved = reserve().or_else(|_| {
            // Memory returned a moment ago may not be in the books yet.
            self.counter.settle();
            reserve()
        })?;
        let map = match spare.take(order) {
            Some(map) => map,
            None => SharedMap::reserve(order.name, order.bytes, Sharing::ReadWrite)
                .map_err(|error| error.to_string())?,
        };
        let charge = reserved.of(map.lent());
        let segment = Segment {
            map: Some(Arc::new(map)),
            charge: Some(charge),
            maker: Arc::downgrade(self),
        };
        let lent = segment.lend().map_err(|error| error.to_string())?;
        Ok((segment, lent))
    }
}

enum Next {
    Task(Task),
    /// Make the spare memory.
    Prepare,
    /// Give the spare memory back.
    Release,
}

/// Memory for the next client, prepared in idle time: as much as the last one asked for. It is not
/// charged until it is handed over, is used once, and is freed after a minute without a client.
/// Large memory is not prepared: too much would lie idle.
#[derive(Debug, Default)]
struct Spare {
    name: &'static str,
    bytes: usize,
    is_wanted: bool,
    map: Option<SharedMap>,
}

impl Spare {
    /// Memory for this order, if it is there.
    fn take(&mut self, order: &Order) -> Option<SharedMap> {
        self.expect(order.name, order.bytes);
        let fits = (self.name, self.bytes) == (order.name, order.bytes);
        let map = self.map.take_if(|_| fits);
        // A spare that was used is made again: clients come in groups.
        self.is_wanted |= map.is_some();
        map
    }

    /// Wants memory of this name and size, if it is not too large.
    fn expect(&mut self, name: &'static str, bytes: usize) {
        if bytes > SPARE_BYTES_MAX {
            return;
        }
        // One spare is kept, of the size that was asked for last.
        if (self.name, self.bytes) != (name, bytes) {
            self.map = None;
            (self.name, self.bytes) = (name, bytes);
        }
        self.is_wanted = self.map.is_none();
    }

    /// Makes it; `between` is called every 150 us or so.
    fn prepare(&mut self, between: &mut dyn FnMut()) {
        self.is_wanted = false;
        let (name, bytes) = (self.name, self.bytes);
        let map = SharedMap::reserve_in_steps(name, bytes, Sharing::ReadWrite, between);
        // Without memory now, the next client's own order reports the failure.
        self.map = map.ok();
        if let Some(map) = &self.map {
            map.make_present_in_steps(between);
        }
    }
}

impl Counter {
    /// Ends the charges of segments that no process has any more. The books are not locked while
    /// pages are freed.
    fn settle(&self) {
        let items = self.ledger.lock().take_returned();
        // Reclaiming may take a while, so that the ledger is not locked meanwhile.
        let (kept, freed) = items.into_iter().partition(|item| !item.reclaim());
        self.ledger.lock().settle(kept, freed);
    }
}

/// The two threads, and the books. Dropping it ends them after their current task.
#[derive(Debug)]
pub(crate) struct Makers {
    counter: Arc<Counter>,
    preferred: (Arc<Maker>, Option<JoinHandle<()>>),
    others: (Arc<Maker>, Option<JoinHandle<()>>),
}

impl Makers {
    /// Starts them, to run on these cores; anywhere if there are none.
    ///
    /// # Errors
    /// [`SysError::Call`] where the operating system refuses an eventfd or a thread.
    pub(crate) fn start(ledger: Ledger, cpus: &[usize]) -> Result<Self, SysError> {
        let counter = Arc::new(Counter {
            ledger: Mutex::new(ledger),
            made: Mutex::default(),
            bell: local_socket::bell()?,
        });
        let maker = || {
            Arc::new(Maker {
                counter: Arc::clone(&counter),
                tasks: Mutex::default(),
                news: Condvar::new(),
            })
        };
        let mut makers = Self {
            preferred: (maker(), None),
            others: (maker(), None),
            counter: Arc::clone(&counter),
        };
        makers.preferred.1 = Some(start(&makers.preferred.0, "segments-own", -10, cpus)?);
        makers.others.1 = Some(start(&makers.others.0, "segments", 10, cpus)?);
        Ok(makers)
    }

    /// Readable once something is made.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.counter.bell.as_fd()
    }

    /// Orders a segment.
    pub(crate) fn order(&self, order: Order) {
        let is_preferred = self.counter.ledger.lock().is_preferred(order.uid);
        let (maker, _) = if is_preferred {
            &self.preferred
        } else {
            &self.others
        };
        maker.add(Task::Make(order));
    }

    /// Makes memory ready for a client of root or the server's own user.
    pub(crate) fn expect(&self, name: &'static str, bytes: usize) {
        self.preferred.0.add(Task::Expect(name, bytes));
    }

    /// All that was made since the last time.
    pub(crate) fn take_made(&self) -> Vec<(Order, Outcome)> {
        local_socket::drain(self.counter.bell.as_fd());
        std::mem::take(&mut *self.counter.made.lock())
    }

    /// Looks again at the segments that clients kept, soon.
    pub(crate) fn settle_soon(&self) {
        self.others.0.add(Task::Settle);
    }

    /// Reads the books.
    pub(crate) fn with_ledger<R>(&self, read: impl FnOnce(&Ledger) -> R) -> R {
        read(&self.counter.ledger.lock())
    }

    fn end(&mut self) {
        for (maker, thread) in [&mut self.preferred, &mut self.others] {
            let left = {
                let mut tasks = maker.tasks.lock();
                tasks.is_over = true;
                std::mem::take(&mut tasks.queue)
            };
            maker.news.notify_all();
            left.into_iter().for_each(Task::run_here);
            if let Some(thread) = thread.take() {
                // Its panic was printed.
                thread.join().ok();
            }
        }
    }
}

fn start(
    maker: &Arc<Maker>,
    name: &str,
    nice: i32,
    cpus: &[usize],
) -> Result<JoinHandle<()>, SysError> {
    let (maker, cpus) = (Arc::clone(maker), cpus.to_vec());
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread
        .spawn(move || {
            // A refusal costs time on a busy machine, nothing else.
            cpu::set_nice(nice).ok();
            if !cpus.is_empty() {
                cpu::stay_on(&cpus).ok();
            }
            maker.run();
        })
        .map_err(|source| SysError::Call {
            call: "starting a thread",
            source,
        })
}

impl Drop for Makers {
    fn drop(&mut self) {
        self.end();
    }
}

const PAGE_BYTES: usize = 4096;
/// The largest segment that is prepared for the next client: twice what clients order by default.
const SPARE_BYTES_MAX: usize = 33 << 20;
/// Segments that are made, while more are ordered, before one is mapped and locked here: a crowd
/// that comes at once.
const PRESENT_TURNS_MAX: u64 = 64;
/// Sleep between two steps of work that no client waits for.
const PAUSE: Duration = Duration::from_micros(100);
const SPARE_KEPT_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn order(uid: u32, tag: u64) -> Task {
        Task::Make(Order {
            to: ConnectionId(tag),
            uid,
            name: "test",
            bytes: 4096,
            tag,
        })
    }

    #[test]
    fn users_take_turns_whoever_ordered_first() {
        let mut tasks = Tasks::default();
        let orders = [(7, 0), (7, 1), (7, 2), (8, 3), (9, 4), (8, 5)];
        tasks.queue.extend(orders.map(|(uid, tag)| order(uid, tag)));
        let tags = std::iter::from_fn(|| match tasks.next()? {
            Task::Make(order) => Some(order.tag),
            _ => None,
        });
        assert_eq!(tags.collect::<Vec<_>>(), [0, 3, 4, 1, 5, 2]);
    }

    #[test]
    fn a_spare_serves_once_and_only_what_it_was_made_for() {
        let order_of = |bytes| match order(7, 0) {
            Task::Make(order) => Order { bytes, ..order },
            _ => unreachable!("an order"),
        };
        let (small, large) = (order_of(4096), order_of(8192));
        let mut spare = Spare::default();
        assert!(spare.take(&small).is_none());
        spare.prepare(&mut || ());
        assert_eq!(spare.take(&small).map(|map| map.slice().len()), Some(4096));
        assert!(spare.take(&small).is_none());
        spare.prepare(&mut || ());
        assert!(spare.take(&large).is_none());
        spare.prepare(&mut || ());
        assert!(spare.take(&order_of(SPARE_BYTES_MAX + 1)).is_none());
        assert_eq!(spare.take(&large).map(|map| map.slice().len()), Some(8192));
    }

    #[test]
    fn memory_is_freed_before_more_is_made_and_mapped_afterwards() {
        let mut tasks = Tasks::default();
        let map = Arc::new(SharedMap::create("test", 4096, Sharing::ReadWrite).unwrap());
        tasks.present_later(Arc::downgrade(&map));
        tasks.queue.extend([order(7, 0), Task::Free(map, None)]);
        assert!(matches!(tasks.next(), Some(Task::Free(..))));
        assert!(matches!(tasks.next(), Some(Task::Make(_))));
        assert!(matches!(tasks.next(), Some(Task::Present(..))));
        assert!(tasks.next().is_none());
    }

    #[test]
    fn who_orders_without_an_end_does_not_put_others_pages_off_for_ever() {
        let mut tasks = Tasks::default();
        tasks.present_later(Weak::new());
        for tag in 0..PRESENT_TURNS_MAX + 2 {
            tasks.queue.push_back(order(7, tag));
            if matches!(tasks.next(), Some(Task::Present(..))) {
                return;
            }
        }
        panic!("its turn never came");
    }
}
