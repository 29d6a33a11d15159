//! Other programs: found, started where they belong, waited for, ended.
//!
//! Why here: peers are programs as users run them. Must stay true: a program that was started is
//! ended and waited for when its handle is dropped; no wait is longer than its limit or continues
//! after the run was cancelled. One thread.

use super::namespace::Namespace;
use super::{BenchError, CANCEL_POLL, interrupted};
use crate::measure::child;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A running program, killed when this is dropped.
pub(crate) struct Running {
    child: Child,
    text: String,
    said: [Arc<Mutex<String>>; 2],
    hearing: [Option<JoinHandle<()>>; 2],
}

impl Running {
    /// Starts a program, in a namespace where one is given. It gets no input.
    pub(crate) fn start(
        namespace: Option<&Namespace>,
        mut command: Command,
    ) -> Result<Self, BenchError> {
        let text = child::describe(&command);
        // A group of its own: Ctrl-C reaches us alone, and we end things in order.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        // A child inherits the namespace of the thread that starts it.
        let child = match namespace {
            Some(namespace) => namespace.run(move || command.spawn())?,
            None => command.spawn(),
        };
        let mut child = child.map_err(BenchError::io(format!("start `{text}`")))?;
        let said: [Arc<Mutex<String>>; 2] = Default::default();
        let hearing = [
            child.stdout.take().map(|out| hear(out, &said[0])),
            child.stderr.take().map(|errors| hear(errors, &said[1])),
        ];
        Ok(Self {
            child,
            text,
            said,
            hearing,
        })
    }

    /// Waits until it has printed `words`.
    pub(crate) fn wait_for_words(
        &self,
        words: &str,
        cancel: &AtomicBool,
    ) -> Result<(), BenchError> {
        let until = Instant::now() + PROGRAM_TIME_MAX;
        while !self.has_said(0).contains(words) {
            interrupted(cancel)?;
            if self.hearing[0].as_ref().is_none_or(JoinHandle::is_finished) {
                return Err(self.fault(format!("ended and said {}", self.has_said(1).trim())));
            }
            if Instant::now() > until {
                return Err(self.fault(format!("did not say `{words}`")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn has_said(&self, which: usize) -> String {
        let said = self.said[which].lock();
        said.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Processor time in nanoseconds that it has used so far, without its children's.
    pub(crate) fn cpu_ns(&self) -> u64 {
        child::cpu_ns(self.child.id())
    }

    /// Waits for its end, which must be a success; returns its output.
    pub(crate) fn output(mut self, cancel: &AtomicBool) -> Result<String, BenchError> {
        let until = Instant::now() + PROGRAM_TIME_MAX;
        let mut pause = Duration::from_micros(200);
        let status = loop {
            interrupted(cancel)?;
            let ended = self.child.try_wait();
            if let Some(status) = ended.map_err(BenchError::io("wait for a program"))? {
                break status;
            }
            if Instant::now() > until {
                return Err(self.fault(format!("took longer than {PROGRAM_TIME_MAX:?}")));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(CANCEL_POLL);
        };
        for thread in self.hearing.each_mut() {
            // All output is read once its pipes are closed.
            thread.take().map(JoinHandle::join);
        }
        let [out, errors] = [0, 1].map(|which| self.has_said(which));
        if status.success() {
            return Ok(out);
        }
        // Some print errors to standard output.
        let lines = errors.lines().chain(out.lines());
        let last: Vec<&str> = lines
            .filter(|line| !line.trim().is_empty())
            .take(3)
            .collect();
        Err(self.fault(format!("failed with {status}: {}", last.join("; "))))
    }

    /// An error for wrong behaviour of the program.
    pub(crate) fn fault(&self, what: String) -> BenchError {
        BenchError::Program {
            command: self.text.clone(),
            what,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A program that has ended is only reaped.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn hear(mut from: impl Read + Send + 'static, said: &Arc<Mutex<String>>) -> JoinHandle<()> {
    let said = Arc::clone(said);
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        // The output before a read error is all there is.
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..count]);
            said.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push_str(&text);
        }
    })
}

/// A command that starts `name`, if it is installed.
///
/// # Errors
/// [`BenchError::Missing`] with the package to install.
pub(crate) fn tool(name: &str) -> Result<Command, BenchError> {
    child::tool(name, &PACKAGES).map_err(BenchError::Missing)
}

/// Longest time of a measured program.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(60);
/// Programs and their Debian packages.
const PACKAGES: [(&str, &str); 5] = [
    ("ip", "iproute2"),
    ("ethtool", "ethtool"),
    ("iperf3", "iperf3"),
    ("wrk", "wrk"),
    ("nginx", "nginx-light"),
];
