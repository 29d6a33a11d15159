//! Files that claim more than they hold, and damaged ones: refused or read within a bound of memory
//! and time.

use super::tools::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The quick part of scripts/check-damaged: the hostile files, and mutants of
/// every format that is read.
#[test]
fn hostile_files_and_mutants_keep_within_their_budgets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = run(tool("python3")
        .arg(root.join("scripts/check-damaged"))
        .args(["--quick", "--seed", "20261128", "--sidecore"])
        .arg(env!("CARGO_BIN_EXE_sidecore")));
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
}

/// A table of 1.5 GB that is a hole of the file was once read whole before its first entry was
/// checked.
#[test]
fn a_table_that_is_a_hole_is_refused_at_its_first_entry() {
    let place = Place::new();
    let blocks = 130_000_000_u32;
    let path = place.path("cloop3");
    let file = File::create(&path).unwrap();
    let mut head = blocks.to_be_bytes().to_vec();
    head.extend(512_u32.to_be_bytes());
    head.extend((u64::from(blocks) * 512).to_be_bytes());
    file.write_all_at(&head, 4096).unwrap();
    let end = 4096 + 16 + (u64::from(blocks) + 1) * 8 + u64::from(blocks) * 4;
    let mut tail = 4096_u64.to_be_bytes().to_vec();
    tail.extend(3_u32.to_be_bytes());
    tail.extend(b"\nCLOOP3\n");
    file.write_all_at(&tail, end).unwrap();
    fails(
        &run(sidecore(&["block", "info"]).arg(&path)),
        2,
        "frame 0 of",
    );
}

#[test]
fn memory_and_time_that_do_not_suffice_are_refused_in_a_line() {
    let place = Place::new();
    let raw = place.write("raw", &contents(4 << 20));
    let (image, out) = (place.path("image"), place.path("out"));
    pack(&raw, &image, &["--frame", "1MiB"]);
    for words in [
        &["verify"][..],
        &["unpack", "-o", "out"],
        &["commit", "-o", "out"],
    ] {
        let mut command = sidecore(&["block"]);
        command.current_dir(place.0.path()).args(words);
        command.args(["image", "--memory", "3MiB"]);
        if words[0] == "commit" {
            ok(sidecore(&["block", "clone"]).args([&image, &place.path("overlay")]));
            command.arg("overlay");
        }
        fails(&run(&mut command), 2, "--memory allows");
    }
    let mut command = sidecore(&["block", "pack", "--memory", "3MiB", "-o"]);
    fails(
        &run(command.arg(&out).arg(&raw)),
        2,
        "--memory allows 3145728",
    );
    // Memory for one frame at a time must do.
    ok(unpack(&image, &out).args(["--memory", "16MiB", "--engines", "2"]));
    assert!(std::fs::read(&out).unwrap() == contents(4 << 20));
    std::fs::remove_file(&out).unwrap();
    let mut command = unpack(&image, &out);
    fails(
        &run(command.args(["--time", "0.000001"])),
        2,
        "--time allows",
    );
    assert!(!out.exists());
    let refused = run(unpack(&image, &out).args(["--time", "never"]));
    assert_eq!(refused.status.code(), Some(2));
}
