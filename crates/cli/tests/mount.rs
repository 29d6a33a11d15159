//! `mount`, `umount`, `attach`, `detach`, from the outside, with file systems made by their own tools.
//!
//! Needs root, for mounts and loop devices, and the packages of `scripts/setup`. Every test has a state directory, a
//! scratch directory and an image name of its own, and undoes what it has left, also when it fails.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A scratch directory with a source tree, and all that is mounted from it.
struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests mount file systems: run them as root"
        );
        let dir = tempfile::Builder::new()
            .prefix("sidecore-mount-")
            .tempdir()
            .unwrap();
        std::fs::create_dir(dir.path().join("on")).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A name that is on no other test's images.
    fn image(&self, kind: &str) -> PathBuf {
        let tag = self.dir.path().file_name().unwrap().to_str().unwrap();
        self.path(&format!("{kind}.{tag}"))
    }

    fn sidecore(&self, arguments: &[&str]) -> Command {
        // A hang fails the test instead of stopping it.
        let mut command = Command::new("timeout");
        command
            .arg("--kill-after=5")
            .arg("60")
            .arg(env!("CARGO_BIN_EXE_sidecore"))
            .arg("block");
        command
            .args(arguments)
            .env("SIDECORE_STATE_DIR", self.path("state"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.sidecore(arguments).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success(),
            "{arguments:?}: {}: {errors}",
            output.status
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must refuse: status 2 and one line that contains `words`.
    fn refused(&self, arguments: &[&str], words: &str) {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }

    /// A tree of small files, one of 3 MiB, an empty one, a directory, a link and odd names.
    fn tree(&self) -> PathBuf {
        let tree = self.path("tree");
        std::fs::create_dir_all(tree.join("below/further")).unwrap();
        for index in 0..40 {
            let bytes = noise(index, 1 + 997 * index as usize);
            std::fs::write(tree.join(format!("below/file {index}")), bytes).unwrap();
        }
        std::fs::write(tree.join("large"), noise(99, 3 << 20)).unwrap();
        std::fs::write(tree.join("empty"), b"").unwrap();
        std::os::unix::fs::symlink("../large", tree.join("below/link")).unwrap();
        tree
    }

    fn make(&self, kind: &str, tree: &Path) -> PathBuf {
        let image = self.image(kind);
        match kind {
            "erofs" => tool(Command::new("mkfs.erofs").arg(&image).arg(tree)),
            "squashfs" => {
                tool(
                    Command::new("mksquashfs")
                        .arg(tree)
                        .arg(&image)
                        .args(["-quiet", "-no-progress"]),
                );
            }
            "ext4" => {
                File::create(&image).unwrap().set_len(64 << 20).unwrap();
                tool(
                    Command::new("mkfs.ext4")
                        .args(["-q", "-d"])
                        .arg(tree)
                        .arg(&image),
                );
            }
            other => panic!("no tool for {other}"),
        }
        image
    }

    /// The servers that have a record.
    fn servers(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir(self.path("state")) else {
            return Vec::new();
        };
        let mut pids = Vec::new();
        for entry in entries {
            if let Ok(text) = std::fs::read(entry.unwrap().path().join("state.json")) {
                let record: serde_json::Value = serde_json::from_slice(&text).unwrap();
                pids.push(u32::try_from(record["pid"].as_u64().unwrap()).unwrap());
            }
        }
        pids
    }

    /// Servers' directories, whole or not.
    fn records(&self) -> usize {
        std::fs::read_dir(self.path("state")).map_or(0, |entries| {
            entries
                .filter(|entry| entry.as_ref().unwrap().file_name() != "lock")
                .count()
        })
    }

    fn server(&self) -> u32 {
        let servers = self.servers();
        assert_eq!(servers.len(), 1, "one server was expected");
        servers[0]
    }

    /// Loop devices on images of this test.
    fn loops(&self) -> Vec<String> {
        let tag = self
            .dir
            .path()
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let mut loops = Vec::new();
        for entry in std::fs::read_dir("/sys/block").unwrap() {
            let entry = entry.unwrap();
            let file = std::fs::read_to_string(entry.path().join("loop/backing_file"));
            if file.is_ok_and(|name| name.contains(&tag)) {
                loops.push(entry.file_name().to_str().unwrap().to_owned());
            }
        }
        loops
    }

    fn mounts(&self) -> Vec<String> {
        let tag = self.dir.path().to_str().unwrap();
        let table = std::fs::read_to_string("/proc/mounts").unwrap();
        table
            .lines()
            .filter(|line| line.contains(tag))
            .map(str::to_owned)
            .collect()
    }

    fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new());
        assert_eq!(self.servers(), Vec::<u32>::new());
        assert_eq!(self.records(), 0, "records are left in the state directory");
        // The kernel clears a loop device after its last user has gone, in its own time.
        wait_for("the loop devices are gone", || self.loops().is_empty());
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for pid in self.servers() {
            signal(pid, rustix::process::Signal::KILL);
        }
        for line in self.mounts() {
            if let Some(dir) = line.split(' ').nth(1) {
                let _ = Command::new("umount").args(["--lazy", dir]).status();
            }
        }
        for name in self.loops() {
            let _ = Command::new("losetup")
                .args(["--detach", &format!("/dev/{name}")])
                .status();
        }
    }
}

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
            let mut arguments = vec!["mount", text(&image), text(&on)];
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
        scratch.ok(&["mount", "--no-passthrough", text(&image), text(&on)]);
        let mut reader = cat(&on.join("read"));
        let pid = scratch.server();
        signal(pid, rustix::process::Signal::KILL);
        // It may have had all it wanted before; what matters is that it does not wait for ever.
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
    std::fs::copy(env!("CARGO_BIN_EXE_sidecore"), &program).unwrap();
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
        errors.contains("root") && errors.contains("--file-only"),
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
fn another_mount_namespace_cannot_keep_the_server() {
    let scratch = Scratch::new();
    let image = scratch.make("erofs", &scratch.tree());
    let on = scratch.path("on");
    scratch.ok(&["mount", text(&image), text(&on)]);
    let pid = scratch.server();
    let mut other = Command::new("unshare")
        .args(["--mount", "sh", "-c", "echo here; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "here\n");
    let output = scratch.run(&["umount", text(&on)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let gone = !is_running(pid);
    drop(other.stdin.take());
    other.wait().unwrap();
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("namespace"), "{errors}");
    assert!(gone, "the server still runs");
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

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a tool that must be there and succeed.
fn tool(command: &mut Command) {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?}: {error}; run scripts/setup"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

fn assert_same(tree: &Path, mounted: &Path) {
    tool(
        Command::new("diff")
            .args(["-r", "--no-dereference", "-x", "lost+found"])
            .arg(tree)
            .arg(mounted),
    );
}

/// Reads a file to its end, for at most 30 s (status 124 then).
fn cat(path: &Path) -> Child {
    let mut command = Command::new("timeout");
    command.args(["30", "cat"]).arg(path);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    // One that has ended meanwhile is as good.
    let _ = rustix::process::kill_process(pid, signal);
}

/// Whether the process is there and not only waiting for its parent to look at its end.
fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .starts_with(" Z")
    })
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "waited 30 s in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that do not compress, the same for the same seed (xorshift64*).
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        bytes.extend(state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
