//! The steps, one after the other.
//!
//! Must stay true: what a step did is undone before the next begins, also where it failed, the
//! screen is gone or the user interrupts; a command with effects of its own runs to its end before
//! an interruption counts.

use crate::TourError;
use crate::needs::{Lacking, Needs};
use crate::report::{End, Report, Taken};
use crate::sample::{Sample, sample};
use crate::script::{self, Action, Flip, Script, Step, Way};
use crate::server::{Server, free_address};
use crate::shell::{COLUMNS, Shell, Show, command_lines, wrapped};
use serde_json::Value;
use sidecore_measure::job::{Job, JobEnd};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The surroundings of a tour.
#[derive(Debug)]
pub struct Options {
    /// The program that the steps show, and the name by which they call it.
    pub program: (PathBuf, &'static str),
    /// The subject of the steps that are taken; all where it is none.
    pub subject: Option<String>,
    /// True to leave out the steps of the whole tour.
    pub is_quick: bool,
    /// True to take the steps that need benches.
    pub has_benches: bool,
    /// Folder to work on: the user's choice.
    pub folder: Option<PathBuf>,
    /// Folders of which the largest with at most `sample_bytes` is taken.
    pub candidates: &'static [&'static str],
    /// Size of a chosen folder, at most.
    pub sample_bytes: u64,
    /// Values of names in braces.
    pub values: Vec<(&'static str, &'static str)>,
    /// Variables of the environment of every command.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Further files that the steps find: name, contents.
    pub files: Vec<(&'static str, &'static str)>,
    /// Raised by the user to end the tour.
    pub stop: Arc<AtomicBool>,
}

/// Takes the script's steps. Blocks until all have ended; its thread must live as long as the
/// program.
///
/// # Errors
/// [`TourError::Folder`], [`TourError::Scratch`] before the first step;
/// [`TourError::Interrupted`], [`TourError::Show`] between two commands.
pub fn run(script: &Script, options: &Options, show: &mut dyn Show) -> Result<Report, TourError> {
    let began = Instant::now();
    let failed = |source| TourError::Scratch {
        path: std::env::temp_dir(),
        source,
    };
    let scratch = tempfile::Builder::new().prefix("sidecore-tour-").tempdir();
    let scratch = scratch.map_err(failed)?;
    prepare(scratch.path(), script, options).map_err(failed)?;
    let named = options.folder.as_deref();
    let most_bytes = options.sample_bytes;
    let sample = sample(named, options.candidates, most_bytes, scratch.path())?;
    let mut shell = Shell::new(scratch.path(), &options.environment);
    for (name, value) in &options.values {
        shell.set(name, value);
    }
    // Without a folder the steps that need none are still worth showing.
    let no_sample = match &sample {
        Sample::Folder(folder) => {
            shell.set("dir", &folder.to_string_lossy());
            None
        }
        Sample::None(lacking) => Some(lacking.clone()),
    };
    let checks = shell.clone();
    let check = move |line: &str| checks.command(line);
    let mut tour = Tour {
        options,
        scratch: scratch.path(),
        shell,
        sample_bytes: None,
        report: Report::default(),
        show,
    };
    // After all that can refuse the tour: a refusal prints nothing.
    let subject = options.subject.as_deref().unwrap_or("all subjects");
    let heading = format!("The tour: {subject}");
    tour.show.line(&heading).map_err(TourError::Show)?;
    let mut needs = Needs::new(script, &check, no_sample);
    let result = tour.steps(script, &mut needs);
    // Also after an error: a folder with a mount in it cannot be removed.
    tour.unmount();
    tour.report.seconds = began.elapsed().as_secs_f64();
    result.map(|()| tour.report)
}

/// Makes the folders and files that the steps name.
fn prepare(scratch: &Path, script: &Script, options: &Options) -> io::Result<()> {
    for folder in ["bin", "mnt", "www"] {
        std::fs::create_dir(scratch.join(folder))?;
    }
    let (program, name) = &options.program;
    symlink(program, scratch.join("bin").join(name))?;
    let given = options.files.iter().map(|(name, text)| (*name, *text));
    let own = script.files.iter();
    let own = own.map(|(name, text)| (name.as_str(), text.as_str()));
    given
        .chain(own)
        .try_for_each(|(name, text)| std::fs::write(scratch.join(name), text))
}

struct Tour<'a> {
    options: &'a Options,
    scratch: &'a Path,
    shell: Shell,
    /// The sample's size, once a step has found it.
    sample_bytes: Option<u64>,
    report: Report,
    show: &'a mut dyn Show,
}

/// A step while it runs.
struct Stage {
    shell: Shell,
    /// The youngest last: a server's clients end before it.
    servers: Vec<Server>,
    figure: Option<String>,
}

/// A command that has ended.
struct Ended {
    status: ExitStatus,
    output: String,
    errors: Vec<String>,
    seconds: f64,
}

impl Tour<'_> {
    fn steps<'s>(&mut self, script: &'s Script, needs: &mut Needs<'s>) -> Result<(), TourError> {
        for step in &script.steps {
            let subject = self.options.subject.as_deref();
            let is_other = subject.is_some_and(|subject| subject != step.subject);
            let is_left = step.full && self.options.is_quick;
            if is_other || is_left || step.bench && !self.options.has_benches {
                continue;
            }
            self.go_on()?;
            let began = Instant::now();
            let number = self.report.steps.len() + 1;
            self.say("")?;
            for line in wrapped(&format!("{number:>2}  {}", step.title), COLUMNS) {
                self.say(&line)?;
            }
            let mut taken = Taken {
                id: step.id.clone(),
                subject: step.subject.clone(),
                title: step.title.clone(),
                proves: step.proves.clone(),
                figure: None,
                seconds: 0.0,
                end: End::Done,
            };
            let end = match self.lacking(step, needs) {
                Err(Lacking { need, remedy }) => End::Skipped { need, remedy },
                Ok(way) => {
                    taken
                        .proves
                        .clone_from(way.proves.as_ref().unwrap_or(&step.proves));
                    let (figure, problem) = self.take(step, way)?;
                    taken.figure = figure;
                    problem.map_or(End::Done, ended_by)
                }
            };
            taken.seconds = began.elapsed().as_secs_f64();
            let line = match &end {
                End::Done => format!("done in {:.1} s: {}", taken.seconds, taken.proves),
                End::Skipped { need, remedy } => {
                    format!("skipped: needs {need}; {remedy}")
                }
                End::Problem(what) => format!("problem: {what}"),
            };
            taken.end = end;
            self.report.steps.push(taken);
            self.indented(&line)?;
        }
        Ok(())
    }

    /// The first way of a step whose needs are met, or what the easiest one lacks.
    fn lacking<'s>(&self, step: &'s Step, needs: &mut Needs<'s>) -> Result<&'s Way, Lacking> {
        let mut earlier = self.report.steps.iter().enumerate();
        let unmet =
            earlier.find(|(_, taken)| taken.end != End::Done && step.after.contains(&taken.id));
        if let Some((at, _)) = unmet {
            return Err(Lacking {
                need: format!("step {}", at + 1),
                remedy: "see there".to_owned(),
            });
        }
        let mut easiest: Option<Vec<Lacking>> = None;
        for way in &step.ways {
            let lacking = needs.lacking(&way.needs);
            if lacking.is_empty() {
                return Ok(way);
            }
            if easiest
                .as_ref()
                .is_none_or(|least| lacking.len() < least.len())
            {
                easiest = Some(lacking);
            }
        }
        Err(needs.joined(&easiest.unwrap_or_default()))
    }

    /// Takes a way, and undoes it; its figure and its problem.
    fn take(
        &mut self,
        step: &Step,
        way: &Way,
    ) -> Result<(Option<String>, Option<String>), TourError> {
        let mut stage = Stage {
            shell: self.shell.clone(),
            servers: Vec::new(),
            figure: None,
        };
        let mut result = self.begin(step, way, &mut stage);
        for action in &way.run {
            match &result {
                Ok(None) => result = self.act(action, &mut stage),
                _ => break,
            }
        }
        for line in &way.undo {
            let undone = self.undo(line, &stage.shell, matches!(result, Ok(None)));
            result = match result {
                Ok(None) => undone,
                other => other,
            };
        }
        while let Some(server) = stage.servers.pop() {
            drop(server);
        }
        let problem = result?;
        if let Some(picture) = step.picture.as_ref().filter(|_| problem.is_none()) {
            let path = self.scratch.join(&picture.file);
            match std::fs::read_to_string(&path) {
                Ok(svg) => {
                    let (file, label) = (picture.file.clone(), picture.label.clone());
                    self.report.pictures.push((file, label, svg));
                }
                Err(error) => return Ok((None, Some(format!("{}: {error}", picture.file)))),
            }
        }
        Ok((stage.figure, problem))
    }

    /// Ports and the namespace of a way.
    fn begin(
        &mut self,
        step: &Step,
        way: &Way,
        stage: &mut Stage,
    ) -> Result<Option<String>, TourError> {
        for port in &step.ports {
            match free_address() {
                Ok(address) => stage.shell.set(port, &address),
                Err(error) => return Ok(Some(format!("no loopback: {error}"))),
            }
        }
        if !way.own_network {
            return Ok(None);
        }
        // Root needs no namespace of users around that of the network.
        let flags = match rustix::process::geteuid().is_root() {
            true => ("-n", ["-n"].as_slice()),
            false => ("-rn", ["-U", "--preserve-credentials", "-n"].as_slice()),
        };
        let line = format!(
            "exec unshare {} sh -c 'echo ready; exec sleep 900'",
            flags.0
        );
        let problem = self.serve(&line, "", stage)?;
        if let Some(holder) = stage.servers.last().filter(|_| problem.is_none()) {
            let id = holder.id().to_string();
            let words = ["nsenter", "-t", id.as_str()].into_iter();
            let prefix = words.chain(flags.1.iter().copied()).map(str::to_owned);
            stage.shell = stage.shell.inside(prefix.collect());
        }
        Ok(problem)
    }

    /// Does a line of a step; its problem, if any.
    fn act(&mut self, action: &Action, stage: &mut Stage) -> Result<Option<String>, TourError> {
        self.go_on()?;
        match action {
            Action::Line(line) => {
                let command = script::Command {
                    run: line.clone(),
                    ..script::Command::default()
                };
                self.command(&command, stage)
            }
            Action::Command(command) => self.command(command, stage),
            Action::Flip(Flip { flip, at }) => {
                self.indented(&format!("(one byte of {flip} is changed)"))?;
                let changed = inverted(&self.scratch.join(flip), *at);
                Ok(changed.err().map(|error| format!("{flip}: {error}")))
            }
        }
    }

    fn command(
        &mut self,
        command: &script::Command,
        stage: &mut Stage,
    ) -> Result<Option<String>, TourError> {
        let line = stage.shell.filled(&command.run);
        if let Some(address) = &command.server {
            self.shown(&format!("{line} &"))?;
            let address = stage.shell.filled(address);
            return self.serve(&line, &address, stage);
        }
        let is_hidden = command.bytes.is_some();
        if !is_hidden {
            self.shown(&line)?;
        }
        let never = AtomicBool::new(false);
        let stop = Arc::clone(&self.options.stop);
        let stop = if command.hold { &never } else { &*stop };
        let ended = match self.ended(&line, &stage.shell, stop)? {
            Ok(ended) => ended,
            Err(problem) => return Ok(Some(problem)),
        };
        let is_right = ended.status.success() != command.refused.is_some();
        let rows = match (is_hidden, is_right) {
            (true, true) => 0,
            (_, true) => command.show.unwrap_or(SHOWN),
            (_, false) => SHOWN_OF_FAILURE,
        };
        let output = ended.output.lines().map(str::to_owned);
        let output: Vec<String> = output.chain(ended.errors.iter().cloned()).collect();
        let first = command.from.as_ref().filter(|_| is_right);
        let first = first.and_then(|words| output.iter().position(|line| line.contains(words)));
        let first = first.unwrap_or(0);
        self.print(&output[first..], rows)?;
        if command.figure {
            stage.figure = output.get(first).map(|line| line.trim().to_owned());
        }
        Ok(self.judged(command, stage, &ended, &output))
    }

    /// The problem of a command that has ended; takes its figures.
    fn judged(
        &mut self,
        command: &script::Command,
        stage: &Stage,
        ended: &Ended,
        output: &[String],
    ) -> Option<String> {
        let status = ended.status;
        let word = command.run.split(" -").next().unwrap_or_default();
        match &command.refused {
            Some(_) if status.success() => return Some(format!("`{word}` was not refused")),
            Some(words) if !output.iter().any(|line| line.contains(words)) => {
                return Some(format!("`{word}` was refused, but not for its {words}"));
            }
            None if status.code() == Some(NOT_FOUND) => {
                let missing = output.iter().rev().find_map(|line| {
                    let (before, _) = line.rsplit_once(": not found")?;
                    Some(before.rsplit(' ').next()?.to_owned())
                });
                return Some(format!("{MISSING}{}", missing.unwrap_or_default()));
            }
            None if !status.success() => {
                let last = output.iter().rfind(|line| !line.trim().is_empty());
                let why = last.map_or_else(|| status.to_string(), |line| line.trim().to_owned());
                return Some(format!("`{word}` failed: {why}"));
            }
            _ => {}
        }
        let says = command.says.as_ref().map(|words| stage.shell.filled(words));
        let is_unsaid = |words: &&String| !output.iter().any(|line| line.contains(words.as_str()));
        if let Some(words) = says.as_ref().filter(is_unsaid) {
            return Some(format!("`{word}` did not say {words}"));
        }
        if let (Some(name), Some(bytes)) = (&command.rate, self.sample_bytes) {
            let rate = bytes as f64 / ended.seconds / 1e6;
            self.report.rates.push((name.clone(), rate));
        }
        let number = |at: &str| {
            let value: Option<Value> = serde_json::from_str(&ended.output).ok();
            value.and_then(|value| value.pointer(at)?.as_u64())
        };
        if let Some(at) = &command.bytes {
            self.sample_bytes = number(at);
        }
        let expect = command.expect.as_ref()?;
        let is = number(&expect.at);
        let (at, wanted) = (&expect.at, expect.is);
        (is != Some(wanted)).then(|| match is {
            Some(is) => format!("{at} is {is}, not {wanted}"),
            None => format!("`{word}` printed no {at}"),
        })
    }

    /// Runs a line to its end; the inner error is the step's problem.
    fn ended(
        &mut self,
        line: &str,
        shell: &Shell,
        stop: &AtomicBool,
    ) -> Result<Result<Ended, String>, TourError> {
        let began = Instant::now();
        let mut errors = Vec::new();
        let show = &mut self.show;
        let mut say = |said: Option<&str>| match said {
            Some(line) if errors.len() < ERROR_LINES_MAX => errors.push(line.to_owned()),
            _ => show.wait(),
        };
        let job = Job::start(&mut shell.command(line));
        let end = job.and_then(|job| job.wait(COMMAND_WAIT, stop, &mut say));
        let seconds = began.elapsed().as_secs_f64();
        let (status, output, said) = match end {
            Ok(JobEnd::Ended {
                status,
                output,
                said,
            }) => (status, output, said),
            Ok(JobEnd::TooLong) => {
                let limit_s = COMMAND_WAIT.as_secs();
                return Ok(Err(format!("it did not end within {limit_s} s")));
            }
            Ok(JobEnd::Stopped) => return Err(TourError::Interrupted),
            Err(error) => return Ok(Err(error.to_string())),
        };
        // The last lines of a short command are known at its end only.
        if !said.is_empty() && errors.last() != Some(&said) {
            errors.push(said);
        }
        let output = String::from_utf8_lossy(&output).into_owned();
        self.note(line, &output, &errors);
        Ok(Ok(Ended {
            status,
            output,
            errors,
            seconds,
        }))
    }

    /// Starts a server; its problem, if any.
    fn serve(
        &mut self,
        line: &str,
        address: &str,
        stage: &mut Stage,
    ) -> Result<Option<String>, TourError> {
        let errors = self
            .scratch
            .join(format!("server-{}.log", stage.servers.len()));
        // The server itself gets the signal at the end, not a shell around it.
        let exec = match line.starts_with("exec ") {
            true => line.to_owned(),
            false => format!("exec {line}"),
        };
        let mut command = stage.shell.command(&exec);
        match Server::start(&mut command, address, &errors, &self.options.stop) {
            Ok((server, ready)) => {
                stage.servers.push(server);
                self.note(&format!("{line} &"), &ready, &[]);
                Ok(None)
            }
            Err(Some(problem)) => Ok(Some(problem)),
            Err(None) => Err(TourError::Interrupted),
        }
    }

    /// Undoes a part of a step, interrupted or not.
    fn undo(
        &mut self,
        line: &str,
        shell: &Shell,
        is_shown: bool,
    ) -> Result<Option<String>, TourError> {
        let line = shell.filled(line);
        let shown = if is_shown { self.shown(&line) } else { Ok(()) };
        let ended = self.ended(&line, shell, &AtomicBool::new(false))?;
        shown?;
        Ok(match ended {
            Ok(ended) if ended.status.success() => None,
            Ok(ended) => Some(format!("`{line}` failed: {}", ended.errors.join(" "))),
            Err(problem) => Some(problem),
        })
    }

    /// Takes off what is mounted in the tour's folder, which could not be removed otherwise.
    fn unmount(&self) {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| Path::new(point).starts_with(self.scratch)) {
            let _ = rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH);
        }
    }

    /// Between two commands: an interrupted tour ends here.
    fn go_on(&self) -> Result<(), TourError> {
        // Relaxed: a flag alone.
        match self.options.stop.load(Ordering::Relaxed) {
            true => Err(TourError::Interrupted),
            false => Ok(()),
        }
    }

    fn say(&mut self, line: &str) -> Result<(), TourError> {
        self.show.line(line).map_err(TourError::Show)
    }

    fn shown(&mut self, line: &str) -> Result<(), TourError> {
        let mut lines = command_lines(line, INDENT).into_iter();
        lines.try_for_each(|line| self.say(&line))
    }

    fn indented(&mut self, text: &str) -> Result<(), TourError> {
        let mut lines = wrapped(text, COLUMNS - INDENT).into_iter();
        lines.try_for_each(|line| self.say(&format!("{:INDENT$}{line}", "")))
    }

    /// Prints the first rows of a command's output.
    fn print(&mut self, output: &[String], rows: usize) -> Result<(), TourError> {
        let width = COLUMNS - INDENT;
        let filled = output.iter().filter(|line| !line.trim().is_empty());
        let lines: Vec<String> = filled.flat_map(|line| wrapped(line, width)).collect();
        for line in lines.iter().take(rows) {
            self.say(&format!("{:INDENT$}{line}", ""))?;
        }
        Ok(())
    }

    fn note(&mut self, line: &str, output: &str, errors: &[String]) {
        let log = &mut self.report.log;
        *log += &format!("$ {line}\n{output}");
        for line in errors {
            *log += &format!("{line}\n");
        }
        log.push('\n');
    }
}

/// The end of a step with a problem. A program that the shell did not find is a need.
fn ended_by(problem: String) -> End {
    match problem.strip_prefix(MISSING) {
        Some(program) => End::Skipped {
            need: program.to_owned(),
            remedy: "install the package that has it".to_owned(),
        },
        None => End::Problem(problem),
    }
}

/// Inverts a byte of a file.
fn inverted(path: &Path, at: u64) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[!byte[0]], at)
}

/// A shell's status for a command that is not there.
const NOT_FOUND: i32 = 127;
/// Begins the problem of a program that is not there.
const MISSING: &str = "not found: ";
/// Columns left of what a step prints.
const INDENT: usize = 2;
/// Rows of a command's output on the screen.
const SHOWN: usize = 3;
/// The same, where it failed.
const SHOWN_OF_FAILURE: usize = 8;
/// Lines of standard error that are kept of a command.
const ERROR_LINES_MAX: usize = 200;
/// Longest time for a command.
const COMMAND_WAIT: Duration = Duration::from_secs(600);
