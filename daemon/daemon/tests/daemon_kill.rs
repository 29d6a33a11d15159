//! Daemons and clients that are killed or stopped under load: every result is right.
//!
//! 30 rounds unless `SIDECORE_SOAK_ROUNDS` says otherwise; the example `daemon_soak` does a
//! thousand.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; seeds.

mod soak;

use std::path::Path;
use std::process::Command;

const ROLE: &str = "SIDECORE_TEST_ROLE";
const SOCKET: &str = "SIDECORE_TEST_SOCKET";

/// Not a test of its own: the code of child processes.
#[test]
fn child() {
    if let (Ok(role), Ok(socket)) = (std::env::var(ROLE), std::env::var(SOCKET)) {
        soak::play(&role, Path::new(&socket));
    }
}

#[test]
fn every_result_is_right_while_daemons_and_clients_are_killed() {
    let rounds = std::env::var("SIDECORE_SOAK_ROUNDS").map_or(30, |text| text.parse().unwrap());
    let seed = 0x5eed_0001;
    let report = soak::run(rounds, seed, |role, socket| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["child", "--exact", "--nocapture"]);
        command.env(ROLE, role).env(SOCKET, socket);
        command.stdout(std::process::Stdio::null());
        command
    });
    println!("seed {seed:#x}: {report:?}");
    assert!(report.on_engines > 0 && report.on_host > 0, "{report:?}");
    assert!(
        report.daemons_killed > 0 && report.clients_killed > 0,
        "{report:?}"
    );
}
