//! The block device whose blocks SPEs inflate behind the kernel's back, as a model: the cost of a
//! request's way to the daemon, the spread of its blocks over SPEs, and the cost of untouched
//! pages.
//!
//! A request is handed to the daemon, which maps and sets up; then its blocks go to SPEs in rounds.
//! Where the kernel's buffers are not in the page table, the SPE's DMA faults on each page, and the
//! PPE must switch to the daemon's process to repair that.
//!
//! Source: the paper of 2007 on SPE-assisted user-space drivers (sections IV and V) and its slides
//! ("Quick estimations"). The slides' cost of a request is in a picture that was lost. It is fitted
//! on their best case; their worst case is then a prediction.
//!
//! ```
//! use sidecore_cell_sim::uio::{self, Kind};
//!
//! let rows = uio::rows();
//! let predicted = rows.iter().filter(|row| row.kind == Kind::Predicted);
//! for row in predicted {
//!     println!("{}: {:.1} {}", row.name, row.model, row.unit);
//! }
//! assert!(uio::properties(&rows).iter().all(|property| property.holds));
//! ```

use crate::paper;
use crate::property::Property;
use serde::Serialize;

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the row.
    pub name: &'static str,
    /// The documents' figure, where they have one.
    pub paper: Option<f64>,
    /// The model's.
    pub model: f64,
    /// The unit of both.
    pub unit: &'static str,
    /// Origin of the model's value: input, fitted or predicted.
    pub kind: Kind,
}

/// Origin of a row's model value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Put in as it was measured.
    Input,
    /// A constant was chosen so that it comes out.
    Fitted,
    /// Nothing was fitted on it.
    Predicted,
}

/// Cost of a request, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// On the way to the daemon and in it.
    pub request_us: f64,
    /// From the daemon to an SPE, a round.
    pub to_engine_us: f64,
    /// In the SPE, before it inflates.
    pub setup_us: f64,
    /// Inflating a block.
    pub inflate_us: f64,
}

/// Number of times that a cost is paid in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Paid {
    /// Once a request.
    Once,
    /// Once for each block, or each round.
    Each,
}

impl Costs {
    /// The time for a request of `blocks` blocks on `engines` SPEs.
    #[must_use]
    pub(crate) fn request(&self, blocks: u32, engines: u32, request: Paid, setup: Paid) -> f64 {
        // A last round that is not full takes as long as a full one.
        let rounds = f64::from(blocks.div_ceil(engines.max(1)));
        let requests = match request {
            Paid::Once => 1.0,
            Paid::Each => f64::from(blocks),
        };
        let setups = match setup {
            Paid::Once => 1.0,
            Paid::Each => rounds,
        };
        requests * self.request_us
            + setups * self.setup_us
            + rounds * (self.to_engine_us + self.inflate_us)
    }
}

/// The paper's costs: a block's share of each part.
#[must_use]
pub(crate) fn paper_costs() -> Costs {
    let [to_daemon, in_daemon, to_engine_us, setup_us, inflate_us] = paper::UIO_PARTS_US;
    Costs {
        request_us: to_daemon + in_daemon,
        to_engine_us,
        setup_us,
        inflate_us,
    }
}

/// The slides' costs, the request's fitted on their best case.
#[must_use]
pub(crate) fn slides_costs() -> Costs {
    let [inflate_us, setup_us, to_engine_us] = paper::SLIDES_SPE_US;
    // All of the best case that is known; the rest is the request's cost.
    let without = Costs {
        request_us: 0.0,
        to_engine_us,
        setup_us,
        inflate_us,
    };
    Costs {
        request_us: paper::SLIDES_512K_US[1] - without.request(8, 4, Paid::Once, Paid::Once),
        ..without
    }
}

/// The SPE's set-up where no page was touched before, in microseconds: each page in and out of a
/// block faults, and each fault costs a switch to the daemon's process.
#[must_use]
pub(crate) fn untouched_setup_us() -> f64 {
    paper_costs().setup_us + PAGES_A_BLOCK * paper::UIO_SWITCH_US
}

/// All rows.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows = slides_rows();
    rows.extend(paper_rows());
    rows.extend(untouched_rows());
    rows
}

fn row(name: &'static str, paper: Option<f64>, model: f64, unit: &'static str, kind: Kind) -> Row {
    Row {
        name,
        paper,
        model,
        unit,
        kind,
    }
}

fn slides_rows() -> Vec<Row> {
    let slides = slides_costs();
    let [ppe_paper, best_paper, worst_paper] = paper::SLIDES_512K_US;
    let ppe = 8.0 * paper::SLIDES_PPE_US;
    // 512 KiB are eight blocks of 64 KiB, on the four SPEs that the slides count with.
    let best = slides.request(8, 4, Paid::Once, Paid::Once);
    let worst = slides.request(8, 4, Paid::Each, Paid::Each);
    // The slides round to a tenth.
    let faster = |us: f64| Some((ppe_paper / us * 10.0).round() / 10.0);
    vec![
        row(
            "512 KiB on the PPE",
            Some(ppe_paper),
            ppe,
            "us",
            Kind::Input,
        ),
        row(
            "512 KiB on four SPEs, overhead once a request (best)",
            Some(best_paper),
            best,
            "us",
            Kind::Fitted,
        ),
        row(
            "512 KiB on four SPEs, overhead for each block (worst)",
            Some(worst_paper),
            worst,
            "us",
            Kind::Predicted,
        ),
        row(
            "four SPEs over the PPE, best",
            faster(best_paper),
            ppe / best,
            "times",
            Kind::Fitted,
        ),
        row(
            "four SPEs over the PPE, worst",
            faster(worst_paper),
            ppe / worst,
            "times",
            Kind::Predicted,
        ),
        row(
            "cost of a request to the daemon",
            None,
            slides.request_us,
            "us",
            Kind::Fitted,
        ),
    ]
}

fn paper_rows() -> Vec<Row> {
    let costs = paper_costs();
    let block = costs.request(1, 1, Paid::Each, Paid::Each);
    let [mapping, switch, inflate] = paper::UIO_ESTIMATE_US;
    // The paper's own estimate names no way to the SPE and no set-up.
    let estimate = Costs {
        request_us: mapping + switch,
        to_engine_us: 0.0,
        setup_us: 0.0,
        inflate_us: inflate,
    };
    // All but inflating: reading, copying to the reader. The same for both.
    // Bytes over MB/s are microseconds.
    let rest_us = paper::BLOCK_BYTES / paper::UIO_DD_MB_S[0] - paper::UIO_PPE_US;
    let mb_s = |block_us: f64| paper::BLOCK_BYTES / (rest_us + block_us);
    // Every block is read once; the rest of diff's time is the same on both.
    let blocks = paper::IMAGE_BYTES / paper::BLOCK_BYTES;
    let diff_ms = paper::UIO_DIFF_MS[0] + blocks * (block - paper::UIO_PPE_US) * 1e-3;
    let four = |request: Paid| costs.request(4, 4, request, Paid::Each) / 4.0;
    vec![
        row(
            "a block on the PPE, in the driver",
            Some(paper::UIO_PPE_US),
            paper::UIO_PPE_US,
            "us",
            Kind::Input,
        ),
        row(
            "a block on one SPE, through the daemon (sum of the parts)",
            Some(paper::UIO_PARTS_US.iter().sum()),
            block,
            "us",
            Kind::Input,
        ),
        row(
            "estimate: four blocks on four SPEs",
            Some(paper::UIO_ESTIMATE_US.iter().sum()),
            estimate.request(4, 4, Paid::Once, Paid::Once),
            "us",
            Kind::Input,
        ),
        row(
            "estimate: the same on x86",
            Some(4.0 * paper::UIO_X86_US),
            4.0 * paper::UIO_X86_US,
            "us",
            Kind::Input,
        ),
        row(
            "dd, PPE",
            Some(paper::UIO_DD_MB_S[0]),
            mb_s(paper::UIO_PPE_US),
            "MB/s",
            Kind::Fitted,
        ),
        row(
            "dd, one SPE",
            Some(paper::UIO_DD_MB_S[1]),
            mb_s(block),
            "MB/s",
            Kind::Predicted,
        ),
        row(
            "diff, one SPE",
            Some(paper::UIO_DIFF_MS[1]),
            diff_ms,
            "ms",
            Kind::Predicted,
        ),
        row(
            "dd, four SPEs, overhead for each block",
            None,
            mb_s(four(Paid::Each)),
            "MB/s",
            Kind::Predicted,
        ),
        row(
            "dd, four SPEs, overhead once a request",
            None,
            mb_s(four(Paid::Once)),
            "MB/s",
            Kind::Predicted,
        ),
    ]
}

fn untouched_rows() -> Vec<Row> {
    let costs = paper_costs();
    let untouched = Costs {
        setup_us: untouched_setup_us(),
        ..costs
    };
    // One factor against the two ends of the paper's range.
    let factor = untouched.setup_us / costs.setup_us;
    let rest_us = paper::BLOCK_BYTES / paper::UIO_DD_MB_S[0] - paper::UIO_PPE_US;
    let block = untouched.request(1, 1, Paid::Each, Paid::Each);
    vec![
        row(
            "set-up in the SPE, pages touched before",
            Some(paper::UIO_PARTS_US[3]),
            costs.setup_us,
            "us",
            Kind::Input,
        ),
        row(
            "set-up in the SPE, pages not touched",
            None,
            untouched.setup_us,
            "us",
            Kind::Predicted,
        ),
        row(
            "untouched over touched, at least",
            Some(paper::UIO_UNTOUCHED[0]),
            factor,
            "times",
            Kind::Predicted,
        ),
        row(
            "untouched over touched, at most",
            Some(paper::UIO_UNTOUCHED[1]),
            factor,
            "times",
            Kind::Predicted,
        ),
        row(
            "dd, one SPE, pages not touched",
            None,
            paper::BLOCK_BYTES / (rest_us + block),
            "MB/s",
            Kind::Predicted,
        ),
    ]
}

/// Bounds that the rows must satisfy.
#[must_use]
pub fn properties(rows: &[Row]) -> Vec<Property> {
    let find = |name: &str| rows.iter().find(|row| row.name == name);
    // A row that is missing is no proof.
    let error = |name: &str| {
        find(name)
            .and_then(|row| row.paper.map(|paper| (row.model / paper - 1.0).abs()))
            .unwrap_or(f64::INFINITY)
    };
    let value = |name: &str| find(name).map_or(f64::INFINITY, |row| row.model);
    let at_most = Property::at_most;
    vec![
        at_most(
            "slides, 512 KiB at worst: error",
            error("512 KiB on four SPEs, overhead for each block (worst)"),
            0.01,
        ),
        at_most(
            "slides, x3.6 at best: error",
            error("four SPEs over the PPE, best"),
            0.03,
        ),
        at_most(
            "slides, x1.3 at worst: error",
            error("four SPEs over the PPE, worst"),
            0.03,
        ),
        at_most("dd, one SPE: error", error("dd, one SPE"), 0.10),
        at_most("diff, one SPE: error", error("diff, one SPE"), 0.10),
        at_most(
            "untouched pages: times, at most",
            value("untouched over touched, at most"),
            paper::UIO_UNTOUCHED[1],
        ),
        at_most(
            "untouched pages: 100 over times",
            paper::UIO_UNTOUCHED[0] / value("untouched over touched, at least"),
            1.0,
        ),
    ]
}

/// 64 KiB in and 64 KiB out, in pages of 4 KiB.
const PAGES_A_BLOCK: f64 = 32.0;
