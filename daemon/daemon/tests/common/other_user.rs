//! Another user, played by this test's own program: a child that runs one test of it as user 65534.
//!
//! Why here: only a process of another user can show the effects of such a client on a server, or
//! of such a server on a client. Must stay true: needs root to change its user; a child's messages
//! go to standard output, a line at a time; it ends with its `Child`.
#![allow(dead_code)] // Each test uses what it needs.

use sidecore_sys::local_socket::{self, Received};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Id of the user `nobody`.
pub(crate) const UID: u32 = 65_534;
/// Names the part that a child plays; its argument is in [`ARGUMENT`].
pub(crate) const ROLE: &str = "SIDECORE_TEST_ROLE";
pub(crate) const ARGUMENT: &str = "SIDECORE_TEST_ARGUMENT";

/// True if this process can become another user; prints a note if not.
pub(crate) fn can_be_played() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("left out: only root can become another user");
    }
    root
}

/// A folder that every user can enter.
pub(crate) fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// A process of that user.
pub(crate) struct Child {
    child: std::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
    input: Option<ChildStdin>,
}

impl Child {
    /// Starts the test `child` of this program, to play `role`. The program is copied to `folder`:
    /// it may lie where other users cannot go.
    pub(crate) fn start(folder: &Path, role: &str, argument: &Path) -> Self {
        Self::start_as(UID, folder, role, argument)
    }

    /// The same as user `uid`.
    pub(crate) fn start_as(uid: u32, folder: &Path, role: &str, argument: &Path) -> Self {
        let program = folder.join("child");
        if !program.exists() {
            // By another process: a child that another test starts meanwhile would inherit our
            // descriptor, and the kernel executes no file that is open for writing.
            let copied = Command::new("cp")
                .arg(std::env::current_exe().unwrap())
                .arg(&program)
                .status();
            assert!(copied.unwrap().success(), "cannot copy this program");
        }
        let mut command = Command::new("setpriv");
        command
            .args([&format!("--reuid={uid}"), &format!("--regid={uid}")])
            .arg("--clear-groups")
            .arg(program)
            .args(["child", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ARGUMENT, argument)
            .env_remove("XDG_RUNTIME_DIR");
        Self::spawn(&mut command)
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let input = child.stdin.take();
        Self {
            child,
            lines,
            input,
        }
    }

    /// Waits for a line that begins with `start`; returns the rest of it.
    pub(crate) fn expect(&mut self, start: &str) -> String {
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            // The test harness says things, too, on the same line.
            if let Some(at) = line.find(start) {
                return line[at + start.len()..].trim().to_owned();
            }
        }
        panic!("the other user's process ended without saying `{start}`");
    }

    /// Lets it go on.
    pub(crate) fn go_on(&mut self) {
        let input = self.input.as_mut().unwrap();
        input.write_all(b"go on\n").unwrap();
        input.flush().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // One that has ended is only waited for.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// In the child: prints a line.
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// In the child: waits for a line from the parent, or for the parent's end.
pub(crate) fn wait_for_parent() {
    std::io::stdin().read_line(&mut String::new()).ok();
}

/// In the child, on a thread: ends the process when the parent wants it, or has ended.
pub(crate) fn wait_for_parent_and_end() {
    wait_for_parent();
    std::process::exit(0);
}

/// In the child: connects and says nothing, again and again, with `connections_max` at once.
pub(crate) fn mute(socket: &Path, connections_max: usize) {
    say("begun");
    std::thread::spawn(wait_for_parent_and_end);
    let mut held = VecDeque::new();
    loop {
        match local_socket::connect(socket) {
            Ok(connection) => held.push_back(connection),
            Err(_) => std::thread::yield_now(),
        }
        if held.len() > connections_max {
            held.pop_front();
        }
    }
}

/// In the child: listens where a server would, and prints what it received.
pub(crate) fn pretend(socket: &Path) {
    let listener = local_socket::listen(socket, 0o777, 64).unwrap();
    say("listening");
    std::thread::spawn(wait_for_parent_and_end);
    loop {
        let far = Duration::from_secs(60);
        local_socket::poll(&[listener.as_fd()], &mut Vec::new(), far).unwrap();
        let Some(connection) = local_socket::accept(listener.as_fd()).unwrap() else {
            continue;
        };
        local_socket::poll(&[connection.as_fd()], &mut Vec::new(), far).unwrap();
        match local_socket::receive(connection.as_fd(), &mut [0; 64]).unwrap() {
            Received::Message(length, _) => say(&format!("heard: {length}")),
            _ => say("heard: nothing"),
        }
    }
}

/// In the child: asks a server to attach it; the segment, without the connection, or the reason of
/// a refusal.
pub(crate) fn attach_by_hand(socket: &Path, question: &[u8]) -> Result<OwnedFd, String> {
    let connection = local_socket::connect(socket).map_err(|error| error.to_string())?;
    local_socket::send(connection.as_fd(), question, &[]).map_err(|error| error.to_string())?;
    let mut answer = vec![0; 1 << 17];
    loop {
        let timeout = Duration::from_secs(30);
        local_socket::poll(&[connection.as_fd()], &mut Vec::new(), timeout).unwrap();
        match local_socket::receive(connection.as_fd(), &mut answer).unwrap() {
            Received::Message(_, mut files) if answer[8] == 1 => return Ok(files.swap_remove(0)),
            Received::Message(length, _) => {
                return Err(String::from_utf8_lossy(&answer[16..length]).into_owned());
            }
            Received::End => return Err("hung up".to_owned()),
            Received::Nothing => {}
        }
    }
}
