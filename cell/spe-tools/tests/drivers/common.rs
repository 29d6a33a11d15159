//! Calls of the drivers, in folders of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The drivers' folder, of a kit in the build's own temporary folder.
pub(crate) fn drivers() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let output = cache(&mut Command::new(program()))
            .output()
            .expect("the example runs");
        let text = String::from_utf8(output.stdout).expect("shell lines are text");
        let line = text.lines().next().expect("the first line sets PATH");
        let path = line.split('\'').nth(1).expect("the folder is quoted");
        PathBuf::from(path)
    })
}

/// The example that has the drivers' names; cargo builds it for the tests.
pub(crate) fn program() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test
        .parent()
        .and_then(Path::parent)
        .expect("tests lie in deps");
    folder.join("examples/spe-driver")
}

pub(crate) fn cache(command: &mut Command) -> &mut Command {
    command.env(
        "SIDECORE_SPE_CACHE",
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("spe-cache"),
    )
}

/// Runs a driver in a folder with arguments between blanks.
pub(crate) fn driver(folder: &Path, name: &str, arguments: &str) -> Output {
    let mut command = Command::new(drivers().join(name));
    command
        .args(arguments.split_whitespace())
        .current_dir(folder);
    cache(&mut command).output().expect("a driver starts")
}

/// Runs a driver that must succeed.
pub(crate) fn driven(folder: &Path, name: &str, arguments: &str) -> String {
    let output = driver(folder, name, arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{name} {arguments}: {}\n{errors}",
        output.status
    );
    errors
}

/// Runs an image; returns its output and exit status.
pub(crate) fn ran(folder: &Path, image: &str, mailbox: &[&str]) -> (String, i32) {
    let host = folder.join("host");
    let source = folder.join("host.c");
    let compiled = Command::new("gcc")
        // Addresses that a word has room for.
        .args(["-O1", "-no-pie", "-o"])
        .arg(&host)
        .arg(source)
        .status();
    assert!(compiled.expect("gcc starts").success());
    let output = Command::new(host)
        .arg(image)
        .args(mailbox)
        .current_dir(folder)
        .output();
    let output = output.expect("the host runs");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        output.status.code().unwrap_or(-1),
    )
}

/// A folder with the programs' sources; nothing, and a line, where x32 code cannot be compiled.
pub(crate) fn folder() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let programs = concat!("\n", include_str!("../programs.txtar"));
    for program in programs.split("\n-- ").skip(1) {
        let (name, text) = program.split_once(" --\n").expect("a heading");
        let text = format!("{text}\n");
        std::fs::write(folder.path().join(name), text).expect("files are written");
    }
    std::fs::write(folder.path().join("empty.c"), "#include <stdio.h>\n")
        .expect("files are written");
    let probe = Command::new("gcc")
        .args(["-mx32", "-c", "empty.c", "-o", "probe.o"])
        .current_dir(folder.path())
        .output();
    if probe.is_ok_and(|output| output.status.success()) {
        return Some(folder);
    }
    eprintln!("skipped: gcc -mx32 needs gcc-multilib and libc6-dev-x32 (scripts/setup)");
    None
}
