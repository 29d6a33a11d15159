//! Servers of a step: they stay until its end.
//!
//! Must stay true: a server and all that it started have ended when its handle is dropped, and the
//! wait for it is bounded.

use rustix::process::{Pid, Signal, kill_process_group};
use sidecore_measure::job::has_ended;
use sidecore_sys::program::end_with_starter;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A server that ends with its handle.
#[derive(Debug)]
pub(crate) struct Server(Child);

impl Server {
    /// Starts it. Its first words, once it serves: the line that begins with `ready` or, where
    /// `address` is not empty, when something listens there. `errors` takes its standard error.
    ///
    /// # Errors
    /// The problem, in words; none where `stop` was raised.
    pub(crate) fn start(
        command: &mut Command,
        address: &str,
        errors: &Path,
        stop: &AtomicBool,
    ) -> Result<(Self, String), Option<String>> {
        let cannot = |error: std::io::Error| Some(format!("a server cannot be started: {error}"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(errors).map_err(cannot)?)
            .process_group(0);
        end_with_starter(command);
        let mut server = Self(command.spawn().map_err(cannot)?);
        let (sender, first) = channel();
        let stdout = server.0.stdout.take();
        let reader = std::thread::Builder::new().name("server".to_owned());
        // A read may block for ever, and the wait for it must end.
        let reading = reader.spawn(move || {
            let Some(mut stdout) = stdout.map(BufReader::new) else {
                return;
            };
            let mut line = String::new();
            let _ = stdout.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
            let _ = sender.send(line);
            // A full pipe would stop it.
            let _ = std::io::copy(&mut stdout, &mut std::io::sink());
        });
        reading.map_err(cannot)?;
        let began = Instant::now();
        let address: Option<SocketAddr> = address.parse().ok();
        while began.elapsed() < READY_WAIT {
            // Relaxed: a flag alone.
            if stop.load(Ordering::Relaxed) {
                return Err(None);
            }
            // The port is the truth: a line may be printed before it, or never.
            let listens = |at| TcpStream::connect_timeout(at, POLL).is_ok();
            if address.as_ref().is_some_and(listens) {
                return Ok((server, String::new()));
            }
            match first.recv_timeout(POLL) {
                Ok(line) if line.split_whitespace().next() == Some("ready") => {
                    return Ok((server, line.trim().to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Its output is closed; it may listen all the same.
                _ if address.is_some() => std::thread::sleep(POLL),
                _ => break,
            }
        }
        let said = std::fs::read_to_string(errors).unwrap_or_default();
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        let last = last.unwrap_or("it printed nothing");
        Err(Some(format!("the server did not become ready: {last}")))
    }

    /// Its process's id.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.0);
        // The group, not the process: a server's children hold its port and its mounts.
        let _ = kill_process_group(group, Signal::TERM);
        let began = Instant::now();
        while !has_ended(&self.0) && began.elapsed() < END_WAIT {
            std::thread::sleep(POLL / 4);
        }
        // Children that outlive it or ignore SIGTERM end here. It was not waited for yet, so the
        // group's number is still its own.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A loopback address whose port is free at the moment.
pub(crate) fn free_address() -> std::io::Result<String> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.to_string())
}

/// Longest time until a server accepts.
const READY_WAIT: Duration = Duration::from_secs(20);
/// Longest time for its end after SIGTERM.
const END_WAIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(40);
const LINE_BYTES_MAX: u64 = 4096;
