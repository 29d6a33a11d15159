//! A host program that runs with a trace.
//!
//! Must stay true: the program's standard streams are its own. The trace is read while it grows, so
//! that a program which is killed leaves all that it wrote.

use crate::{Error, Kit};
use rustix::process::{Pid, Signal, kill_process};
use spe2::trace::Trace;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A running program and its trace.
#[derive(Debug)]
pub struct Traced {
    child: Child,
    file: File,
    trace: Trace,
}

impl Traced {
    /// Starts a program with our libspe2, and with a trace in a new file at `place`; `engines` of
    /// them run its contexts, or as many as the library finds right.
    ///
    /// # Errors
    /// The trace cannot be made, or the program not be started.
    pub fn start(
        kit: &Kit,
        mut command: Command,
        place: &Path,
        engines: Option<u16>,
    ) -> Result<Self, Error> {
        let file = File::create_new(place).and_then(|_| File::open(place));
        let file = file.map_err(Error::file("make the trace", place))?;
        command.env("SIDECORE_SPE_TRACE", place);
        if let Some(libraries) = kit.programs().parent().map(|root| root.join("lib")) {
            let mut path = libraries.into_os_string();
            if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
                path.push(":");
                path.push(before);
            }
            command.env("LD_LIBRARY_PATH", path);
        }
        if let Some(engines) = engines {
            command.env("SIDECORE_SPE_ENGINES", engines.to_string());
        }
        let child = command.spawn().map_err(|source| Error::Start {
            tool: command.get_program().display().to_string(),
            source,
        })?;
        Ok(Self {
            child,
            file,
            trace: Trace::default(),
        })
    }

    /// Waits for the program's end, passes on that this process is to `end`, and has the trace
    /// looked at now and then. Returns the status and the whole trace.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn wait(
        mut self,
        end: &AtomicBool,
        mut look: impl FnMut(&Trace),
    ) -> std::io::Result<(ExitStatus, Trace)> {
        let mut looked = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            // A terminal sends its signals to the program, too; a second one does no harm.
            if end.swap(false, Ordering::Relaxed) {
                // A failure means that the program has ended, which the next poll finds.
                kill_process(Pid::from_child(&self.child), Signal::TERM).ok();
            }
            std::thread::sleep(POLL);
            if looked.elapsed() >= REFRESH {
                looked = Instant::now();
                self.read();
                look(&self.trace);
            }
        };
        self.read();
        Ok((status, self.trace))
    }

    /// Takes what was appended since the last call.
    fn read(&mut self) {
        let mut bytes = Vec::new();
        // Unreadable lines are missing in the table, like unwritten ones.
        self.file.read_to_end(&mut bytes).ok();
        self.trace.feed(&String::from_utf8_lossy(&bytes));
    }
}

/// Time between two looks whether the program has ended.
const POLL: Duration = Duration::from_millis(10);
/// Time between two looks at the trace.
const REFRESH: Duration = Duration::from_millis(250);
