//! The papers' experiment in real kernels, end to end, with the binary under test.
//!
//! Why here: ublk, the kernel's NBD client and iso9660 may only be met in a guest (docs/guests.md).
//! Must stay true: every step of both guests is named here, so that a step that vanished from the
//! script fails the test. The guests bound their own time.
//! Needs what scripts/setup installs, and the kernel that it fetches.

use std::path::Path;
use std::process::Command;

/// Steps for each packed image over ublk, in the QEMU guest.
const UBLK_STEPS: [&str; 9] = [
    "attach",
    "read-only",
    "dd",
    "bytes",
    "mount",
    "diff",
    "busy",
    "unmount",
    "detach",
];
/// Steps over ublk that one image is enough for.
const UBLK_STEPS_ONCE: [&str; 12] = [
    "parallel-attach",
    "parallel-reads",
    "parallel-detach",
    "odd-size",
    "damaged-frame",
    "recover-attach",
    "recover-kill-9",
    "recover-detach",
    "orphan",
    "force",
    "signals",
    "unload",
];
/// Steps for each packed image over NBD, in User-mode Linux.
const NBD_STEPS: [&str; 9] = [
    "serve",
    "connect",
    "dd",
    "bytes",
    "mount",
    "diff",
    "unmount",
    "disconnect",
    "stop",
];
const FORMATS: [&str; 2] = ["cloop-lzo", "zstd"];

#[test]
fn packed_iso_images_are_read_by_real_kernels_over_ublk_and_nbd() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/export/guest/run");
    let output = Command::new(&script)
        .arg(env!("CARGO_BIN_EXE_sidecore"))
        .output()
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", script.display()));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let story = format!("standard output:\n{stdout}\nstandard error:\n{stderr}");
    assert_ne!(
        output.status.code(),
        Some(2),
        "the guests could not run (scripts/setup installs what they need)\n{story}"
    );
    let mut steps = vec!["qemu boot".to_owned(), "uml boot".to_owned()];
    steps.extend(["qemu modules", "uml modules"].map(str::to_owned));
    for format in FORMATS {
        steps.extend(UBLK_STEPS.map(|step| format!("qemu {format}-{step}")));
        steps.extend(NBD_STEPS.map(|step| format!("uml {format}-{step}")));
    }
    steps.extend(UBLK_STEPS_ONCE.map(|step| format!("qemu {step}")));
    steps.push("uml unload".to_owned());
    // It says so, and only there.
    let has_amx = std::fs::read_to_string("/proc/cpuinfo")
        .is_ok_and(|text| text.split_whitespace().any(|flag| flag == "amx_tile"));
    let cannot = stdout
        .lines()
        .any(|line| line.starts_with("uml cannot run: "));
    assert_eq!(cannot, has_amx, "{story}");
    steps.retain(|step| !has_amx || step.starts_with("qemu "));
    for step in steps {
        let begin = format!("{step} ok ");
        assert!(
            stdout.lines().any(|line| line.starts_with(&begin)),
            "no result of step '{step}'\n{story}"
        );
    }
    assert!(
        output.status.success(),
        "ended with {}\n{story}",
        output.status
    );
}

/// Steps of the guest that writes to its disk.
const OVERLAY_STEPS: [&str; 8] = [
    "pack",
    "serve",
    "boot-1",
    "boot-2",
    "found-all",
    "wrote-more",
    "commit",
    "contents",
];

#[test]
fn a_guest_boots_from_an_image_writes_reboots_and_becomes_a_new_image() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../image/export/guest/overlay");
    let output = Command::new(&script)
        .arg(env!("CARGO_BIN_EXE_sidecore"))
        .output()
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", script.display()));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{stderr}");
    for step in OVERLAY_STEPS {
        let line = format!("overlay {step} ok");
        assert!(
            stdout.lines().any(|it| it == line),
            "{line}: {stdout}{stderr}"
        );
    }
}
