//! What only the operating system and the processor can do, behind interfaces that are safe to
//! call.
//!
//! Why here: every other crate denies `unsafe`; what needs it for memory, signals, clocks and cores
//! is in this one, which knows nothing of engines or images.
//!
//! - [`region`]: page-aligned memory in huge pages where it can be, locked and touched; [`slab`]:
//!   one cut in slots; [`arena`]: memory for many runs that live together.
//! - [`map`]: a file mapped read-only that survives truncation and I/O errors.
//! - [`cpu`]: which core this thread is on, may be on, and must stay on.
//! - [`futex`]: waiting on a word, and waking who waits; [`shared_futex`]: across processes.
//! - [`shared`]: sealed memory that processes share; [`local_socket`]: where they meet; [`place`]: a
//!   socket's place, and who holds it.
//! - [`loop_control`]: requests to the loop driver.
//! - [`interface`]: the kernel's network interfaces; [`interface_features`]: what they do to what is
//!   sent; [`tun`], [`packet_socket`], [`xdp`]: frames
//!   from and to them; [`bpf`]: keeping frames from the kernel; [`namespace`]: a network of one's own.
//! - [`machine`]: which machine a run was made on; [`offers`]: what it has, and how to get the rest.
//! - [`clock`]: time, processor time, cycles, memory in use; [`program`]: where other programs are,
//!   and that they end with us.
//! - [`alias`]: few frames mapped at many pages; [`counters`]: the processor's event counters.
//! - [`plain`]: values that are the same thing as their bytes; [`prefetch`]: hints to the cache;
//!   [`stream`]: copies past it; [`sum`]: the loop of the Internet checksum.
//!
//! Must stay true: no function here can make a caller's safe code unsound; any thread may call any
//! of them.

pub mod alias;
pub mod arena;
pub mod bpf;
pub mod clock;
pub mod counters;
pub mod cpu;
mod error;
pub mod futex;
pub mod interface;
pub mod interface_features;
pub mod local_socket;
pub mod loop_control;
pub mod machine;
pub mod map;
pub mod namespace;
pub mod offers;
pub mod packet_socket;
pub mod place;
pub mod plain;
pub mod prefetch;
pub mod program;
pub mod region;
pub mod shared;
pub mod shared_futex;
pub mod slab;
pub mod stream;
pub mod sum;
pub mod tun;
pub mod xdp;

pub use alias::{AliasOptions, AliasedMap, Frame};
pub use error::SysError;
pub use machine::Machine;
pub use map::FileMap;
pub use plain::Plain;
pub use region::{Backing, HugePages, Region, RegionOptions};
pub use shared::{Overlay, SharedMap, SharedSlice, Sharing};
pub use slab::{Slab, SlotBuf};
