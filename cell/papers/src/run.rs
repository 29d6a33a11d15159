//! A run over the catalogue: which parts must be measured, their commands, one after the other, and
//! what came of each.
//!
//! Why here: a part's result must be the same as that of its command by hand, so it is the program
//! once more with other arguments; and a part that crashes must not take the page with it.
//! Must stay true: a finished part's result is kept at once, so that the same request resumes;
//! nothing is measured while another run measures.

use crate::results::{Lock, Now};
use crate::{About, Catalogue, Found, Kept, PapersError, Part, Report, Results, Store, page};
use serde::Serialize;
use serde_json::Value;
use sidecore_measure::Machine;
use sidecore_measure::job::{Job, JobEnd};
use sidecore_sys::text::printable;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Parts that a run measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Those without a result that may be used again.
    Missing,
    /// All, kept results included.
    All,
    /// None: the page is made from kept results.
    Nothing,
}

/// A request for results.
#[derive(Debug, Clone)]
pub struct Request {
    /// Short runs, where a part has one.
    pub quick: bool,
    /// The measurements that are made anew.
    pub measure: Measure,
    /// The parts that may be measured; all where it is empty.
    pub only: Vec<String>,
    /// True if this program has the benches.
    pub has_benches: bool,
    /// Greatest age in seconds of a result that is used again.
    pub age_s_max: u64,
}

/// Receiver of a run's progress.
pub trait Progress {
    /// A run of `parts` parts begins; it should take `expected_s` seconds.
    fn start(&mut self, parts: usize, expected_s: u32);
    /// A part begins.
    fn begin(&mut self, part: &Part, words: &str, expected_s: u32);
    /// Now and then, with the part's last line, if it said something.
    fn tick(&mut self, said: Option<&str>);
    /// The part's end.
    fn done(&mut self, how: &str);
    /// A line.
    fn say(&mut self, line: &str);
    /// Nothing follows.
    fn end(&mut self);
}

/// One run.
#[derive(Debug)]
pub struct Run<'a> {
    catalogue: &'a Catalogue,
    request: Request,
    store: Store,
    program: PathBuf,
    now: Now,
    stop: Arc<AtomicBool>,
    constants: Value,
}

impl<'a> Run<'a> {
    /// A run by `program`, which keeps results in `store`; `constants` is the result of the part
    /// without a command. Raising `stop` ends it.
    ///
    /// # Errors
    /// The program's file cannot be looked at.
    pub fn new(
        catalogue: &'a Catalogue,
        request: Request,
        store: Store,
        program: PathBuf,
        stop: Arc<AtomicBool>,
        constants: Value,
    ) -> std::io::Result<Self> {
        let now = Now {
            program: fingerprint(&program)?,
            machine: Machine::of_this_program(),
            unix_s: unix_s(),
            age_s_max: request.age_s_max,
        };
        Ok(Self {
            catalogue,
            request,
            store,
            program,
            now,
            stop,
            constants,
        })
    }

    /// The report on results.
    #[must_use]
    pub fn report(&self, results: &Results) -> Report {
        Report::new(self.catalogue, results)
    }

    /// The page of results, made now by this version of the program.
    ///
    /// # Errors
    /// A picture cannot be drawn.
    pub fn page(
        &self,
        results: &Results,
        report: &Report,
        version: &str,
    ) -> Result<String, PapersError> {
        let about = About {
            version: version.into(),
            machine: self.now.machine.clone(),
            quick: self.request.quick,
            made_unix_s: unix_s(),
        };
        page(self.catalogue, results, report, &about)
    }

    /// Each part, and in words whether it has a result that may be used.
    fn list(&self) -> impl Iterator<Item = (&'a Part, String)> + '_ {
        self.catalogue.parts.iter().map(|part| {
            let state = match self.kept(part) {
                _ if part.command.is_none() => "known without".to_owned(),
                Ok(_) => "kept".to_owned(),
                Err(why) => why,
            };
            (part, state)
        })
    }

    /// The same in words: the parts' ids, times, commands and results.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let quick = self.request.quick;
        self.list().map(move |(part, state)| {
            let words = part.words(quick).map(|words| format!("sidecore {words}"));
            format!(
                "{:<14} {:>4} s  {}\n{:22}{}",
                part.id,
                part.expected_s(quick),
                words.unwrap_or("(nothing is run)".into()),
                "",
                printable(&state)
            )
        })
    }

    /// A kept result that may be used, or why there is none.
    fn kept(&self, part: &Part) -> Result<Kept, String> {
        let mut why = "nothing is kept".to_owned();
        // A full result may stand in for a quick one.
        // A quick result never stands for a full one.
        let modes: &[bool] = match (self.request.quick, &part.quick) {
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

    /// Results of all parts; none if the run was stopped.
    ///
    /// # Errors
    /// [`PapersError`]: results cannot be kept, or a command not be started.
    pub fn results(&self, progress: &mut dyn Progress) -> Result<Option<Results>, PapersError> {
        let mut results = Results::new();
        let _lock = match self.request.measure {
            Measure::Nothing => None,
            _ => match self.lock(progress)? {
                None => return Ok(None),
                lock => lock,
            },
        };
        let mut left = Vec::new();
        // Which results may be used is decided under the lock: the run that had it kept some.
        for part in &self.catalogue.parts {
            match self.known(part) {
                Some(found) => _ = results.insert(part.id.clone(), found),
                None => left.push(part),
            }
        }
        let expected = left.iter().map(|part| part.expected_s(self.request.quick));
        progress.start(left.len(), expected.sum());
        // Said in each message: a user may look at the results, or remove them.
        let directory = self.store.directory().display();
        let kept = |found: &&Found| matches!(found, Found::Kept(kept) if kept.seconds > 0.0);
        let kept = results.values().filter(kept).count();
        if kept > 0 {
            progress.say(&format!(
                "results of {kept} parts are used again, from {directory}"
            ));
        }
        for part in left {
            let Some(found) = self.measure(part, progress)? else {
                progress.end();
                progress.say(&format!(
                    "stopped; what is finished is kept in {directory}: the same command goes on"
                ));
                return Ok(None);
            };
            results.insert(part.id.clone(), found);
        }
        progress.end();
        Ok(Some(results))
    }

    /// The known result of a part; `None` where it has to be measured.
    fn known(&self, part: &Part) -> Option<Found> {
        if part.command.is_none() {
            return Some(Found::Kept(Box::new(self.constants(part))));
        }
        let kept = match self.request.measure == Measure::All && self.may_measure(part) {
            true => Err("to be done again".to_owned()),
            false => self.kept(part),
        };
        let why = match kept {
            Ok(kept) => return Some(Found::Kept(Box::new(kept))),
            Err(why) if !self.may_measure(part) => {
                format!("{why}, and this run was asked not to measure it")
            }
            Err(_) if part.is_bench() && !self.request.has_benches => {
                "the benches are not part of this program".to_owned()
            }
            Err(_) => return None,
        };
        Some(Found::Missing { why })
    }

    fn may_measure(&self, part: &Part) -> bool {
        let only = &self.request.only;
        let named = only.is_empty() || only.contains(&part.id);
        named && self.request.measure != Measure::Nothing
    }

    /// Waits for other runs; none if it was stopped meanwhile.
    fn lock(&self, progress: &mut dyn Progress) -> Result<Option<Lock>, PapersError> {
        let mut said = false;
        loop {
            if let Some(lock) = self.store.lock()? {
                return Ok(Some(lock));
            }
            if !said {
                progress.say(&format!(
                    "another `sidecore papers` measures and keeps its results in {}; waiting \
                     for it",
                    self.store.directory().display()
                ));
                said = true;
            }
            // Relaxed: a flag alone.
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Measures a part and keeps its result; none if it was stopped.
    fn measure(
        &self,
        part: &Part,
        progress: &mut dyn Progress,
    ) -> Result<Option<Found>, PapersError> {
        let words = part.words(self.request.quick).unwrap_or_default();
        // The load of this part's start, not that of the whole run's.
        let machine = Machine::of_this_program();
        let (began_unix_s, began) = (unix_s(), Instant::now());
        let expected_s = part.expected_s(self.request.quick);
        progress.begin(part, words, expected_s);
        // Generous: a loaded machine takes longer, and a hang must end some day.
        let limit = Duration::from_secs(LIMIT_LEAST_S + LIMIT_TIMES * u64::from(expected_s));
        let job = Job::start(Command::new(&self.program).args(words.split_whitespace()))?;
        let ended = job.wait(limit, &self.stop, &mut |line| progress.tick(line))?;
        let judged = match ended {
            JobEnd::Stopped => return Ok(None),
            JobEnd::TooLong => Err(format!("it took longer than {} s", limit.as_secs())),
            JobEnd::Ended {
                status,
                output,
                said,
            } => judge(status, &output, &said),
        };
        let (problem, report) = match judged {
            Err(why) => {
                progress.done(&format!("no result: {why}"));
                return Ok(Some(Found::Missing { why }));
            }
            Ok(judged) => judged,
        };
        let kept = Kept {
            part: part.id.clone(),
            command: format!("sidecore {words}"),
            quick: self.request.quick && part.quick.is_some(),
            program: self.now.program.clone(),
            machine,
            began_unix_s,
            seconds: began.elapsed().as_secs_f64(),
            problem,
            report,
        };
        // At once: a stop before the next part's end loses nothing of this one.
        self.store.save(&kept)?;
        progress.done(&match &kept.problem {
            None => format!("{:.0} s", kept.seconds),
            Some(problem) => format!("{:.0} s; it found a problem: {problem}", kept.seconds),
        });
        Ok(Some(Found::Kept(Box::new(kept))))
    }

    fn constants(&self, part: &Part) -> Kept {
        Kept {
            part: part.id.clone(),
            // What makes the constants again.
            command: "sidecore papers --json".into(),
            quick: false,
            program: self.now.program.clone(),
            machine: self.now.machine.clone(),
            began_unix_s: self.now.unix_s,
            seconds: 0.0,
            problem: None,
            report: self.constants.clone(),
        }
    }

    /// The failures, in words: of commands, where this run was to measure all, and of the model.
    #[must_use]
    pub fn problems(&self, results: &Results, report: &Report) -> Vec<String> {
        let mut failed = Vec::new();
        if self.request.only.is_empty() && self.request.measure != Measure::Nothing {
            for (id, found) in results {
                match found {
                    Found::Missing { why } => failed.push(format!("{id}: {why}")),
                    // A problem without failures, a missed target say, is a finding of the command.
                    Found::Kept(kept) if failures(&kept.report).is_some() => {
                        failed.push(format!("{id}: {}", kept.problem.as_deref().unwrap_or("")));
                    }
                    Found::Kept(_) => {}
                }
            }
        }
        if !report.model_holds() {
            failed.push("a statement of the model does not hold".into());
        }
        failed
    }

    /// The same as the page, for programs.
    #[must_use]
    pub fn json<'r>(&'r self, results: &'r Results, report: &'r Report) -> impl Serialize + 'r {
        let part = |part| PartJson::new(part, results, self.request.quick);
        RunJson {
            machine: &self.now.machine,
            quick: self.request.quick,
            parts: self.catalogue.parts.iter().map(part).collect(),
            report,
        }
    }
}

/// The JSON object of `papers --json`.
#[derive(Serialize)]
struct RunJson<'a> {
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

impl<'a> PartJson<'a> {
    fn new(part: &'a Part, results: &'a Results, quick: bool) -> Self {
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
}

/// A problem that a command reports although it gave a result, and the result; or the reason for
/// none. `said` is the last line that it printed.
fn judge(status: ExitStatus, output: &[u8], said: &str) -> Result<(Option<String>, Value), String> {
    // Often the only reason: a panic's message, or a missing tool's.
    let said = match said.trim() {
        "" => String::new(),
        last => format!(": {}", short(last)),
    };
    let report = serde_json::from_slice::<Value>(output);
    match (status.code(), report) {
        // Status 1: it ran and found a problem, which its result has, too.
        (Some(0 | 1), Ok(report)) if report.is_object() => {
            let problem = failures(&report).or_else(|| {
                let text = "something that it states does not hold";
                (status.code() == Some(1)).then(|| text.to_owned())
            });
            Ok((problem, report))
        }
        (Some(0), _) => Err(format!("it printed no JSON object{said}")),
        (Some(code), _) => Err(format!("it ended with status {code}{said}")),
        (None, _) => {
            let signal = status.signal().unwrap_or(0);
            Err(format!("signal {signal} ended it{said}"))
        }
    }
}

/// Failures that a command's report lists.
fn failures(report: &Value) -> Option<String> {
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

/// Identity of the program's file: another build of it has another one.
fn fingerprint(program: &Path) -> std::io::Result<String> {
    // Cheap, and enough: a build writes the file anew.
    let metadata = program.metadata()?;
    let changed = metadata.modified()?.duration_since(UNIX_EPOCH);
    Ok(format!(
        "sidecore {}, {} bytes of {}",
        env!("CARGO_PKG_VERSION"),
        metadata.len(),
        changed.map_or(0, |since| since.as_secs())
    ))
}

/// The time, in seconds since 1970.
fn unix_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Time between two tries for the lock.
const POLL: Duration = Duration::from_millis(100);
/// Time limit of a part: [`LIMIT_LEAST_S`] plus this many times its expected time.
const LIMIT_TIMES: u64 = 20;
const LIMIT_LEAST_S: u64 = 300;
const SAID_CHARACTERS_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(code: i32, output: &str, said: &str) -> Result<(Option<String>, Value), String> {
        judge(ExitStatus::from_raw(code << 8), output.as_bytes(), said)
    }

    #[test]
    fn a_result_a_problem_and_a_failure_are_told_apart() {
        assert_eq!(judged(0, "{}", ""), Ok((None, serde_json::json!({}))));
        let (problem, _) = judged(1, "{\"failures\":[\"x\",\"y\"]}", "").unwrap();
        assert_eq!(problem.as_deref(), Some("x; y"));
        let (problem, _) = judged(1, "{}", "").unwrap();
        assert!(problem.unwrap().contains("does not hold"));
        for (code, output, said, words) in [
            (0, "{", "", "no JSON object"),
            (0, "[]", "why", "no JSON object: why"),
            (2, "", "oops", "status 2: oops"),
            (3, "{}", " ", "status 3"),
        ] {
            let why = judged(code, output, said).unwrap_err();
            assert!(why.ends_with(words), "{why}");
        }
        let killed = judge(ExitStatus::from_raw(11), b"", "");
        assert_eq!(killed.unwrap_err(), "signal 11 ended it");
    }

    #[test]
    fn what_is_said_is_cut_at_a_character() {
        let long = "ü".repeat(SAID_CHARACTERS_MAX + 1);
        let why = judged(2, "", &long).unwrap_err();
        assert!(why.ends_with("ü ...") && why.chars().count() < 330, "{why}");
    }
}
