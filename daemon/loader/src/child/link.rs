//! The daemon's end of an object's host process: started, asked, ended.
//!
//! Why here: it is the only process that a daemon starts, and it runs foreign code from its first
//! message on. Must stay true: every answer is awaited for a bounded time and checked; a process
//! that does not answer, or makes no sense, is killed and another one takes its place. Its
//! environment has no secrets of the daemon's. Any thread, one at a time.

use super::confine::{self, Limits};
use super::host::HostProgram;
use super::protocol::{BAD, GOOD, LOAD, MESSAGE_BYTES_MAX, REAP, Reader, SPAWN, Writer};
use crate::error::ObjectError;
use rustix::process::Pid;
use sidecore_bare::width::ToU64;
use sidecore_daemon::served::Origin;
use sidecore_sys::local_socket::{self, Received};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An object that a host process has linked.
#[derive(Debug)]
pub(super) struct Object {
    /// Names its workers among a session's companions.
    pub(super) key: u64,
    pub(super) program: HostProgram,
    pub(super) name: String,
    pub(super) memory: OwnedFd,
    pub(super) limits: Limits,
    pub(super) link: Mutex<Option<Link>>,
}

pub(super) static NEXT_KEY: AtomicU64 = AtomicU64::new(1);

impl Object {
    /// Starts a host process and has it link the object; its answer.
    pub(super) fn start(&self) -> Result<(Link, Vec<u8>), ObjectError> {
        let mut link = Link::start(&self.program)?;
        let mut message = Writer::of(&[LOAD]);
        message.text(&self.name);
        let sent = local_socket::send(link.socket.as_fd(), &message.0, &[self.memory.as_fd()]);
        let answer = sent.map_err(|error| error.to_string());
        match answer.and_then(|()| link.answer(LOAD_MAX)) {
            Ok((answer, _)) => Ok((link, answer)),
            Err(reason) => Err(broken(&link.end(&reason))),
        }
    }

    /// Makes a worker: its number and page. A host process that has ended is started again.
    pub(super) fn spawn(&self, origin: Origin<'_>, cpu: usize) -> Result<(Pid, OwnedFd), String> {
        let nice = rustix::process::getpriority_process(None).unwrap_or(0);
        let limits = &self.limits;
        let message = Writer::of(&[
            SPAWN,
            cpu.to_u64(),
            i64::from(nice).cast_unsigned(),
            origin.bytes(),
            origin.arena_offset(),
            limits.memory_bytes,
            limits.stack_bytes,
        ]);
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reason = String::new();
        // With the process that is there, then with a new one.
        for _ in 0..2 {
            let alive = match link.take() {
                Some(alive) => alive,
                None => self.start().map_err(|error| error.to_string())?.0,
            };
            match alive.spawn(&message, origin.file()) {
                Ok(made) => {
                    *link = Some(alive);
                    return Ok(made);
                }
                // The link is dropped here, which ends its process.
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// Has the host process wait for a worker that was killed; its status where `is_asked`.
    pub(super) fn reap(&self, worker: Pid, is_asked: bool) -> Option<i32> {
        let number = worker.as_raw_nonzero().get().unsigned_abs();
        let message = Writer::of(&[REAP, number.into(), is_asked.into()]);
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let link = link.as_ref()?;
        local_socket::send(link.socket.as_fd(), &message.0, &[]).ok()?;
        // No answer is sent then, so none is left over for the next call.
        if !is_asked {
            return None;
        }
        let (answer, _) = link.answer(ANSWER_MAX).ok()?;
        let mut reader = Reader(&answer);
        reader.word().filter(|&code| code == GOOD)?;
        u32::try_from(reader.word()?).ok().map(u32::cast_signed)
    }
}

pub(super) fn broken(reason: &str) -> ObjectError {
    ObjectError::Host(reason.to_owned())
}

/// A host process, and this side's end of its socket. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    process: Child,
}

impl Link {
    fn start(program: &HostProgram) -> Result<Self, ObjectError> {
        let (socket, other) =
            local_socket::pair().map_err(|error| broken(&format!("socketpair: {error}")))?;
        let mut command = Command::new(&program.file);
        command
            .args(&program.arguments)
            .stdin(Stdio::from(other))
            .stdout(Stdio::null())
            // Signals of the terminal are the daemon's, which may have answers to wait for.
            .process_group(0)
            // Its memory is a kernel's to read: no keys of the daemon's environment.
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| KEPT.iter().any(|kept| name == *kept)));
        let process = command.spawn().map_err(|error| {
            broken(&format!("cannot start {}: {error}", program.file.display()))
        })?;
        Ok(Self { socket, process })
    }

    /// The next answer, with its files.
    fn answer(&self, limit: Duration) -> Result<(Vec<u8>, Vec<OwnedFd>), String> {
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        let until = Instant::now() + limit;
        let mut ready = Vec::new();
        loop {
            match local_socket::receive(self.socket.as_fd(), &mut buffer) {
                Ok(Received::Message(bytes, files)) => {
                    buffer.truncate(bytes);
                    return Ok((buffer, files));
                }
                Ok(Received::End) => return Err("its host process ended".to_owned()),
                Ok(Received::Nothing) => {}
                Err(error) => return Err(error.to_string()),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let limit = limit.as_secs();
                return Err(format!("its host process did not answer for {limit} s"));
            }
            local_socket::poll(&[self.socket.as_fd()], &mut ready, left)
                .map_err(|error| error.to_string())?;
        }
    }

    fn spawn(&self, message: &Writer, segment: BorrowedFd<'_>) -> Result<(Pid, OwnedFd), String> {
        local_socket::send(self.socket.as_fd(), &message.0, &[segment])
            .map_err(|error| error.to_string())?;
        let (answer, mut files) = self.answer(ANSWER_MAX)?;
        let mut reader = Reader(&answer);
        let nonsense = || "its host process made no sense".to_owned();
        match reader.word() {
            Some(GOOD) => {
                let number = reader.word().and_then(|number| i32::try_from(number).ok());
                let worker = number.and_then(Pid::from_raw).ok_or_else(nonsense)?;
                Ok((worker, files.pop().ok_or_else(nonsense)?))
            }
            Some(BAD) => Err(reader.text().unwrap_or_default()),
            _ => Err(nonsense()),
        }
    }

    /// Ends the process: what is known of its end, after `reason`.
    fn end(&mut self, reason: &str) -> String {
        use std::os::unix::process::ExitStatusExt;
        // Where it ended by itself, the kill changes nothing.
        self.process.kill().ok();
        match self.process.wait().ok().map(ExitStatusExt::into_raw) {
            Some(status) if status != libc::SIGKILL => {
                format!("{reason}: it {}", confine::ending(status))
            }
            _ => reason.to_owned(),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end("");
    }
}

/// Time for a host process to link its object, initializers included.
const LOAD_MAX: Duration = Duration::from_secs(10);
/// Time for other answers, which an engine and its clients wait for: a fork on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Variables that the dynamic linker and the program itself may need.
const KEPT: [&str; 4] = ["PATH", "LD_LIBRARY_PATH", "LANG", "HOME"];
