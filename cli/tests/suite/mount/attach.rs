//! `attach`, `detach`, and sizes that are no whole sectors.

use crate::mount::scratch::{Scratch, assert_same, noise, text, tool, wait_for};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::process::Command;

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
