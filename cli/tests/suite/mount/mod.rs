//! `mount`, `umount`, `attach`, `detach`, from the outside, with file systems made by their own
//! tools.
//!
//! Needs root, for mounts and loop devices, and the packages of `scripts/setup`. Every test has a
//! state directory, a scratch directory and an image name of its own (`scratch`), and undoes what
//! it has left, also when it fails.

#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

mod attach;
mod ending;
mod far;
use crate::server as remote;
mod rootless;
mod scratch;
use crate::serving;

use scratch::{Scratch, assert_same, cat, is_running, noise, signal, text, tool, wait_for};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

#[test]
fn every_file_system_reads_back_twice_and_leaves_nothing() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let on = scratch.path("on");
    for kind in ["erofs", "squashfs", "ext4"] {
        let image = scratch.make(kind, &tree);
        for options in [
            &["--no-passthrough"][..],
            &["--threads", "1", "--read-ahead", "128KiB"],
        ] {
            let mut arguments = vec!["mount", "--fs", kind, text(&image), text(&on)];
            arguments.extend(options);
            scratch.ok(&arguments);
            assert_same(&tree, &on);
            assert!(
                File::create(on.join("new")).is_err(),
                "{kind}: the mount must be read-only"
            );
            scratch.ok(&["umount", text(&on)]);
            scratch.assert_nothing_left();
        }
    }
}

#[test]
fn what_pack_makes_can_be_mounted_in_every_format() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let on = scratch.path("on");
    let erofs = scratch.make("erofs", &tree);
    let squashfs = scratch.make("squashfs", &tree);
    for (source, format) in [
        (&tree, "zstd"),
        (&tree, "lz4"),
        (&erofs, "cloop"),
        (&squashfs, "cloop-lzo"),
        (&squashfs, "zstd"),
        (&erofs, "raw"),
    ] {
        let image = scratch.image("packed");
        scratch.ok(&["pack", text(source), "-o", text(&image), "--format", format]);
        scratch.ok(&["mount", text(&image), text(&on)]);
        assert_same(&tree, &on);
        scratch.ok(&["umount", text(&on)]);
        scratch.assert_nothing_left();
    }
}

#[test]
fn a_damaged_frame_fails_its_own_reads_only() {
    let scratch = Scratch::new();
    let contents = noise(11, 3 << 20);
    let (plain, image) = (scratch.image("plain"), scratch.image("damaged"));
    std::fs::write(&plain, &contents).unwrap();
    scratch.ok(&["pack", text(&plain), "-o", text(&image)]);
    let mut bytes = std::fs::read(&image).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x40;
    std::fs::write(&image, bytes).unwrap();
    let on = scratch.path("on");
    scratch.ok(&["mount", "--file-only", text(&image), text(&on)]);
    let mut file = File::open(on.join("image")).unwrap();
    let mut failed = Vec::new();
    let mut page = vec![0; 4096];
    for at in (0..contents.len()).step_by(4096) {
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        match file.read_exact(&mut page) {
            Ok(()) => assert!(page == contents[at..at + 4096], "wrong bytes at {at}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "at {at}");
                failed.push(at >> 16);
            }
        }
    }
    failed.dedup();
    assert_eq!(
        failed.len(),
        1,
        "one frame of 64 KiB is damaged, these failed: {failed:?}"
    );
    drop(file);
    scratch.ok(&["umount", text(&on)]);
    scratch.assert_nothing_left();
}

/// By this mark systemd spares servers of the root file system as it leaves an initramfs.
#[test]
fn a_servers_name_has_the_mark_of_its_commands() {
    let scratch = Scratch::new();
    let (tree, image) = (scratch.tree(), scratch.image("packed"));
    scratch.ok(&["pack", text(&tree), "-o", text(&image)]);
    let on = scratch.path("on");
    for (name, expected) in [
        ("@sidecore", "@sidecore\0"),
        ("sidecore", "/proc/self/exe\0"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_sidecore"))
            .arg0(name)
            .args(["block", "mount", text(&image), text(&on)])
            .env("SIDECORE_STATE_DIR", scratch.path("state"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let pid = scratch.servers()[0];
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(line.starts_with(expected), "{line:?}");
        assert_same(&tree, &on);
        scratch.ok(&["umount", text(&on)]);
        scratch.assert_nothing_left();
    }
}

#[test]
fn two_images_are_mounted_at_once_and_one_image_twice() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let other = scratch.path("other");
    let third = scratch.path("third");
    std::fs::create_dir(&other).unwrap();
    std::fs::create_dir(&third).unwrap();
    let (erofs, squashfs) = (
        scratch.make("erofs", &tree),
        scratch.make("squashfs", &tree),
    );
    let on = scratch.path("on");
    let mut first = scratch
        .sidecore(&["mount", text(&erofs), text(&on)])
        .spawn()
        .unwrap();
    scratch.ok(&["mount", text(&squashfs), text(&other)]);
    assert!(first.wait().unwrap().success());
    scratch.ok(&["mount", text(&squashfs), text(&third)]);
    assert_eq!(scratch.servers().len(), 3);
    for dir in [&on, &other, &third] {
        assert_same(&tree, dir);
    }
    scratch.ok(&["umount", text(&other)]);
    assert_same(&tree, &on);
    assert_same(&tree, &third);
    scratch.ok(&["umount", text(&third)]);
    scratch.ok(&["umount", text(&on)]);
    scratch.assert_nothing_left();
}

#[test]
fn two_mounts_on_one_directory_at_once_give_one_mount() {
    let scratch = Scratch::new();
    let image = scratch.make("squashfs", &scratch.tree());
    let on = scratch.path("on");
    let children: Vec<Child> = (0..4)
        .map(|_| {
            let mut command = scratch.sidecore(&["mount", text(&image), text(&on)]);
            command.stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let won = children
        .into_iter()
        .filter_map(|mut child| child.wait().unwrap().success().then_some(()))
        .count();
    assert_eq!(won, 1);
    assert_eq!(scratch.mounts().len(), 1);
    scratch.ok(&["umount", text(&on)]);
    scratch.assert_nothing_left();
}

#[test]
fn a_killed_server_gives_readers_errors_and_umount_cleans_up() {
    for kind in ["erofs", "squashfs", "ext4"] {
        let scratch = Scratch::new();
        let tree = scratch.path("tree");
        std::fs::create_dir(&tree).unwrap();
        for (seed, name) in [(7, "read"), (8, "unread")] {
            std::fs::write(tree.join(name), noise(seed, 24 << 20)).unwrap();
        }
        let image = scratch.make(kind, &tree);
        let on = scratch.path("on");
        let options = ["--no-passthrough", "--fs", kind];
        scratch.ok(&[&["mount"], &options[..], &[text(&image), text(&on)]].concat());
        let mut reader = cat(&on.join("read"));
        let pid = scratch.server();
        signal(pid, rustix::process::Signal::KILL);
        // It may have finished before; it must only not wait for ever.
        assert_ne!(
            reader.wait().unwrap().code(),
            Some(124),
            "{kind}: the reader hangs"
        );
        let mut late = cat(&on.join("unread"));
        let mut errors = String::new();
        late.stderr
            .take()
            .unwrap()
            .read_to_string(&mut errors)
            .unwrap();
        assert_eq!(late.wait().unwrap().code(), Some(1), "{kind}: {errors}");
        assert!(
            errors.contains("error") || errors.contains("not connected"),
            "{kind}: {errors}"
        );
        scratch.ok(&["umount", text(&on)]);
        scratch.assert_nothing_left();
    }
}

#[test]
fn the_next_command_cleans_up_after_killed_servers() {
    let scratch = Scratch::new();
    let image = scratch.make("squashfs", &scratch.tree());
    let on = scratch.path("on");
    let file = scratch.path("file");
    std::fs::create_dir(&file).unwrap();
    scratch.ok(&["mount", text(&image), text(&on)]);
    scratch.ok(&["mount", "--file-only", text(&image), text(&file)]);
    scratch.ok(&["attach", text(&image)]);
    let servers = scratch.servers();
    assert_eq!(servers.len(), 3);
    for &pid in &servers {
        signal(pid, rustix::process::Signal::KILL);
    }
    for pid in servers {
        wait_for("a killed server is gone", || !is_running(pid));
    }
    scratch.ok(&["mount", text(&image), text(&on)]);
    assert_eq!(scratch.servers().len(), 1);
    assert_eq!(scratch.mounts().len(), 1);
    wait_for("only the new loop device is left", || {
        scratch.loops().len() == 1
    });
    scratch.ok(&["umount", text(&on)]);
    scratch.assert_nothing_left();
}

/// Not only the commands that mount and attach.
#[test]
fn whatever_the_next_command_is_it_cleans_up_after_a_killed_server() {
    let scratch = Scratch::new();
    let image = scratch.make("squashfs", &scratch.tree());
    let (on, other) = (scratch.path("on"), scratch.path("other"));
    std::fs::create_dir(&other).unwrap();
    let back = scratch.path("back");
    let commands: [&[&str]; 4] = [
        &["info", text(&image)],
        &["verify", text(&image)],
        &["unpack", text(&image), "-o", text(&back)],
        &["detach", "/dev/loop999"],
    ];
    for command in commands {
        scratch.ok(&["mount", text(&image), text(&on)]);
        let pid = scratch.server();
        signal(pid, rustix::process::Signal::KILL);
        wait_for("a killed server is gone", || !is_running(pid));
        let _ = scratch.run(command);
        assert!(scratch.mounts().is_empty(), "after {command:?}");
        assert!(scratch.servers().is_empty(), "after {command:?}");
    }
    scratch.assert_nothing_left();
}

#[test]
fn the_kernel_is_handed_only_file_systems_that_were_named() {
    let scratch = Scratch::new();
    let image = scratch.make("ext4", &scratch.tree());
    let on = scratch.path("on");
    let mount = ["mount", text(&image), text(&on)];
    scratch.refused(&mount, "give --fs ext4");
    scratch.refused(
        &[&mount[..], &["--fs", "squashfs"]].concat(),
        "give --fs ext4",
    );
    scratch.refused(&[&mount[..], &["--fs", "minix"]].concat(), "minix");
    scratch.ok(&[&mount[..], &["--fs", "squashfs,ext4"]].concat());
    scratch.ok(&["umount", text(&on)]);
    scratch.assert_nothing_left();
}

#[test]
fn the_server_ends_by_itself_after_a_plain_umount_or_losetup() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let on = scratch.path("on");
    for kind in ["erofs", "squashfs"] {
        let image = scratch.make(kind, &tree);
        scratch.ok(&["mount", text(&image), text(&on)]);
        tool(Command::new("umount").arg(&on));
        wait_for("the server has ended", || scratch.records() == 0);
        scratch.assert_nothing_left();
    }
    let device = scratch.ok(&["attach", text(&scratch.image("squashfs"))]);
    tool(Command::new("losetup").args(["--detach", device.trim()]));
    wait_for("the server has ended", || scratch.records() == 0);
    scratch.assert_nothing_left();
}

#[test]
fn bad_input_is_refused_in_one_line_and_leaves_nothing() {
    let scratch = Scratch::new();
    let on = scratch.path("on");
    let image = scratch.make("squashfs", &scratch.tree());
    let file = |name: &str, bytes: &[u8]| {
        let path = scratch.image(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let mut disk = vec![0; 1 << 20];
    disk[446..462].copy_from_slice(&[0, 0, 2, 0, 0x83, 0, 0, 0, 8, 0, 0, 0, 64, 0, 0, 0]);
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    let (disk, noise) = (file("disk", &disk), file("noise", &noise(3, 200_000)));
    let (empty, plain) = (file("empty", b""), file("plain", b"x"));
    let mut cut = std::fs::read(&image).unwrap();
    cut.truncate(100);
    let cut = file("cut", &cut);
    scratch.refused(&["mount", "/nowhere/image", text(&on)], "/nowhere/image");
    scratch.refused(&["mount", text(&image), "/nowhere/dir"], "/nowhere/dir");
    scratch.refused(&["mount", text(&image), text(&plain)], "directory");
    scratch.refused(&["mount", text(&noise), text(&on)], "block attach");
    scratch.refused(&["mount", text(&disk), text(&on)], "partitions");
    scratch.refused(&["mount", text(&empty), text(&on)], "empty");
    scratch.refused(&["attach", text(&empty)], "empty");
    scratch.refused(&["mount", text(&cut), text(&on)], "squashfs");
    scratch.refused(&["umount", text(&on)], "no image is mounted");
    scratch.refused(&["umount", "/proc"], "no image is mounted");
    scratch.refused(&["detach", "/dev/null"], "block attach");
    scratch.ok(&["mount", text(&image), text(&on)]);
    scratch.refused(&["mount", text(&image), text(&on)], "already");
    scratch.refused(
        &["mount", "--file-only", text(&image), text(&on)],
        "already",
    );
    scratch.ok(&["umount", text(&on)]);
    scratch.assert_nothing_left();
}

#[test]
fn without_root_the_message_says_what_can_be_done_instead() {
    let scratch = Scratch::new();
    let program = scratch.path("sidecore");
    // By another process: a child that another test starts meanwhile would inherit our descriptor,
    // and the kernel does not execute a file that is open for writing.
    tool(
        Command::new("cp")
            .arg(env!("CARGO_BIN_EXE_sidecore"))
            .arg(&program),
    );
    tool(
        Command::new("chmod")
            .arg("755")
            .arg(scratch.dir.path())
            .arg(&program),
    );
    let image = scratch.make("squashfs", &scratch.tree());
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["block", "mount", text(&image), text(&scratch.path("on"))])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(
        errors.contains("--rootless") && errors.contains("--file-only"),
        "{errors}"
    );
    assert!(errors.contains("block serve"), "{errors}");
}

#[test]
fn a_directory_in_use_is_not_taken_away_unless_forced() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let image = scratch.make("squashfs", &tree);
    let on = scratch.path("on");
    scratch.ok(&["mount", "--no-passthrough", text(&image), text(&on)]);
    let open = File::open(on.join("large")).unwrap();
    scratch.refused(&["umount", text(&on)], "in use");
    assert_same(&tree, &on);
    scratch.ok(&["umount", "--force", text(&on)]);
    assert_eq!(scratch.mounts(), Vec::<String>::new());
    assert_eq!(scratch.servers(), Vec::<u32>::new());
    drop(open);
    scratch.assert_nothing_left();
}

#[test]
fn another_mount_namespace_keeps_its_files_after_umount() {
    let scratch = Scratch::new();
    let image = scratch.make("erofs", &scratch.tree());
    let on = scratch.path("on");
    scratch.ok(&["mount", text(&image), text(&on)]);
    let pid = scratch.server();
    let script = "echo here; read line; cat \"$0/large\"; read line";
    let mut other = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, text(&on)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(other.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    let output = scratch.run(&["umount", text(&on)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("namespace"), "{errors}");
    let mut input = other.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    let mut large = vec![0; 3 << 20];
    out.read_exact(&mut large).unwrap();
    assert!(large == noise(99, 3 << 20));
    assert!(is_running(pid));
    drop(input);
    other.wait().unwrap();
    wait_for("the server has ended", || scratch.records() == 0);
    scratch.assert_nothing_left();
}

#[test]
fn a_bind_mount_keeps_its_files_after_umount() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let image = scratch.make("erofs", &tree);
    let (on, bound) = (scratch.path("on"), scratch.path("bound"));
    std::fs::create_dir(&bound).unwrap();
    scratch.ok(&["mount", text(&image), text(&on)]);
    tool(Command::new("mount").arg("--bind").arg(&on).arg(&bound));
    let output = scratch.run(&["umount", text(&on)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.contains(text(&bound)),
        "{errors}"
    );
    assert_same(&tree, &bound);
    tool(Command::new("umount").arg(&bound));
    wait_for("the server has ended", || scratch.records() == 0);
    scratch.assert_nothing_left();
}

#[test]
fn ctrl_c_in_the_foreground_undoes_everything() {
    let scratch = Scratch::new();
    let tree = scratch.tree();
    let image = scratch.make("squashfs", &tree);
    let on = scratch.path("on");
    let commands = [
        vec!["mount", "--foreground", text(&image), text(&on)],
        vec![
            "mount",
            "--foreground",
            "--file-only",
            text(&image),
            text(&on),
        ],
        vec!["attach", "--foreground", text(&image)],
    ];
    for arguments in commands {
        for ending in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
            let mut server = Command::new(env!("CARGO_BIN_EXE_sidecore"))
                .arg("block")
                .args(&arguments)
                .env("SIDECORE_STATE_DIR", scratch.path("state"))
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let mut errors = BufReader::new(server.stderr.take().unwrap());
            errors.read_line(&mut line).unwrap();
            assert!(
                line.contains("mounted") || line.contains("attached"),
                "{line}"
            );
            signal(server.id(), ending);
            let mut rest = String::new();
            errors.read_to_string(&mut rest).unwrap();
            assert!(server.wait().unwrap().success(), "{arguments:?}: {rest}");
            scratch.assert_nothing_left();
        }
    }
}
