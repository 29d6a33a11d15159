//! Ends of a program that its engine finds, a stack that met the data, and faults; the host's
//! orders to stop, to go on and to end.
//!
//! Must stay true: called by the engine that has the context, orders aside; what is reported goes
//! to the standard error in one line, since the host's program may be old and look at nothing else.

use super::{Context, Inner, Run};
use crate::channel::Stop;
use crate::engine::{self, Request};
use crate::interrupt::{self, Order};
use crate::mail::watch;
use crate::store::{STORE_BYTES, STORE_MASK};
use crate::switch::{HEADER_BEFORE, Header};
use crate::trace;
use sidecore_bare::width::ToU64;
use sidecore_sched::Ready;
use std::time::Instant;

/// A stack pointer this near to the store's begin, where the guard below was touched, overflowed.
const STACK_NEAR: u64 = 4096;

/// A program ends because the host ordered it, as a call that a signal ends.
const ENDED: Stop = Stop::Fatal(libc::EINTR);

impl Context {
    /// Orders the program to stop where it is, to go on, or to end. One that runs does it a little
    /// later; one that waits stays stopped when its wait ends.
    pub(crate) fn order(&self, order: Order) {
        let mut inner = self.lock();
        let own = self.interrupts();
        own.set_order(order);
        match (own.order(), inner.run) {
            (Order::Run, Run::Held) => {
                inner.run = Run::Active;
                if let Some(own) = self.own.upgrade() {
                    engine::push(own, Ready::Event);
                }
            }
            (Order::End, Run::Held | Run::Parked) => {
                self.mail.unwatch(watch::PARKED);
                self.end_by_order(&mut inner);
            }
            _ => {}
        }
        self.enforce(&mut inner);
    }

    /// Signals the engine until an order has reached the program that it is inside of: a signal
    /// between two instructions of the gate is lost.
    pub(super) fn enforce(&self, inner: &mut Inner) {
        if inner.run == Run::Active && self.interrupts().has_news() {
            self.interrupts().announce();
            engine::remind(Instant::now() + interrupt::AGAIN, self.own.clone());
        }
    }

    /// Obeys an order at the gate; false where there is none and the request is to be served.
    pub(super) fn obeys(&self, inner: &mut Inner, request: &Request) -> bool {
        match self.interrupts().order() {
            Order::Run => return false,
            Order::Hold => {
                inner.request = Some(*request);
                inner.run = Run::Held;
                trace::parked(self.id, request.op, request.args[0]);
            }
            Order::End => self.end_by_order(inner),
        }
        true
    }

    fn end_by_order(&self, inner: &mut Inner) {
        self.interrupts().forget_order();
        inner.request = None;
        inner.run = Run::Stopped(ENDED);
        trace::stopped(self.id);
        self.caller.notify_all();
    }

    /// The header, for the engine that has the context.
    fn own_header(&self) -> &Header {
        // SAFETY: the header of our own store, which this engine has.
        unsafe { &*self.store.header() }
    }

    /// Bytes by which the stack grew into the program or its heap.
    pub(super) fn overflow(&self) -> Option<u64> {
        let header = self.own_header();
        let mut limit = header.data_end;
        if header.break_at != 0 {
            // The heap's end is the program's own variable: read again each time, and masked.
            let heap = u64::from(self.store.word(header.break_at)) & STORE_MASK;
            limit = limit.max(self.store.base() + heap);
        }
        limit
            .checked_sub(header.store_stack)
            .filter(|bytes| *bytes > 0)
    }

    /// Bytes of the store that the program with its data, the heap, and the stack take.
    pub(super) fn usage(&self) -> [u64; 3] {
        let header = self.own_header();
        let base = self.store.base();
        let program = header.data_end.saturating_sub(base);
        let heap = match header.break_at {
            0 => 0,
            at => (u64::from(self.store.word(at)) & STORE_MASK).saturating_sub(program),
        };
        let store = STORE_BYTES.to_u64();
        // A stack pointer that left the store is no larger stack than the store.
        let stack = (base + store).saturating_sub(header.store_stack);
        [program, heap, stack.min(store)]
    }

    /// Says that the stack overflowed.
    pub(super) fn overflowed(&self, bytes: u64) -> Stop {
        eprintln!(
            "libspe2: context {}: the stack ran {bytes} bytes into the program's data or heap; \
             a local store has 256 KiB for code, data, heap and stack",
            self.id
        );
        Stop::Fatal(libc::ENOMEM)
    }

    /// Translates a fault, and prints it to the standard error.
    pub(super) fn fault(&self, inner: &Inner) -> Stop {
        let header = self.own_header();
        let signal = header.fault_signal;
        let base = self.store.base();
        let pc = header.fault_pc.wrapping_sub(base);
        let address = header.fault_address;
        let below = base - HEADER_BEFORE.to_u64()..base;
        let overflow = below.contains(&address) && header.store_stack < base + STACK_NEAR;
        // Zeroes are an instruction here, but none that a compiler makes: data was executed.
        let store = base..base + STORE_MASK;
        let zeroes = store.contains(&header.fault_pc) && self.store.byte_pair(pc) == 0;
        if signal == libc::SIGILL || zeroes {
            eprintln!(
                "libspe2: context {}: invalid instruction at 0x{pc:05x}",
                self.id
            );
            return Stop::BadInstruction;
        }
        let end = inner.program.map_or(0, |program| program.end);
        if overflow {
            eprintln!(
                "libspe2: context {}: the stack ran out of the local store at 0x{pc:05x} \
                 (program and data take {end} bytes of 256 KiB)",
                self.id
            );
            return Stop::Fatal(libc::ENOMEM);
        }
        let what = match signal {
            libc::SIGFPE => "arithmetic fault",
            libc::SIGBUS => "bus error",
            _ => "access outside of the local store",
        };
        eprintln!(
            "libspe2: context {}: {what} at 0x{pc:05x}, address 0x{address:x}",
            self.id
        );
        Stop::Fatal(libc::EFAULT)
    }
}
