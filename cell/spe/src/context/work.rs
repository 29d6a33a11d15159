//! The engine's side of a context: the operations that its program requests at the gate.
//!
//! Must stay true: called by the engine that has the context, or, where that is said, from within
//! the gate on that engine's thread. A blocked operation spins first if the engine would be idle,
//! and parks then; the bit of `watch` is set before the last look, so that no change is missed.

use super::{Context, Inner, Run};
use crate::area::Write;
use crate::channel::{Outcome, Stop};
use crate::engine::{self, Request, Work};
use crate::interpreted::Interpreted;
use crate::interrupt::Order;
use crate::mail::watch;
use crate::mfc::Command;
use crate::store::STORE_MASK;
use crate::switch::{Header, OP_FAULT, Performed, low};
use crate::trace;
use parking_lot::MutexGuard;
use sidecore_sched::{Ready, Sharing};
use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An engine spins this long on a blocked channel if nothing else is ready.
const SPIN: Duration = Duration::from_micros(20);
/// More waits that ended soon change nothing in `Patience`.
const SPUN_MAX: u32 = 32;
/// Number of the gate's operation that counts a channel.
const OP_COUNT: u64 = 3;
/// One that the gate has not.
const OP_NONE: u64 = 0xff;
/// One of the engine's own: gives its argument, the answer of an operation before an order.
const OP_ANSWER: u64 = 0xfe;

impl Context {
    /// Spins until something changed, something else is ready, or the time is over.
    fn spin(&self, news: u32, since: Instant, request: &Request) {
        const LOOKS: u32 = 64;
        while since.elapsed() < SPIN && !engine::work_waits() {
            // Without the processor's pause, which takes as long as a line of the cache on its way.
            for _ in 0..LOOKS {
                if self.mail_lets(request) || self.news.load(Ordering::Acquire) != news {
                    return;
                }
            }
        }
    }

    /// True where its engine is to spin for the wait that begins.
    fn is_patient(&self, inner: &mut Inner) -> bool {
        if engine::sharing() == Sharing::Arrival {
            return true;
        }
        for _ in 0..self.spun.swap(0, Ordering::Relaxed).min(SPUN_MAX) {
            inner.patience.ended(true, true);
        }
        inner.patience.polls()
    }

    /// True where the mailboxes let a request be done that was blocked.
    fn mail_lets(&self, request: &Request) -> bool {
        match (request.op, request.args[0]) {
            (1, 29) => self.mail.has_word(),
            (2, 28) => self.mail.out_entries() == 0,
            (2, 30) => self.mail.interrupt_entries() == 0,
            (1, 0) => self.mail.has_events(),
            _ => false,
        }
    }

    /// An operation on a mailbox, without the lock; `None` where it is another or cannot be done.
    fn mail_operation(&self, op: u64, channel: u64, value: u64) -> Option<u64> {
        let value = match (op, channel) {
            (1, 29) => self.mail.pop()?.into(),
            (2, 28) if self.mail.put_out(low(value)) => 0,
            (2, 30) if self.mail.put_interrupt(low(value)) => 0,
            (3, 28) => return Some(u64::from(1 - self.mail.out_entries())),
            (3, 29) => return Some(self.mail.in_entries().into()),
            (3, 30) => return Some(u64::from(1 - self.mail.interrupt_entries())),
            _ => return None,
        };
        if self.mail.watched() != 0 {
            self.settle(&mut self.inner.lock());
        }
        Some(value)
    }

    fn perform(&self, inner: &mut Inner, request: &Request) -> Outcome {
        let [a, b, c, d] = request.args;
        // Before the operation: what it reads and writes may lie where the stack has been already.
        if request.op != OP_FAULT
            && let Some(bytes) = self.overflow()
        {
            return Outcome::Stopped(self.overflowed(bytes));
        }
        let channels = &mut inner.channels;
        match request.op {
            // The machine's status: whether interrupts are enabled.
            1 if a == 13 => Outcome::Value(self.interrupts().are_enabled().into()),
            1 => channels.read(&self.mail, a),
            2 => channels.write(&self.store, &self.mail, a, low(b)),
            OP_COUNT => channels.count(&self.mail, a),
            4 => {
                if !inner.interpreted {
                    inner.step_over();
                }
                stop_and_signal(low(a) & 0x3fff, low(b & STORE_MASK))
            }
            5 => {
                inner.step_over();
                Outcome::Stopped(Stop::Exit(exit_code(low(a))))
            }
            6 => Outcome::Stopped(Stop::Halt),
            7 => {
                let command = Command {
                    lsa: low(a),
                    ea: b,
                    size: low(c),
                    tag: low(c >> 32),
                    code: low(d),
                };
                channels.issue(&self.store, &self.mail, command)
            }
            8 => {
                // SAFETY: the header of our own store, which this engine has.
                unsafe { (*self.store.header()).break_at = self.store.at(a & !3) };
                Outcome::Value(0)
            }
            9 => {
                match low(a) {
                    0 => self.mail.unwatch(watch::INTERRUPTS),
                    _ => self.mail.watch(watch::INTERRUPTS),
                }
                Outcome::Value(self.interrupts().set(low(a).into()))
            }
            OP_ANSWER => Outcome::Value(a),
            OP_FAULT => Outcome::Stopped(self.fault(inner)),
            _ => Outcome::Stopped(Stop::BadInstruction),
        }
    }

    /// Ends the wait of a request that an operation on a mailbox has done.
    fn spun(&self, request: &Request, since: Instant) {
        trace::waited(self.id, request.op, request.args[0], since);
        // Relaxed, not one step: no other thread writes it meanwhile.
        let spun = self.spun.load(Ordering::Relaxed);
        self.spun.store(spun.saturating_add(1), Ordering::Relaxed);
    }

    /// Parks the program at a blocked request; false where it may be done by now. `spun`: the
    /// engine spun for it.
    fn park(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        request: Request,
        remind_at: Option<Instant>,
        spun: bool,
    ) -> bool {
        // The bit first: a word that moves after this look then notifies.
        self.mail.watch(watch::PARKED);
        if self.mail_lets(&request) {
            self.mail.unwatch(watch::PARKED);
            return false;
        }
        inner.request = Some(request);
        inner.run = Run::Parked;
        // A spin that another's readiness ended says nothing.
        if spun {
            inner.patience.ended(true, false);
        }
        trace::parked(self.id, request.op, request.args[0]);
        drop(inner);
        if let Some(at) = remind_at {
            engine::remind(at, self.own.clone());
        }
        true
    }
}

/// The meaning of a program's stop-and-signal by its code; `message` is the block behind it.
fn stop_and_signal(code: u32, message: u32) -> Outcome {
    Outcome::Stopped(match code {
        // Exit by the stop instruction, as the crt of the time did it.
        0x2000..=0x20ff => Stop::Exit(exit_code(code)),
        // A loader of isolated programs reports this to libspe2, which goes on.
        0x2206 => return Outcome::Value(0),
        0x2200..=0x220f => Stop::Isolation(code),
        _ => Stop::Signal(code, message),
    })
}

/// As `exit` of a process has it: the lowest byte.
fn exit_code(code: u32) -> u8 {
    code.to_le_bytes()[0]
}

/// An operation on a mailbox that the gate tries before it leaves the program: neither lock nor
/// switch where both sides are there. While another context waits for an engine nothing is done
/// here, so that a program that polls gives way.
pub(super) extern "sysv64" fn perform_at_once(
    context: *const c_void,
    op: u64,
    channel: u64,
    value: u64,
) -> Performed {
    // SAFETY: the context whose header the gate found; the engine that called it holds it.
    let own = unsafe { &*context.cast::<Context>() };
    let refused = Performed { value: 0, done: 0 };
    let ordered = own.interrupts().order() != Order::Run;
    if engine::work_waits() || ordered || own.overflow().is_some() {
        return refused;
    }
    own.mail_operation(op, channel, value)
        .map_or(refused, |value| Performed { value, done: 1 })
}

impl Work for Context {
    fn id(&self) -> u32 {
        self.id
    }

    fn header(&self) -> *mut Header {
        self.store.header()
    }

    fn is_interpreted(&self) -> bool {
        self.interpreted.lock().is_some()
    }

    fn interpret(&self, answer: u64) -> Request {
        let mut interpreted = self.interpreted.lock();
        let Some(program) = interpreted.as_mut() else {
            // No program of the kind: an operation that none has ends it.
            return Request {
                op: OP_NONE,
                args: [0; 4],
            };
        };
        let event = Interpreted::event(&mut self.inner.lock().channels, &self.mail);
        let request = program.run(&self.store, answer, event);
        self.inner.lock().token = program.pc();
        request
    }

    fn take_step(&self) -> Result<u64, Request> {
        let mut inner = self.inner.lock();
        if std::mem::take(&mut inner.asks) {
            self.mail.unwatch(watch::PARKED);
        }
        match inner.request.take() {
            Some(request) => Err(request),
            // The order is looked for where requests are served.
            None if self.interrupts().order() != Order::Run => Err(Request {
                op: OP_ANSWER,
                args: [inner.answer, 0, 0, 0],
            }),
            None => Ok(inner.answer),
        }
    }

    fn put_step(&self, answer: u64, request: &Request, ready: Ready) -> Ready {
        let mut inner = self.inner.lock();
        inner.answer = answer;
        if !matches!(ready, Ready::Poll(_)) || request.op != OP_COUNT {
            return ready;
        }
        // The bit first: a later change then notifies.
        self.mail.watch(watch::PARKED);
        inner.asks = true;
        match inner.channels.count(&self.mail, request.args[0]) {
            Outcome::Value(there) if there != 0 => {
                inner.answer = there;
                inner.asks = false;
                self.mail.unwatch(watch::PARKED);
                Ready::Event
            }
            _ => ready,
        }
    }

    fn serve(&self, request: Request) -> Option<u64> {
        let mut blocked_since = None;
        let mut spins = None;
        loop {
            let [channel, value, ..] = request.args;
            if let Some(since) = blocked_since
                && let Some(value) = self.mail_operation(request.op, channel, value)
            {
                self.spun(&request, since);
                return Some(value);
            }
            // Before the look, so that a change behind it is seen. Acquire as in `changed`.
            let news = self.news.load(Ordering::Acquire);
            let mut inner = self.inner.lock();
            if self.obeys(&mut inner, &request) {
                return None;
            }
            let outcome = self.perform(&mut inner, &request);
            self.settle(&mut inner);
            self.interrupt(&mut inner);
            if trace::is_due(&mut inner.traced_at) {
                trace::at(self.id, inner.traffic(), self.usage());
            }
            let outbox = std::mem::take(&mut inner.channels.mfc.outbox);
            match outcome {
                Outcome::Value(value) => {
                    // A write takes another context's lock; two are never held.
                    drop(inner);
                    outbox.into_iter().for_each(Write::deliver);
                    if let Some(since) = blocked_since {
                        trace::waited(self.id, request.op, channel, since);
                    }
                    return Some(value);
                }
                Outcome::Blocked(remind_at) => {
                    let since = *blocked_since.get_or_insert_with(Instant::now);
                    let spins = !engine::work_waits()
                        && *spins.get_or_insert_with(|| self.is_patient(&mut inner));
                    if spins && since.elapsed() < SPIN {
                        drop(inner);
                        self.spin(news, since, &request);
                    } else if self.park(inner, request, remind_at, spins) {
                        return None;
                    }
                }
                Outcome::Stopped(stop) => {
                    trace::at(self.id, inner.traffic(), self.usage());
                    trace::stopped(self.id);
                    // A list's elements before the one that failed are done.
                    drop(inner);
                    outbox.into_iter().for_each(Write::deliver);
                    self.inner.lock().run = Run::Stopped(stop);
                    self.caller.notify_all();
                    return None;
                }
            }
        }
    }

    fn remind(&self) {
        let mut inner = self.inner.lock();
        self.changed(&mut inner);
        self.enforce(&mut inner);
    }
}
