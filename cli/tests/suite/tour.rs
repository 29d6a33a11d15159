//! The tour as a newcomer takes it: with everything, with next to nothing, on odd folders, and
//! interrupted. Nothing stays but the page.
//!
//! Must stay true: each tour has network, mount and process namespaces of its own; needs root.

use std::path::Path;
use std::process::{Command, Output};

/// A tour in namespaces of its own, as the shell line `before` leaves them, with this `PATH`.
fn tour(folder: &Path, before: &str, path: &str, arguments: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_sidecore");
    std::fs::create_dir_all(folder.join("tmp")).unwrap();
    let script = format!("{LOOPBACK}\n{before}\nexec \"$0\" tour {arguments}");
    let mut command = Command::new("/usr/bin/timeout");
    command.args(["--kill-after=5", "300", "/usr/bin/unshare"]);
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]);
    command.args(["--mount-proc", "--propagation", "private"]);
    command
        .args(["/bin/sh", "-c", &script, program])
        .env_clear();
    command.env("PATH", path).env("HOME", folder);
    command.env("TMPDIR", folder.join("tmp"));
    command.current_dir(folder).output().unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{:?}\n{}{}",
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// Fails unless nothing but the page is left.
fn nothing_is_left(folder: &Path) {
    let left: Vec<_> = folder.join("tmp").read_dir().unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A namespace's loopback is down at first.
const LOOPBACK: &str = "for ip in /sbin/ip /usr/sbin/ip; do $ip link set lo up && break; done";
const ALL: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";

#[test]
fn each_step_fits_a_screen_and_the_page_stays() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("tiny")).unwrap();
    std::fs::write(folder.path().join("tiny/a"), "hello\n").unwrap();
    let output = tour(
        folder.path(),
        "",
        ALL,
        "images --quick --dir tiny --keep kept",
    );
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for line in said.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for step in said.split("\n\n") {
        assert!(step.lines().count() <= 24, "{step}");
    }
    assert!(
        said.contains("Verdict: ") && said.contains(" 0 with a problem"),
        "{said}"
    );
    let page = folder.path().join("kept/index.html");
    let last = said
        .lines()
        .rfind(|line| line.starts_with("To open: "))
        .unwrap();
    assert!(last.ends_with("kept/index.html"), "{last}");
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("<svg"));
    nothing_is_left(folder.path());
}

#[test]
fn trees_need_nothing_and_leave_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let output = tour(folder.path(), "", "/nowhere", "trees --quick");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let kept = folder.path().join(".local/state/sidecore/tour");
    let tree = std::fs::read_to_string(kept.join("tree.svg")).unwrap();
    assert!(tree.starts_with("<svg"));
    let html = std::fs::read_to_string(kept.join("index.html")).unwrap();
    assert!(html.contains("class=\"phylogeny\""));
    nothing_is_left(folder.path());
}

/// Directories that are empty, and one that cannot be read.
#[test]
fn odd_directories_are_packed_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let output = tour(
        folder.path(),
        "",
        ALL,
        "images --quick --dir empty --keep kept",
    );
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let log = std::fs::read_to_string(folder.path().join("kept/log.txt")).unwrap();
    assert!(
        log.contains("trusted root is of"),
        "the changed copy was not refused for its bytes"
    );
    std::fs::write(folder.path().join("file"), "").unwrap();
    for named in ["nowhere", "file"] {
        let output = tour(folder.path(), "", ALL, &format!("images --dir {named}"));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(named) && said.contains("--dir"), "{said}");
    }
    nothing_is_left(folder.path());
}

/// No device, no tool, no root's rights: the rest runs, and each skipped step has a remedy.
#[test]
fn what_is_missing_is_skipped_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("tiny")).unwrap();
    let devices = "mkdir devices; mount -t tmpfs none devices; \
                   for device in null zero urandom; do cp -a /dev/$device devices; done; \
                   mount --bind devices /dev; PATH=/nowhere";
    let output = tour(
        folder.path(),
        devices,
        ALL,
        "images --quick --dir tiny --keep kept",
    );
    let said = said(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    for words in [
        "needs /dev/fuse",
        "modprobe fuse",
        "needs openssl",
        "nbdcopy",
    ] {
        assert!(said.contains(words), "{words} is not in {said}");
    }
    let skipped = said.lines().filter(|line| line.starts_with("  skipped"));
    assert!(skipped.count() >= 3, "{said}");
}

#[test]
fn a_full_disk_and_a_read_only_home_are_said() {
    let folder = tempfile::tempdir().unwrap();
    // Room for nothing but the folder.
    let full =
        "mount -t tmpfs -o size=64k,nr_inodes=100 none tmp; head -c 64k /dev/zero > tmp/full";
    let output = tour(folder.path(), full, ALL, "trees --quick");
    let text = said(&output);
    assert_ne!(output.status.code(), Some(0), "{text}");
    assert!(
        text.contains("TMPDIR") || text.contains("No space left"),
        "{text}"
    );
    // The page goes to a new temporary folder.
    let read_only = "mount --bind . . && cd \"$PWD\" && mount -o remount,ro,bind . && \
                     mount -t tmpfs none tmp";
    let output = tour(folder.path(), read_only, ALL, "trees --quick");
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("tmp/sidecore-tour-page-"), "{text}");
}

/// At several moments: nothing is mounted, runs or stays.
#[test]
fn an_interrupted_tour_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("tiny")).unwrap();
    std::fs::write(folder.path().join("tiny/a"), "hello\n").unwrap();
    for after_s in ["0.2", "0.5", "0.8", "1.5"] {
        let watch = format!(
            "cat /proc/self/mounts > before
             (sh -c 'echo $$ > pid; exec \"$0\" tour images --quick --dir tiny' \"$0\" > said 2>&1
             echo $? > status) &
             sleep {after_s}; kill -INT $(cat pid); wait
             cat /proc/self/mounts | diff before -; ps -e -o args; exit 0"
        );
        let output = tour(folder.path(), &watch, ALL, "");
        let text = said(&output);
        nothing_is_left(folder.path());
        let status = std::fs::read_to_string(folder.path().join("status")).unwrap();
        // A short tour may have ended before the signal.
        assert!(["130", "0"].contains(&status.trim()), "{status}: {text}");
        // The watching shell names neither.
        assert!(!text.contains("/mnt"), "something is mounted: {text}");
        assert!(!text.contains("tour.img"), "a server runs: {text}");
    }
}
