//! Runs of a scenario, and the judgement of each.
//!
//! Why here: all commands have the same rules for leftovers of a failed run. Must stay true: each
//! run has a folder of its own, which is removed afterwards, and so are mounts below it.

use crate::faults::Resource;
use crate::scenario::{INPUTS, Scenario, Server};
use crate::tracer::{Account, Manner, Plan, Tracee};
use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;
use sidecore_random::Random;
use sidecore_torture::End;
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A scenario's result, as `--json` has it.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) scenario: &'static str,
    pub(crate) calls: u64,
    pub(crate) runs: u64,
    pub(crate) failures: u64,
    pub(crate) findings: Vec<Finding>,
}

/// Something that must not happen.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    call: u64,
    name: &'static str,
    manner: String,
    fault: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            call,
            name,
            manner,
            fault,
        } = self;
        write!(to, "call {call} ({name}, {manner}): {fault}")
    }
}

pub(crate) struct Harness {
    program: PathBuf,
    root: tempfile::TempDir,
}

impl Harness {
    /// Makes the inputs.
    pub(crate) fn new(program: PathBuf) -> Result<Self> {
        let root = tempfile::Builder::new().prefix("torture.").tempdir()?;
        let inputs = root.path().join("in");
        std::fs::create_dir(&inputs)?;
        let harness = Self { program, root };
        let made = harness.shell(INPUTS, &inputs, &inputs)?;
        if made != Some(0) {
            bail!("the inputs could not be made (run scripts/setup)");
        }
        Ok(harness)
    }

    /// Lets chosen calls of a scenario fail, each in a run of its own, for `time` at most.
    pub(crate) fn scenario(
        &self,
        scenario: &Scenario,
        calls_max: u64,
        random: &mut Random,
        time: Duration,
    ) -> Result<Row> {
        let start = Instant::now();
        let (account, findings) = self.run(scenario, None)?;
        let calls = account.calls;
        let mut row = Row {
            scenario: scenario.name,
            calls,
            runs: 1,
            failures: 0,
            findings: Vec::new(),
        };
        if !findings.is_empty() {
            row.findings
                .extend(findings.into_iter().map(|fault| Finding {
                    call: 0,
                    name: "none",
                    manner: "without a failing call".into(),
                    fault,
                }));
            return Ok(row);
        }
        let mut order: Vec<u64> = (1..=calls).collect();
        // The order is drawn, so that a short time covers a sample of all of them.
        for last in (1..order.len()).rev() {
            let other = usize::try_from(random.below(u64::try_from(last + 1)?))?;
            order.swap(last, other);
        }
        order.truncate(usize::try_from(calls_max)?);
        for (turn, call) in order.into_iter().enumerate() {
            let mut manners = vec![Manner::Once, Manner::Onwards];
            manners.extend(match turn % 4 {
                0 => Some(Manner::Short),
                1 => Some(Manner::Interrupted),
                _ => None,
            });
            for manner in manners {
                if start.elapsed() > time {
                    return Ok(row);
                }
                self.judge(scenario, Plan { call, manner }, &mut row)?;
            }
        }
        Ok(row)
    }

    /// Repeats the runs of one call.
    pub(crate) fn one(&self, scenario: &Scenario, call: u64) -> Result<Row> {
        let mut row = Row {
            scenario: scenario.name,
            calls: 0,
            runs: 0,
            failures: 0,
            findings: Vec::new(),
        };
        for manner in [
            Manner::Once,
            Manner::Onwards,
            Manner::Short,
            Manner::Interrupted,
        ] {
            self.judge(scenario, Plan { call, manner }, &mut row)?;
        }
        Ok(row)
    }

    fn judge(&self, scenario: &Scenario, plan: Plan, row: &mut Row) -> Result<()> {
        let (account, findings) = self.run(scenario, Some(plan))?;
        row.runs += 1;
        row.failures += u64::from(account.failed.is_some());
        row.findings
            .extend(findings.into_iter().map(|fault| Finding {
                call: plan.call,
                name: account.failed.map_or("none", |(name, _)| name),
                manner: format!("{:?}", plan.manner).to_lowercase(),
                fault,
            }));
        Ok(())
    }

    /// One run: its account, and its faults.
    fn run(&self, scenario: &Scenario, plan: Option<Plan>) -> Result<(Account, Vec<String>)> {
        let out = self.root.path().join("out");
        if out.exists() {
            std::fs::remove_dir_all(&out)?;
        }
        std::fs::create_dir(&out)?;
        let shell = |text: &str| self.shell(text, &self.root.path().join("in"), &out);
        if shell(scenario.before)? != Some(0) {
            bail!("what comes before the run failed");
        }
        let mut kept: Vec<String> = names(&out)?;
        kept.extend(["stdout".into(), "stderr".into()]);
        let command = self.command(scenario, &out);
        let tracee = Tracee::start(command, &self.program, plan, &out)?;
        let mut findings = Vec::new();
        let end = match scenario.server {
            None => tracee.end_within(RUN_MAX),
            Some(server) => self.serve(&server, &tracee, &out, plan.is_none(), &mut findings)?,
        };
        let have_all_ended = tracee.all_end_within(END_MAX);
        if !have_all_ended || end.is_none() {
            findings.push(format!("does not end: {}", last_line(&out)));
            end_group(tracee.pid());
            tracee.all_end_within(END_MAX);
        }
        let account = tracee.account();
        if let Some(end) = end {
            judge_end(end, &account, &out, &mut findings);
            let failed = end != End::Exit(0);
            if failed && plan.is_none() && scenario.server.is_none() {
                findings.push(format!("failed: {}", last_line(&out)));
            }
            self.judge_files(scenario, end, &kept, &account, &out, &mut findings)?;
        }
        if shell(scenario.after)? == Some(3) {
            findings.push("the next run does not work".into());
        }
        // One whose unmount failed is left with its record, for the next command.
        if account.resource == Some(Resource::Kernel)
            && let Some(server) = scenario.server
            && !mounts_below(&out)?.is_empty()
        {
            shell(server.stop)?;
        }
        for mount in mounts_below(&out)? {
            findings.push(format!("the mount {} is left", mount.display()));
            Command::new("umount").arg("-l").arg(&mount).status().ok();
        }
        Ok((account, findings))
    }

    fn judge_files(
        &self,
        scenario: &Scenario,
        end: End,
        kept: &[String],
        account: &Account,
        out: &Path,
        findings: &mut Vec<String>,
    ) -> Result<()> {
        let inputs = self.root.path().join("in");
        let failed = end != End::Exit(0);
        if !failed {
            if !scenario.whole.is_empty()
                && let Some(status @ 1..) = self.shell(scenario.whole, &inputs, out)?
            {
                findings.push(format!("says it succeeded, and did not (status {status})"));
            }
        } else if scenario.server.is_none() {
            // A name that could not be removed is left; nothing can be done about it. Without
            // memory the program ends as if it was killed, and its partial output stays hidden.
            let is_killed = matches!(end, End::Signal(_));
            for name in names(out)? {
                if is_killed && name.starts_with(".sidecore-") {
                    continue;
                }
                let is_allowed =
                    scenario
                        .may_leave
                        .iter()
                        .any(|allowed| match allowed.strip_suffix('*') {
                            Some(start) => name.starts_with(start),
                            None => name == *allowed,
                        });
                if is_allowed || kept.contains(&name) || account.has_kept_a_name {
                    continue;
                }
                // The failure may have come after the file: then it is whole.
                let is_output = name == "o" && !scenario.whole.is_empty();
                if !is_output || self.shell(scenario.whole, &inputs, out)? != Some(0) {
                    findings.push(format!("failed, and left {name}"));
                }
            }
        }
        Ok(())
    }

    /// The rest of a server's life; its end.
    fn serve(
        &self,
        server: &Server,
        tracee: &Tracee,
        out: &Path,
        must_serve: bool,
        findings: &mut Vec<String>,
    ) -> Result<Option<End>> {
        let inputs = self.root.path().join("in");
        let start = Instant::now();
        let mut end = None;
        // A command that leaves a server in the background ends by itself.
        let stays = server.stop.is_empty();
        loop {
            end = end.or_else(|| tracee.end_within(Duration::from_millis(10)));
            if self.shell(server.ready, &inputs, out)? == Some(0) {
                break;
            }
            match end {
                Some(_) => return Ok(end),
                None if start.elapsed() > RUN_MAX => {
                    findings.push(format!("is never ready: {}", last_line(out)));
                    return Ok(None);
                }
                None => {}
            }
        }
        match self.shell(server.used, &inputs, out)? {
            Some(0) => {}
            Some(3) => findings.push("served wrong bytes".into()),
            status if must_serve => findings.push(format!("does not serve (status {status:?})")),
            _ => {}
        }
        if stays {
            // It may have ended by itself, and reported `ready` all the same.
            if end.is_none() {
                kill(Pid::from_raw(tracee.pid()), Signal::SIGTERM).ok();
                end = tracee.end_within(END_MAX);
            }
            // A server with nothing to keep may leave its end to the kernel.
            let by_us = end == Some(End::Signal(Signal::SIGTERM));
            return Ok(if by_us { Some(End::Exit(0)) } else { end });
        } else {
            // May refuse, in one line; then it must succeed at the second time, or by force.
            let mut is_ended = false;
            for way in [server.stop, server.stop, server.force] {
                let tries = !is_ended && !way.is_empty();
                is_ended |= tries && self.shell(way, &inputs, out)? == Some(0);
            }
            if !is_ended && !mounts_below(out)?.is_empty() {
                findings.push(format!("cannot be ended: {}", last_line_of(&self.said())));
            }
        }
        Ok(end.or_else(|| tracee.end_within(END_MAX)))
    }

    fn command(&self, scenario: &Scenario, out: &Path) -> Command {
        let inputs = self.root.path().join("in").display().to_string();
        let out = out.display().to_string();
        // A no-break space stands for one inside an argument.
        let arguments = scenario.run.split_ascii_whitespace().map(|word| {
            let word = word.replace("$IN", &inputs).replace("$OUT", &out);
            word.replace('\u{a0}', " ")
        });
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("XDG_CACHE_HOME", self.root.path().join("cache"));
        command
    }

    /// The errors of the text that was run last.
    fn said(&self) -> PathBuf {
        self.root.path().join("said")
    }

    /// Runs a text; returns its exit status, or `None` where it was killed or took too long.
    fn shell(&self, text: &str, inputs: &Path, out: &Path) -> Result<Option<i32>> {
        if text.is_empty() {
            return Ok(Some(0));
        }
        let status = Command::new("timeout")
            .args(["-k", "1", SHELL_MAX_S, "sh", "-e", "-c", text])
            .env("S", &self.program)
            .env("IN", inputs)
            .env("OUT", out)
            .env("XDG_CACHE_HOME", self.root.path().join("cache"))
            .current_dir(inputs)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(self.said())?)
            .status()
            .context("running sh")?;
        Ok(status.code())
    }
}

/// Judges how the program ended.
fn judge_end(end: End, account: &Account, out: &Path, findings: &mut Vec<String>) {
    let errors = std::fs::read_to_string(out.join("stderr")).unwrap_or_default();
    // A report of damage, for one, goes to standard output.
    let has_output = std::fs::metadata(out.join("stdout")).is_ok_and(|found| found.len() > 0);
    let could_say = account
        .failed
        .is_none_or(|(_, writes_errors)| !writes_errors);
    // The standard library's reaction to failed allocations. The same holds for its own stack for
    // the handler of stack overflows, which a new thread maps.
    let no_memory = account.resource == Some(Resource::Memory)
        && end == End::Signal(Signal::SIGABRT)
        && NO_MEMORY.iter().any(|text| errors.contains(text));
    if no_memory {
        return;
    }
    match end {
        End::Exit(101) => findings.push(format!("panicked: {}", last_line(out))),
        End::Exit(0) => {}
        End::Exit(_) if errors.is_empty() && !has_output && could_say => {
            findings.push("failed without a word".into());
        }
        End::Exit(_) => {}
        End::Signal(signal) => findings.push(format!("ended by {signal}: {}", last_line(out))),
    }
    let mut panics = errors.lines().filter(|line| line.contains("panicked at"));
    let line = panics.find(|line| !NO_MEMORY.iter().any(|text| line.contains(text)));
    if line.is_some() && end != End::Exit(101) {
        findings.push(format!("a thread panicked: {}", line.unwrap_or_default()));
    }
}

fn end_group(pid: i32) {
    // The tracer's end would end all tracees; here it goes on, so each descendant is ended by name.
    let mut pids = vec![pid];
    let mut next = 0;
    while let Some(&parent) = pids.get(next) {
        next += 1;
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.unwrap_or_default();
        pids.extend(
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse::<i32>().ok()),
        );
    }
    for pid in pids {
        kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
    }
}

fn last_line(out: &Path) -> String {
    last_line_of(&out.join("stderr"))
}

fn last_line_of(file: &Path) -> String {
    let errors = std::fs::read_to_string(file).unwrap_or_default();
    let line = errors.lines().rev().find(|line| !line.starts_with("note:"));
    line.unwrap_or("(nothing on standard error)").to_owned()
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

fn mounts_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let below = table.lines().filter_map(|line| {
        let place = Path::new(line.split(' ').nth(4)?);
        place.starts_with(folder).then(|| place.to_owned())
    });
    Ok(below.collect())
}

/// The longest time until a program has ended or is ready. It runs under a tracer, on a machine
/// that may be busy.
const RUN_MAX: Duration = Duration::from_secs(30);
/// The longest time for the end of a server, and of what it left in the background.
const END_MAX: Duration = Duration::from_secs(12);
/// Messages of the standard library where memory cannot be had and it ends the process.
const NO_MEMORY: [&str; 2] = ["memory allocation of", "unix/stack_overflow.rs"];
/// The longest time of a text of a scenario, in seconds, as `timeout` takes it.
const SHELL_MAX_S: &str = "30";
