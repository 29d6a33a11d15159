//! Unmodified programs on the stack.
//!
//! A supervisor intercepts the socket calls of a program and its descendants by seccomp user
//! notification ([`sidecore_sys::seccomp`]). A TCP socket that is bound or connected to one of the
//! stack's addresses is taken from the kernel: one end of a local socket pair replaces it in its
//! descriptor, and the supervisor joins the other end to a session of the stack. A UDP socket
//! stays, and is bound to the kernel's loopback, where the supervisor has a socket, too. The kernel
//! itself handles reading, writing, polling, duplicating, passing, inheriting and closing, so the
//! program is unchanged, and statically linked programs work like any other.
//!
//! The fifth source document ends with its sockets direct protocol, which was to "support
//! applications using standard sockets"; this crate does that for today's programs. README.md lists
//! the calls and their answers.
//!
//! Must stay true: a socket that is not the stack's behaves as if there were no supervisor; a
//! program gains no rights by the supervisor that it would not have by attaching to the stack
//! itself.

#[doc(hidden)]
pub mod address;
mod aside;
mod caller;
mod carrier;
#[doc(hidden)]
pub mod control;
mod direct;
mod error;
mod launch;
mod loopback;
mod migrate;
mod options;
mod ports;
mod scope;
mod socket;
mod supervisor;

pub use error::RunError;
pub use launch::{Status, run, supervise, supervisor};
pub use options::{Engine, Options};

// What others say to a supervisor, and how it is judged: with `address` and `control` for the
// target `doors` of `lab/fuzz`.
#[doc(hidden)]
pub use loopback::{judge, read_text};
#[doc(hidden)]
pub use supervisor::named::{end_bytes, ends_of};

/// The README's example is a command line.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
