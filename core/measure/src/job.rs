//! A child process that runs to its end: what it printed, and the last thing that it said.
//!
//! Why here: a part of a longer run must not take the run with it when it hangs or crashes. Must
//! stay true: the child's output is read to its end, so that the child never waits for us. SIGTERM
//! ends it (SIGINT may be ignored where jobs run in the background), so that it can clean up; it is
//! killed only if it does not end. It has a process group of its own, so that Ctrl-C reaches it
//! once, from here. If this program is killed, the kernel signals the child. Called from one
//! thread, which lives until the program ends.

use crate::child::{ChildError, describe, io};
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A running job.
#[derive(Debug)]
pub struct Job {
    process: Child,
    said: Receiver<String>,
    readers: (JoinHandle<std::io::Result<Vec<u8>>>, JoinHandle<()>),
}

/// The way a job ended.
#[derive(Debug)]
pub enum JobEnd {
    /// By itself.
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// Its standard output.
        output: Vec<u8>,
        /// The last line that is not empty of its standard error.
        said: String,
    },
    /// It took longer than it may.
    TooLong,
    /// This program is to end.
    Stopped,
}

impl Job {
    /// Starts a program without input.
    ///
    /// # Errors
    /// [`ChildError::Io`] where it cannot be started.
    pub fn start(command: &mut Command) -> Result<Self, ChildError> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        sidecore_sys::program::end_with_starter(command);
        let process = command.spawn();
        let mut process = process.map_err(io(format!("start `{}`", describe(command))))?;
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        let (sender, said) = channel();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let output = thread("output").spawn(move || {
            let mut bytes = Vec::new();
            if let Some(stdout) = stdout {
                stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
            }
            Ok(bytes)
        });
        let errors = thread("errors").spawn(move || {
            if let Some(stderr) = stderr {
                lines(BufReader::new(stderr), &sender);
            }
        });
        match (output, errors) {
            (Ok(output), Ok(errors)) => Ok(Self {
                process,
                said,
                readers: (output, errors),
            }),
            (Err(error), _) | (_, Err(error)) => {
                // A closed standard output ends it, too; nothing is left of it.
                process.kill().ok();
                process.wait().ok();
                Err(io("start a thread to read what a part says")(error))
            }
        }
    }

    /// Waits for its end. `say` gets its lines, and `None` now and then.
    ///
    /// # Errors
    /// [`ChildError::Io`] where it cannot be waited for, or its output not be read.
    pub fn wait(
        mut self,
        limit: Duration,
        stop: &AtomicBool,
        say: &mut dyn FnMut(Option<&str>),
    ) -> Result<JobEnd, ChildError> {
        let began = Instant::now();
        let mut asked: Option<Instant> = None;
        let mut killed = false;
        let mut last = String::new();
        loop {
            match self.said.recv_timeout(POLL) {
                Ok(line) => {
                    say(Some(&line));
                    if !line.trim().is_empty() {
                        last = line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => say(None),
                // It closed its standard error, as at its end, but may still run.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(END_POLL),
            }
            if has_ended(&self.process) {
                break;
            }
            // Relaxed: a flag alone.
            let over = stop.load(Ordering::Relaxed) || began.elapsed() > limit;
            match asked {
                None if over => {
                    asked = Some(Instant::now());
                    self.signal(Signal::TERM);
                }
                Some(asked) if asked.elapsed() > GRACE && !killed => {
                    killed = true;
                    self.signal(Signal::KILL);
                }
                _ => {}
            }
        }
        // Processes that it left behind would keep its pipes open.
        if asked.is_some() {
            self.signal(Signal::KILL);
        }
        // After the signal: from here on its group's number may be another's.
        let status = self.process.wait().map_err(io("wait for a part"))?;
        let output = self.readers.0.join();
        if stop.load(Ordering::Relaxed) {
            return Ok(JobEnd::Stopped);
        }
        if asked.is_some() {
            return Ok(JobEnd::TooLong);
        }
        let output = match output {
            Ok(output) => output.map_err(io("read a part's result"))?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        // Its lines are complete once their reader has seen the pipe's end.
        let _ = self.readers.1.join();
        let rest = self.said.try_iter().filter(|line| !line.trim().is_empty());
        let said = rest.last().unwrap_or(last);
        Ok(JobEnd::Ended {
            status,
            output,
            said,
        })
    }

    /// Signals the child alone; KILL goes to its whole process group.
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.process);
        // It may have ended meanwhile, and needs no signal then.
        let _ = match signal {
            Signal::KILL => kill_process_group(pid, signal),
            _ => kill_process(pid, signal),
        };
    }
}

/// True once a child has ended. It, and its process group, keep their number until it is waited
/// for. Does not block.
#[must_use]
pub fn has_ended(process: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let seen = waitid(WaitId::Pid(Pid::from_child(process)), options);
    // An error says that there is no such child any more.
    !matches!(seen, Ok(None))
}

/// Passes lines on; a carriage return ends a line, too, and invalid UTF-8 is replaced.
fn lines(mut reader: impl BufRead, to: &Sender<String>) {
    let mut bytes = Vec::new();
    let mut next = |bytes: &mut Vec<u8>| {
        let mut line = reader.by_ref().take(LINE_BYTES_MAX);
        line.read_until(b'\n', bytes)
    };
    while matches!(next(&mut bytes), Ok(1..)) {
        let text = String::from_utf8_lossy(&bytes);
        let line = text.trim_end().rsplit('\r').next().unwrap_or_default();
        // The receiver is gone once the process has ended; the pipe is drained all the same.
        let _ = to.send(line.to_owned());
        bytes.clear();
    }
}

/// Time between two looks for a stop, or for the limit.
const POLL: Duration = Duration::from_millis(100);
/// Time between two looks for the end of a child that says nothing more.
const END_POLL: Duration = Duration::from_millis(2);
/// Unmounting and ending servers takes a moment.
const GRACE: Duration = Duration::from_secs(30);
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
const LINE_BYTES_MAX: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::test_kill_process_group;

    fn run(script: &str, stop: &AtomicBool, limit: Duration) -> JobEnd {
        let job = Job::start(Command::new("/bin/sh").args(["-c", script])).unwrap();
        job.wait(limit, stop, &mut |_| {}).unwrap()
    }

    #[test]
    fn an_end_has_the_output_and_the_last_line() {
        let script = "echo out; echo one >&2; printf 'two\\rthree\\n\\n' >&2; exit 3";
        let JobEnd::Ended {
            status,
            output,
            said,
        } = run(script, &AtomicBool::new(false), LONG)
        else {
            panic!("it ends by itself");
        };
        assert_eq!(status.code(), Some(3));
        assert_eq!((output.as_slice(), said.as_str()), (&b"out\n"[..], "three"));
    }

    #[test]
    fn what_takes_too_long_or_is_stopped_ends() {
        let began = Instant::now();
        let slow = run(
            "sleep 600",
            &AtomicBool::new(false),
            Duration::from_millis(300),
        );
        assert!(matches!(slow, JobEnd::TooLong));
        let stopped = run("sleep 600", &AtomicBool::new(true), LONG);
        assert!(matches!(stopped, JobEnd::Stopped));
        assert!(began.elapsed() < LONG);
    }

    #[test]
    fn a_line_without_an_end_is_cut() {
        let (sender, lines_of) = channel();
        let long = vec![b'x'; 3 * usize::try_from(LINE_BYTES_MAX).unwrap() / 2];
        lines(BufReader::new(long.as_slice()), &sender);
        drop(sender);
        let lengths: Vec<usize> = lines_of.iter().map(|line| line.len()).collect();
        assert_eq!(lengths, [64 << 10, 32 << 10]);
    }

    #[test]
    fn an_ended_child_keeps_its_number_until_it_is_waited_for() {
        let mut child = Command::new("true").process_group(0).spawn().unwrap();
        let began = Instant::now();
        while !has_ended(&child) {
            assert!(began.elapsed() < LONG, "it goes on");
            std::thread::sleep(END_POLL);
        }
        test_kill_process_group(Pid::from_child(&child)).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(has_ended(&child));
    }

    const LONG: Duration = Duration::from_secs(120);
}
