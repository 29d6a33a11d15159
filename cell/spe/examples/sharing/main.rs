//! Compares two ways to share engines between programs: the event-driven rule and one queue in the
//! order of arrival, in processes that alternate.
//!
//! Run: `cargo run --release -p sidecore-spe --example sharing [ROUNDS]`, with `-- --json` for one
//! object.

#![allow(unsafe_code, reason = "the interface is C's")]
#![allow(clippy::print_stdout, reason = "figures are what it is for")]

#[cfg(target_arch = "x86_64")]
mod figures;

fn main() {
    #[cfg(target_arch = "x86_64")]
    figures::print();
}
