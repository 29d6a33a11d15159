//! All the mailboxes and signals of one engine, as the host and as the engine see them.

use super::{Letter, Mailbox, Signal, SignalMode};
use crate::wait::{WaitOptions, Waiter};
use std::sync::Arc;
use std::time::Duration;

/// Words that fit the mailbox towards an engine.
pub const INBOX_WORDS: usize = 4;

/// An engine's mailboxes and signals. Shared by the two sides.
#[derive(Debug)]
pub struct Ports {
    inbox: Mailbox<INBOX_WORDS>,
    outbox: Mailbox<1>,
    out_interrupt: Mailbox<1>,
    signals: [Signal; 2],
}

impl Ports {
    /// Empty mailboxes, and signal registers with these modes.
    #[must_use]
    pub fn new(signal_modes: [SignalMode; 2]) -> Self {
        Self {
            inbox: Mailbox::new(),
            outbox: Mailbox::new(),
            out_interrupt: Mailbox::new(),
            signals: signal_modes.map(Signal::new),
        }
    }
}

/// The host's side. Clones share the engine but wait on their own.
#[derive(Debug)]
pub struct HostPorts {
    ports: Arc<Ports>,
    waiter: Waiter,
}

impl Clone for HostPorts {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.ports), self.waiter.options())
    }
}

impl HostPorts {
    /// The host's side of `ports`.
    #[must_use]
    pub fn new(ports: Arc<Ports>, wait: WaitOptions) -> Self {
        Self {
            ports,
            waiter: Waiter::new(wait),
        }
    }

    /// Mailbox towards the engine, 4 deep.
    #[must_use]
    pub fn inbox(&self) -> Writer<'_, INBOX_WORDS> {
        Writer {
            mailbox: &self.ports.inbox,
            waiter: &self.waiter,
        }
    }

    /// Mailbox from the engine, 1 deep.
    #[must_use]
    pub fn outbox(&self) -> Reader<'_, 1> {
        Reader {
            mailbox: &self.ports.outbox,
            waiter: &self.waiter,
        }
    }

    /// Mailbox from the engine, 1 deep: the one that a host waits on as on an interrupt.
    #[must_use]
    pub fn out_interrupt(&self) -> Reader<'_, 1> {
        Reader {
            mailbox: &self.ports.out_interrupt,
            waiter: &self.waiter,
        }
    }

    /// Sends bits to one of the two signal registers. Never blocks.
    ///
    /// # Panics
    /// If `register` is neither 0 nor 1.
    pub fn signal(&self, register: usize, bits: u32) {
        self.ports.signals[register].send(bits);
    }
}

/// The engine's side, as a kernel has it.
#[derive(Debug, Clone, Copy)]
pub struct EnginePorts<'c> {
    ports: &'c Ports,
    waiter: &'c Waiter,
}

impl<'c> EnginePorts<'c> {
    /// The engine's side of `ports`.
    #[must_use]
    pub fn new(ports: &'c Ports, waiter: &'c Waiter) -> Self {
        Self { ports, waiter }
    }

    /// Mailbox from hosts, 4 deep.
    #[must_use]
    pub fn inbox(&self) -> Reader<'c, INBOX_WORDS> {
        Reader {
            mailbox: &self.ports.inbox,
            waiter: self.waiter,
        }
    }

    /// Mailbox towards hosts, 1 deep.
    #[must_use]
    pub fn outbox(&self) -> Writer<'c, 1> {
        Writer {
            mailbox: &self.ports.outbox,
            waiter: self.waiter,
        }
    }

    /// Mailbox towards hosts, 1 deep: the one that a host waits on as on an interrupt.
    #[must_use]
    pub fn out_interrupt(&self) -> Writer<'c, 1> {
        Writer {
            mailbox: &self.ports.out_interrupt,
            waiter: self.waiter,
        }
    }

    /// Reads and clears a signal register; blocks until it is written.
    ///
    /// # Panics
    /// If `register` is neither 0 nor 1.
    #[must_use]
    pub fn read_signal(&self, register: usize) -> u32 {
        loop {
            if let Some(bits) = self.ports.signals[register].read(self.waiter, None) {
                return bits;
            }
        }
    }

    /// Reads and clears a signal register if it was written since the last read.
    ///
    /// # Panics
    /// If `register` is neither 0 nor 1.
    #[must_use]
    pub fn try_read_signal(&self, register: usize) -> Option<u32> {
        self.ports.signals[register].try_read()
    }
}

/// The end of a mailbox that is written to.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'p, const N: usize> {
    mailbox: &'p Mailbox<N>,
    waiter: &'p Waiter,
}

impl<const N: usize> Writer<'_, N> {
    /// Writes a letter; blocks while the mailbox is full.
    pub fn write<L: Letter>(&self, letter: L) {
        while !self.mailbox.write(letter.to_word(), self.waiter, None) {}
    }

    /// Writes a letter; blocks while the mailbox is full, at most for `timeout`. Says whether it
    /// was written.
    #[must_use]
    pub fn write_within<L: Letter>(&self, letter: L, timeout: Duration) -> bool {
        self.mailbox
            .write(letter.to_word(), self.waiter, Some(timeout))
    }

    /// Writes a letter if there is room now; true if it was written.
    #[must_use]
    pub fn try_write<L: Letter>(&self, letter: L) -> bool {
        self.mailbox.try_write(letter.to_word())
    }

    /// Number of letters that still fit, at this moment.
    #[must_use]
    pub fn room(&self) -> usize {
        N - self.mailbox.count()
    }
}

/// The end of a mailbox that is read from.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'p, const N: usize> {
    mailbox: &'p Mailbox<N>,
    waiter: &'p Waiter,
}

impl<const N: usize> Reader<'_, N> {
    /// Takes the oldest letter; blocks while there is none.
    #[must_use]
    pub fn read<L: Letter>(&self) -> L {
        loop {
            if let Some(word) = self.mailbox.read(self.waiter, None) {
                return L::from_word(word);
            }
        }
    }

    /// Takes the oldest letter; blocks while there is none, at most for `timeout`.
    #[must_use]
    pub fn read_within<L: Letter>(&self, timeout: Duration) -> Option<L> {
        self.mailbox
            .read(self.waiter, Some(timeout))
            .map(L::from_word)
    }

    /// Takes the oldest letter if there is one now.
    #[must_use]
    pub fn try_read<L: Letter>(&self) -> Option<L> {
        self.mailbox.try_read().map(L::from_word)
    }

    /// Number of letters that wait, at this moment.
    #[must_use]
    pub fn count(&self) -> usize {
        self.mailbox.count()
    }
}
