//! The sessions of README.md and docs/, run as they stand: every command succeeds, and prints the
//! page's output, except for numbers.
//!
//! A block that begins with ```` ```console ```` is a session: `$ ` begins a command, `> `
//! continues it, the rest is its output, with a line `...` for any lines. Output of ```` ```console
//! measured ```` differs from machine to machine and is not compared. `SIDECORE_WRITE_SESSIONS=yes`
//! writes the actual output into the pages.
//!
//! Must stay true: each page has mount, network and process namespaces of its own, which end with
//! it: nothing is left behind. Needs root and the packages of `scripts/setup`.

#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

use super::repository::files;
use sidecore_plot::{TerminalLine, terminal};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGES: [&str; 18] = [
    "README.md",
    "docs/users/images.md",
    "docs/users/kernels.md",
    "docs/users/pages.md",
    "docs/users/run.md",
    "docs/users/sockets.md",
    "docs/users/trees.md",
    "docs/users/cell.md",
    "docs/start/images.md",
    "docs/start/trees.md",
    "docs/start/sockets.md",
    "docs/start/engines.md",
    "docs/troubleshooting.md",
    "docs/users/beagle.md",
    "docs/users/files.md",
    "docs/users/disks.md",
    "docs/operate.md",
    "docs/trace.md",
];

/// The page whose session the README's picture shows, and the picture.
const RECORDED: &str = "docs/start/images.md";
const RECORDING: &str = "docs/demo.svg";

#[test]
fn the_readme() {
    check(PAGES[0]);
}

#[test]
fn images() {
    check(PAGES[1]);
}

#[test]
fn kernels() {
    check(PAGES[2]);
}

#[test]
fn pages() {
    check(PAGES[3]);
}

#[test]
fn run_unchanged_programs() {
    check(PAGES[4]);
}

#[test]
fn sockets() {
    check(PAGES[5]);
}

#[test]
fn trees() {
    check(PAGES[6]);
}

#[test]
fn cell_programs() {
    check(PAGES[7]);
}

#[test]
fn images_in_five_minutes() {
    check(PAGES[8]);
}

#[test]
fn trees_in_five_minutes() {
    check(PAGES[9]);
}

#[test]
fn sockets_in_five_minutes() {
    check(PAGES[10]);
}

#[test]
fn engines_in_five_minutes() {
    check(PAGES[11]);
}

#[test]
fn troubleshooting() {
    check(PAGES[12]);
}

#[test]
fn mrbayes_and_beast() {
    check(PAGES[13]);
}

#[test]
fn files_without_a_mount() {
    check(PAGES[14]);
}

#[test]
fn disks_that_replace_qcow2() {
    check(PAGES[15]);
}

#[test]
fn operation() {
    check(PAGES[16]);
}

#[test]
fn trace_events() {
    check(PAGES[17]);
}

/// Pages of users have sessions, and a session on any page is run.
#[test]
fn every_page_is_run() {
    for folder in ["docs/users", "docs/start"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let name = entry.unwrap().file_name();
            let page = format!("{folder}/{}", name.to_str().unwrap());
            assert!(PAGES.contains(&page.as_str()), "{page} has no test");
        }
    }
    for (page, text) in files().iter().filter(|(name, _)| name.ends_with(".md")) {
        let has_session = text.lines().any(|line| line.starts_with("```console"));
        assert!(
            !has_session || PAGES.contains(&page.as_str()),
            "{page} has a session and no test"
        );
    }
}

/// The README's picture is the session of a page that is run, so it cannot show what is not so.
#[test]
fn the_readmes_picture_is_a_session() {
    let page = std::fs::read_to_string(root().join(RECORDED)).unwrap();
    let mut lines = Vec::new();
    for step in steps(&page) {
        let mut parts = step.command.lines().map(str::to_owned);
        lines.extend(parts.next().map(TerminalLine::Command));
        lines.extend(parts.map(TerminalLine::Output));
        lines.extend(step.printed.into_iter().map(TerminalLine::Output));
    }
    let label =
        "A terminal: a directory is packed into an image, mounted, compared, checked, served";
    let wanted = terminal(&lines, 80, label);
    let path = root().join(RECORDING);
    if std::env::var_os("SIDECORE_WRITE_SESSIONS").is_some() {
        std::fs::write(&path, wanted).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(
        committed == wanted,
        "{RECORDING} is not the session of {RECORDED}: \
         SIDECORE_WRITE_SESSIONS=yes cargo test -p sidecore-cli --test suite the_readmes_picture"
    );
    assert!(wanted.len() < 60_000, "{} bytes", wanted.len());
}

/// One command of a page.
struct Step {
    command: String,
    /// The page's lines that should be printed.
    printed: Vec<String>,
    /// True if the output is compared.
    compared: bool,
    /// The page's line after the command.
    line: usize,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn check(page: &str) {
    let path = root().join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let steps = steps(&text);
    assert!(!steps.is_empty(), "{page} has no session");
    let printed = run(&steps);
    if std::env::var_os("SIDECORE_WRITE_SESSIONS").is_some() {
        std::fs::write(&path, rewritten(&text, &steps, &printed)).unwrap();
        return;
    }
    for (step, printed) in steps.iter().zip(&printed) {
        let command = &step.command;
        let agree = !step.compared || agrees(&step.printed, printed);
        assert!(
            agree,
            "{page}, line {}: `{command}` printed:\n{}",
            step.line,
            printed.join("\n")
        );
    }
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut block = None;
    for (index, line) in text.lines().enumerate() {
        match (block, line) {
            (None, "```console") => block = Some(true),
            (None, "```console measured") => block = Some(false),
            (Some(_), "```") => block = None,
            (Some(compared), line) => {
                if let Some(command) = line.strip_prefix("$ ") {
                    let (command, printed) = (command.to_owned(), Vec::new());
                    steps.push(Step {
                        command,
                        printed,
                        compared,
                        line: index + 1,
                    });
                    continue;
                }
                let step = steps.last_mut().expect("a session begins with a command");
                match line.strip_prefix("> ") {
                    Some(more) if step.printed.is_empty() => {
                        step.command += &format!("\n{more}");
                        step.line = index + 1;
                    }
                    _ => step.printed.push(line.to_owned()),
                }
            }
            (None, _) => {}
        }
    }
    steps
}

/// Runs the commands in one shell; returns the output of each.
fn run(steps: &[Step]) -> Vec<Vec<String>> {
    assert!(
        rustix::process::geteuid().is_root(),
        "sessions mount and make interfaces: run as root"
    );
    let scratch = tempfile::tempdir().unwrap();
    let mut script = String::from(
        "mkdir -p /run/sidecore; mount -t tmpfs tmpfs /run/sidecore; ip link set lo up\n",
    );
    for (index, step) in steps.iter().enumerate() {
        writeln!(script, "echo '{MARK}'").unwrap();
        match step.command.strip_suffix('&') {
            // It stays; its first line reports that it is ready.
            Some(command) => writeln!(
                script,
                "{command}>said.{index} 2>&1 &\n\
                 for try in $(seq 600); do [ -s said.{index} ] && break; sleep 0.1; done\n\
                 cat said.{index}; kill -0 $! || exit 1"
            ),
            None => writeln!(
                script,
                "{{ {}\n}} 2>&1 || {{ echo \"exit status $?\"; exit 1; }}",
                step.command
            ),
        }
        .unwrap();
    }
    let program = Path::new(env!("CARGO_BIN_EXE_sidecore")).parent().unwrap();
    let paths = std::env::var("PATH").unwrap_or_default();
    let tests = std::env::current_exe().unwrap();
    let built = tests.with_file_name("libsidecore.so");
    let libraries = scratch.path().join(".lib");
    std::fs::create_dir(&libraries).unwrap();
    for name in ["libsidecore.so", "libsidecore.so.0.2"] {
        std::os::unix::fs::symlink(&built, libraries.join(name)).unwrap();
    }
    let output = Command::new("timeout")
        .args([
            "--kill-after=5",
            "300",
            "unshare",
            "--mount",
            "--net",
            "--pid",
            "--fork",
        ])
        .args(["--kill-child", "--mount-proc", "--propagation", "private"])
        .args(["bash", "-c", &script])
        .current_dir(scratch.path())
        .env("PATH", format!("{}:{paths}", program.display()))
        .env("SIDECORE", root())
        .env("SIDECORE_SPE_CACHE", scratch.path().join(".spe"))
        // The folder of libsidecore.so, as if it were installed.
        .env("LIBRARY_PATH", &libraries)
        .env("LD_LIBRARY_PATH", &libraries)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {errors}\n{text}",
        output.status
    );
    let mark = format!("{MARK}\n");
    let parts = text.split(&mark).skip(1);
    let printed: Vec<Vec<String>> = parts
        .map(|part| part.lines().map(str::to_owned).collect())
        .collect();
    assert_eq!(printed.len(), steps.len(), "{errors}\n{text}");
    printed
}

/// True if the output is the page's, except for numbers and spaces.
fn agrees(expected: &[String], printed: &[String]) -> bool {
    match (expected, printed) {
        ([], []) => true,
        ([any, rest @ ..], _) if any == "..." => {
            (0..=printed.len()).any(|skipped| agrees(rest, &printed[skipped..]))
        }
        ([first, rest @ ..], [line, more @ ..]) => {
            plain(first) == plain(line) && agrees(rest, more)
        }
        _ => false,
    }
}

/// The line with each number, and the unit of bytes after it, as `N`.
fn plain(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let mut text = String::new();
        let mut rest = word;
        while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
            let end = rest[at..]
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .map_or(rest.len(), |length| at + length);
            text += &rest[..at];
            text.push('N');
            rest = &rest[end..];
        }
        text + rest
    });
    let joined = words.collect::<Vec<_>>().join(" ");
    ["B", "KiB", "MiB", "GiB"]
        .iter()
        .fold(joined, |text, unit| text.replace(&format!("N {unit}"), "N"))
}

/// The page with the actual output.
fn rewritten(text: &str, steps: &[Step], printed: &[Vec<String>]) -> String {
    let mut lines: Vec<Vec<String>> = text.lines().map(|line| vec![line.to_owned()]).collect();
    for (step, printed) in steps.iter().zip(printed) {
        let kept = step.printed.iter().any(|line| line == "...");
        if kept && agrees(&step.printed, printed) {
            continue;
        }
        for line in &mut lines[step.line..step.line + step.printed.len()] {
            line.clear();
        }
        lines[step.line - 1].extend(printed.iter().cloned());
    }
    lines.concat().join("\n") + "\n"
}

/// Between one command's output and the next's.
const MARK: &str = "-- next command of the session --";
