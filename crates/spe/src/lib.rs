#![doc = include_str!("../README.md")]
//!
//! Layers, top down: [`api`] is the C surface; `context` a context's life; `engine` the threads that
//! run contexts; `channel` and `mfc` the SPU's side; `switch`, `store`, `image`, `fault` the machine.
//!
//! Must stay true: structures and numbers are libspe2's; nothing unwinds into the program; what a
//! program does wrong ends that program, never the process.

#![allow(unsafe_code, reason = "a C surface, and foreign code that runs behind it")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the headers say what each function needs"
)]

pub mod api;
mod area;
mod callback;
mod channel;
mod context;
mod engine;
mod events;
mod fault;
mod image;
mod line;
mod mfc;
mod source;
mod store;
mod switch;
mod trace;

/// The headers that host programs include: name and text.
pub const HEADERS: &[(&str, &str)] = &[
    ("libspe2.h", include_str!("../include/libspe2.h")),
    (
        "libspe2-types.h",
        include_str!("../include/libspe2-types.h"),
    ),
    ("cbea_map.h", include_str!("../include/cbea_map.h")),
];
