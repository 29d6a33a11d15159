//! Unmodified programs on the stack.
//!
//! A supervisor has the kernel hand it the socket calls of a program and of all that the program
//! starts ([`sidecore_sys::seccomp`]). A TCP socket that is bound or connected to an address of the
//! stack's is taken from the kernel: in its descriptor's place comes one end of a local pair, whose
//! other end the supervisor joins to a session of the stack. A UDP socket stays, and is bound to
//! the kernel's loopback, where the supervisor has its other end. Reading, writing, polling,
//! duplicating, passing on, inheriting and closing are the kernel's own and never come here, so
//! nothing in the program changes, and static programs are served as any other.
//!
//! The fifth source document ends with its sockets direct protocol, which was to "support
//! applications using standard sockets"; this is that, for today's programs. README.md says which
//! calls are answered how.
//!
//! Must stay true: a socket that is not the stack's behaves as if nobody watched; a program can do
//! no more through the supervisor than it could do by attaching to the stack itself.

mod address;
mod aside;
mod caller;
mod carrier;
mod control;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod launch;
mod loopback;
mod migrate;
mod ports;
mod scope;
mod socket;
mod supervisor;

pub use error::RunError;
pub use launch::{Engine, Options, Status, run, supervise};

/// The README's example is a command line.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
