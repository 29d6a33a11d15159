//! Contexts: a store, its channels, and the life of the program in it.
//!
//! Life: idle, active (an engine has it or will), parked (waits at a channel), stopped (its caller
//! will see why), paused (its caller returned and may go on with it).
//!
//! Must stay true: a thread that changes a condition that a parked program may wait for then calls
//! `changed` under the lock, which makes it active again. Words of the mailboxes move without the
//! lock and need it only if there is a watcher to notify (`mail`). Only the engine that has an
//! active context touches its header. A thread never holds the locks of two contexts.

mod ending;
mod work;

use crate::area::{Areas, Kind, Register, Target};
use crate::channel::{Channels, Stop};
use crate::engine::{self, Request};
use crate::fault;
use crate::image::{Image, ImageError};
use crate::interpreted::{Interpreted, STACK_TOP};
use crate::interrupt;
use crate::mail::{Mail, watch};
use crate::mfc::{self, Command, Traffic};
use crate::source::{Source, Sources};
use crate::store::{STORE_BYTES, STORE_MASK, Store};
use crate::switch::{Interrupts, Start, low};
use parking_lot::{Condvar, Mutex, MutexGuard};
use sidecore_bare::width::ToU64;
use sidecore_sched::{Patience, Ready};
use sidecore_spu::Executable;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

/// One context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) id: u32,
    pub(crate) flags: u32,
    pub(crate) store: Store,
    /// Itself, for the engines' queue and the areas' table.
    own: Weak<Context>,
    inner: Mutex<Inner>,
    /// The machine of a program of the SPU's own; taken before `inner`, by its engine.
    interpreted: Mutex<Option<Interpreted>>,
    pub(crate) mail: Mail,
    /// Counts changes from outside but the mailboxes', for engines that spin on it.
    news: AtomicU32,
    /// Waits that ended while the engine spun, since it last parked; written by that engine alone.
    spun: AtomicU32,
    caller: Condvar,
    /// Threads of the host that wait for a place inbound, and for an interrupting entry.
    host_in: Condvar,
    host_interrupt: Condvar,
    /// True while writes that do not block find the mailbox full although they waited a while.
    pub(crate) hurried: AtomicBool,
    areas: OnceLock<Areas>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) channels: Channels,
    pub(crate) sources: Sources,
    /// Reasons of stops that were not read yet, oldest first.
    pub(crate) stops: VecDeque<Stop>,
    /// Tags of proxy commands whose status was not read.
    proxy_tags: u32,
    proxy_traffic: Traffic,
    run: Run,
    request: Option<Request>,
    answer: u64,
    program: Option<Program>,
    /// True for a program of the SPU's own.
    interpreted: bool,
    token: u32,
    host_waiters: u32,
    /// True while it is in the queue because it only polled.
    asks: bool,
    /// Its waits so far.
    patience: Patience,
    /// Time of the trace's last `at` line.
    traced_at: Option<Instant>,
    /// Time at which an event that interrupts is looked for, if one is set.
    look_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Program {
    entry: u32,
    end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Idle,
    Active,
    Parked,
    /// Ordered to stop by the host, in the gate.
    Held,
    Stopped(Stop),
    Paused,
}

/// Arguments of a program's start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments {
    pub(crate) words: [u64; 3],
    /// The three quadwords of SPE_RUN_USER_REGS.
    pub(crate) registers: Option<[u8; 48]>,
}

/// Entry that stands for the program's own.
pub(crate) const DEFAULT_ENTRY: u32 = u32::MAX;
/// Stop reasons kept while a handler is registered.
pub(crate) const STOPS_MAX: usize = 65_536;
/// Bytes at the store's top for the user's registers; the stack begins below.
const TOP_BYTES: usize = 128;
const FLAG_SIGNAL1_OR: u32 = 0x10;
const FLAG_SIGNAL2_OR: u32 = 0x20;

impl Context {
    pub(crate) fn new(flags: u32) -> io::Result<Arc<Context>> {
        static IDS: AtomicU32 = AtomicU32::new(0);
        let or = [flags & FLAG_SIGNAL1_OR != 0, flags & FLAG_SIGNAL2_OR != 0];
        let channels = Channels::new(or);
        let store = Store::new()?;
        // A weak pointer to itself: a strong one would keep it for ever.
        let own = Arc::new_cyclic(|own| Context {
            own: own.clone(),
            // Relaxed: only distinct numbers are needed.
            id: IDS.fetch_add(1, Ordering::Relaxed),
            flags,
            store,
            mail: Mail::new(),
            inner: Mutex::new(Inner {
                channels,
                sources: Sources::default(),
                stops: VecDeque::new(),
                proxy_tags: 0,
                proxy_traffic: Traffic::default(),
                run: Run::Idle,
                request: None,
                answer: 0,
                program: None,
                interpreted: false,
                token: 0,
                host_waiters: 0,
                asks: false,
                patience: Patience::default(),
                traced_at: None,
                look_at: None,
            }),
            interpreted: Mutex::new(None),
            spun: AtomicU32::new(0),
            news: AtomicU32::new(0),
            caller: Condvar::new(),
            host_in: Condvar::new(),
            host_interrupt: Condvar::new(),
            hurried: AtomicBool::new(false),
            areas: OnceLock::new(),
        });
        // SAFETY: the header of the new store, which no engine has yet.
        let header = unsafe { &mut *own.store.header() };
        header.context = Arc::as_ptr(&own).cast();
        header.id = own.id.into();
        // The gate calls it without leaving the program; it finds the context in the header.
        header.channel = Some(work::perform_at_once);
        Ok(own)
    }

    /// Address of one of the context's problem-state areas.
    pub(crate) fn area(&self, kind: Kind) -> io::Result<u64> {
        if self.areas.get().is_none() {
            // Its handler does the host's accesses.
            fault::install();
            let areas = Areas::new(self.own.clone())?;
            // Another thread's set, if it was first, is as good.
            self.areas.set(areas).ok();
            self.settle(&mut self.inner.lock());
        }
        Ok(self.areas.get().map_or(0, |areas| areas.address(kind)))
    }

    /// Loads a program; false while one runs.
    pub(crate) fn load(&self, image: &Image<'_>) -> Result<bool, ImageError> {
        let mut inner = self.inner.lock();
        // Its engine reads the store and the header without the lock.
        if inner.running() {
            return Ok(false);
        }
        image.load(&self.store)?;
        let program = Program {
            entry: image.entry(),
            end: image.end(),
        };
        self.loaded(&mut inner, program, None);
        // SAFETY: the header of our own store; no engine has the context.
        let header = unsafe { &mut *self.store.header() };
        header.data_end = self.store.base() + image.end().to_u64();
        header.break_at = 0;
        Ok(true)
    }

    /// Loads a program of the SPU's own; false while one runs.
    pub(crate) fn load_spus(&self, executable: &Executable<'_>) -> bool {
        let mut inner = self.inner.lock();
        if inner.running() {
            return false;
        }
        let program = Program {
            entry: executable.entry(),
            end: executable.end(),
        };
        let interpreted = Interpreted::load(executable, &self.store);
        self.loaded(&mut inner, program, Some(interpreted));
        // Its stack is its own to watch.
        // SAFETY: the header of our own store; no engine has the context.
        let header = unsafe { &mut *self.store.header() };
        header.data_end = self.store.base();
        header.store_stack = self.store.base() + u64::from(STACK_TOP);
        header.break_at = 0;
        true
    }

    /// Records a program that was copied into the store.
    fn loaded(&self, inner: &mut Inner, program: Program, interpreted: Option<Interpreted>) {
        inner.program = Some(program);
        inner.run = Run::Idle;
        self.interrupts().forget_order();
        inner.interpreted = interpreted.is_some();
        inner.channels.mfc.big = interpreted.is_some();
        // No engine has the context, whose program does not run.
        *self.interpreted.lock() = interpreted;
    }

    /// True where words of the program have the most significant byte first.
    pub(crate) fn is_big(&self) -> bool {
        self.inner.lock().interpreted
    }

    pub(crate) fn is_running(&self) -> bool {
        self.inner.lock().running()
    }

    /// True where a program is there that may read its mailbox: it runs, or was not run yet.
    pub(crate) fn may_read(&self) -> bool {
        let inner = self.inner.lock();
        inner.program.is_some() && !matches!(inner.run, Run::Stopped(_) | Run::Paused)
    }

    /// Makes the program ready for an engine: from `entry`, or where it stopped if that is `entry`.
    ///
    /// # Errors
    /// The error number.
    pub(crate) fn begin(&self, entry: u32, arguments: &Arguments) -> Result<(), i32> {
        let mut inner = self.inner.lock();
        if inner.running() {
            return Err(libc::EBUSY);
        }
        let program = inner.program.ok_or(libc::EINVAL)?;
        if inner.run == Run::Paused && entry == inner.token {
            // The gate's call that stopped it returns this.
            inner.answer = 0;
        } else {
            let offset = match entry {
                DEFAULT_ENTRY => program.entry,
                // A program that ended and is run again "from where it stopped" starts anew.
                other if other == inner.token => program.entry,
                other => low(u64::from(other) & STORE_MASK),
            };
            match self.interpreted.lock().as_mut() {
                Some(program) => {
                    program.begin(offset, arguments.words, arguments.registers.as_ref());
                }
                None => self.first_frame(offset, arguments),
            }
            // Not the answer to a request of a program before.
            inner.answer = 0;
        }
        inner.request = None;
        inner.run = Run::Active;
        Ok(())
    }

    /// Lets a program go on that stopped for a callback.
    pub(crate) fn go_on(&self) {
        let mut inner = self.inner.lock();
        if let Some(program) = self.interpreted.lock().as_mut() {
            program.step_over();
        }
        inner.answer = 0;
        inner.run = Run::Active;
    }

    /// A program whose callback failed cannot go on.
    pub(crate) fn end(&self) {
        self.inner.lock().run = Run::Idle;
    }

    fn first_frame(&self, offset: u32, arguments: &Arguments) {
        let base = self.store.base();
        let registers = match &arguments.registers {
            None => 0,
            Some(bytes) => {
                self.store.write(STORE_BYTES - TOP_BYTES, bytes);
                base + (STORE_BYTES - TOP_BYTES).to_u64()
            }
        };
        let start = Start {
            entry: base + u64::from(offset),
            args: arguments.words,
            registers,
        };
        let frame: Vec<u8> = start.frame().iter().flat_map(|w| w.to_le_bytes()).collect();
        // The frame that `enter` pops, right below the user's registers.
        let at = STORE_BYTES - TOP_BYTES - frame.len();
        // What an earlier program left behind must not interrupt this one.
        self.interrupts().set(0);
        self.mail.unwatch(watch::INTERRUPTS);
        self.store.write(at, &frame);
        // SAFETY: the header of our own store; no engine has the context, as it is not active.
        unsafe { (*self.store.header()).store_stack = base + at.to_u64() };
    }

    /// Waits until the program stops; called by the thread that began it.
    pub(crate) fn wait_for_stop(&self) -> Stop {
        let mut inner = self.inner.lock();
        loop {
            if let Run::Stopped(stop) = inner.run {
                inner.run = match stop {
                    // An exit is a stop, too: a program that is run on goes on behind it.
                    Stop::Signal(..) | Stop::Exit(_) | Stop::Isolation(_) => Run::Paused,
                    _ => Run::Idle,
                };
                return stop;
            }
            self.caller.wait(&mut inner);
        }
    }

    /// Entry at which a stopped program goes on, as libspe2 counts it.
    pub(crate) fn token(&self) -> u32 {
        self.inner.lock().token
    }

    /// Remembers a stop for `spe_stop_info_read` and the event.
    pub(crate) fn remember_stop(&self, stop: Stop) {
        let mut inner = self.inner.lock();
        let kept = if inner.sources.has(Source::Stopped) {
            STOPS_MAX
        } else {
            1
        };
        // Without a reader only the last one counts.
        while inner.stops.len() >= kept {
            inner.stops.pop_front();
        }
        inner.stops.push_back(stop);
        self.settle(&mut inner);
    }

    /// The lock, for calls from the host. `changed` or `settle` is called before it is given up.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn signal(&self, index: usize, value: u32) {
        let mut inner = self.inner.lock();
        inner.channels.signal(index, value);
        self.changed(&mut inner);
    }

    /// Writes the inbound mailbox as DMA does: into a full one the last entry is overwritten.
    pub(crate) fn push_in_mailbox(&self, value: u32) {
        let mut inner = self.inner.lock();
        self.mail.push_over(value);
        self.changed(&mut inner);
    }

    /// Does a proxy command of the host.
    ///
    /// # Errors
    /// The runtime exception.
    pub(crate) fn proxy(&self, command: Command) -> Result<(), u32> {
        // Without the lock: the transfer may fault, and take as long as its pages do.
        let done = mfc::proxy(&self.store, command, self.is_big())?;
        // A register of another context's, whose lock is taken: two are never held.
        for write in done.outbox {
            write.deliver();
        }
        let done = done.traffic;
        let mut inner = self.inner.lock();
        inner.proxy_tags |= 1 << command.tag;
        inner.proxy_traffic.commands += 1;
        inner.proxy_traffic.got_bytes += done.got_bytes;
        inner.proxy_traffic.put_bytes += done.put_bytes;
        self.settle(&mut inner);
        Ok(())
    }

    /// A host's command by the words of its area; the area then shows whether it was taken.
    fn command(&self, [lsa, high, low, size_tag]: [u32; 4], class_code: u32) {
        let command = Command {
            lsa,
            ea: u64::from(high) << 32 | u64::from(low),
            size: size_tag >> 16,
            tag: size_tag & 0xffff,
            // The classes choose shares of the bus and of the cache.
            code: class_code & 0xffff,
        };
        // As libspe2's calls: no lists and no lines.
        let known = matches!(command.code, 0x20..=0x22 | 0x40..=0x42);
        let taken = known && self.proxy(command).is_ok();
        if let Some(areas) = self.areas.get() {
            areas.show_command(u32::from(!taken));
        }
    }

    /// Tags of the mask (0: of all commands under way) that are done; they no longer count.
    pub(crate) fn proxy_status(&self, mask: u32) -> u32 {
        let mut inner = self.inner.lock();
        let done = if mask == 0 { inner.proxy_tags } else { mask };
        inner.proxy_tags &= !done;
        self.settle(&mut inner);
        done
    }

    /// Notifies the watchers after a word moved on the host's side, without the lock.
    pub(crate) fn mail_moved(&self) {
        if self.mail.watched() != 0 {
            self.changed(&mut self.inner.lock());
        }
    }

    /// Shows the state to lookers and waiters on the host's side.
    pub(crate) fn settle(&self, inner: &mut Inner) {
        // Bits first: the mover of a later word then sees them and notifies.
        if !inner.sources.is_empty() {
            self.mail.watch(watch::SOURCES);
        }
        if self.areas.get().is_some() {
            self.mail.watch(watch::AREAS);
        }
        if self.mail.watched() & !watch::PARKED == 0 {
            return;
        }
        let status = self.mail.status();
        if let Some(areas) = self.areas.get() {
            areas.show_mailboxes(status);
        }
        // One is enough: it moves a word itself, which notifies the next.
        if inner.host_waiters > 0 && status >> 8 & 0xff != 0 {
            self.host_in.notify_one();
        }
        if inner.host_waiters > 0 && status >> 16 & 0xff != 0 {
            self.host_interrupt.notify_one();
        }
        if !inner.sources.is_empty() {
            let (tags, stops) = (inner.proxy_tags != 0, !inner.stops.is_empty());
            inner
                .sources
                .show(Source::OutInterrupt, status >> 16 & 0xff != 0);
            inner
                .sources
                .show(Source::InMailbox, status >> 8 & 0xff != 0);
            inner.sources.show(Source::TagGroup, tags);
            inner.sources.show(Source::Stopped, stops);
        }
    }

    /// Handles a change from outside that the program may wait for.
    pub(crate) fn changed(&self, inner: &mut Inner) {
        self.settle(inner);
        // Release partners with the Acquire of a spinning engine.
        self.news.fetch_add(1, Ordering::Release);
        // Under the lock, so that exactly one of two changes queues it.
        if inner.run == Run::Parked {
            inner.run = Run::Active;
            self.mail.unwatch(watch::PARKED);
            if let Some(own) = self.own.upgrade() {
                engine::push(own, Ready::Event);
            }
        } else if inner.asks {
            inner.asks = false;
            self.mail.unwatch(watch::PARKED);
            // It only polled and waits in the queue: what it polled for moves it forward.
            engine::came(self.id);
        }
        self.interrupt(inner);
    }

    fn interrupts(&self) -> &Interrupts {
        // SAFETY: the header of our own store; the fields behind the reference are atomic.
        unsafe { &(*self.store.header()).interrupts }
    }

    /// Interrupts the program if an event is there and it enabled that. Schedules another look
    /// where only a look finds an event.
    fn interrupt(&self, inner: &mut Inner) {
        if !self.interrupts().are_enabled() {
            return;
        }
        let now = Instant::now();
        let (comes, mut next) = inner.channels.interrupts(&self.mail);
        // Raised again until the program takes it: a signal between two instructions of the gate is
        // lost.
        if comes {
            self.interrupts().raise();
            next = Some(now + interrupt::AGAIN);
        }
        if let Some(at) = next
            && inner.look_at.is_none_or(|set| set > at || set <= now)
        {
            inner.look_at = Some(at);
            engine::remind(at, self.own.clone());
        }
    }

    /// Waits on the host's side for a place inbound, or for an interrupting entry.
    pub(crate) fn wait_host(&self, inbound: bool) {
        const LOOKS: u32 = 1000;
        let comes = || match inbound {
            true => self.mail.in_room() > 0,
            false => self.mail.interrupt_entries() > 0,
        };
        for _ in 0..LOOKS {
            if comes() {
                return;
            }
            std::hint::spin_loop();
        }
        let mut inner = self.inner.lock();
        inner.host_waiters += 1;
        self.mail.watch(watch::HOST);
        // The lock is held: a thread that moves a word from here on finds the bit and waits for it.
        if !comes() {
            // Two conditions, so that a word wakes a thread that waits for it.
            let condition = if inbound {
                &self.host_in
            } else {
                &self.host_interrupt
            };
            condition.wait(&mut inner);
        }
        inner.host_waiters -= 1;
        if inner.host_waiters == 0 {
            self.mail.unwatch(watch::HOST);
        }
    }
}

impl Target for Context {
    fn read_mailbox(&self) -> Option<u32> {
        let word = self.mail.take_out();
        self.mail_moved();
        word
    }

    fn write_register(&self, register: Register, value: u32) {
        match register {
            Register::Signal(index) => self.signal(index, value),
            Register::InMailbox => self.push_in_mailbox(value),
            Register::Command(words) => self.command(words, value),
            Register::Tags => {
                if let Some(areas) = self.areas.get() {
                    areas.show_tags(value);
                }
            }
        }
    }
}

impl Inner {
    /// Of the program's commands and the host's.
    fn traffic(&self) -> Traffic {
        let (own, host) = (self.channels.mfc.traffic, self.proxy_traffic);
        Traffic {
            commands: own.commands + host.commands,
            got_bytes: own.got_bytes + host.got_bytes,
            put_bytes: own.put_bytes + host.put_bytes,
        }
    }

    /// Moves the token behind the instruction at which the program stops.
    fn step_over(&mut self) {
        self.token = low(u64::from(self.token.wrapping_add(4)) & STORE_MASK);
    }

    fn running(&self) -> bool {
        !matches!(self.run, Run::Idle | Run::Paused)
    }
}

#[cfg(test)]
mod tests;
