//! The program under test of `tests/suite`: `net run` and `net up` with the words of `sidecore`,
//! and nothing else of it.
//!
//! Why here: a supervisor is a process of its own, started by the one that waits for the program,
//! so its tests need an executable. Must stay true: each word means what it means to `sidecore`;
//! the choice of a stack, and all that follows, is the crate's own.

use sidecore_attach::Trust;
use sidecore_net::setup::Setup;
use sidecore_net_run::{Engine, Options, Status};
use std::error::Error;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    // Without a default, nothing of the crate's notices would be seen.
    let subscribed = tracing::subscriber::set_global_default(Notices);
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let ran = match words.split_at_checked(2) {
        Some(([net, up], [config, rest @ ..])) if net == "net" && up == "up" => {
            serve(config.into(), rest)
        }
        Some(([net, run], rest)) if net == "net" && run == "run" => supervise(rest),
        _ => Err("net run [OPTION…] -- PROGRAM…, or net up CONFIG [--socket PATH]".into()),
    };
    match subscribed.map_err(Failure::from).and(ran) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("net-run-under-test: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs a stack until a signal ends it.
fn serve(config: PathBuf, rest: &[OsString]) -> Result<ExitCode, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    let mut setup = read_setup(config)?;
    if let [option, socket] = rest
        && option == "--socket"
    {
        setup.socket = Some(socket.into());
    }
    let mut engines = setup.bring_up_engines()?;
    writeln!(std::io::stdout(), "ready on {}", engines.socket.display())?;
    engines.run(&stop)?;
    Ok(ExitCode::SUCCESS)
}

fn read_setup(path: PathBuf) -> Result<Setup, Failure> {
    Ok(Setup::parse(&std::fs::read_to_string(path)?)?)
}

/// Runs a program, or supervises it in the process that [`sidecore_net_run::run`] starts.
fn supervise(words: &[OsString]) -> Result<ExitCode, Failure> {
    let end = words.iter().position(|word| word == "--");
    let end = end.ok_or("no program is named behind --")?;
    let (given, program) = (&words[..end], &words[end + 1..]);
    let mut engine = None;
    let (mut has_loopback, mut is_all, mut has_rings) = (false, false, true);
    let mut pipe = None;
    let mut rest = given.iter();
    while let Some(word) = rest.next() {
        let mut value = || rest.next().ok_or("an option lacks its value");
        match word.to_str().unwrap_or_default() {
            "--config" => engine = Some(Engine::Hosted(Box::new(read_setup(value()?.into())?))),
            "--socket" => engine = Some(Engine::At(value()?.into(), Trust::default())),
            "--loopback" => has_loopback = true,
            "--all" => is_all = true,
            "--no-rings" => has_rings = false,
            "--supervise" => pipe = value()?.to_str().and_then(|pipe| pipe.parse().ok()),
            _ => return Err(format!("what is {}?", word.display()).into()),
        }
    }
    if let Some(pipe) = pipe {
        let engine = engine.unwrap_or_else(|| Engine::find(Trust::default(), has_loopback));
        let library = std::env::var_os("SIDECORE_NET_LIBRARY");
        let options = Options {
            is_all,
            preload: library.filter(|_| has_rings),
            ..Options::new(engine, has_loopback)
        };
        sidecore_net_run::supervise(&options, program, pipe)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut supervisor = Command::new(std::env::current_exe()?);
    supervisor
        .args(["net", "run"])
        .args(given)
        .arg("--supervise");
    match sidecore_net_run::run(supervisor, program)? {
        Status::Exited(status) => std::process::exit(status),
        Status::Killed(signal) => {
            signal_hook::low_level::emulate_default_handler(signal).ok();
            std::process::exit(128 + signal)
        }
    }
}

/// Writes the crate's notices to standard error.
struct Notices;

impl tracing::Subscriber for Notices {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// The message of a notice.
struct Line;

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            eprintln!("{value:?}");
        }
    }
}
