//! Safe interfaces to the operating system and the processor: memory, signals, clocks, cores,
//! devices, sockets.
//!
//! Why here: every other crate denies `unsafe`. This crate has the code that needs it for memory,
//! signals, clocks and cores, and knows nothing of engines or images.
//!
//! - [`region`]: page-aligned memory in huge pages where it can be, locked and touched; `slab`:
//!   one cut in slots; [`arena`]: memory for many runs that live together.
//! - `map`: a file mapped read-only that survives truncation and I/O errors.
//! - [`cpu`]: the core of a thread: its current one, its allowed ones, its pinning.
//! - [`futex`]: waiting on a word, and waking who waits; [`shared_futex`]: across processes.
//! - `shared`: sealed memory that processes share; [`local_socket`]: their rendezvous;
//!   [`identity`]: users that can be distinguished; [`descriptors`]: their limit.
//! - [`folder`]: folders reached and used through descriptors, safe from exchanged paths.
//! - [`apart`]: calls that may wait for a file system which this process serves.
//! - [`loop_control`]: requests to the loop driver; [`fuse_device`]: to the FUSE device;
//!   [`fuse_ring`]: its queues over io_uring; [`file_system`]: to file systems that are to end.
//! - [`interface`]: the kernel's network interfaces; [`interface_features`]: their offload
//!   features; [`tun`], [`packet_socket`], [`xdp`]: frames from and to them; [`bpf`]: programs
//!   that keep frames from the kernel; [`namespace`]: namespaces of the network and of users;
//!   [`seccomp`]: system calls of other programs.
//! - [`userfault`]: missing pages of another process's memory.
//! - [`signals`]: waiting for signals, whatever memory is left.
//! - [`activation`]: listening sockets that a service manager has opened.
//! - [`socket_option`]: options of sockets by number; [`message`]: their messages with names and
//!   control messages as bytes, which [`control_message`] reads; [`epoll_entry`]: other files in
//!   epolls.
//! - [`machine`]: the machine's processors, and cores that are apart.
//! - [`clock`]: time, processor time, cycles, memory in use; [`program`]: paths of other programs,
//!   and their end together with ours; [`package`]: packages that bring them; [`preload`]: our own
//!   libraries.
//! - `alias`: few frames mapped at many pages; [`counters`]: the processor's event counters.
//! - [`float`], [`plain`], [`prefetch`], [`sum`], [`text`]: of `sidecore-bare`; [`stream`]:
//!   copies past the cache.
//!
//! Must stay true: no function here can make a caller's safe code unsound; any thread may call any
//! of them.

pub mod activation;
mod alias;
mod apart;
pub mod arena;
pub mod bpf;
pub mod clock;
pub mod control_message;
pub mod counters;
pub mod cpu;
pub mod descriptors;
pub mod ending;
pub mod epoll_entry;
mod error;
pub mod file_system;
pub mod folder;
pub mod fuse_device;
pub mod fuse_ring;
pub mod futex;
pub mod identity;
pub mod input;
pub mod interface;
pub mod interface_features;
mod linkless;
pub mod local_socket;
pub mod loop_control;
pub mod machine;
mod map;
pub mod message;
pub mod namespace;
pub mod output;
pub mod package;
pub mod packet_socket;
pub mod preload;
pub mod program;
pub mod region;
pub mod seccomp;
mod shared;
pub mod shared_futex;
pub mod signals;
mod slab;
pub mod socket_option;
pub mod stream;
pub mod tun;
pub mod userfault;
pub mod xdp;

pub use sidecore_bare::{Memory, Plain, float, plain, prefetch, sum, text, width};

pub use alias::{AliasOptions, AliasedMap, Frame};
pub use apart::{apart, hold_only};
pub use error::SysError;
pub use map::{FileMap, MapGuard};
pub use region::{Backing, HugePages, Region, RegionOptions};
pub use shared::{LentMemory, Overlay, SharedMap, SharedMapping, SharedSlice, Sharing};
pub use slab::{Slab, SlotBuf};

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
