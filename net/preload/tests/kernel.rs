//! Programs that load the library without a supervisor: each case of `net/run/tests/cases` prints
//! what it prints without the library, and ends alike.
//!
//! Why here: a program that starts others may leave its environment to them, outside of a run. The
//! library must then change nothing. Needs python3 and cc; no root, no network but the loopback.
//! `SIDECORE_CASES=WORD` runs only the cases whose names have the word in them.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

#[path = "../../run/tests/suite/unpack.rs"]
mod unpack;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use unpack::unpacked;

/// A case takes less than three seconds on an idle machine; one that takes this long hangs.
const PATIENCE_SECONDS: &str = "60";

/// Cases that run at once: most of them wait most of their time.
const WORKERS: usize = 8;

/// Runs, both ways, of a case that differs: some depend on the machine's load.
const RUNS_MAX: usize = 3;

/// The library: cargo puts it next to the tests of its package.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.with_file_name("libsidecore_net_preload.so");
    assert!(library.is_file(), "{}", library.display());
    library
}

/// Runs a command, with or without the library: its output, and how it ended.
fn run(command: &[PathBuf], scratch: &Path, with_library: bool) -> String {
    let out = scratch.join("out");
    let mut timeout = Command::new("timeout");
    timeout
        .args(["--signal=KILL", PATIENCE_SECONDS, "env"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SIDECORE_NET_RINGS_AFTER", "0");
    if with_library {
        let mut preload = std::ffi::OsString::from("LD_PRELOAD=");
        preload.push(library());
        timeout.arg(preload);
    }
    // Into a file: a process that a case leaves behind could hold a pipe open.
    let status = timeout
        .args(command)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let said = String::from_utf8_lossy(&std::fs::read(out).unwrap()).into_owned();
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap());
    format!("{said}exit status: {code}\n")
}

/// The first line in which two texts differ, of both.
fn first_difference<'t>(one: &'t str, other: &'t str) -> Option<(&'t str, &'t str)> {
    let pad = std::iter::repeat("");
    let (ones, others) = (one.lines().chain(pad.clone()), other.lines().chain(pad));
    let lines = one.lines().count().max(other.lines().count());
    ones.zip(others)
        .take(lines)
        .find(|(one, other)| one != other)
}

/// All cases, those in C compiled into `folder`.
fn cases(folder: &Path) -> Vec<(String, Vec<PathBuf>)> {
    let wanted = std::env::var("SIDECORE_CASES").unwrap_or_default();
    let mut cases = Vec::new();
    for path in unpacked(folder) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !name.contains(&wanted) {
            continue;
        }
        let command = match path.extension().and_then(OsStr::to_str) {
            Some("py") => vec!["python3".into(), path],
            Some("c") => vec![compile(&path, &path.with_extension(""))],
            _ => panic!("{} is no case", path.display()),
        };
        cases.push((name, command));
    }
    assert!(!wanted.is_empty() || cases.len() > 100, "{}", cases.len());
    cases
}

fn compile(source: &Path, program: &Path) -> PathBuf {
    let compiled = Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([program, source])
        .status();
    let compiled = compiled.unwrap_or_else(|error| panic!("cc: {error}"));
    assert!(compiled.success(), "cc: {}", source.display());
    program.to_owned()
}

#[test]
fn without_a_supervisor_every_case_prints_what_it_prints_without_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let cases = Mutex::new(cases(folder.path()));
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..WORKERS {
            let scratch = folder.path().join(format!("worker{worker}"));
            std::fs::create_dir(&scratch).unwrap();
            let (cases, failures) = (&cases, &failures);
            scope.spawn(move || {
                let next = || cases.lock().unwrap().pop();
                while let Some((name, command)) = next() {
                    let failure = judge(&name, &command, &scratch);
                    failures.lock().unwrap().extend(failure);
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.concat());
}

/// Runs a case both ways; the first difference, if there is one in each of some runs.
fn judge(name: &str, command: &[PathBuf], scratch: &Path) -> Option<String> {
    let mut differs = None;
    for _ in 0..RUNS_MAX {
        let plain = run(command, scratch, false);
        let ours = run(command, scratch, true);
        let (plain, ours) = first_difference(&plain, &ours)?;
        differs = Some(format!("{name}:\n    plain: {plain}\n    ours:  {ours}\n"));
    }
    differs
}

/// The comparison sees a difference of output, of exit status, and of length.
#[test]
fn a_difference_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let shell = |words: &str| {
        let command = ["sh", "-c", words].map(PathBuf::from);
        run(&command, folder.path(), true)
    };
    let one = shell("echo one; echo two; exit 3");
    assert_eq!(one, "one\ntwo\nexit status: 3\n");
    assert_eq!(first_difference(&one, &one), None);
    let other = shell("echo one; exit 3");
    assert_eq!(
        first_difference(&one, &other),
        Some(("two", "exit status: 3"))
    );
    assert_eq!(shell("kill -9 $$"), "exit status: 137\n");
    assert_eq!(first_difference("a\n", "a\nb\n"), Some(("", "b")));
}

/// A program whose call the library cannot make would end; so all names must be found.
#[test]
fn the_library_loads_with_all_its_names_resolved() {
    let library = library();
    let loaded = Command::new("env")
        .arg(format!("LD_PRELOAD={}", library.display()))
        .args(["LD_BIND_NOW=1", "true"])
        .output()
        .unwrap();
    assert!(loaded.status.success());
    let said = String::from_utf8_lossy(&loaded.stderr);
    assert!(said.is_empty(), "{said}");
}
