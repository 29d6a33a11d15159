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

use crate::fuse::Keeping;
use crate::state::StateDir;
use crate::{ExportError, Ready};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use sidecore_status::{Address, EndpointError, Live, Status};
use sidecore_sys::text::causes;
use std::error::Error;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
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
fn start(subcommand: &str) -> Result<Ready, BackgroundError> {
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

/// The part of a server that a process has, as the words of its command line say.
#[derive(Debug, Clone, Default)]
pub struct Launch {
    /// The server stays in the foreground; a service manager may wait for it.
    pub foreground: bool,
    /// This process is the server in the background, which a waiting command has started.
    pub is_child: bool,
    /// This server goes on with the mount of one that was killed.
    pub adopts: bool,
    /// Address of the server's metrics.
    pub metrics: Option<Address>,
}

impl Launch {
    /// Starts the server in the background, where it belongs there, by the words of this command
    /// line; `subcommand` is the word after which a flag may stand. Blocks until the server is
    /// ready. `None` where this process is the server.
    ///
    /// # Errors
    /// [`BackgroundError`]; nothing is left of the server then.
    pub fn in_background(&self, subcommand: &str) -> Result<Option<Ready>, BackgroundError> {
        match self.foreground || self.is_child {
            true => Ok(None),
            false => start(subcommand).map(Some),
        }
    }

    /// The keeper that the server's mount can have.
    #[must_use]
    pub fn keeping(&self) -> Keeping {
        match (self.adopts, self.is_child) {
            (true, _) => Keeping::Adopt,
            (false, true) => Keeping::Yes,
            (false, false) => Keeping::No,
        }
    }

    /// Serves by `work`, detached from the terminal where this is a background server. The reason
    /// of its failure goes to a waiting command, and the process then ends with status 2.
    ///
    /// # Errors
    /// Those of `work`, where nothing waits for them.
    pub fn serve<T, E: AsRef<dyn Error + 'static>>(
        &self,
        work: impl FnOnce(&Starter<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.is_child
            && let Err(error) = rustix::process::setsid()
        {
            tracing::debug!("no new session: {error}");
        }
        let starter = Starter {
            launch: self,
            reported: AtomicBool::new(false),
            live: Mutex::new(None),
        };
        let result = work(&starter);
        if let Err(error) = &result
            && starter.fail(causes(error.as_ref()))
        {
            std::process::exit(2)
        }
        result
    }
}

/// The call of a server that is ready. Where it fails, the server undoes all.
pub type OnReady<'a> = Box<dyn FnOnce(&Ready) -> io::Result<()> + Send + 'a>;

/// A server's link to those that wait for it: a command or a terminal, and readers of the list of
/// servers.
#[derive(Debug)]
pub struct Starter<'l> {
    launch: &'l Launch,
    reported: AtomicBool,
    /// Its place in the list of servers, until the end of [`Launch::serve`].
    live: Mutex<Option<Result<Live, EndpointError>>>,
}

impl Starter<'_> {
    /// Serves by `serve`, which makes its argument's call once all is usable: the server is then
    /// listed with its `status`, and a waiting command hears of it; in the foreground `shown` does.
    ///
    /// # Errors
    /// Those of `serve`; [`ExportError::Metrics`].
    pub fn run(
        &self,
        status: impl FnOnce(&Ready) -> Arc<Status> + Send,
        shown: impl FnOnce(&Ready) -> io::Result<()> + Send,
        serve: impl FnOnce(OnReady<'_>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        let served = serve(Box::new(|ready: &Ready| {
            let launch = self.launch;
            // Before the command ends: its user may list the server at once.
            let live = Live::begin(&status(ready), launch.metrics.as_ref(), launch.foreground);
            let refused = live.as_ref().err().map(ToString::to_string);
            *self.live.lock() = Some(live);
            match refused {
                Some(reason) => Err(io::Error::other(reason)),
                None => self.tell(ready, || shown(ready)),
            }
        }));
        // Of two reasons for the end the first.
        match self.live.lock().take_if(|live| live.is_err()) {
            Some(Err(error)) => Err(error.into()),
            _ => served,
        }
    }

    /// Reports that all is usable: to the waiting command, or by `in_foreground`.
    ///
    /// # Errors
    /// The system's; the server is to end then.
    fn tell(
        &self,
        ready: &Ready,
        in_foreground: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        self.reported.store(true, Ordering::Relaxed);
        if !self.launch.is_child {
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
    fn fail(&self, reason: String) -> bool {
        let waits = self.launch.is_child && !self.reported.load(Ordering::Relaxed);
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
