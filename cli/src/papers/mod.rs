//! `sidecore papers`: every figure of the source documents, on one page.
//!
//! Why here: arguments, and this program run once more for each command whose result is needed; the
//! catalogue of commands, their results and the page are `sidecore_papers`.
//! Must stay true: a finished part's result is kept at once, so that the same command resumes;
//! nothing is measured while another run measures; the page is whole or not there.

mod child;
mod constants;
mod progress;

use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result, bail};
use child::{Child, Ended};
use progress::Progress;
use serde::Serialize;
use sidecore_measure::Machine;
use sidecore_papers::results::{Lock, Now, write_whole};
use sidecore_papers::{About, Catalogue, Found, Kept, Part, Report, Results, Store, page};
use sidecore_sys::text::printable;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Arguments of `papers`.
#[derive(clap::Args)]
#[command(after_help = "\
Takes up to 20 minutes on two cores, with --quick 3; `--list` names the commands that it runs, and \
each of them can be run alone. Results of finished ones are kept below \
$XDG_CACHE_HOME/sidecore/papers (or ~/.cache) and used again by the same program on the same \
machine, so that after Ctrl-C the same command goes on. A run waits while another one measures. As \
root more can be measured.

Exit status: 0 the page is made, also where rows say why they have no figure; 1 it is made, but a \
command failed or a statement of the model does not hold; 2 it could not be made; 130 stopped.")]
pub(crate) struct Args {
    /// File for the page; - is standard output [default: report.html, with --json none]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Short runs: three minutes on two cores; a smoke run, not a result
    #[arg(long)]
    quick: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
    /// Measure everything again, kept results included
    #[arg(long)]
    fresh: bool,
    /// Run nothing: make the page from kept results
    #[arg(long, conflicts_with = "fresh")]
    no_run: bool,
    /// Run only these parts, and use kept results for the others; --list names them
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    only: Vec<String>,
    /// List the parts, their commands and their kept results, and do nothing
    #[arg(long)]
    list: bool,
    /// Directory for results of finished parts
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Age in hours beyond which results are not used again
    #[arg(long, value_name = "N", default_value_t = 168)]
    max_age_hours: u64,
}

/// Options, catalogue and state of one run.
struct Run<'a> {
    args: &'a Args,
    catalogue: &'a Catalogue,
    store: Store,
    program: PathBuf,
    now: Now,
    stop: Arc<AtomicBool>,
}

/// The JSON object of `--json`.
#[derive(Serialize)]
struct Json<'a> {
    machine: &'a Machine,
    quick: bool,
    parts: Vec<PartJson<'a>>,
    #[serde(flatten)]
    report: &'a Report,
}

#[derive(Serialize)]
struct PartJson<'a> {
    id: &'a str,
    command: Option<&'a str>,
    seconds: Option<f64>,
    began_unix_s: Option<u64>,
    load_start: Option<&'a str>,
    commit: Option<&'a str>,
    problem: Option<&'a str>,
    missing: Option<&'a str>,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let catalogue = Catalogue::built_in()?;
        for id in &self.only {
            if catalogue.part(id).is_none() {
                bail!("no part `{id}`; `sidecore papers --list` names them");
            }
        }
        let stop = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
        let target = self.target();
        if let Some(target) = &target {
            // Before minutes are spent.
            writable(target)?;
        }
        let program = std::env::current_exe().context("cannot find this program")?;
        let run = Run {
            args: &self,
            catalogue: &catalogue,
            store: Store::open(&self.directory()?)?,
            now: Now {
                program: fingerprint(&program)?,
                machine: Machine::of_this_program(),
                unix_s: unix_s(),
                age_s_max: self.max_age_hours.saturating_mul(3600),
            },
            program,
            stop,
        };
        if self.list {
            return run.list();
        }
        let Some(results) = run.results()? else {
            return Ok(Outcome::Stopped);
        };
        run.finish(&results, target.as_deref())
    }

    /// File for the page, if any.
    fn target(&self) -> Option<PathBuf> {
        let by_default = (!self.json && !self.list).then(|| PathBuf::from("report.html"));
        self.output.clone().or(by_default)
    }

    fn directory(&self) -> Result<PathBuf> {
        if let Some(directory) = &self.state {
            return Ok(directory.clone());
        }
        let absolute = |name: &str| {
            let path = PathBuf::from(std::env::var_os(name)?);
            path.is_absolute().then_some(path)
        };
        let cache =
            absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        match cache {
            Some(cache) => Ok(cache.join("sidecore/papers")),
            None => bail!("neither XDG_CACHE_HOME nor HOME is set; name a place with --state DIR"),
        }
    }
}

/// False for a part that is a bench, in a program that was built without the benches.
fn in_this_program(part: &Part) -> bool {
    let is_bench = |words: &str| words.split(' ').nth(1) == Some("bench");
    cfg!(feature = "bench") || !part.words(false).is_some_and(is_bench)
}

impl Run<'_> {
    /// A kept result that may be used, or why there is none.
    fn kept(&self, part: &Part) -> Result<Kept, String> {
        let mut why = "nothing is kept".to_owned();
        // A full result may stand in for a quick one.
        let modes: &[bool] = match (self.args.quick, &part.quick) {
            (true, Some(_)) => &[false, true],
            _ => &[false],
        };
        for &quick in modes {
            match self.store.load(&part.id, quick).map(|kept| {
                let usable = kept.usable(&self.now);
                usable.map(|()| kept)
            }) {
                Some(Ok(kept)) => return Ok(kept),
                Some(Err(reason)) => why = format!("what is kept was {reason}"),
                None => {}
            }
        }
        Err(why)
    }

    fn list(&self) -> Result<Outcome> {
        for part in &self.catalogue.parts {
            let quick = self.args.quick;
            let kept = match self.kept(part) {
                _ if part.command.is_none() => "known without".to_owned(),
                Ok(_) => "kept".to_owned(),
                Err(why) => why,
            };
            output::text(&format!(
                "{:<14} {:>4} s  {}\n{:22}{}",
                part.id,
                part.expected_s(quick),
                part.words(quick)
                    .map_or("(nothing is run)".into(), |words| format!(
                        "sidecore {words}"
                    )),
                "",
                printable(&kept)
            ))?;
        }
        Ok(Outcome::Done)
    }

    /// Results of all parts; none if the run was stopped.
    fn results(&self) -> Result<Option<Results>> {
        let mut results = Results::new();
        let _lock = match self.args.no_run {
            true => None,
            false => match self.lock()? {
                None => return Ok(None),
                lock => lock,
            },
        };
        let mut left = Vec::new();
        for part in &self.catalogue.parts {
            let kept = match self.args.fresh && self.runs(part) {
                true => Err("to be done again".to_owned()),
                false => self.kept(part),
            };
            let found = match kept {
                _ if part.command.is_none() => Found::Kept(Box::new(self.constants(part)?)),
                Ok(kept) => Found::Kept(Box::new(kept)),
                Err(why) if !self.runs(part) => Found::Missing {
                    why: format!("{why}, and this run was asked not to measure it"),
                },
                Err(_) if !in_this_program(part) => Found::Missing {
                    why: "the benches are not part of this program".to_owned(),
                },
                Err(_) => {
                    left.push(part);
                    continue;
                }
            };
            results.insert(part.id.clone(), found);
        }
        let expected = left.iter().map(|part| part.expected_s(self.args.quick));
        let mut progress = Progress::new(left.len(), expected.sum());
        let kept = |found: &&Found| matches!(found, Found::Kept(kept) if kept.seconds > 0.0);
        let kept = results.values().filter(kept).count();
        if kept > 0 {
            progress.say(&format!(
                "results of {kept} parts are used again, from {}",
                self.store.directory().display()
            ));
        }
        for part in left {
            let Some(found) = self.part(part, &mut progress)? else {
                progress.end();
                output::note!(
                    "stopped; what is finished is kept in {}: the same command goes on",
                    self.store.directory().display()
                );
                return Ok(None);
            };
            results.insert(part.id.clone(), found);
        }
        progress.end();
        Ok(Some(results))
    }

    /// True if this run may run `part`.
    fn runs(&self, part: &Part) -> bool {
        let only = &self.args.only;
        !self.args.no_run && (only.is_empty() || only.contains(&part.id))
    }

    /// Waits for other runs; none if it was stopped meanwhile.
    fn lock(&self) -> Result<Option<Lock>> {
        let mut said = false;
        loop {
            if let Some(lock) = self.store.lock()? {
                return Ok(Some(lock));
            }
            if !said {
                output::note!(
                    "another `sidecore papers` measures and keeps its results in {}; \
                     waiting for it",
                    self.store.directory().display()
                );
                said = true;
            }
            // Relaxed: a flag alone.
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Runs a part and keeps its result; none if it was stopped.
    fn part(&self, part: &Part, progress: &mut Progress) -> Result<Option<Found>> {
        let Some(words) = part.words(self.args.quick) else {
            bail!("part {} has no command", part.id);
        };
        // The load of this part's start, not that of the whole run's.
        let machine = Machine::of_this_program();
        let (began_unix_s, began) = (unix_s(), Instant::now());
        let expected_s = part.expected_s(self.args.quick);
        progress.begin(&part.what, words, expected_s);
        let limit = Duration::from_secs(LIMIT_LEAST_S + LIMIT_TIMES * u64::from(expected_s));
        let child = Child::start(&self.program, words)?;
        let ended = child.wait(limit, &self.stop, &mut |line| progress.tick(line))?;
        let (problem, report) = match ended {
            Ended::Stopped => return Ok(None),
            Ended::Failed(why) => {
                progress.done(&format!("no result: {why}"));
                return Ok(Some(Found::Missing { why }));
            }
            Ended::Answered { problem, report } => (problem, report),
        };
        let kept = Kept {
            part: part.id.clone(),
            command: format!("sidecore {words}"),
            quick: self.args.quick && part.quick.is_some(),
            program: self.now.program.clone(),
            machine,
            began_unix_s,
            seconds: began.elapsed().as_secs_f64(),
            problem,
            report,
        };
        self.store.save(&kept)?;
        progress.done(&match &kept.problem {
            None => format!("{:.0} s", kept.seconds),
            Some(problem) => format!("{:.0} s; it found a problem: {problem}", kept.seconds),
        });
        Ok(Some(Found::Kept(Box::new(kept))))
    }

    fn constants(&self, part: &Part) -> Result<Kept> {
        Ok(Kept {
            part: part.id.clone(),
            command: "sidecore papers --json".into(),
            quick: false,
            program: self.now.program.clone(),
            machine: self.now.machine.clone(),
            began_unix_s: self.now.unix_s,
            seconds: 0.0,
            problem: None,
            report: constants::report()?,
        })
    }

    fn finish(&self, results: &Results, target: Option<&Path>) -> Result<Outcome> {
        let report = Report::new(self.catalogue, results);
        if let Some(target) = target {
            let about = About {
                version: env!("CARGO_PKG_VERSION").into(),
                machine: self.now.machine.clone(),
                quick: self.args.quick,
                made_unix_s: unix_s(),
            };
            write(target, &page(self.catalogue, results, &report, &about)?)?;
        }
        if self.args.json {
            self.print(results, &report)?;
        }
        let mut failed = Vec::new();
        if self.args.only.is_empty() && !self.args.no_run {
            for (id, found) in results {
                match found {
                    Found::Missing { why } => failed.push(format!("{id}: {why}")),
                    Found::Kept(kept) if child::failures(&kept.report).is_some() => {
                        failed.push(format!("{id}: {}", kept.problem.as_deref().unwrap_or("")));
                    }
                    Found::Kept(_) => {}
                }
            }
        }
        if !report.model_holds() {
            failed.push("a statement of the model does not hold".into());
        }
        for line in &failed {
            output::note!("problem: {line}");
        }
        if let Some(target) = target.filter(|target| *target != Path::new("-")) {
            let counts = report.counts;
            output::note!(
                "{}: {} rows, {} answered by the model, {} by this machine",
                target.display(),
                counts.rows,
                counts.model,
                counts.here
            );
        }
        Ok(match failed.is_empty() {
            true => Outcome::Done,
            false => Outcome::Problem,
        })
    }

    fn print(&self, results: &Results, report: &Report) -> Result<()> {
        let part = |part| part_json(part, results, self.args.quick);
        output::json(&Json {
            machine: &self.now.machine,
            quick: self.args.quick,
            parts: self.catalogue.parts.iter().map(part).collect(),
            report,
        })
    }
}

fn part_json<'a>(part: &'a Part, results: &'a Results, quick: bool) -> PartJson<'a> {
    let empty = PartJson {
        id: &part.id,
        command: part.words(quick),
        seconds: None,
        began_unix_s: None,
        load_start: None,
        commit: None,
        problem: None,
        missing: None,
    };
    match results.get(&part.id) {
        Some(Found::Kept(kept)) => PartJson {
            command: Some(&kept.command),
            seconds: Some(kept.seconds),
            began_unix_s: Some(kept.began_unix_s),
            load_start: Some(&kept.machine.load_start),
            commit: Some(&kept.machine.commit),
            problem: kept.problem.as_deref(),
            ..empty
        },
        Some(Found::Missing { why }) => PartJson {
            missing: Some(why),
            ..empty
        },
        None => empty,
    }
}

/// Fails now rather than in twenty minutes if the page cannot be written.
fn writable(target: &Path) -> Result<()> {
    if target == Path::new("-") || is_special(target) {
        return Ok(());
    }
    let directory = match target.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    anyhow::ensure!(
        !target.is_dir(),
        "{} is a directory; name a file in it with --output",
        target.display()
    );
    tempfile::tempfile_in(directory)
        .map(drop)
        .with_context(|| format!("cannot write {}", target.display()))
}

fn write(target: &Path, page: &str) -> Result<()> {
    if target == Path::new("-") {
        return output::text(page);
    }
    if is_special(target) {
        return output::file(target, page);
    }
    write_whole(target, page.as_bytes())
        .with_context(|| format!("cannot write {}", target.display()))
}

/// A pipe or a terminal, in whose place no file must be put.
fn is_special(target: &Path) -> bool {
    target
        .metadata()
        .is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// Identity of the program's file: another build of it has another one.
fn fingerprint(program: &Path) -> Result<String> {
    let metadata = program.metadata().context("cannot look at this program")?;
    let changed = metadata.modified()?.duration_since(UNIX_EPOCH);
    Ok(format!(
        "sidecore {}, {} bytes of {}",
        env!("CARGO_PKG_VERSION"),
        metadata.len(),
        changed.map_or(0, |since| since.as_secs())
    ))
}

fn unix_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

const POLL: Duration = Duration::from_millis(100);
/// Time limit of a part: [`LIMIT_LEAST_S`] plus this many times its expected time.
const LIMIT_TIMES: u64 = 20;
const LIMIT_LEAST_S: u64 = 300;
