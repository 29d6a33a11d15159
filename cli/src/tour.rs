//! `sidecore tour`: the main job, end to end, on this machine's own files. `sidecore doctor`: what
//! this machine offers.
//!
//! Why here: the steps name this program's commands; `sidecore_tour` takes them. Must stay true: a
//! tool that is missing costs its step alone. Under `doctor` nothing is changed, and a machine that
//! lacks something is not an error: exit status 0.

use crate::output::JsonArgs;
use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_doctor::{Built, examine};
use sidecore_measure::Machine;
use sidecore_terminal::values::named;
use sidecore_tour::{LARGE_FOLDERS, Options, Script, Terminal, TourError, place};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Subject
    #[arg(default_value = "all", value_parser = named([
        ("images", "Compressed images: pack, mount, serve, sign", Some("images")),
        ("trees", "Phylogenies: search, compare, draw", Some("trees")),
        ("net", "The protocol stack: scripts, unchanged programs, RDMA", Some("net")),
        ("engines", "Engines: calls to a daemon, address translation", Some("engines")),
        ("all", "All of these, and programs of the Cell", Subject::None),
    ]))]
    subject: Subject,
    /// A smaller directory and fewer steps: half a minute
    #[arg(long)]
    quick: bool,
    /// The directory to pack [default: the largest of this system's below 192 MiB, with --quick 32
    /// MiB]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The directory for the page and its pictures [default: sidecore/tour in the user's state
    /// directory, else a new temporary one]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// A subject's name in the script; none for all of them.
type Subject = Option<&'static str>;

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let script = Script::parse(STEPS)?;
        let kept = place(self.keep.as_deref(), "sidecore")?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let machine = Machine::look(&program);
        let (cpu, cores, kernel) = (&machine.cpu, machine.cores, &machine.kernel);
        let version = env!("CARGO_PKG_VERSION");
        let head = format!("sidecore {version} on {cpu} ({cores} cores), Linux {kernel}");
        let options = self.options(program)?;
        let result = sidecore_tour::run(&script, &options, &mut Terminal::default());
        let report = match result {
            Ok(report) => report,
            Err(TourError::Interrupted) => {
                output::note!("sidecore: {}", TourError::Interrupted);
                return Ok(Outcome::Stopped);
            }
            // Without the words around it: a closed pipe is recognized and is no failure.
            Err(TourError::Show(error)) => return Err(error.into()),
            Err(error) => return Err(error.into()),
        };
        output::line("")?;
        output::lines(&report.verdict())?;
        let page = report.write(kept.as_deref(), &head)?;
        output::line(&format!("To open: {}", page.display()))?;
        // Nothing ran: that is neither well nor a problem.
        anyhow::ensure!(
            report.done() + report.problems() > 0,
            "no step could run; the verdict says what each needs"
        );
        Ok(Outcome::of(report.problems() == 0))
    }

    fn options(&self, program: PathBuf) -> Result<Options> {
        let ([starts, bootstraps, mib], sample_bytes) = match self.quick {
            true => (["1", "10", "200"], 32 << 20),
            false => (["4", "50", "2000"], 192 << 20),
        };
        Ok(Options {
            program: (program, "sidecore"),
            subject: self.subject.map(str::to_owned),
            is_quick: self.quick,
            has_benches: cfg!(feature = "bench"),
            folder: self.dir.clone(),
            candidates: &LARGE_FOLDERS,
            sample_bytes,
            values: vec![("starts", starts), ("bootstraps", bootstraps), ("mib", mib)],
            // The user's own cache is not the tour's to fill.
            environment: vec![("SIDECORE_SPE_CACHE", "spe")],
            files: FILES.to_vec(),
            stop: raise_on(&[SIGINT, SIGTERM, SIGHUP])?,
        })
    }
}

/// The steps, as a file of their own has them.
const STEPS: &str = include_str!("tour/steps.toml");
/// Sources that a step compiles.
const FILES: [(&str, &str); 2] = [
    ("tour_spu.c", include_str!("tour/tour_spu.c")),
    ("tour.c", include_str!("tour/tour_host.c")),
];

#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    form: JsonArgs,
}

impl DoctorArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let report = examine(Built {
            with_mpi: cfg!(feature = "mpi"),
        });
        self.form.report(&report, |report| report.text())
    }
}

#[cfg(test)]
mod tests {
    use super::STEPS;
    use crate::Cli;
    use clap::CommandFactory;
    use sidecore_tour::Script;

    #[test]
    fn the_subjects_are_the_scripts() {
        let script = Script::parse(STEPS).unwrap();
        let subjects = script.subjects();
        let root = Cli::command();
        let mut arguments = root.find_subcommand("tour").unwrap().get_arguments();
        let subject = arguments.find(|it| it.get_id() == "subject").unwrap();
        for value in subject.get_possible_values() {
            let name = value.get_name();
            assert!(name == "all" || subjects.contains(&name), "{name}");
        }
    }

    /// A step with a command that this program has no more would end as a problem, on a user's
    /// machine.
    #[test]
    fn every_command_of_the_steps_is_one_of_this_program() {
        let script = Script::parse(STEPS).unwrap();
        let mut seen = 0;
        for (step, line) in script.lines() {
            for command in line.split("sidecore ").skip(1) {
                let mut words = command.split([' ', ';', ')']);
                let mut known = &Cli::command();
                while let Some(word) = words.next().filter(|_| known.has_subcommands()) {
                    known = known
                        .find_subcommand(word)
                        .unwrap_or_else(|| panic!("{step}: `{line}`"));
                }
                seen += 1;
            }
        }
        assert!(seen > 25, "{seen}");
    }
}
