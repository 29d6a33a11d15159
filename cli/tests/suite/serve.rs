//! `sidecore block serve` read by other authors' programs: nbdcopy, nbdinfo and qemu-img.
//!
//! Must stay true: a tool that is missing fails the test and says to run scripts/setup; nothing is
//! left running.

// A test's helpers may fail it too.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::serving;

use serving::until_it_says;

const MIB: usize = 1 << 20;

/// Runs a tool; panics where it is not installed.
fn run(tool: &str, args: &[&str]) -> Output {
    Command::new(tool)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {tool} ({error}); run scripts/setup first"))
}

/// Runs a tool that must succeed; returns its output.
fn ok(tool: &str, args: &[&str]) -> String {
    let output = run(tool, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn sidecore(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    command.args(["block", "serve"]).args(args);
    command
}

/// A scratch directory with an image: 9 MiB with a hole of 4 MiB in the middle, and one sector
/// more.
struct Scratch {
    directory: tempfile::TempDir,
    contents: Vec<u8>,
}

impl Scratch {
    fn new() -> Self {
        let mut contents = vec![0; 9 * MIB + 512];
        for (at, byte) in contents.iter_mut().enumerate() {
            if !(2 * MIB..6 * MIB).contains(&at) {
                *byte = (at.wrapping_mul(2_654_435_761) >> 13) as u8 | 1;
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let mut file = std::fs::File::create(directory.path().join("image")).unwrap();
        file.write_all(&contents[..2 * MIB]).unwrap();
        file.seek(SeekFrom::Start(6 * MIB as u64)).unwrap();
        file.write_all(&contents[6 * MIB..]).unwrap();
        Self {
            directory,
            contents,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn address(&self) -> String {
        format!("unix:{}", self.text("nbd.sock"))
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.text("nbd.sock"))
    }

    fn serve(&self) -> Serving {
        Serving::start(&[&self.text("image"), "--nbd", &self.address()])
    }
}

/// A server that has said `ready`; killed on drop.
struct Serving {
    child: Child,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let mut child = sidecore(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until_it_says(&mut child, "ready\n");
        Self { child }
    }

    /// Sends a signal; the exit status.
    fn end(mut self, signal: &str) -> Option<i32> {
        ok("kill", &[signal, &self.child.id().to_string()]);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn assert_same(copy: &Path, contents: &[u8]) {
    let got = std::fs::read(copy).unwrap();
    assert_eq!(got.len(), contents.len());
    let differs = got.iter().zip(contents).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{} differs there", copy.display());
}

#[test]
fn nbdcopy_copies_it_over_any_number_of_connections() {
    let scratch = Scratch::new();
    let _serving = scratch.serve();
    for options in [
        &["--connections=1", "--requests=1"][..],
        &["--connections=4"],
        &[
            "--connections=4",
            "--threads=2",
            "--requests=64",
            "--request-size=1048576",
        ],
        &["--allocated", "--request-size=4096"],
        &["--synchronous"],
    ] {
        let copy = scratch.text("copy");
        let uri = scratch.uri();
        ok("nbdcopy", &[options, &[&uri, &copy]].concat());
        assert_same(&scratch.path("copy"), &scratch.contents);
        std::fs::remove_file(copy).unwrap();
    }
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    let scratch = Scratch::new();
    let image = scratch.text("image");
    let _serving = Serving::start(&[&image, "--nbd", &scratch.address(), "--name", "disk"]);
    let info = ok("nbdinfo", &["--json", "--list", &scratch.uri()]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["protocol"], "newstyle-fixed");
    assert_eq!(info["structured"], true);
    let export = &info["exports"][0];
    assert_eq!(export["export-name"], "disk");
    assert_eq!(export["description"], "image, read-only");
    assert_eq!(export["export-size"], scratch.contents.len());
    assert_eq!(export["is_read_only"], true);
    assert_eq!(export["can_multi_conn"], true);
    assert_eq!(export["can_cache"], true);
    assert_eq!(export["can_df"], true);
    assert_eq!(export["can_trim"], false);
    assert_eq!(export["contexts"][0], "base:allocation");
    assert_eq!(export["block_size_minimum"], 1);
    assert_eq!(export["block_size_maximum"], 32 * MIB);
    let uri = format!("nbd+unix:///disk?socket={}", scratch.text("nbd.sock"));
    assert_eq!(
        ok("nbdinfo", &["--size", &uri]).trim(),
        scratch.contents.len().to_string()
    );
    let uri = format!("nbd+unix:///other?socket={}", scratch.text("nbd.sock"));
    assert!(!run("nbdinfo", &["--size", &uri]).status.success());
}

#[test]
fn maps_show_the_hole() {
    let scratch = Scratch::new();
    let _serving = scratch.serve();
    let map = ok("nbdinfo", &["--map", "--json", &scratch.uri()]);
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let extents: Vec<(u64, u64, u64)> = map
        .as_array()
        .unwrap()
        .iter()
        .map(|extent| {
            ["offset", "length", "type"]
                .map(|key| extent[key].as_u64().unwrap())
                .into()
        })
        .collect();
    let mib = MIB as u64;
    let expected = [
        (0, 2 * mib, 0),
        (2 * mib, 4 * mib, 3),
        (6 * mib, 3 * mib + 512, 0),
    ];
    assert_eq!(extents, expected);
    let map = ok(
        "qemu-img",
        &["map", "--output=json", "-f", "raw", &scratch.uri()],
    );
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let zeros: u64 = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|extent| extent["zero"] == true)
        .map(|extent| extent["length"].as_u64().unwrap())
        .sum();
    assert_eq!(zeros, 4 * mib);
}

#[test]
fn qemu_img_converts_and_compares_it() {
    let scratch = Scratch::new();
    let _serving = scratch.serve();
    let (uri, copy) = (scratch.uri(), scratch.text("copy"));
    ok(
        "qemu-img",
        &[
            "convert", "-m", "8", "-W", "-f", "raw", "-O", "raw", &uri, &copy,
        ],
    );
    assert_same(&scratch.path("copy"), &scratch.contents);
    let image = scratch.text("image");
    ok(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &uri, &image],
    );
    // A comparison that cannot fail proves nothing.
    let mut changed = scratch.contents.clone();
    changed[7 * MIB] ^= 1;
    std::fs::write(&copy, changed).unwrap();
    let differs = run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", &uri, &copy],
    );
    assert_eq!(differs.status.code(), Some(1));
}

#[test]
fn it_serves_unix_and_tcp_at_once_and_an_odd_size() {
    let scratch = Scratch::new();
    let contents: Vec<u8> = (0..100_001_u32).map(|at| (at / 3) as u8).collect();
    std::fs::write(scratch.path("image"), &contents).unwrap();
    let image = scratch.text("image");
    let unix = scratch.address();
    let mut serving = Serving::start(&[&image, "--nbd", &unix, "--nbd", "tcp:127.0.0.1:0"]);
    let mut line = String::new();
    let mut said = BufReader::new(serving.child.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    let port = line
        .trim()
        .strip_prefix("serving at tcp:")
        .expect("no port was said");
    for uri in [scratch.uri(), format!("nbd://{port}/")] {
        let copy = scratch.text("copy");
        ok("nbdcopy", &[&uri, &copy]);
        assert_same(&scratch.path("copy"), &contents);
    }
}

#[test]
fn signals_end_it_cleanly() {
    let scratch = Scratch::new();
    for signal in ["-INT", "-TERM"] {
        let serving = scratch.serve();
        ok("nbdinfo", &["--size", &scratch.uri()]);
        assert_eq!(serving.end(signal), Some(0));
        assert!(
            !scratch.path("nbd.sock").exists(),
            "the socket was left behind"
        );
    }
}

#[test]
fn a_killed_server_can_be_started_again_and_a_live_one_is_left_alone() {
    let scratch = Scratch::new();
    let serving = scratch.serve();
    assert_eq!(serving.end("-KILL"), None);
    assert!(
        scratch.path("nbd.sock").exists(),
        "kill -9 is expected to leave the socket"
    );
    let _serving = scratch.serve();
    let (image, address) = (scratch.text("image"), scratch.address());
    let second = sidecore(&[&image, "--nbd", &address]).output().unwrap();
    assert_eq!(second.status.code(), Some(2));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        said.contains("already listening") && said.lines().count() == 1,
        "{said}"
    );
    assert!(second.stdout.is_empty());
    ok("nbdinfo", &["--size", &scratch.uri()]);
}

#[test]
fn bad_arguments_are_one_clear_line() {
    let scratch = Scratch::new();
    let (image, missing, address) = (
        scratch.text("image"),
        scratch.text("missing"),
        scratch.address(),
    );
    let nowhere = format!("unix:{}", scratch.text("no/such/directory/x"));
    let long = format!("unix:{}", scratch.text(&"x".repeat(120)));
    for (args, says) in [
        ([&missing[..], "--nbd", &address], "missing"),
        ([&image, "--nbd", "here"], "unix:PATH or tcp:HOST:PORT"),
        ([&image, "--nbd", &nowhere], "make its directory first"),
        ([&image, "--nbd", &long], "107 bytes"),
        ([&image, "--nbd", &format!("unix:{image}")], "no socket"),
    ] {
        let output = sidecore(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains(says) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    }
    assert_same(&scratch.path("image"), &scratch.contents);
}

/// With a full cache and random reads, the process's own memory (`RssAnon`) stays within
/// `--memory`.
#[test]
fn the_memory_that_is_allowed_is_not_exceeded() {
    let scratch = Scratch::new();
    let words: Vec<u8> = (0..7_000_000_u32)
        .flat_map(|at| (at ^ at.wrapping_mul(at) >> 9).to_le_bytes())
        .collect();
    std::fs::write(scratch.path("words"), words.repeat(2)).unwrap();
    let (source, image) = (scratch.text("words"), scratch.text("words.img"));
    let mut pack = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    pack.args([
        "block", "pack", &source, "-o", &image, "--level", "1", "--frame", "128KiB",
    ]);
    assert!(pack.output().unwrap().status.success());
    let address = scratch.address();
    let memory = ["--memory", "32MiB", "--engines", "2"];
    let server = Serving::start(&[&[&*image, "--nbd", &address], &memory[..]].concat());
    let uri = scratch.uri();
    ok("nbdcopy", &[&uri, "null:"]);
    let scattered = ["-c", "4000", "-d", "16", "-s", "4096", "-S", "1183744"];
    ok(
        "qemu-img",
        &[&["bench", "-f", "raw"], &scattered[..], &[&*uri]].concat(),
    );
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .unwrap();
    assert!(kib > 20 << 10, "the cache was not filled: {kib} KiB");
    assert!(kib <= 32 << 10, "{kib} KiB");
}
