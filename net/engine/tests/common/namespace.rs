//! Helpers of network tests: a network namespace of their own, and frames.
#![allow(clippy::unwrap_used, dead_code)] // Helper functions of tests; each test uses some.

use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `test` on a thread in its own network namespace, which ends with it: its interfaces are
/// invisible outside and removed afterwards.
pub(crate) fn in_namespace<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        assert!(
            rustix::process::geteuid().is_root(),
            "this test makes network interfaces in a namespace of its own and needs root: \
             `sudo -E cargo test -p sidecore-net`"
        );
        unshare();
        ip("link set lo up");
        test()
    });
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[allow(unsafe_code)] // unshare(2) of the calling thread
fn unshare() {
    // SAFETY: the thread leaves only the network namespace; descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
        .expect("a network namespace of its own");
}

/// The reason why a test cannot create a TAP in a namespace.
pub(crate) fn no_taps() -> Option<&'static str> {
    let root = rustix::process::geteuid().is_root();
    let taps = root && std::path::Path::new("/dev/net/tun").exists();
    (!taps).then_some("it needs root and /dev/net/tun")
}

/// True if an `obstacle` prevents a test from running, which is printed; if `SIDECORE_ALL_PROGRAMS`
/// is set, the test fails.
pub(crate) fn is_left_out(obstacle: Option<&str>) -> bool {
    let Some(obstacle) = obstacle else {
        return false;
    };
    let all = std::env::var_os("SIDECORE_ALL_PROGRAMS").is_some();
    assert!(!all, "{obstacle}");
    eprintln!("left out: {obstacle}");
    true
}

/// Runs `ip` with these words.
pub(crate) fn ip(words: &str) {
    run("ip", words);
}

/// Runs a program, which must succeed.
pub(crate) fn run(program: &str, words: &str) -> String {
    let output = Command::new(program)
        .args(words.split_whitespace())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}; scripts/setup installs it"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {words}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A pair of virtual Ethernet interfaces, both up.
pub(crate) fn veth(near: &str, far: &str) {
    ip(&format!("link add {near} type veth peer name {far}"));
    ip(&format!("link set {near} up"));
    ip(&format!("link set {far} up"));
}

/// Both ends perform duplicate address detection first.
pub(crate) fn wait_for_ipv6() {
    // A ping fails while the kernel's own address is still tentative.
    let begun = Instant::now();
    let answered = || {
        let mut ping = Command::new("ping");
        let output = ping.args("-6 -c 1 -w 2 fd77::2".split(' ')).output();
        output.unwrap().status.success()
    };
    while !answered() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "no answer over IPv6"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}
