//! Scratch directories, programs and contents for the tests in this folder.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// Text, noise and zeros in runs of 128 KiB.
pub(crate) fn contents(bytes: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_9ABC_DEF1_u64;
    let mut out = Vec::with_capacity(bytes + 256);
    while out.len() < bytes {
        match out.len() >> 17 & 3 {
            0 | 1 => out.extend(format!("here stands line {} of some text\n", out.len()).bytes()),
            2 => {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                out.extend(state.to_le_bytes());
            }
            _ => out.extend([0; 128]),
        }
    }
    out.truncate(bytes);
    out
}

/// A scratch directory that knows its expected contents.
pub(crate) struct Place(pub(crate) TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(TempDir::with_prefix("sidecore-pack-").unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// Nothing but these files is there.
    pub(crate) fn holds(&self, names: &[&str]) {
        for entry in fs::read_dir(self.0.path()).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(names.contains(&name.as_str()), "{name} was left behind");
        }
    }
}

/// A mounted file system, unmounted on drop.
pub(crate) struct Mount(pub(crate) PathBuf);

impl Mount {
    pub(crate) fn new(disk: &Path, kind: &str, at: &Path) -> Self {
        fs::create_dir_all(at).unwrap();
        ok(tool("mount")
            .args(["-t", kind, "-o", "loop,ro"])
            .arg(disk)
            .arg(at));
        Self(at.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = tool("umount").arg(&self.0).status();
    }
}

/// A loop device, detached on drop.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Loop {
    pub(crate) fn new(file: &Path) -> Self {
        let output = ok(tool("losetup").args(["--find", "--show"]).arg(file));
        Self(String::from_utf8(output.stdout).unwrap().trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = tool("losetup").arg("-d").arg(&self.0).status();
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn sidecore(arguments: &[&str]) -> Command {
    let mut command = tool(env!("CARGO_BIN_EXE_sidecore"));
    // Scratch files go next to the image, where the tests look for leftovers.
    command.args(arguments).env_remove("TMPDIR");
    command
}

pub(crate) fn tool(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

pub(crate) fn pack(source: &Path, image: &Path, options: &[&str]) -> Output {
    ok(sidecore(&["block", "pack"])
        .arg(source)
        .arg("-o")
        .arg(image)
        .args(options))
}

/// The command that unpacks `image` into the file `to`.
pub(crate) fn unpack(image: &Path, to: &Path) -> Command {
    let mut command = sidecore(&["block", "unpack"]);
    command.arg(image).arg("-o").arg(to);
    command
}

pub(crate) fn run(command: &mut Command) -> Output {
    let program = command.get_program().to_owned();
    (command.output())
        .unwrap_or_else(|error| panic!("cannot run {program:?}: {error}; run scripts/setup"))
}

pub(crate) fn ok(command: &mut Command) -> Output {
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr);
    let listed = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(2000)]);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}\n{listed}",
        output.status
    );
    output
}

/// The command ended with `status`, and printed `says` to standard error and nothing to standard
/// output.
pub(crate) fn fails(output: &Output, status: i32, says: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}");
    assert!(said.contains(says), "`{said}` does not say `{says}`");
    assert!(
        output.stdout.is_empty(),
        "something stands on standard output"
    );
}

pub(crate) fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs a command over `input`.
pub(crate) fn piped(mut command: Command, input: &[u8]) -> Vec<u8> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Waits until a child has written this many bytes to any file.
pub(crate) fn wait_for_written(child: &mut Child, bytes: u64) {
    // A minute: it hangs, whatever the machine.
    for _ in 0..12_000 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
        let written = io
            .lines()
            .find_map(|line| line.strip_prefix("wchar: "))
            .unwrap();
        if written.parse::<u64>().unwrap() > bytes {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    panic!("it wrote nothing for a minute");
}
