//! A program, its supervisor, and the process that waits for both.
//!
//! Three processes: the one that the user started, which waits and forwards signals; the
//! supervisor, its child, which outlives it if the program has left daemons behind; and the
//! program, a child of the supervisor, so that the supervisor may trace it even where only
//! ancestors may (Yama). Must stay true: the program's exit status and termination signal become
//! those of the first process.

use crate::error::{RunError, system};
use crate::loopback::Rendezvous;
use crate::options::{Engine, Options};
use crate::scope::Scope;
use crate::supervisor::{Attach, FILTER, Supervisor};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use sidecore_attach::Trust;
use sidecore_net::hosted;
use sidecore_net::sock::client::{Client, ClientOptions, status_of};
use sidecore_sys::seccomp::{self, Listener};
use sidecore_sys::signals::{Handle, Signals, WithOrigin};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

/// Outcome of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// With this exit status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// The command of a supervisor: this program with the same words up to the program that it runs,
/// which must stand behind `--`, and then `flag`.
///
/// # Errors
/// The system does not say which program this is.
pub fn supervisor(flag: &str) -> io::Result<Command> {
    let mut supervisor = Command::new(std::env::current_exe()?);
    supervisor.args(std::env::args_os().skip(1).take_while(|word| word != "--"));
    supervisor.arg(flag);
    Ok(supervisor)
}

/// Starts `supervisor` and waits until the program has ended. `supervisor` is a command that calls
/// [`supervise`]; a descriptor number, `--` and the program are appended to its arguments. Signals
/// that other processes send to this one are forwarded to the program; before there is a program,
/// they end the supervisor. Signals from the terminal reach both anyway.
///
/// # Errors
/// [`RunError`].
pub fn run(mut supervisor: Command, program: &[OsString]) -> Result<Status, RunError> {
    // The supervisor writes two words to the pipe: the program's number, and how it ended.
    let (reader, writer) = rustix::pipe::pipe().map_err(system("pipe"))?;
    rustix::io::fcntl_setfd(&reader, rustix::io::FdFlags::CLOEXEC).map_err(system("fcntl"))?;
    let passing = Passing::begin()?;
    let mut child = supervisor
        .arg(writer.as_raw_fd().to_string())
        .arg("--")
        .args(program)
        .spawn()
        .map_err(|source| RunError::Program {
            program: supervisor.get_program().into(),
            source,
        })?;
    drop(writer);
    passing.has_supervisor(Pid::from_child(&child));
    let mut status = File::from(reader);
    let mut word = [0; 4];
    if status.read_exact(&mut word).is_err() {
        passing.end();
        // The supervisor has printed the reason, or a signal has ended it.
        let ended = child.wait().ok();
        let signal = ended.and_then(|status| status.signal());
        return Ok(match (signal, ended.and_then(|status| status.code())) {
            (Some(signal), _) => Status::Killed(signal),
            (None, code) => Status::Exited(code.unwrap_or(2)),
        });
    }
    passing.has_program(i32::from_le_bytes(word));
    let ended = status.read_exact(&mut word);
    passing.end();
    ended.map_err(|_| RunError::Gone)?;
    Ok(match i32::from_le_bytes(word) {
        killed if killed < 0 => Status::Killed(-killed),
        exited => Status::Exited(exited),
    })
}

/// Forwards signals, on a thread of its own.
struct Passing {
    to: Arc<Mutex<Receivers>>,
    handle: Handle,
    thread: std::thread::JoinHandle<()>,
}

/// The processes that receive forwarded signals.
#[derive(Default)]
struct Receivers {
    /// The supervisor, until there is a program.
    supervisor: Option<Pid>,
    /// The program, by a pidfd: its number may be reused once it has ended.
    program: Option<(Pid, OwnedFd)>,
    /// Signals that came before there was a program.
    heard: Vec<Signal>,
}

impl Passing {
    fn begin() -> Result<Self, RunError> {
        let signals = Signals::<WithOrigin>::new(PASSED_ON.iter().copied()).map_err(|source| {
            RunError::System {
                call: "sigaction",
                source,
            }
        })?;
        let handle = signals.handle();
        let to = Arc::new(Mutex::new(Receivers::default()));
        let receivers = Arc::clone(&to);
        let pass = move || {
            for origin in signals {
                let by_process = origin.process.is_some_and(|process| process.pid > 0);
                if by_process && let Some(signal) = Signal::from_named_raw(origin.signal) {
                    locked(&receivers).hear(signal);
                }
            }
        };
        let thread = std::thread::Builder::new().name("sidecore-signals".to_owned());
        let thread = thread.spawn(pass).map_err(|source| RunError::System {
            call: "clone",
            source,
        })?;
        Ok(Self { to, handle, thread })
    }

    fn has_supervisor(&self, supervisor: Pid) {
        let mut to = locked(&self.to);
        to.supervisor = Some(supervisor);
        for signal in std::mem::take(&mut to.heard) {
            to.hear(signal);
        }
    }

    fn has_program(&self, program: i32) {
        let mut to = locked(&self.to);
        to.supervisor = None;
        to.program = Pid::from_raw(program).and_then(|pid| {
            // None if the program has ended already.
            let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
            Some((pid, handle))
        });
        for signal in std::mem::take(&mut to.heard) {
            to.hear(signal);
        }
    }

    fn end(self) {
        self.handle.close();
        // The thread returns no value; a panic in it does not matter here.
        self.thread.join().ok();
    }
}

impl Receivers {
    fn hear(&mut self, signal: Signal) {
        if let Some((pid, program)) = &self.program {
            rustix::process::pidfd_send_signal(program, signal).ok();
            // A stopped program handles the terminating signal only after SIGCONT.
            if ENDING.contains(&signal) && is_stopped(*pid) {
                rustix::process::pidfd_send_signal(program, Signal::CONT).ok();
            }
            return;
        }
        // Kept: if the supervisor starts the program nevertheless, the signal is forwarded to that.
        self.heard.push(signal);
        if let Some(supervisor) = self.supervisor.filter(|_| ENDING.contains(&signal)) {
            // The child is not reaped while this is set, so its number cannot have been reused.
            rustix::process::kill_process(supervisor, signal).ok();
        }
    }
}

fn locked(receivers: &Mutex<Receivers>) -> MutexGuard<'_, Receivers> {
    receivers.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_stopped(pid: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    // Fields start behind the last parenthesis: the command name may contain any bytes.
    status.is_ok_and(|text| {
        text.rsplit(')')
            .next()
            .is_some_and(|it| it.starts_with(" T"))
    })
}

/// Supervises `program` and its descendants, until the last of them has ended. `to` is a pipe to
/// [`run`], which receives the program's process number and how it ended.
///
/// # Errors
/// [`RunError`]; nothing was started then.
pub fn supervise(options: &Options, program: &[OsString], to: i32) -> Result<(), RunError> {
    let mut to = File::from(own_pipe(to)?);
    let (client, attach, mut scope) = attach(options)?;
    scope.has_loopback = options.has_loopback;
    scope.is_all = options.is_all;
    let rendezvous = if options.has_loopback {
        let made = Rendezvous::at(&options.rendezvous);
        Some(made.map_err(|source| RunError::Rendezvous {
            path: options.rendezvous.clone(),
            source,
        })?)
    } else {
        None
    };
    ignore_signals()?;
    // Daemons that the program leaves behind are reparented to this process.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(system("prctl"))?;
    let (listener, pid) = start(program, options)?;
    raise_descriptors();
    to.write_all(&pid.to_le_bytes()).ok();
    let reaping = std::thread::Builder::new()
        .name("sidecore-children".to_owned())
        .spawn(move || reap(pid, to))
        .map_err(|source| RunError::System {
            call: "clone",
            source,
        })?;
    let supervisor = Supervisor::new(listener, client, attach, scope, rendezvous)
        .map_err(system("epoll_create"))?;
    supervisor.run()?;
    // No process is left under the filter, so all children end. The reaping thread may still have
    // to report the program's exit status.
    reaping.join().ok();
    crate::aside::finish(LAST_WORDS_MAX);
    Ok(())
}

/// Installs the filter on a new thread, which then starts the program.
fn start(program: &[OsString], options: &Options) -> Result<(Listener, i32), RunError> {
    let [name, arguments @ ..] = program else {
        return Err(RunError::Program {
            program: PathBuf::new(),
            source: std::io::Error::other("no program is named"),
        });
    };
    let mut command = Command::new(name);
    command.args(arguments);
    if let Some(preload) = &options.preload {
        command.env("LD_PRELOAD", preload);
    }
    let (sender, receiver) = mpsc::channel();
    let starting = std::thread::Builder::new()
        .name("sidecore-start".to_owned())
        .spawn(move || {
            let listener = seccomp::install(FILTER);
            let spawned = match &listener {
                Ok(_) => Some(command.spawn()),
                Err(_) => None,
            };
            // The receiver is gone only when this process ends.
            sender.send((listener, spawned)).ok();
        });
    starting.map_err(|source| RunError::System {
        call: "clone",
        source,
    })?;
    let (listener, spawned) = receiver.recv().map_err(|_| RunError::Gone)?;
    let listener = listener.map_err(RunError::Filter)?;
    match spawned {
        Some(Ok(child)) => Ok((listener, child.id().cast_signed())),
        Some(Err(source)) => Err(RunError::Program {
            program: name.into(),
            source,
        }),
        None => Err(RunError::Gone),
    }
}

/// Waits for all children; reports how the program ended.
fn reap(program: i32, mut to: File) {
    loop {
        let waited = rustix::process::wait(WaitOptions::empty());
        let (pid, status) = match waited {
            Ok(Some(waited)) => waited,
            Err(Errno::INTR) | Ok(None) => continue,
            // No child is left; a daemon that is reparented later is collected when this process
            // ends.
            Err(_) => return,
        };
        if pid.as_raw_nonzero().get() == program {
            let word = match (status.exit_status(), status.terminating_signal()) {
                (Some(exited), _) => exited,
                (None, Some(signal)) => -signal,
                (None, None) => 0,
            };
            to.write_all(&word.to_le_bytes()).ok();
        }
    }
}

/// Attaches again after the engine was gone.
struct Again {
    path: PathBuf,
    options: ClientOptions,
}

impl Attach for Again {
    fn attach(&mut self) -> Result<Client, String> {
        Client::attach(&self.path, &self.options).map_err(|error| error.to_string())
    }
}

type Attached = (Option<Client>, Option<Box<dyn Attach>>, Scope);

fn attach(options: &Options) -> Result<Attached, RunError> {
    let client_options = |trust: &Trust| ClientOptions {
        chunks: CHUNKS,
        trust: trust.clone(),
        waits_for_others: true,
        never_waits: true,
        ..ClientOptions::default()
    };
    // The scope of a hosted stack follows from its configuration; an engine elsewhere is asked for
    // it.
    match &options.engine {
        Engine::None => Ok((None, None, Scope::default())),
        Engine::Hosted(setup) => {
            let client = hosted::host(setup, &client_options(&Trust::default()))?;
            let config = setup.stack_config()?;
            let own = config.addresses.iter();
            let behind = config.routes.iter().map(|route| &route.network);
            let networks = config.addresses.iter().chain(behind);
            let scope = Scope {
                addresses: own.map(|own| own.address).collect(),
                networks: networks
                    .map(|network| (network.address, network.prefix_bits))
                    .collect(),
                ..Scope::default()
            };
            Ok((Some(client), None, scope))
        }
        Engine::At(path, trust) => {
            let scope = scope_of(path, trust)?;
            let options = client_options(trust);
            let client = Client::attach(path, &options)?;
            let again = Again {
                path: path.clone(),
                options,
            };
            Ok((Some(client), Some(Box::new(again)), scope))
        }
    }
}

/// The addresses and networks that a running engine reports.
fn scope_of(path: &Path, trust: &Trust) -> Result<Scope, RunError> {
    let status: serde_json::Value =
        serde_json::from_str(&status_of(path, trust)?).unwrap_or_default();
    let list = |key: &str| -> Vec<(IpAddr, u8)> {
        let texts = status[key].as_array().into_iter().flatten();
        let parse = |text: &serde_json::Value| {
            let (ip, bits) = text.as_str()?.split_once('/')?;
            Some((ip.parse().ok()?, bits.parse().ok()?))
        };
        texts.filter_map(parse).collect()
    };
    Ok(Scope {
        addresses: list("addresses").into_iter().map(|(ip, _)| ip).collect(),
        networks: list("networks"),
        ..Scope::default()
    })
}

/// Signals from the terminal, and from service managers that signal all processes of a service, are
/// for the program; the supervisor ends when no process is left.
fn ignore_signals() -> Result<(), RunError> {
    let heard = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP, libc::SIGTERM] {
        // A handler, unlike SIG_IGN, is reset in the program by execve(2).
        signal_hook::flag::register(signal, Arc::clone(&heard)).map_err(|source| {
            RunError::System {
                call: "sigaction",
                source,
            }
        })?;
    }
    Ok(())
}

/// Raises the limit of open files: each session needs a descriptor here.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If it fails, fewer sessions fit.
    setrlimit(Resource::Nofile, limit).ok();
}

fn own_pipe(number: i32) -> Result<OwnedFd, RunError> {
    sidecore_sys::program::inherited(number).map_err(|source| RunError::System {
        call: "the supervisor's pipe",
        source,
    })
}

/// Signals that end a program by default.
const ENDING: &[Signal] = &[Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT];
/// Signals that are forwarded to the program.
const PASSED_ON: &[i32] = &[
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
];
/// Notices that standard error does not take within this time are dropped.
const LAST_WORDS_MAX: std::time::Duration = std::time::Duration::from_millis(100);
/// Chunks of 16 KiB for each direction, shared by all sessions.
const CHUNKS: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_kept_until_there_is_a_program() {
        let mut to = Receivers::default();
        for signal in [Signal::USR1, Signal::TERM] {
            to.hear(signal);
        }
        assert_eq!(to.heard, [Signal::USR1, Signal::TERM]);
        // The program has ended already: no process is left for the signal, and it is not kept.
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        to.program = Some((pid, handle));
        to.heard.clear();
        to.hear(Signal::TERM);
        assert!(to.heard.is_empty());
    }

    #[test]
    fn a_stopped_program_is_continued_by_a_signal_that_ends_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(!is_stopped(pid));
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        while !is_stopped(pid) {
            std::thread::yield_now();
        }
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let mut to = Receivers {
            program: Some((pid, handle)),
            ..Receivers::default()
        };
        to.hear(Signal::TERM);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_run_needs_a_program() {
        let options = Options::new(Engine::None, true);
        let none = start(&[], &options).err();
        assert!(matches!(none, Some(RunError::Program { .. })));
        let missing = start(&["/no/such/program".into()], &options).err();
        let text = missing.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.starts_with("cannot run /no/such/program"), "{text}");
    }

    #[test]
    fn without_a_stack_there_is_nothing_to_attach_to() {
        let (client, again, scope) = attach(&Options::new(Engine::None, true)).unwrap();
        assert!(client.is_none() && again.is_none() && !scope.has_stack());
        let nowhere = Engine::At("/proc/none/net.sock".into(), Trust::default());
        let refused = attach(&Options::new(nowhere, true)).err();
        assert!(matches!(refused, Some(RunError::Attach(_))));
    }
}
