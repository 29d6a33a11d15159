//! Running a server in the background, and waiting until it is ready.
//!
//! Why here: a command that mounts or attaches returns when its result can be used, and reports the
//! error if it cannot.
//!
//! The command runs itself again with a hidden flag, standard output a pipe. The child writes one
//! message there, either the result or the error, and closes it. It is a new process, not a fork,
//! because the device's engines are threads. Must stay true: one message; after it, the child holds
//! none of the caller's descriptors, so that a reader that waits for the end of our output does not
//! wait for a server. If the waiting command is killed, writing the child's message fails and the
//! child undoes everything.

use crate::Ready;
use crate::state::StateDir;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The flag of the command that is the server.
pub(crate) const CHILD_FLAG: &str = "--background-child";

/// The child's one message.
#[derive(serde::Serialize, serde::Deserialize)]
enum Message {
    /// The server is ready.
    Ready(Ready),
    /// The server could not start, for this reason.
    Failed(String),
}

/// Reasons why there is no server in the background.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackgroundError {
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// The attempt.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The server's own reason.
    #[error("{0}")]
    Failed(String),
    /// It ended without a word.
    #[error("the server ended before it was of use ({0}); run with --foreground to see why")]
    Died(ExitStatus),
}

fn io(what: &'static str) -> impl FnOnce(io::Error) -> BackgroundError {
    move |source| BackgroundError::Io { what, source }
}

/// Runs this same command line in the background; `subcommand` is the word in it after which a flag
/// may stand.
///
/// # Errors
/// [`BackgroundError`]; nothing is left of the server then.
pub fn start(subcommand: &str) -> Result<Ready, BackgroundError> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let at = arguments
        .iter()
        .position(|word| word == subcommand)
        .unwrap_or_default();
    arguments.insert(at + 1, CHILD_FLAG.into());
    let mut command = Command::new("/proc/self/exe");
    // systemd ends all other processes when it leaves an initramfs and when it shuts down, and the
    // root file system may be this mount.
    let name = std::env::args_os().next().unwrap_or_default();
    if name.as_bytes().starts_with(b"@") {
        command.arg0(name);
    }
    // The server leaves this directory.
    for name in PATHS {
        if let Some(path) = std::env::var_os(name).filter(|path| !path.is_empty()) {
            let path = std::path::absolute(path).map_err(io("say where we are"))?;
            command.env(name, path);
        }
    }
    let mut child = command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(io("start the server"))?;
    let text = match child.stdout.take().map(hear) {
        Some(Err(error)) => {
            // It is not reaped, so its PID is not reused. It undoes its own work.
            kill_process(Pid::from_child(&child), Signal::TERM).ok();
            return Err(io("hear from the server")(error));
        }
        heard => heard.and_then(Result::ok).unwrap_or_default(),
    };
    let mut wait = || child.wait().map_err(io("wait for the server"));
    match serde_json::from_str(&text) {
        Ok(Message::Ready(ready)) => Ok(ready),
        Ok(Message::Failed(reason)) => {
            wait()?;
            Err(BackgroundError::Failed(reason))
        }
        Err(_) => {
            let status = wait()?;
            // It was killed, or had no memory: its mounts are undone here.
            if let Err(error) = StateDir::of_user().clean_stale() {
                tracing::warn!("{error}");
            }
            Err(BackgroundError::Died(status))
        }
    }
}

/// Reads a pipe to its end. A transient error is ignored: the server assumes that its message was
/// delivered.
fn hear(mut pipe: impl Read) -> io::Result<String> {
    let mut text = String::new();
    let mut tries = 0;
    loop {
        match pipe.read_to_string(&mut text) {
            Ok(_) => return Ok(text),
            Err(error) if tries == HEARING_TRIES => return Err(error),
            Err(_) => {
                tries += 1;
                std::thread::sleep(HEARING_PAUSE);
            }
        }
    }
}

/// A server's link to its parent: a waiting command, or a terminal.
#[derive(Debug)]
pub struct Starter {
    in_background: bool,
    reported: AtomicBool,
}

impl Starter {
    /// Detaches a background server from the terminal. Call it first.
    #[must_use]
    pub fn new(in_background: bool) -> Self {
        if in_background && let Err(error) = rustix::process::setsid() {
            tracing::debug!("no new session: {error}");
        }
        Self {
            in_background,
            reported: AtomicBool::new(false),
        }
    }

    /// Reports that all is usable: to the waiting command, or by `in_foreground`.
    ///
    /// # Errors
    /// The system's; the server is to end then.
    pub fn tell(
        &self,
        ready: &Ready,
        in_foreground: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.reported.store(true, Ordering::Relaxed);
        if !self.in_background {
            return in_foreground();
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
        let log = rustix::fs::open(ready.state.join("log"), flags, Mode::RUSR | Mode::WUSR)?;
        let null = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        // The server must not keep another directory busy.
        rustix::process::chdir("/")?;
        rustix::stdio::dup2_stderr(&log)?;
        send(&Message::Ready(ready.clone()))?;
        // The pipe's end is the message's: after it a reader of our output waits for nothing.
        Ok(rustix::stdio::dup2_stdout(&null)?)
    }

    /// Sends the reason to a waiting command that got no report yet; false where nothing waits for
    /// it.
    pub fn fail(&self, reason: String) -> bool {
        let waits = self.in_background && !self.reported.load(Ordering::Relaxed);
        waits && send(&Message::Failed(reason)).is_ok()
    }
}

/// Writes the message to the pipe that standard output is.
fn send(message: &Message) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    out.flush()
}

/// Retries of the read from a server, and the time between two.
const HEARING_TRIES: u32 = 10;
const HEARING_PAUSE: Duration = Duration::from_millis(20);
/// Environment variables that are paths and that a server reads at any time: those of its own
/// records, and of keys and authorities, which are read again before they expire.
const PATHS: [&str; 14] = [
    "SIDECORE_SERVERS_DIR",
    "SIDECORE_STATE_DIR",
    "XDG_CONFIG_HOME",
    "TMPDIR",
    "HOME",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CA_BUNDLE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "DOCKER_CONFIG",
    "REGISTRY_AUTH_FILE",
    "SIDECORE_HOSTS_DIR",
];
