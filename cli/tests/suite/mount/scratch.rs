//! Scratch directory of a test, with the processes and mounts that the test starts; all is undone
//! on drop.
//!
//! Must stay true: what a test has mounted, attached and started is undone when its scratch
//! directory goes, also when it fails.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A scratch directory with a source tree, and all that is mounted from it.
pub(crate) struct Scratch {
    pub(crate) dir: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A name that is on no other test's images.
    pub(crate) fn image(&self, kind: &str) -> PathBuf {
        let tag = self.dir.path().file_name().unwrap().to_str().unwrap();
        self.path(&format!("{kind}.{tag}"))
    }

    pub(crate) fn sidecore(&self, arguments: &[&str]) -> Command {
        // A hang fails the test instead of stopping it.
        let mut command = Command::new("timeout");
        command
            .arg("--kill-after=5")
            .arg("200")
            .arg(env!("CARGO_BIN_EXE_sidecore"))
            .arg("block");
        command
            .args(arguments)
            .env("SIDECORE_STATE_DIR", self.path("state"));
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.sidecore(arguments).output().unwrap()
    }

    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
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
    pub(crate) fn refused(&self, arguments: &[&str], words: &str) {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }

    /// A tree of small files, one of 3 MiB, an empty one, a directory, a link and odd names.
    pub(crate) fn tree(&self) -> PathBuf {
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

    pub(crate) fn make(&self, kind: &str, tree: &Path) -> PathBuf {
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
    pub(crate) fn servers(&self) -> Vec<u32> {
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
    pub(crate) fn records(&self) -> usize {
        std::fs::read_dir(self.path("state")).map_or(0, |entries| {
            entries
                .filter(|entry| entry.as_ref().unwrap().file_name() != "lock")
                .count()
        })
    }

    pub(crate) fn server(&self) -> u32 {
        let servers = self.servers();
        assert_eq!(servers.len(), 1, "one server was expected");
        servers[0]
    }

    /// Loop devices on images of this test.
    pub(crate) fn loops(&self) -> Vec<String> {
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

    pub(crate) fn mounts(&self) -> Vec<String> {
        let tag = self.dir.path().to_str().unwrap();
        let table = std::fs::read_to_string("/proc/mounts").unwrap();
        table
            .lines()
            .filter(|line| line.contains(tag))
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!(self.mounts(), Vec::<String>::new());
        // Other tests' mount namespaces have copies of this one's mounts for a moment.
        wait_for("no records are left", || self.records() == 0);
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

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a tool that must be there and succeed.
pub(crate) fn tool(command: &mut Command) {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?}: {error}; run scripts/setup"),
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

pub(crate) fn assert_same(tree: &Path, mounted: &Path) {
    tool(
        Command::new("diff")
            .args(["-r", "--no-dereference", "-x", "lost+found"])
            .arg(tree)
            .arg(mounted),
    );
}

/// Reads a file to its end, for at most 30 s (status 124 then).
pub(crate) fn cat(path: &Path) -> Child {
    let mut command = Command::new("timeout");
    command.args(["30", "cat"]).arg(path);
    command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
    // A process that has ended meanwhile is fine, too.
    let _ = rustix::process::kill_process(pid, signal);
}

/// True if the process exists and is not a zombie.
pub(crate) fn is_running(pid: u32) -> bool {
    // The first thread may be a zombie while others still end, and hold the process's files.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default();
    threads > 1 || threads == 1 && !state.starts_with(" Z")
}

pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
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
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
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
