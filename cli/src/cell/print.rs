//! The tables of `sidecore cell`, for people at a terminal.
//!
//! Must stay true: every value of the model is marked as input, fitted or predicted.

use super::Report;
use crate::output::line;
use anyhow::Result;
use serde::Serialize;
use sidecore_cell_sim::figures::Point;
use sidecore_cell_sim::property::Property;
use sidecore_cell_sim::tables::{Table1Row, Table2Row};
use sidecore_cell_sim::uio::{Kind, Row};

pub(super) fn table1(report: &Report<Table1Row>) -> Result<()> {
    head(
        report,
        "one task a worker; seconds; * the model was fitted on this row",
    )?;
    line("            EDTLP                       Linux")?;
    line("workers     paper    model    error     paper    model    error   ratio, model")?;
    for row in &report.rows {
        line(&format!(
            "{:7}  {}   {}   {:8.3}",
            row.workers,
            pair(row.paper_edtlp_s, row.model_edtlp_s, row.edtlp_fitted),
            pair(row.paper_linux_s, row.model_linux_s, row.linux_fitted),
            row.model_linux_s / row.model_edtlp_s,
        ))?;
    }
    properties(&report.properties)
}

pub(super) fn table2(report: &Report<Table2Row>) -> Result<()> {
    let input = "one task, loops split over 1 to N engines; seconds; + the paper's value is an \
                 input of the model, relative to one engine";
    head(report, input)?;
    line("engines     paper    model    error")?;
    for row in &report.rows {
        let mark = if row.input { "+" } else { "" };
        let pair = pair(row.paper_s, row.model_s, false);
        line(&format!("{:7}  {pair}{mark}", row.engines))?;
    }
    properties(&report.properties)
}

pub(super) fn figure(number: u32, report: &Report<Point>) -> Result<()> {
    let what = "seconds until all tasks are done; all predicted; hybrid: the best static number of \
                engines a loop";
    head(report, what)?;
    points(number, &report.rows)?;
    properties(&report.properties)?;
    for variant in &report.variants {
        line(&format!("\n{}", variant.machine))?;
        points(number, &variant.rows)?;
        properties(&variant.properties)?;
    }
    Ok(())
}

pub(super) fn uio(report: &Report<Row>) -> Result<()> {
    head(
        report,
        "the block device of the papers; + put in, * fitted, no mark: predicted",
    )?;
    line(&format!("{:60} {:>9} {:>10}  unit", "", "paper", "model"))?;
    for row in &report.rows {
        let paper = row
            .paper
            .map_or_else(|| "-".into(), |paper| format!("{paper:.1}"));
        let mark = match row.kind {
            Kind::Input => "+",
            Kind::Fitted => "*",
            Kind::Predicted => " ",
        };
        line(&format!(
            "{:60} {paper:>9} {:>9.1}{mark}  {}",
            row.name, row.model, row.unit
        ))?;
    }
    properties(&report.properties)
}

fn head<R: Serialize>(report: &Report<R>, what: &str) -> Result<()> {
    line(&format!("{}; {what}; seed {}", report.machine, report.seed))
}

fn points(number: u32, points: &[Point]) -> Result<()> {
    let extra = if number == 7 {
        "    mixed"
    } else {
        "     mgps     equi  equi/mgps  live"
    };
    line(&format!(
        "tasks    edtlp   hybrid  engines{extra}  lower bound"
    ))?;
    for p in points {
        let extra = match number {
            7 => p
                .mixed_s
                .map_or_else(|| format!("{:>9}", "-"), |s| format!("{s:9.1}")),
            _ => format!(
                "{:9.1}{:9.1}{:11.3}{:6}",
                p.mgps_s,
                p.equi_s,
                p.equi_s / p.mgps_s,
                p.equi_live
            ),
        };
        line(&format!(
            "{:5}{:9.1}{:9.1}{:9}{extra}{:13.1}",
            p.bootstraps, p.edtlp_s, p.hybrid_s, p.hybrid_engines, p.lower_bound_s
        ))?;
    }
    Ok(())
}

fn pair(paper: Option<f64>, model: f64, fitted: bool) -> String {
    let mark = if fitted { "*" } else { " " };
    match paper {
        Some(paper) => format!(
            "{paper:8.2} {model:8.2}{mark} {:+6.1} %",
            100.0 * (model / paper - 1.0)
        ),
        None => format!("{:>8} {model:8.2}{mark} {:>8}", "-", "-"),
    }
}

pub(super) fn properties(properties: &[Property]) -> Result<()> {
    for property in properties {
        let holds = if property.holds { "holds" } else { "FAILS" };
        line(&format!(
            "{holds}  {}: {:.3}, wanted at most {:.3}",
            property.text, property.value, property.limit
        ))?;
    }
    Ok(())
}
