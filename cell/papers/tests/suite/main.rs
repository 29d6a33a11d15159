//! The page of results that were made once and kept as files, so that no test measures.

#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests.

mod browser;
mod page;

use sidecore_measure::Machine;
use sidecore_papers::{About, Catalogue, Found, Kept, Report, Results, page};
use std::collections::BTreeMap;

/// A machine whose name is hostile.
fn machine() -> Machine {
    Machine {
        cpu: "Example \"CPU\" <script>alert(1)</script> & sons".into(),
        cores: 2,
        memory_bytes: 24 << 30,
        kernel: "6.18.0".into(),
        load_start: "0.10 0.20 0.30".into(),
        commit: "0123456789ab".into(),
    }
}

/// A part's result.
fn kept(part: &str, report: serde_json::Value) -> Kept {
    Kept {
        part: part.into(),
        command: format!("sidecore {part} --json"),
        quick: false,
        program: "a test".into(),
        machine: machine(),
        began_unix_s: 1_790_000_000,
        seconds: 12.3,
        problem: None,
        report,
    }
}

/// The canned reports of the parts that have one.
fn reports() -> BTreeMap<String, serde_json::Value> {
    serde_json::from_str(include_str!("canned.json")).unwrap()
}

/// The canned results of all parts that have one; the others were not run.
fn canned(catalogue: &Catalogue) -> Results {
    let mut reports = reports();
    let mut results = Results::new();
    for part in &catalogue.parts {
        let found = match reports.remove(&part.id) {
            None => Found::Missing {
                why: "it ended with status 2: no such command".into(),
            },
            Some(report) => Found::Kept(Box::new(kept(&part.id, report))),
        };
        results.insert(part.id.clone(), found);
    }
    results
}

/// The page of `results`.
fn made(catalogue: &Catalogue, results: &Results) -> String {
    let report = Report::new(catalogue, results);
    let about = About {
        version: "0.0.0".into(),
        machine: machine(),
        quick: true,
        made_unix_s: 1_790_000_000,
    };
    page(catalogue, results, &report, &about).unwrap()
}
