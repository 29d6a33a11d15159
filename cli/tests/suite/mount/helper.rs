//! `mount.sidecore`, as mount(8) starts it by a line of a table of file systems.

use crate::mount::scratch::{Scratch, assert_same, text};
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

/// Runs a script that sees the helper where mount(8) looks for one, and nothing else there.
fn with_helper(scratch: &Scratch, script: &str) -> Output {
    let folder = scratch.path("sbin");
    if !folder.exists() {
        std::fs::create_dir(&folder).unwrap();
        let program = env!("CARGO_BIN_EXE_sidecore");
        symlink(program, folder.join("mount.sidecore")).unwrap();
    }
    // mount(8) itself is in /usr/bin.
    let script = format!("set -eu\nmount --bind sbin /usr/sbin\n{script}");
    Command::new("timeout")
        .args(["--kill-after=5", "200", "unshare", "--mount", "bash", "-c"])
        .arg(script)
        .current_dir(scratch.dir.path())
        .env("SIDECORE_STATE_DIR", scratch.path("state"))
        .output()
        .unwrap()
}

#[test]
fn a_table_of_file_systems_mounts_once_and_umount_ends_the_server() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let image = scratch.image("packed");
    scratch.ok(&["pack", text(&tree), "-o", text(&image)]);
    for options in ["defaults", "ro,rootless,memory=64MiB,nosuid,_netdev,nofail"] {
        let line = format!(
            "{} {} sidecore {options} 0 0\n",
            image.display(),
            scratch.path("on").display()
        );
        std::fs::write(scratch.path("table"), line).unwrap();
        let script = "mount -a -T table\nmount -a -T table\n\
                      test $(grep -c \" $PWD/on \" /proc/self/mountinfo) = 1\n\
                      diff -r --no-dereference tree on\numount on\n\
                      for try in $(seq 200); do\n\
                      test -e state/*/state.json || exit 0; sleep 0.05\ndone\nexit 9";
        let output = with_helper(&scratch, script);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options}: {errors}");
    }
    // Without a table, on another place than the image's own.
    let script = format!(
        "mount -t sidecore -o fs=erofs {} on\ncp -a on copy\numount on",
        image.display()
    );
    let output = with_helper(&scratch, &script);
    assert!(output.status.success(), "{output:?}");
    assert_same(&tree, &scratch.path("copy"));
}

#[test]
fn what_a_line_asks_for_and_cannot_have_is_said() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("image"), "no image").unwrap();
    for (options, words) in [
        ("noexec", "mount.sidecore: the option noexec cannot be had"),
        ("colour=red", "mount.sidecore: there is no option colour"),
        ("memory=much", "sidecore: "),
        ("ro", "sidecore: "),
    ] {
        let script = format!("mount -t sidecore -o {options} image on");
        let output = with_helper(&scratch, &script);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{options}");
        assert!(errors.contains(words), "{options}: {errors}");
    }
    assert_eq!(scratch.records(), 0);
}
