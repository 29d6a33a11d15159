//! Beside the kernel's own TCP, under one seed: the same applications over the same bad wire, once
//! between two of its sockets and once with our stack at either end, over IPv4 and IPv6. The
//! applications must see the same, and what passes must be right.
//!
//! Needs root and /dev/net/tun, or is left out with a word, unless `SIDECORE_ALL_PROGRAMS` is set. Many
//! seeds: `cargo run --release -p sidecore-net --example differential_net`.

mod common;
#[path = "common/kernel/mod.rs"]
mod kernel;

use kernel::case::Case;
use std::time::Duration;

#[test]
fn applications_see_the_same_as_between_two_kernels() {
    if let Some(obstacle) = kernel::obstacle() {
        assert!(
            std::env::var_os("SIDECORE_ALL_PROGRAMS").is_none(),
            "{obstacle}"
        );
        eprintln!("left out: {obstacle}");
        return;
    }
    let cases: Vec<Case> = (1..=SEEDS).map(Case::of).collect();
    assert!(cases.iter().any(|case| case.v6) && cases.iter().any(|case| !case.v6));
    let runs = kernel::run(&cases, LIMIT);
    let mut failed = Vec::new();
    for (case, runs) in cases.iter().zip(&runs) {
        for complaint in kernel::judge::judge(case, runs) {
            failed.push(format!("seed {} ({:?}): {complaint}", case.seed, case.kind));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Two of each kind.
const SEEDS: u64 = 24;
/// Nobody waits longer for a case.
const LIMIT: Duration = Duration::from_secs(60);
