//! Child processes of a bench that speak in lines, seen from the measuring process.
//!
//! Why here: processes that spin, block, keep a core busy or serve must be processes; every bench
//! starts, asks and ends them alike.
//! Must stay true: every child is ended and waited for when its handle is dropped. No wait is
//! longer than its limit or continues after the run was cancelled. A child of this project's own
//! ends by itself when its standard input closes, so it never outlives its parent.
//! One thread, and one reader thread for each child. Source: own.

use rustix::process::{Pid, Signal, kill_process};
use sidecore_measure::child::io;
pub use sidecore_measure::child::{ChildError, describe};
use sidecore_sys::package::{Manager, Package};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A child process with a line-based protocol: one line in, one line out.
#[derive(Debug)]
pub struct Speaker {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    text: String,
}

impl Speaker {
    /// Starts a program.
    ///
    /// # Errors
    /// [`ChildError::Io`] where it cannot be started.
    pub fn spawn(command: &mut Command) -> Result<Self, ChildError> {
        let text = describe(command);
        // A group of its own: Ctrl-C reaches us alone, and we end things in order.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let child = command.spawn();
        let mut child = child.map_err(io(format!("start `{text}`")))?;
        let input = child.stdin.take();
        let output = child.stdout.take();
        let (sender, lines) = channel();
        // A thread, because a pipe can be waited for only without a time limit.
        let reader = std::thread::Builder::new().name("child-lines".into());
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
        let speaker = Self {
            child,
            input,
            lines,
            text,
        };
        reading.map_err(io("start a thread"))?;
        Ok(speaker)
    }

    /// Waits for its first line, which must be [`READY`].
    ///
    /// # Errors
    /// As [`Self::line`]; [`ChildError::Program`] where it is another line.
    pub fn expect_ready(&mut self, cancel: &AtomicBool) -> Result<(), ChildError> {
        match self.line(cancel)?.as_str() {
            READY => Ok(()),
            other => Err(self.fault(format!("said `{other}` instead of `{READY}`"))),
        }
    }

    /// Sends a line of JSON. May block until it is read.
    ///
    /// # Errors
    /// [`ChildError::Io`] where it does not listen any more.
    pub fn tell<T: serde::Serialize>(&mut self, message: &T) -> Result<(), ChildError> {
        let mut line = serde_json::to_vec(message).map_err(|error| ChildError::Io {
            what: "write a message".into(),
            source: error.into(),
        })?;
        line.push(b'\n');
        // Closed already: the process is about to end, and the next answer reports it.
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        let written = input.write_all(&line);
        written.map_err(io(format!("write to `{}`", self.text)))
    }

    /// Waits for its answer, a line of JSON.
    ///
    /// # Errors
    /// As [`Self::line`]; [`ChildError::Program`] where it is something else.
    pub fn answer<T: serde::de::DeserializeOwned>(
        &mut self,
        cancel: &AtomicBool,
    ) -> Result<T, ChildError> {
        let line = self.line(cancel)?;
        serde_json::from_str(&line).map_err(|error| self.fault(format!("said `{line}`: {error}")))
    }

    /// Waits for a line.
    ///
    /// # Errors
    /// [`ChildError::Program`] where it ended or says nothing for half a minute;
    /// [`ChildError::Interrupted`] once `cancel` is true.
    pub fn line(&mut self, cancel: &AtomicBool) -> Result<String, ChildError> {
        // Bounded: a peer that hangs must not hang the bench.
        let until = Instant::now() + ANSWER_TIME_MAX;
        loop {
            // Nothing hangs on it but the end.
            if cancel.load(Ordering::Relaxed) {
                return Err(ChildError::Interrupted);
            }
            match self.lines.recv_timeout(CANCEL_POLL) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait();
                    let status = status.map_err(io("wait for a process"))?;
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
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        cpu_ns(self.child.id())
    }

    /// Its process's id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error for a wrong answer of the child.
    #[must_use]
    pub fn fault(&self, what: impl Into<String>) -> ChildError {
        ChildError::Program {
            command: self.text.clone(),
            what: what.into(),
        }
    }
}

impl Drop for Speaker {
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

/// Processor time in nanoseconds that the threads which process `id` has now have used; 0 where
/// there is no such process.
#[must_use]
pub fn cpu_ns(id: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{id}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let numbers = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    numbers.map(|number| thread_cpu_ns(id, number)).sum()
}

/// As [`cpu_ns`], of one thread of the process.
#[must_use]
pub fn thread_cpu_ns(id: u32, thread: u32) -> u64 {
    let used_ns = || {
        let text = std::fs::read_to_string(format!("/proc/{id}/task/{thread}/schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    used_ns().unwrap_or(0)
}

/// A command that starts `name`, if this machine has it.
///
/// # Errors
/// A message for the user with the package to install: that of `packages` (program, Debian
/// package), or one of the program's own name.
pub fn tool(name: &str, packages: &[(&str, &str)]) -> Result<Command, String> {
    sidecore_sys::program::find(name)
        .map(Command::new)
        .ok_or_else(|| {
            let package = packages.iter().find(|(program, _)| *program == name);
            let package = package.map_or(name, |(_, package)| package);
            let install = Package::named(package).command(Manager::here());
            format!("{name} is not installed: {install}")
        })
}

/// First line of a child.
pub const READY: &str = "ready";
/// Longest time that an answer may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// Interval of checks for cancellation.
const CANCEL_POLL: Duration = Duration::from_millis(100);
/// A signal asks a child to end after half of this time; after all of it the child is killed.
const END_TIME_MAX: Duration = Duration::from_secs(4);
/// Interval of checks for the child's end.
const END_POLL: Duration = Duration::from_millis(1);
