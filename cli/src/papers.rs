//! `sidecore papers`: every figure of the source documents, on one page.
//!
//! Why here: arguments and printing; the catalogue of commands, their runs, results and the page
//! are `sidecore_papers`. Must stay true: the page is whole or not there.

use crate::output::JsonArgs;
use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result, ensure};
use sidecore_cell_sim::{Constant, constants};
use sidecore_papers::run::{Measure, Request, Run};
use sidecore_papers::{Bar, Catalogue, Results, Store};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File for the page; - is standard output [default: report.html, with --json none]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Short runs: three minutes on two cores; a smoke run, not a result
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    form: JsonArgs,
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

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let catalogue = Catalogue::built_in()?;
        catalogue.check_ids(&self.only)?;
        let stop = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
        let by_default = (!self.form.json && !self.list).then(|| PathBuf::from("report.html"));
        let target = self.output.clone().or(by_default);
        if let Some(target) = &target {
            // Before minutes are spent.
            ensure!(
                !target.is_dir(),
                "{} is a directory; name a file in it with --output",
                target.display()
            );
            output::check_file(target)?;
        }
        let request = Request {
            quick: self.quick,
            measure: match (self.fresh, self.no_run) {
                (true, _) => Measure::All,
                (_, true) => Measure::Nothing,
                _ => Measure::Missing,
            },
            only: self.only.clone(),
            has_benches: cfg!(feature = "bench"),
            age_s_max: self.max_age_hours.saturating_mul(3600),
        };
        let store = Store::place(self.state.clone())?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let rows = serde_json::json!({ "rows": rows()? });
        let run = Run::new(&catalogue, request, store, program, stop, rows);
        let run = run.context("cannot look at this program")?;
        if self.list {
            run.lines().try_for_each(|line| output::text(&line))?;
            return Ok(Outcome::Done);
        }
        let Some(results) = run.results(&mut Bar::default())? else {
            return Ok(Outcome::Stopped);
        };
        self.finish(&run, &results, target.as_deref())
    }

    fn finish(&self, run: &Run<'_>, results: &Results, target: Option<&Path>) -> Result<Outcome> {
        let report = run.report(results);
        if let Some(target) = target {
            let page = run.page(results, &report, env!("CARGO_PKG_VERSION"))?;
            match target == Path::new("-") {
                true => output::text(&page)?,
                false => output::file(target, &page)?,
            }
        }
        if self.form.json {
            output::json(&run.json(results, &report))?;
        }
        let failed = run.problems(results, &report);
        for line in &failed {
            output::note!("problem: {line}");
        }
        if let Some(target) = target.filter(|target| *target != Path::new("-")) {
            output::note!("{}: {}", target.display(), report.counts.line());
        }
        Ok(Outcome::of(failed.is_empty()))
    }
}

/// Constants of the products for which a document has a figure.
fn rows() -> Result<Vec<Constant>> {
    let net = sidecore_net::Config::default();
    let mut rows = constants()?;
    rows.extend([
        Constant::number(
            "block: bytes in a frame unless told otherwise",
            sidecore_block::pack::FRAME_BYTES.into(),
        ),
        Constant::number("net: sessions at once", net.sessions_max as f64),
        Constant::number(
            "net: a session's receive window",
            f64::from(net.receive_bytes),
        ),
    ]);
    Ok(rows)
}
