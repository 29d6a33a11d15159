//! Ends of a written mount: whichever way it ends, closed files are there the next time, or the
//! command has reported that they are not.

use crate::mount::scratch::{Scratch, is_running, noise, signal, text, tool, wait_for};
use rustix::process::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// An ext4 image that is mounted to be written, on `on`.
struct Written {
    scratch: Scratch,
    image: PathBuf,
    on: PathBuf,
}

impl Written {
    fn new() -> Self {
        let scratch = Scratch::new();
        let tree = scratch.path("tree");
        std::fs::create_dir(&tree).unwrap();
        std::fs::write(tree.join("old"), "from the image").unwrap();
        let image = scratch.make("ext4", &tree);
        let on = scratch.path("on");
        let written = Self { scratch, image, on };
        written.mount();
        written
    }

    fn mount(&self) {
        let overlay = self.scratch.path("overlay");
        self.scratch.ok(&[
            "mount",
            text(&self.image),
            text(&self.on),
            "--fs",
            "ext4",
            "--overlay",
            text(&overlay),
        ]);
    }

    /// Writes a file and closes it, without a sync.
    fn write(&self, name: &str, seed: u64) {
        std::fs::write(self.on.join(name), noise(seed, 3 << 20)).unwrap();
    }

    /// After the end: mounted again, these files are as they were written.
    fn assert_kept(&self, files: &[(&str, u64)]) {
        self.scratch.assert_nothing_left();
        self.mount();
        for &(name, seed) in files {
            let found = std::fs::read(self.on.join(name));
            assert!(found.is_ok_and(|it| it == noise(seed, 3 << 20)), "{name}");
        }
        self.scratch.ok(&["umount", text(&self.on)]);
        self.scratch.assert_nothing_left();
    }

    fn assert_ends(&self) {
        wait_for("the server has ended", || self.scratch.records() == 0);
    }
}

/// A process with a mount namespace of its own.
struct Namespace(Child);

impl Namespace {
    /// One that has the mounts of one test alone.
    fn new(scratch: &Scratch) -> Self {
        let script = "grep /sidecore-mount- /proc/mounts | grep -v \"$0\" | cut -d ' ' -f 2 | \
                      xargs -r umount --lazy; echo here; read line";
        let mut child = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(scratch.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "here\n");
        Self(child)
    }

    fn run(&self, command: &Command) -> std::process::Output {
        let mut inside = Command::new("nsenter");
        inside.args(["--mount", "--target", &self.0.id().to_string(), "--"]);
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            inside.env(name, value.unwrap());
        }
        inside.output().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn what_was_written_is_kept_while_another_namespace_has_the_mount() {
    let written = Written::new();
    let other = Namespace::new(&written.scratch);
    written.write("data", 1);
    let output = written.scratch.run(&["umount", text(&written.on)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("namespace"), "{errors}");
    // The server stays there.
    let pid = written.scratch.server();
    let path = written.on.join("there");
    let script = format!("echo more > {}", path.display());
    let wrote = other.run(Command::new("sh").arg("-c").arg(script));
    assert!(wrote.status.success(), "{wrote:?}");
    assert!(is_running(pid));
    written.scratch.refused(
        &["umount", text(&written.on)],
        "until the other mount namespaces",
    );
    drop(other);
    written.assert_ends();
    written.assert_kept(&[("data", 1)]);
    written.mount();
    assert_eq!(std::fs::read(path).unwrap(), b"more\n");
    written.scratch.ok(&["umount", text(&written.on)]);
}

#[test]
fn another_namespace_can_let_go_of_its_copy_alone() {
    let written = Written::new();
    let other = Namespace::new(&written.scratch);
    written.write("data", 2);
    let umount = written.scratch.sidecore(&["umount", text(&written.on)]);
    let output = other.run(&umount);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("so its server stays"), "{errors}");
    drop(other);
    written.write("later", 3);
    written.scratch.ok(&["umount", text(&written.on)]);
    written.assert_kept(&[("data", 2), ("later", 3)]);
}

#[test]
fn a_forced_umount_keeps_closed_and_open_files() {
    let written = Written::new();
    written.write("closed", 4);
    let mut open = File::create(written.on.join("open")).unwrap();
    written
        .scratch
        .refused(&["umount", text(&written.on)], "in use");
    let output = written
        .scratch
        .run(&["umount", "--force", text(&written.on)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    // Programs have a file open, and perhaps a namespace of another test has the mount.
    assert!(errors.contains("so its server stays"), "{errors}");
    assert_eq!(written.scratch.mounts(), Vec::<String>::new());
    // As below a loop device after `umount -l`.
    open.write_all(&noise(5, 3 << 20)).unwrap();
    drop(open);
    written.assert_ends();
    written.assert_kept(&[("closed", 4), ("open", 5)]);
}

#[test]
fn two_signals_keep_what_was_closed() {
    for ending in [Signal::TERM, Signal::INT, Signal::HUP] {
        let written = Written::new();
        let _other = Namespace::new(&written.scratch);
        let pid = written.scratch.server();
        written.write("closed", 6);
        let mut open = File::create(written.on.join("open")).unwrap();
        signal(pid, ending);
        wait_for("it is unmounted", || written.scratch.mounts().is_empty());
        open.write_all(&noise(7, 3 << 20)).unwrap();
        signal(pid, ending);
        wait_for("the server has ended", || !is_running(pid));
        // An error, and no silent loss.
        let late = open.write_all(b"late").and_then(|()| open.sync_all());
        assert!(late.is_err());
        drop((open, _other));
        wait_for("the loop device is gone", || {
            written.scratch.loops().is_empty()
        });
        written.assert_kept(&[("closed", 6), ("open", 7)]);
    }
}

#[test]
fn a_signal_waits_for_programs_that_write_on() {
    let written = Written::new();
    let pid = written.scratch.server();
    let mut open = File::create(written.on.join("open")).unwrap();
    signal(pid, Signal::TERM);
    wait_for("it is unmounted", || written.scratch.mounts().is_empty());
    open.write_all(&noise(8, 3 << 20)).unwrap();
    drop(open);
    wait_for("the server has ended", || !is_running(pid));
    written.assert_kept(&[("open", 8)]);
}

#[test]
fn a_stopped_server_is_made_to_go_on() {
    let written = Written::new();
    let pid = written.scratch.server();
    written.write("data", 9);
    signal(pid, Signal::STOP);
    written.scratch.ok(&["umount", text(&written.on)]);
    written.assert_kept(&[("data", 9)]);
}

#[test]
fn unmounted_by_others_the_server_ends_once_nobody_has_it() {
    let written = Written::new();
    written.write("data", 10);
    let open = File::create(written.on.join("open")).unwrap();
    tool(Command::new("umount").arg("--lazy").arg(&written.on));
    open.write_all_at(&noise(11, 3 << 20), 0).unwrap();
    drop(open);
    written.assert_ends();
    written.assert_kept(&[("data", 10), ("open", 11)]);
    written.mount();
    written.write("data", 12);
    tool(Command::new("umount").arg(&written.on));
    written.assert_ends();
    written.assert_kept(&[("data", 12)]);
}

/// Undoes a mount of another file system also when the test fails.
struct Unmount<'p>(&'p Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[test]
fn what_cannot_be_flushed_is_said_and_stays_mounted() {
    let scratch = Scratch::new();
    let tree = scratch.path("tree");
    std::fs::create_dir(&tree).unwrap();
    let image = scratch.make("ext4", &tree);
    let (on, small) = (scratch.path("on"), scratch.path("small"));
    std::fs::create_dir(&small).unwrap();
    let size = |size: &str| {
        let options = format!("size={size}");
        let kind = ["-t", "tmpfs", "-o", &options, "none"];
        tool(Command::new("mount").args(kind).arg(&small));
    };
    size("12m");
    let _small = Unmount(&small);
    let overlay = small.join("overlay");
    let mount = [
        "mount",
        text(&image),
        text(&on),
        "--fs",
        "ext4",
        "--overlay",
    ];
    scratch.ok(&[&mount[..], &[text(&overlay)]].concat());
    std::fs::write(on.join("much"), noise(13, 6 << 20)).unwrap();
    scratch.refused(&["umount", text(&on)], "cannot be made durable");
    let ours = |line: &String| line.contains(text(&on));
    assert_eq!(scratch.mounts().iter().filter(|line| ours(line)).count(), 1);
    assert!(is_running(scratch.server()));
    tool(
        Command::new("mount")
            .args(["-o", "remount,size=64m"])
            .arg(&small),
    );
    assert!(on.join("lost+found").is_dir());
    scratch.ok(&["umount", text(&on)]);
    wait_for("the server has ended", || scratch.records() == 0);
}

#[test]
fn after_a_kill_umount_says_what_may_be_lost() {
    let written = Written::new();
    written.write("synced", 14);
    File::open(written.on.join("synced"))
        .unwrap()
        .sync_all()
        .unwrap();
    written.write("data", 15);
    let pid = written.scratch.server();
    signal(pid, Signal::KILL);
    wait_for("a killed server is gone", || !is_running(pid));
    let output = written.scratch.run(&["umount", text(&written.on)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("lost"), "{errors}");
    written.assert_kept(&[("synced", 14)]);
}

#[test]
fn a_file_that_is_written_in_place_keeps_what_was_written() {
    for force in [false, true] {
        let scratch = Scratch::new();
        let image = scratch.image("plain");
        std::fs::write(&image, noise(16, 4 << 20)).unwrap();
        let on = scratch.path("on");
        let overlay = scratch.path("overlay");
        let mount = ["mount", "--file-only", text(&image), text(&on), "--overlay"];
        let mount = [&mount[..], &[text(&overlay)]].concat();
        scratch.ok(&mount);
        let file = File::options().write(true).open(on.join("image")).unwrap();
        file.write_all_at(b"written", 5000).unwrap();
        if force {
            scratch.ok(&["umount", "--force", text(&on)]);
            file.write_all_at(b"later", 6000).unwrap();
            drop(file);
        } else {
            let pid = scratch.server();
            signal(pid, Signal::TERM);
            wait_for("it is unmounted", || scratch.mounts().is_empty());
            signal(pid, Signal::TERM);
        }
        wait_for("the server has ended", || scratch.records() == 0);
        scratch.ok(&mount);
        let found = std::fs::read(on.join("image")).unwrap();
        assert_eq!(&found[5000..5007], b"written");
        assert_eq!(&found[6000..6005] == b"later", force);
        scratch.ok(&["umount", text(&on)]);
        scratch.assert_nothing_left();
    }
}

/// Programs see the size at once, also those that have the file open.
#[test]
fn a_mounted_file_becomes_larger() {
    let scratch = Scratch::new();
    let image = scratch.image("plain");
    std::fs::write(&image, noise(17, 4 << 20)).unwrap();
    let (on, overlay) = (scratch.path("on"), scratch.path("overlay"));
    let mount = ["mount", "--file-only", text(&image), text(&on), "--overlay"];
    scratch.ok(&[&mount[..], &[text(&overlay)]].concat());
    let path = on.join("image");
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let sizes = || [file.metadata(), path.metadata()].map(|it| it.unwrap().len());
    assert_eq!(sizes(), [4 << 20; 2]);
    file.read_exact_at(&mut [0], 4 << 20).unwrap_err();
    scratch.ok(&["resize", text(&on), "8MiB"]);
    assert_eq!(sizes(), [8 << 20; 2]);
    file.write_all_at(b"behind", (8 << 20) - 6).unwrap();
    let mut found = [1; 6];
    file.read_exact_at(&mut found, 4 << 20).unwrap();
    assert_eq!(found, [0; 6]);
    file.read_exact_at(&mut found, (8 << 20) - 6).unwrap();
    assert_eq!(&found, b"behind");
    drop(file);
    scratch.ok(&["umount", text(&on)]);
    scratch.assert_nothing_left();
}

/// A device that takes writes.
struct Attached {
    scratch: Scratch,
    image: PathBuf,
    device: String,
}

impl Attached {
    fn new() -> Self {
        let scratch = Scratch::new();
        let tree = scratch.path("tree");
        std::fs::create_dir(&tree).unwrap();
        let image = scratch.make("ext4", &tree);
        let mut attached = Self {
            scratch,
            image,
            device: String::new(),
        };
        attached.attach();
        attached
    }

    fn attach(&mut self) {
        let overlay = self.scratch.path("overlay");
        let attach = ["attach", text(&self.image), "--overlay", text(&overlay)];
        self.device = self.scratch.ok(&attach).trim().to_owned();
    }
}

#[test]
fn a_forced_detach_keeps_what_was_written() {
    let mut attached = Attached::new();
    let mut open = File::options().write(true).open(&attached.device).unwrap();
    open.seek(SeekFrom::Start(40 << 20)).unwrap();
    open.write_all(&noise(17, 1 << 20)).unwrap();
    let output = attached
        .scratch
        .run(&["detach", "--force", &attached.device]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    open.write_all(&noise(18, 1 << 20)).unwrap();
    drop(open);
    wait_for("the server has ended", || attached.scratch.records() == 0);
    attached.attach();
    let device = File::open(&attached.device).unwrap();
    let mut found = vec![0; 2 << 20];
    device.read_exact_at(&mut found, 40 << 20).unwrap();
    drop(device);
    assert!(found[..1 << 20] == noise(17, 1 << 20) && found[1 << 20..] == noise(18, 1 << 20));
    attached.scratch.ok(&["detach", &attached.device]);
    wait_for("the server has ended", || attached.scratch.records() == 0);
    attached.scratch.assert_nothing_left();
}

#[test]
fn signals_keep_what_was_written_to_a_file_system_on_a_device() {
    let mut attached = Attached::new();
    let on = attached.scratch.path("on");
    tool(Command::new("mount").arg(&attached.device).arg(&on));
    std::fs::write(on.join("data"), noise(19, 3 << 20)).unwrap();
    let pid = attached.scratch.server();
    for _ in 0..2 {
        signal(pid, Signal::TERM);
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    wait_for("the server has ended", || !is_running(pid));
    tool(Command::new("umount").arg(&on));
    wait_for("the loop device is gone", || {
        attached.scratch.loops().is_empty()
    });
    attached.attach();
    tool(Command::new("mount").arg(&attached.device).arg(&on));
    assert!(std::fs::read(on.join("data")).unwrap() == noise(19, 3 << 20));
    tool(Command::new("umount").arg(&on));
    attached.scratch.ok(&["detach", &attached.device]);
    wait_for("the server has ended", || attached.scratch.records() == 0);
    attached.scratch.assert_nothing_left();
}
