//! Measures a mailbox round trip between a host that spins and a program that spins, and a switch
//! between parked contexts: two contexts of one engine hand a signal to each other.
//!
//! Run: `SIDECORE_SPE_ENGINES=1 cargo run --release -p sidecore-spe --example latency`, with
//! `-- --json` for one object. Both sides of the round trip spin: it needs two processors.

#![allow(unsafe_code, reason = "the interface is C's")]
#![allow(clippy::print_stdout, reason = "figures are what it is for")]

#[cfg(target_arch = "x86_64")]
mod figures;

fn main() {
    #[cfg(target_arch = "x86_64")]
    figures::print();
}
