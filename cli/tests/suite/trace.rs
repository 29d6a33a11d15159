//! `--trace-events` of servers, and `trace summary`: the work that was done is in the file, once;
//! and a file that cannot be written takes nothing from what is served.
//!
//! Must stay true: every server that a test starts ends with the test, also when it fails.

use crate::serving::until_it_says;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sidecore_trace::summary::Summary;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn sidecore(words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120", env!("CARGO_BIN_EXE_sidecore")]);
    command.args(words);
    command
}

fn ok(tool: &str, words: &[&str]) -> Output {
    let output = Command::new(tool).args(words).output();
    let output =
        output.unwrap_or_else(|error| panic!("cannot run {tool} ({error}); run scripts/setup"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{tool} {words:?}: {said}");
    output
}

/// A folder with an image of [`FRAMES`] frames that do not compress to nothing.
struct Scratch(tempfile::TempDir);

const FRAMES: u64 = 16;
const FRAME_BYTES: usize = 64 << 10;

impl Scratch {
    fn new() -> Self {
        let scratch = Self(tempfile::tempdir().unwrap());
        let bytes = FRAMES as u32 * FRAME_BYTES as u32 / 4;
        let words = (0..bytes).map(|at| (at / 5).wrapping_mul(2_654_435_761) >> 3);
        let contents: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
        std::fs::write(scratch.path("raw"), contents).unwrap();
        let (raw, image) = (scratch.text("raw"), scratch.text("image"));
        let words = ["block", "pack", &raw, "-o", &image, "--frame", "64KiB"];
        assert!(sidecore(&words).output().unwrap().status.success());
        scratch
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The words that serve its image and record into `events`.
    fn serving(&self, events: &str) -> Vec<String> {
        let address = format!("unix:{}", self.text("nbd.sock"));
        let (image, events) = (self.text("image"), self.text(events));
        let words = ["block", "serve", &image, "--nbd", &address];
        let words = words.into_iter().chain(["--trace-events", &events]);
        words.map(str::to_owned).collect()
    }

    /// Copies all of the image by one request, so that nothing is read ahead.
    fn copy(&self) {
        let uri = format!("nbd+unix:///?socket={}", self.text("nbd.sock"));
        let (copy, raw) = (self.text("copy"), self.text("raw"));
        let words = [
            "--connections=1",
            "--requests=1",
            "--request-size=1048576",
            &uri,
            &copy,
        ];
        ok("nbdcopy", &words);
        ok("cmp", &[&raw, &copy]);
    }
}

/// A server that has said it is ready; killed on drop.
struct Server(Child);

impl Server {
    fn start(program: &str, words: &[String], ready: &str) -> Self {
        let mut command = Command::new(program);
        command
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        until_it_says(&mut child, ready);
        Self(child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Ends it by SIGTERM; its exit status, and what it said on standard error.
    fn end(mut self) -> (Option<i32>, String) {
        self.signal(Signal::TERM);
        let status = self.0.wait().unwrap();
        let mut said = String::new();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (status.code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file's summary, which checks every event, and its spans of a name with their arguments.
fn read(path: &Path, name: &str) -> (Value, Vec<Value>) {
    let summary = Summary::read(File::open(path).unwrap()).unwrap();
    let summary = serde_json::to_value(summary).unwrap();
    let file: Value = serde_json::from_reader(File::open(path).unwrap()).unwrap();
    let events = file["traceEvents"].as_array().unwrap().iter();
    let named = events.filter(|event| event["name"] == name && event["ph"] == "B");
    let arguments = named.map(|event| event["args"].clone());
    (summary, arguments.collect())
}

/// The row of a summary's table whose name begins so.
fn named<'s>(summary: &'s Value, table: &str, begins: &str) -> Option<&'s Value> {
    let mut rows = summary[table].as_array()?.iter();
    rows.find(|row| {
        row["name"]
            .as_str()
            .is_some_and(|it| it.starts_with(begins))
    })
}

#[test]
fn every_frame_that_was_decompressed_is_in_the_file_once() {
    let scratch = Scratch::new();
    let words = scratch.serving("events.json");
    let server = Server::start(env!("CARGO_BIN_EXE_sidecore"), &words, "ready\n");
    scratch.copy();
    let (status, said) = server.end();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("trace events on"), "{said}");
    let (summary, decompressed) = read(&scratch.path("events.json"), "decompress");
    let mut frames = BTreeMap::<u64, u32>::new();
    for arguments in &decompressed {
        *frames
            .entry(arguments["frame"].as_u64().unwrap())
            .or_default() += 1;
    }
    let once: BTreeMap<u64, u32> = (0..FRAMES).map(|frame| (frame, 1)).collect();
    assert_eq!(frames, once);
    // Each was asked for by a read, or by its read-ahead.
    let waits = named(&summary, "waits", "frame").unwrap();
    assert_eq!(waits["count"], FRAMES);
    assert!(
        named(&summary, "tracks", "engine 0 (cpu ").is_some(),
        "{summary}"
    );
    let (_, reads) = read(&scratch.path("events.json"), "NBD read");
    let bytes: u64 = reads
        .iter()
        .map(|read| read["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(bytes, FRAMES * FRAME_BYTES as u64);
    assert_eq!(summary["events_lost"], 0);
    // As text it fits a terminal.
    let events = scratch.text("events.json");
    let text = sidecore(&["trace", "summary", &events])
        .output()
        .unwrap()
        .stdout;
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("decompress"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn a_signal_writes_the_file_while_the_server_goes_on() {
    let scratch = Scratch::new();
    let words = scratch.serving("events.json");
    let server = Server::start(env!("CARGO_BIN_EXE_sidecore"), &words, "ready\n");
    scratch.copy();
    assert!(!scratch.path("events.json").exists());
    server.signal(Signal::USR2);
    let begun = Instant::now();
    while !scratch.path("events.json").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no file");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (summary, _) = read(&scratch.path("events.json"), "");
    assert!(named(&summary, "names", "decompress").is_some());
    scratch.copy();
    assert_eq!(server.end().0, Some(0));
    let (later, _) = read(&scratch.path("events.json"), "");
    assert!(later["events"].as_u64() > summary["events"].as_u64());
}

#[test]
fn a_file_that_cannot_be_written_takes_nothing_from_what_is_served() {
    let scratch = Scratch::new();
    // A limit on the length of files: as a full disk, without one.
    let words = scratch.serving("events.json").join(" ");
    let script = format!(
        "ulimit -f 8; exec {} {words}",
        env!("CARGO_BIN_EXE_sidecore")
    );
    let server = Server::start("sh", &["-c".to_owned(), script], "ready\n");
    scratch.copy();
    server.signal(Signal::USR2);
    scratch.copy();
    let (status, said) = server.end();
    assert_eq!(status, Some(0), "{said}");
    let failures: Vec<_> = said
        .lines()
        .filter(|line| line.contains("cannot write"))
        .collect();
    assert!(!failures.is_empty() && failures.len() <= 2, "{said}");
    assert!(
        failures.iter().all(|line| line.contains("events.json")),
        "{said}"
    );
    assert!(!scratch.path("events.json").exists());
}

#[test]
fn what_is_no_place_for_a_recording_is_refused_in_one_line() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("folder")).unwrap();
    let address = format!("unix:{}", scratch.text("nbd.sock"));
    let (image, raw) = (scratch.text("image"), scratch.text("raw"));
    for place in [
        "-",
        &raw,
        &scratch.text("none/events"),
        &scratch.text("folder"),
    ] {
        let words = [
            "block",
            "serve",
            &image,
            "--nbd",
            &address,
            "--trace-events",
            place,
        ];
        let output = sidecore(&words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{place}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{place}: {said}");
        assert!(said.starts_with("sidecore: "), "{said}");
    }
    // Neither the image's source nor a socket was touched.
    assert_eq!(
        std::fs::metadata(&raw).unwrap().len(),
        FRAMES * FRAME_BYTES as u64
    );
    let words = ["trace", "summary", &raw];
    let output = sidecore(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_daemon_records_calls_by_kernel_and_client() {
    let scratch = Scratch::new();
    let (socket, events) = (scratch.text("daemon.sock"), scratch.text("events.json"));
    let words = [
        "daemon",
        "--engines",
        "1",
        "--oversubscribe",
        "--socket",
        &socket,
    ];
    let words = words.into_iter().chain(["--trace-events", &events]);
    let words: Vec<String> = words.map(str::to_owned).collect();
    let ready = format!("ready {socket}\n");
    let server = Server::start(env!("CARGO_BIN_EXE_sidecore"), &words, &ready);
    let raw = scratch.text("raw");
    let call = [
        "offload", "call", "xxh3", "--input", &raw, "--socket", &socket,
    ];
    // A client whose engine gets no core in time does the call itself.
    let is_served = || {
        let output = sidecore(&call).output().unwrap();
        assert!(output.status.success());
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).contains("1 calls on the daemon's engines")
    };
    assert!((0..100).any(|_| is_served()), "no call was served");
    let (status, said) = server.end();
    assert_eq!(status, Some(0), "{said}");
    let (summary, calls) = read(&scratch.path("events.json"), "call");
    assert!(
        calls.iter().any(|call| call["kernel"] == "xxh3"),
        "{calls:?}"
    );
    assert!(
        calls
            .iter()
            .all(|call| call["client_pid"].as_u64() > Some(1))
    );
    assert!(named(&summary, "tracks", "engine 0 (cpu ").is_some());
}
