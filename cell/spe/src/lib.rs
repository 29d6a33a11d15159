#![doc = include_str!("../README.md")]
//!
//! Layers, top down: `api` is the C surface; `context` a context's life; `engine` the threads that
//! run contexts; `channel`, `mail` and `mfc` the SPU's side; `switch`, `store`, `image`, `fault`,
//! `interrupt` the machine; `interpreted` the one of the SPU's own programs, `translated` its code.
//! On other processors than x86-64 the headers alone are here: SPU programs are x32 code.
//!
//! Must stay true: structures and numbers are libspe2's; nothing unwinds into the program; an error
//! of a program ends that program, never the process.

#![allow(
    unsafe_code,
    reason = "a C surface, and foreign code that runs behind it"
)]
#![allow(
    clippy::missing_safety_doc,
    reason = "the headers say what each function needs"
)]

#[cfg(target_arch = "x86_64")]
pub mod api;
#[cfg(target_arch = "x86_64")]
mod area;
#[cfg(target_arch = "x86_64")]
mod callback;
#[cfg(target_arch = "x86_64")]
mod channel;
#[cfg(target_arch = "x86_64")]
mod context;
#[cfg(target_arch = "x86_64")]
mod engine;
#[cfg(target_arch = "x86_64")]
mod events;
#[cfg(target_arch = "x86_64")]
mod fault;
#[cfg(target_arch = "x86_64")]
mod image;
#[cfg(target_arch = "x86_64")]
mod interpreted;
#[cfg(target_arch = "x86_64")]
mod interrupt;
#[cfg(target_arch = "x86_64")]
mod line;
#[cfg(target_arch = "x86_64")]
mod mail;
#[cfg(target_arch = "x86_64")]
mod mfc;
#[cfg(target_arch = "x86_64")]
mod registers;
#[cfg(target_arch = "x86_64")]
mod source;
#[cfg(target_arch = "x86_64")]
mod store;
#[cfg(target_arch = "x86_64")]
mod stray;
#[cfg(target_arch = "x86_64")]
mod switch;
pub mod trace;
#[cfg(target_arch = "x86_64")]
pub mod translated;

/// The headers that host programs include: name and text.
pub const HEADERS: &[(&str, &str)] = &[
    ("libspe2.h", include_str!("../include/libspe2.h")),
    (
        "libspe2-types.h",
        include_str!("../include/libspe2-types.h"),
    ),
    ("cbea_map.h", include_str!("../include/cbea_map.h")),
];
