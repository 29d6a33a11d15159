//! `attach`, `detach`, and sizes that are no whole sectors.
//!
//! `mount.sidecore`, as mount(8) starts it by a line of a table of file systems.

use crate::mount::scratch::{Scratch, assert_same, noise, text, tool, wait_for};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::process::{Command, Output};

#[test]
fn an_attached_device_has_the_images_bytes() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let image = scratch.make("ext4", &tree);
    let on = scratch.path("on");
    for options in [&["--json"][..], &["--json", "--no-passthrough"]] {
        let mut arguments = vec!["attach", text(&image)];
        arguments.extend(options);
        let json: serde_json::Value = serde_json::from_str(&scratch.ok(&arguments)).unwrap();
        let device = json["device"].as_str().unwrap().to_owned();
        assert!(json["way"].as_str().unwrap().contains("loop"));
        tool(Command::new("cmp").arg(&device).arg(&image));
        let dd = Command::new("dd")
            .args([
                &format!("if={device}"),
                "bs=64K",
                "skip=3",
                "count=5",
                "status=none",
            ])
            .output()
            .unwrap();
        let bytes = std::fs::read(&image).unwrap();
        assert!(dd.status.success() && dd.stdout == bytes[3 << 16..8 << 16]);
        let written = File::options()
            .write(true)
            .open(&device)
            .and_then(|mut it| {
                it.write_all(&[0; 512])?;
                it.sync_all()
            });
        assert!(written.is_err(), "the device must be read-only");
        tool(
            Command::new("mount")
                .args(["-o", "ro,noload", &device])
                .arg(&on),
        );
        assert_same(&tree, &on);
        scratch.refused(&["detach", &device], "in use");
        tool(Command::new("umount").arg(&on));
        scratch.ok(&["detach", &device]);
        scratch.assert_nothing_left();
    }
}

#[test]
fn a_device_that_is_open_goes_when_it_is_closed() {
    let scratch = Scratch::new();
    let image = scratch.make("squashfs", &scratch.tree());
    let device = scratch.ok(&["attach", text(&image)]);
    let mut open = File::open(device.trim()).unwrap();
    let output = scratch.run(&["detach", device.trim()]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("open"));
    let mut head = [0; 4];
    open.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"hsqs");
    drop(open);
    wait_for("the server has ended", || scratch.records() == 0);
    scratch.assert_nothing_left();
}

#[test]
fn an_odd_size_becomes_whole_sectors_on_a_device_and_stays_exact_in_a_file() {
    let scratch = Scratch::new();
    let image = scratch.image("odd");
    let bytes = noise(5, 2_000_001);
    std::fs::write(&image, &bytes).unwrap();
    let device = scratch.ok(&["attach", text(&image)]);
    let mut on_device = Vec::new();
    File::open(device.trim())
        .unwrap()
        .read_to_end(&mut on_device)
        .unwrap();
    scratch.ok(&["detach", device.trim()]);
    assert_eq!(on_device.len(), 2_000_001_usize.next_multiple_of(512));
    assert!(on_device[..bytes.len()] == bytes[..], "the bytes differ");
    assert!(on_device[bytes.len()..].iter().all(|&byte| byte == 0));
    let on = scratch.path("on");
    for options in [&["--file-only"][..], &["--file-only", "--no-passthrough"]] {
        let mut arguments = vec!["mount", text(&image), text(&on)];
        arguments.extend(options);
        scratch.ok(&arguments);
        assert!(
            std::fs::read(on.join("image")).unwrap() == bytes,
            "the bytes differ"
        );
        let mut file = File::open(on.join("image")).unwrap();
        let mut part = vec![0; 70_001];
        file.seek(SeekFrom::Start(1_234_567)).unwrap();
        file.read_exact(&mut part).unwrap();
        assert!(part == bytes[1_234_567..1_304_568], "the bytes differ");
        assert!(file.write(b"x").is_err());
        drop(file);
        scratch.ok(&["umount", text(&on)]);
        scratch.assert_nothing_left();
    }
}

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
