//! Other processes of the bench, seen from the one that measures.
//!
//! Why here: processes that spin, block, keep a core busy or use the daemon must be processes. They
//! are this program once more, as `offload peer ROLE`, so that nothing needs to be installed.
//! Must stay true: every child is ended and waited for when its handle goes, and ends by itself
//! when this process dies in whatever way (its standard input closes); no wait is longer than its
//! limit or goes on after the run was cancelled.
//! One thread. Source: own.

use super::peers::Role;
use super::{BenchError, interrupted};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A process that is told and tells a line at a time.
pub(crate) struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    text: String,
}

impl Peer {
    /// Starts this program once more, in a role, and waits until it is ready.
    pub(crate) fn start(
        program: &Path,
        role: &Role,
        cancel: &AtomicBool,
    ) -> Result<Self, BenchError> {
        let mut peer = Self::begin(program, role)?;
        peer.expect_ready(cancel)?;
        Ok(peer)
    }

    /// Starts several, which get ready side by side.
    pub(crate) fn start_all<'r>(
        program: &Path,
        roles: impl Iterator<Item = &'r Role>,
        cancel: &AtomicBool,
    ) -> Result<Vec<Self>, BenchError> {
        let begun: Result<Vec<Self>, BenchError> =
            roles.map(|role| Self::begin(program, role)).collect();
        let mut peers = begun?;
        for peer in &mut peers {
            peer.expect_ready(cancel)?;
        }
        Ok(peers)
    }

    fn begin(program: &Path, role: &Role) -> Result<Self, BenchError> {
        let words = serde_json::to_string(role).map_err(|error| BenchError::Io {
            what: "write a role".into(),
            source: error.into(),
        })?;
        let mut command = Command::new(program);
        command.args(["offload", "peer", &words]);
        Self::spawn(&mut command)
    }

    /// Starts any program that speaks in lines.
    pub(crate) fn spawn(command: &mut Command) -> Result<Self, BenchError> {
        let text = describe(command);
        // A group of its own: Ctrl-C reaches us alone, and we end things in order.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let child = command.spawn();
        let mut child = child.map_err(BenchError::io(format!("start `{text}`")))?;
        let input = child.stdin.take();
        let output = child.stdout.take();
        let (sender, lines) = channel();
        let reader = std::thread::Builder::new().name("bench-lines".into());
        let reading = reader.spawn(move || {
            for line in output
                .into_iter()
                .flat_map(|out| BufReader::new(out).lines())
            {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let peer = Self {
            child,
            input,
            lines,
            text,
        };
        reading.map_err(BenchError::io("start a thread"))?;
        Ok(peer)
    }

    /// Waits for its first line, which must be [`READY`].
    pub(crate) fn expect_ready(&mut self, cancel: &AtomicBool) -> Result<(), BenchError> {
        match self.line(cancel)?.as_str() {
            READY => Ok(()),
            other => Err(self.fault(format!("said `{other}` instead of `{READY}`"))),
        }
    }

    /// Sends a line.
    pub(crate) fn tell<T: serde::Serialize>(&mut self, message: &T) -> Result<(), BenchError> {
        let mut line = serde_json::to_vec(message).map_err(|error| BenchError::Io {
            what: "write a message".into(),
            source: error.into(),
        })?;
        line.push(b'\n');
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        let written = input.write_all(&line);
        written.map_err(BenchError::io(format!("write to `{}`", self.text)))
    }

    /// Waits for its answer.
    pub(crate) fn answer<T: serde::de::DeserializeOwned>(
        &mut self,
        cancel: &AtomicBool,
    ) -> Result<T, BenchError> {
        let line = self.line(cancel)?;
        serde_json::from_str(&line).map_err(|error| self.fault(format!("said `{line}`: {error}")))
    }

    /// Waits for a line.
    pub(crate) fn line(&mut self, cancel: &AtomicBool) -> Result<String, BenchError> {
        let until = Instant::now() + ANSWER_TIME_MAX;
        loop {
            interrupted(cancel)?;
            match self.lines.recv_timeout(CANCEL_POLL) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait();
                    let status = status.map_err(BenchError::io("wait for a process"))?;
                    return Err(self.fault(format!("ended with {status}")));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.fault(format!("did not answer within {ANSWER_TIME_MAX:?}")));
                }
            }
        }
    }

    /// Processor time in nanoseconds that the threads which it has now have used.
    pub(crate) fn cpu_ns(&self) -> u64 {
        let directory = format!("/proc/{}/task", self.child.id());
        let threads = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let used_ns = |thread: std::fs::DirEntry| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        };
        threads.filter_map(used_ns).sum()
    }

    /// It did something that it should not.
    pub(crate) fn fault(&self, what: String) -> BenchError {
        BenchError::Program {
            command: self.text.clone(),
            what,
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Kindly: our roles end when their input does.
        self.input = None;
        let until = Instant::now() + END_TIME_MAX;
        let mut told = false;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(END_POLL),
                _ => return,
            }
            if !told && Instant::now() + END_TIME_MAX / 2 > until {
                let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
                told = true;
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// What a child says first.
pub(crate) const READY: &str = "ready";
/// An answer that takes longer is none.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// How often to look whether the run was cancelled.
const CANCEL_POLL: Duration = Duration::from_millis(100);
/// A child that has not ended by then is killed; it is asked by a signal after half of it.
const END_TIME_MAX: Duration = Duration::from_secs(4);
/// How often to look whether it has.
const END_POLL: Duration = Duration::from_millis(1);
