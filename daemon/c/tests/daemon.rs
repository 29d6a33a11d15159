//! The C headers compile without a warning, wherever they are included, as C and as C++; programs
//! that are linked with the library call kernels, submit jobs, and survive the daemon's death.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

#[path = "common/c.rs"]
mod c;

use c::{LANGUAGES, compile_and_link};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Daemon, DaemonOptions};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_headers_compile_in_any_order_in_any_standard() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, nets, others) = (
        "#include \"sidecore.h\"\n",
        "#include \"sidecore_net.h\"\n",
        // Without the additions of _GNU_SOURCE, where the standard is strict.
        "#include <stdio.h>\n#include <time.h>\n#include <fcntl.h>\n#include <sys/socket.h>\n",
    );
    let orders = [
        [ours, "", ""],
        [nets, "", ""],
        [ours, nets, others],
        [others, nets, ours],
        [others, ours, ours],
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (number, order) in orders.iter().enumerate() {
        let text = format!("{}int main(void) {{ return 0; }}\n", order.concat());
        let source = folder.path().join(format!("order{number}.c"));
        std::fs::write(&source, text).unwrap();
        for (compiler, language, standard) in [
            ("cc", "c", "c99"),
            ("cc", "c", "c11"),
            ("cc", "c", "gnu17"),
            ("c++", "c++", "c++11"),
            ("c++", "c++", "c++17"),
        ] {
            let output = Command::new(compiler)
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"])
                .args(["-x", language, &format!("-std={standard}")])
                .arg("-I")
                .arg(root.join("include"))
                .arg("-I")
                .arg(root.join("../../net/c/include"))
                .arg(&source)
                .output()
                .unwrap_or_else(|error| panic!("{compiler}: {error}; scripts/setup installs it"));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{standard}, order {number}: {said}"
            );
        }
    }
}

#[test]
fn a_c_client_calls_and_survives_the_daemon() {
    for language in LANGUAGES {
        let said = play("sidecore_h.c", language);
        assert!(
            said.starts_with("ready\n") && said.contains("then on its own"),
            "{said}"
        );
    }
}

/// Clocks are system calls if the kernel's vDSO is not mapped.
#[test]
fn a_c_client_runs_under_valgrind() {
    let found = Command::new("valgrind").arg("--version").output();
    found.expect("valgrind; scripts/setup installs it");
    let said = play_under(&["valgrind", "-q", "--error-exitcode=9"], "attach.c");
    assert_eq!(said, "ready\nsum 3.5\n");
}

/// In a container a client has a PID namespace of its own, or the daemon has.
#[test]
fn a_c_client_attaches_from_a_pid_namespace() {
    if !sidecore_is_root() {
        return;
    }
    let said = play_under(&["unshare", "-pf", "--mount-proc"], "attach.c");
    assert_eq!(said, "ready\nsum 3.5\n");
}

fn sidecore_is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

/// Runs a program under a runner while a daemon serves; returns all of its output.
fn play_under(runner: &[&str], source: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let root = env!("CARGO_MANIFEST_DIR");
    let program = compile_and_link(root, source, LANGUAGES[0], folder.path());
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 1,
        ..DaemonOptions::default()
    })
    .unwrap();
    let output = Command::new(runner[0])
        .args(&runner[1..])
        .arg(&program)
        .arg(daemon.socket())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}: {errors}{said}", output.status);
    said
}

/// Runs a program while a daemon serves, which is stopped at the program's line `ready`. Returns
/// all of the program's output.
fn play(source: &str, language: (&str, &str)) -> String {
    let folder = tempfile::tempdir().unwrap();
    let root = env!("CARGO_MANIFEST_DIR");
    let program = compile_and_link(root, source, language, folder.path());
    let daemon = Daemon::start(DaemonOptions {
        socket: folder.path().join("daemon.sock"),
        engines: 2,
        oversubscribe: true,
        registry: Registry::with_spin_us(),
        ..DaemonOptions::default()
    })
    .unwrap();
    let mut child = Command::new(&program)
        .arg(daemon.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    said.read_line(&mut text).unwrap();
    daemon.stop();
    said.read_to_string(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}{text}", output.status);
    text
}

#[test]
fn a_c_client_keeps_a_thousand_jobs_open() {
    for language in LANGUAGES {
        let text = play("jobs.c", language);
        assert!(text.starts_with("ready\n"), "{text}");
        assert!(text.contains("lost, then done here"), "{text}");
    }
}
