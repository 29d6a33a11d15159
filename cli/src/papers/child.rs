//! This program, run once more with other arguments.
//!
//! Why here: a part's result must be the same as that of its command by hand, and a part that
//! crashes must not take the page with it. Must stay true: the child's output is read to its end,
//! so that the child never waits for us. SIGTERM ends it (SIGINT may be ignored where jobs run in
//! the background), so that it can clean up; it is killed only if it does not end. It has a process
//! group of its own, so that Ctrl-C reaches it once, from here. If this program is killed, the
//! kernel signals the child. Called from one thread, which lives until the program ends.

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use sidecore_sys::program::end_with_starter;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// End of a child process.
pub(super) enum Ended {
    /// It gave a result.
    Answered {
        /// A problem that it reported in addition to its result.
        problem: Option<String>,
        /// The JSON object.
        report: Value,
    },
    /// It gave no result, for this reason.
    Failed(String),
    /// It was stopped, because this program is ending.
    Stopped,
}

/// A running child process.
pub(super) struct Child {
    process: std::process::Child,
    said: Receiver<String>,
    readers: (JoinHandle<std::io::Result<Vec<u8>>>, JoinHandle<()>),
}

impl Child {
    pub(super) fn start(program: &Path, words: &str) -> Result<Self> {
        let mut command = Command::new(program);
        command
            .args(words.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        end_with_starter(&mut command);
        let mut process = command
            .spawn()
            .with_context(|| format!("cannot start `sidecore {words}`"))?;
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
                Err(error).context("cannot start a thread to read what a part says")
            }
        }
    }

    /// Waits for its end. `say` gets its lines, and `None` now and then.
    pub(super) fn wait(
        mut self,
        limit: Duration,
        stop: &AtomicBool,
        say: &mut dyn FnMut(Option<&str>),
    ) -> Result<Ended> {
        let began = Instant::now();
        let mut told: Option<Instant> = None;
        let mut killed = false;
        let mut last = String::new();
        let status = loop {
            match self.said.recv_timeout(POLL) {
                Ok(line) => {
                    say(Some(&line));
                    if !line.trim().is_empty() {
                        last = line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => say(None),
                // It closed its standard error, but may still run.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL),
            }
            if let Some(status) = self.process.try_wait().context("cannot wait for a part")? {
                break status;
            }
            // Relaxed: a flag alone.
            let over = stop.load(Ordering::Relaxed) || began.elapsed() > limit;
            match told {
                None if over => {
                    told = Some(Instant::now());
                    self.signal(Signal::TERM);
                }
                Some(told) if told.elapsed() > GRACE && !killed => {
                    killed = true;
                    self.signal(Signal::KILL);
                }
                _ => {}
            }
        };
        // Processes that it left behind would keep its pipes open.
        if told.is_some() {
            self.signal(Signal::KILL);
        }
        for line in self.said.try_iter().filter(|line| !line.trim().is_empty()) {
            last = line;
        }
        let output = self.readers.0.join();
        if stop.load(Ordering::Relaxed) {
            return Ok(Ended::Stopped);
        }
        if told.is_some() {
            let why = format!("it took longer than {} s", limit.as_secs());
            return Ok(Ended::Failed(why));
        }
        let output = match output {
            Ok(output) => output.context("cannot read a part's result")?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let _ = self.readers.1.join();
        last = self.said.try_iter().last().unwrap_or(last);
        Ok(judge(status, &output, &last))
    }

    /// Signals the child alone; KILL goes to its whole process group.
    fn signal(&self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.process.id() as i32) else {
            return;
        };
        // It may have ended meanwhile, and needs no signal then.
        let _ = match signal {
            Signal::KILL => kill_process_group(pid, signal),
            _ => kill_process(pid, signal),
        };
    }
}

/// Result of an ended process. `last` is the last line that it printed.
fn judge(status: ExitStatus, output: &[u8], last: &str) -> Ended {
    let said = match last.trim() {
        "" => String::new(),
        last => format!(": {}", short(last)),
    };
    let report = serde_json::from_slice::<Value>(output);
    match (status.code(), report) {
        (Some(0 | 1), Ok(report)) if report.is_object() => {
            let problem = failures(&report).or_else(|| {
                let text = "something that it states does not hold";
                (status.code() == Some(1)).then(|| text.to_owned())
            });
            Ended::Answered { problem, report }
        }
        (Some(0), _) => Ended::Failed(format!("it printed no JSON object{said}")),
        (Some(code), _) => Ended::Failed(format!("it ended with status {code}{said}")),
        (None, _) => {
            let signal = status.signal().unwrap_or(0);
            Ended::Failed(format!("signal {signal} ended it{said}"))
        }
    }
}

/// Failures that a command's report lists.
pub(super) fn failures(report: &Value) -> Option<String> {
    let failures = report["failures"].as_array()?;
    let failures: Vec<&str> = failures.iter().filter_map(Value::as_str).collect();
    (!failures.is_empty()).then(|| short(&failures.join("; ")))
}

fn short(text: &str) -> String {
    match text.char_indices().nth(SAID_CHARACTERS_MAX) {
        None => text.to_owned(),
        Some((at, _)) => format!("{} ...", &text[..at]),
    }
}

/// Passes lines on; a carriage return ends a line, too, and invalid UTF-8 is replaced.
fn lines(mut reader: impl BufRead, to: &Sender<String>) {
    let mut bytes = Vec::new();
    while let Ok(count @ 1..) = reader
        .by_ref()
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut bytes)
    {
        let _ = count;
        let text = String::from_utf8_lossy(&bytes);
        let line = text.trim_end().rsplit('\r').next().unwrap_or_default();
        // The receiver is gone once the process has ended; the pipe is drained all the same.
        let _ = to.send(line.to_owned());
        bytes.clear();
    }
}

const POLL: Duration = Duration::from_millis(100);
/// Unmounting and ending servers takes a moment.
const GRACE: Duration = Duration::from_secs(30);
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
const LINE_BYTES_MAX: u64 = 64 << 10;
const SAID_CHARACTERS_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, stop: &AtomicBool, limit: Duration) -> Ended {
        let words = format!("-c {}", script.replace(' ', "${IFS}"));
        let child = Child::start(Path::new("/bin/sh"), &words).unwrap();
        child.wait(limit, stop, &mut |_| {}).unwrap()
    }

    fn ended(script: &str) -> Ended {
        run(script, &AtomicBool::new(false), LONG)
    }

    #[test]
    fn a_result_a_problem_and_a_failure_are_told_apart() {
        let Ended::Answered { problem, report } = ended("echo {}") else {
            panic!("a result is one");
        };
        assert_eq!((problem, report), (None, serde_json::json!({})));
        let said = "echo '{\"failures\":[\"x\",\"y\"]}';exit 1";
        let Ended::Answered { problem, .. } = ended(said) else {
            panic!("status 1 with a result is a result");
        };
        assert_eq!(problem.as_deref(), Some("x; y"));
        for (script, words) in [
            ("echo {", "no JSON object"),
            ("echo []", "no JSON object"),
            ("echo a >&2;echo oops >&2;exit 2", "status 2: oops"),
            ("echo {};exit 3", "status 3"),
            ("kill -SEGV $$", "signal 11"),
        ] {
            match ended(script) {
                Ended::Failed(why) => assert!(why.contains(words), "{script}: {why}"),
                _ => panic!("{script} is no result"),
            }
        }
    }

    #[test]
    fn what_takes_too_long_or_is_stopped_ends() {
        let began = Instant::now();
        let short = Duration::from_millis(300);
        let slow = run("sleep 600", &AtomicBool::new(false), short);
        assert!(matches!(slow, Ended::Failed(why) if why.contains("longer than")));
        let stopped = run("sleep 600", &AtomicBool::new(true), LONG);
        assert!(matches!(stopped, Ended::Stopped));
        assert!(began.elapsed() < LONG);
    }

    const LONG: Duration = Duration::from_secs(120);
}
