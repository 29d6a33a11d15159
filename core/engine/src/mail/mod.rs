//! Mailboxes and signals: how a host and an engine exchange words.
//!
//! Why here: a word of 32 bits in a mailbox is the Cell's way to say "start", "this one is done",
//! "here is where the data lies". The mailbox towards the engine is four deep. Two lead back, one
//! deep each; the host waits on the second as on an interrupt. A writer stalls on a full mailbox, a
//! reader on an empty one. Signals are two registers towards the engine; a write overwrites them or
//! ORs into them, and a read clears them. Must stay true: no word is lost, doubled or reordered,
//! and no thread sleeps while it has something to do (`README.md` has the argument, loom checks
//! it). Any number of threads may use either side. Source: Cell Broadband Engine Architecture,
//! "Mailbox Facility" and "Signal Notification Facility".
//!
//! ```
//! use sidecore_engine::mail::EnginePorts;
//! use sidecore_engine::{HostPorts, Ports, SignalMode, WaitOptions, Waiter};
//! use std::sync::Arc;
//!
//! let ports = Arc::new(Ports::new([SignalMode::Or; 2]));
//! let host = HostPorts::new(Arc::clone(&ports), WaitOptions::BLOCK);
//! host.inbox().write(21_u32);
//! host.signal(0, 0b01);
//! host.signal(0, 0b10);
//!
//! // On the engine's thread.
//! let waiter = Waiter::new(WaitOptions::BLOCK);
//! let engine = EnginePorts::new(&ports, &waiter);
//! let word: u32 = engine.inbox().read();
//! engine.outbox().write(2 * word);
//! assert_eq!(engine.read_signal(0), 0b11); // both, ORed
//!
//! assert_eq!(host.outbox().read::<u32>(), 42);
//! ```

mod mailbox;
mod ports;
mod signal;

pub use mailbox::Mailbox;
pub use ports::{EnginePorts, HostPorts, INBOX_WORDS, Ports, Reader, Writer};
pub use signal::{Signal, SignalMode};

/// Value of 32 bits, which fits a mailbox.
pub trait Letter: Copy {
    /// The word that encodes this value.
    fn to_word(self) -> u32;
    /// The value that a word encodes.
    fn from_word(word: u32) -> Self;
}

impl Letter for u32 {
    fn to_word(self) -> u32 {
        self
    }
    fn from_word(word: u32) -> Self {
        word
    }
}

impl Letter for i32 {
    fn to_word(self) -> u32 {
        self.cast_unsigned()
    }
    fn from_word(word: u32) -> Self {
        word.cast_signed()
    }
}

impl Letter for f32 {
    fn to_word(self) -> u32 {
        self.to_bits()
    }
    fn from_word(word: u32) -> Self {
        Self::from_bits(word)
    }
}

/// A letter without contents.
impl Letter for () {
    fn to_word(self) -> u32 {
        0
    }
    fn from_word(_word: u32) -> Self {}
}
