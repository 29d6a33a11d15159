//! `sidecore net` as people run it, with the kernel's programs on the other side. Needs root and
//! /dev/net/tun: interfaces are made in a network namespace of the test's own.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use crate::namespace;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

const SIDECORE: &str = env!("CARGO_BIN_EXE_sidecore");

struct Running(Child, BufReader<ChildStdout>);

impl Running {
    /// Starts it and waits for its first line.
    fn start(folder: &Path, words: &str) -> Self {
        let mut child = Command::new(SIDECORE)
            .args(words.split_whitespace())
            .current_dir(folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.starts_with("ready "), "{words}: {line}");
        Self(child, said)
    }

    /// Ends it by SIGTERM; returns the rest of its output.
    fn end(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut rest = String::new();
        self.1.read_to_string(&mut rest).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
        rest
    }
}

fn sidecore(folder: &Path, words: &str) -> Output {
    Command::new(SIDECORE)
        .args(words.split_whitespace())
        .current_dir(folder)
        .output()
        .unwrap()
}

/// Exit status 2, and one line that says so.
fn refused(folder: &Path, words: &str, expected: &str) {
    let output = sidecore(folder, words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{words}: {said}");
    assert_eq!(said.trim().lines().count(), 1, "{words}: {said}");
    assert!(said.contains(expected), "{words}: {said}");
}

const CONFIG: &str = "socket = \"net.sock\"\n[nic]\nkind = \"tap\"\nname = \"sidecore0\"\n\
                      host = [\"10.77.0.1/24\"]\n[stack]\naddresses = [\"10.77.0.2/24\"]\n";

#[test]
fn up_serves_the_kernels_programs() {
    namespace::in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::write(folder.join("net.toml"), CONFIG).unwrap();
        let up = Running::start(folder, "net up net.toml");
        let echo = Running::start(folder, "net echo 0.0.0.0:7 --socket net.sock");
        namespace::run("ping", "-c 2 -i 0.2 -w 15 10.77.0.2");
        let said = Command::new("sh")
            .args(["-c", "echo hello stack | timeout 20 nc -N 10.77.0.2 7"])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "hello stack\n");

        refused(folder, "net up net.toml", "another engine serves");
        refused(
            folder,
            "net up net.toml --socket other.sock",
            "choose another name",
        );
        refused(
            folder,
            "net echo 0.0.0.0:7 --socket net.sock",
            "choose another port",
        );
        refused(
            folder,
            "net echo 192.0.2.1:7 --socket net.sock",
            "not an address of this stack",
        );

        let status = sidecore(folder, "net status --json --socket net.sock");
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!(status["addresses"][0], "10.77.0.2/24");
        assert_eq!(status["stack"]["malformed"], 0);
        assert_eq!(status["applications"][0]["received_bytes"], 12);
        let text = sidecore(folder, "net status --socket net.sock").stdout;
        assert!(String::from_utf8_lossy(&text).contains("12 received"));
        let text = sidecore(folder, "net status --metrics --socket net.sock").stdout;
        let text = String::from_utf8_lossy(&text);
        let opened = "# TYPE sidecore_net_sessions_opened_total counter\n\
                      sidecore_net_sessions_opened_total 1\n";
        assert!(text.contains(opened), "{text}");
        let received = text
            .lines()
            .find(|line| line.starts_with("sidecore_net_application_received_bytes_total{pid="));
        assert!(received.is_some_and(|line| line.ends_with(" 12")), "{text}");

        let served: serde_json::Value = serde_json::from_str(&echo.end()).unwrap();
        assert_eq!(
            (&served["sessions"], &served["sent_bytes"]),
            (&1.into(), &12.into())
        );
        assert_eq!(up.end(), "");
        refused(folder, "net status --socket net.sock", "sidecore net up");
    });
}

#[test]
fn two_engines_serve_one_address() {
    namespace::in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let config = format!("{CONFIG}[engine]\ncount = 2\n");
        std::fs::write(folder.join("net.toml"), config).unwrap();
        let up = Running::start(folder, "net up net.toml");
        let echo = Running::start(folder, "net echo 0.0.0.0:7 --socket net.sock");
        for _ in 0..40 {
            let mut stream = std::net::TcpStream::connect("10.77.0.2:7").unwrap();
            stream.write_all(b"hello").unwrap();
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"hello");
        }
        let status = sidecore(folder, "net status --json --socket net.sock");
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!(status["stack"]["opened"], 40);
        let engines = status["engines"].as_array().unwrap();
        let opened = engines
            .iter()
            .map(|engine| engine["stack"]["opened"].as_u64());
        let opened: Vec<u64> = opened.map(Option::unwrap).collect();
        assert!(opened.len() == 2 && !opened.contains(&0), "{opened:?}");
        let text = sidecore(folder, "net status --socket net.sock").stdout;
        let text = String::from_utf8_lossy(&text);
        let lines = text.lines().filter(|line| line.starts_with("engine "));
        assert_eq!(lines.count(), 2, "{text}");
        let text = sidecore(folder, "net status --metrics --socket net.sock").stdout;
        let text = String::from_utf8_lossy(&text);
        let opened = format!(
            "sidecore_net_sessions_opened_total{{engine=\"1\"}} {}\n",
            opened[1]
        );
        assert!(text.contains(&opened), "{text}");
        let served: serde_json::Value = serde_json::from_str(&echo.end()).unwrap();
        assert_eq!(served["sessions"], 40);
        assert_eq!(up.end(), "");
        assert!(!folder.join("net.sock.1").exists());
        refused(
            folder,
            "net http --config net.toml",
            "use `sidecore net up`",
        );
    });
}

#[test]
fn what_cannot_come_up_says_why_in_one_line() {
    namespace::in_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        refused(folder, "net up net.toml", "cannot read net.toml");
        for (from, to, expected) in [
            ("\"tap\"", "\"dpdk\"", "tap, packet, xdp or"),
            ("\"tap\"", "\"packet\"", "no interface `sidecore0`"),
            ("\"tap\"", "\"xdp\"", "no interface `sidecore0`"),
            ("\"sidecore0\"", "\"lo\"", "choose another"),
            ("10.77.0.2/24", "10.77.0.2", "like 10.77.0.2/24"),
            ("[stack]", "[engine]\ncount = 65\n[stack]", "1 to 64"),
            (
                "[stack]",
                "[engine]\ncount = 2\ncpu = 0\n[stack]",
                "engine.cpus",
            ),
        ] {
            std::fs::write(folder.join("net.toml"), CONFIG.replace(from, to)).unwrap();
            refused(folder, "net up net.toml", expected);
        }
        std::fs::write(folder.join("net.toml"), CONFIG).unwrap();
        // A script that waits for their first line would wait for ever.
        for words in ["net up net.toml", "net http --config net.toml"] {
            let full = std::fs::File::options().write(true).open("/dev/full");
            let output = Command::new(SIDECORE)
                .args(words.split_whitespace())
                .current_dir(folder)
                .stdout(full.unwrap())
                .stderr(Stdio::piped())
                .spawn()
                .and_then(Child::wait_with_output)
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{words}: {said}");
            assert_eq!(said.trim().lines().count(), 1, "{words}: {said}");
            assert!(said.contains("No space left"), "{words}: {said}");
        }
        // Root without its privileges.
        let output = Command::new("setpriv")
            .args(["--bounding-set=-all", "--inh-caps=-all", SIDECORE])
            .args(["net", "up", "net.toml"])
            .current_dir(folder)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.trim().lines().count(), 1, "{said}");
        assert!(said.contains("CAP_NET_ADMIN is needed"), "{said}");
    });
}
