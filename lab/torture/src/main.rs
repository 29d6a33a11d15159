//! Makes one system call after the other fail under every command and server of Sidecore.
//!
//! Why here: memory, descriptors, threads, disks and peers run out on other machines first. For
//! each scenario the calls that can fail are counted. Then each fails once, then again from there
//! on, moves half of its bytes, or is interrupted, in a run of its own. Must stay true: a run ends
//! in bounded time, without a panic, and leaves whole files or none, no mount, no process; the seed
//! that chose the calls is printed. Exit status: 0 no finding, 1 findings, 2 could not run.

// Calls are changed in the registers of x86-64, and many that fail there exist on no other.
#[cfg(target_arch = "x86_64")]
mod faults;
#[cfg(target_arch = "x86_64")]
mod program;
#[cfg(target_arch = "x86_64")]
mod run;
#[cfg(target_arch = "x86_64")]
mod scenario;
#[cfg(target_arch = "x86_64")]
mod tracer;

use std::process::ExitCode;

#[cfg(target_arch = "x86_64")]
fn main() -> ExitCode {
    program::main()
}

#[cfg(not(target_arch = "x86_64"))]
fn main() -> ExitCode {
    eprintln!("torture: it traces calls of x86-64 alone; run it on such a machine");
    ExitCode::from(2)
}
