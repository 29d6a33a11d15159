//! The C header: compiles without a warning as C and as C++, calls kernels, and survives the
//! daemon's death.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

#[path = "common/c.rs"]
mod c;

use c::{LANGUAGES, compile};
use sidecore_offload::daemon::{Daemon, DaemonOptions};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_c_client_calls_and_survives_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    for language in LANGUAGES {
        let root = env!("CARGO_MANIFEST_DIR");
        let program = compile(root, "sidecore_h.c", language, folder.path());
        let options = DaemonOptions {
            socket: folder.path().join("daemon.sock"),
            engines: 2,
            oversubscribe: true,
            grace: Duration::from_millis(1),
            ..DaemonOptions::default()
        };
        let daemon = Daemon::start(options).unwrap();
        let mut child = Command::new(&program)
            .arg(daemon.socket())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        // Also where it failed before: it ends, and its status is looked at below.
        daemon.stop();
        said.read_line(&mut line).unwrap();
        let status = child.wait().unwrap();
        let mut errors = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut errors)
            .unwrap();
        assert!(status.success(), "{status}: {errors}");
        assert!(
            line.starts_with("ready\n") && line.contains("then on its own"),
            "{line}"
        );
    }
}
