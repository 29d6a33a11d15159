//! Constants of the model and of the policies for which a document has a figure.
//!
//! Why here: the values come from the code itself, so that a page of them cannot go out of date.
//! Must stay true: nothing is measured here; each row names its source in the code.

use crate::{CellError, Machine, paper};
use serde::Serialize;
use sidecore_sched::{Arrival, ClassId, Departure, Mgps, Policy, TaskId};

/// A constant: a number, or several as text.
#[derive(Debug, Serialize)]
pub struct Constant {
    name: &'static str,
    #[serde(flatten)]
    value: Value,
}

#[derive(Debug, Serialize)]
enum Value {
    #[serde(rename = "here")]
    Number(f64),
    #[serde(rename = "text")]
    Text(String),
}

impl Constant {
    /// A number, by the name that the catalogue of figures has for it.
    #[must_use]
    pub fn number(name: &'static str, value: f64) -> Self {
        Self {
            name,
            value: Value::Number(value),
        }
    }
}

/// The constants of the papers' machine and of MGPS.
///
/// # Errors
/// The built-in machine cannot be read: a mistake in this crate.
pub fn constants() -> Result<Vec<Constant>, CellError> {
    let Machine { task, host, .. } = Machine::cell()?;
    let mut rows = vec![Constant::number(
        "cell: bytes in a block",
        paper::BLOCK_BYTES,
    )];
    if let Some(each) = task.loops.first() {
        let on_host_s = task.offloads as f64 * each.host_version_us.unwrap_or(0.0) * 1e-6;
        rows.extend([
            Constant::number("cell: host work between off-loads", each.host_us),
            Constant::number("cell: an off-load", each.engine_us),
            Constant::number("cell: a bootstrap on the host alone", on_host_s),
        ]);
    }
    rows.extend([
        Constant::number("cell: a switch", host.switch_us),
        Constant::number("cell: time slice", host.quantum_ms),
    ]);
    rows.extend(mgps());
    Ok(rows)
}

/// The rules of MGPS, queried with eight engines.
fn mgps() -> [Constant; 3] {
    let widths: Vec<u32> = (1..=ENGINES).map(|tasks| settled(tasks).0).collect();
    // The most tasks with which a loop still gets more than one engine.
    let split = (1..=ENGINES).zip(&widths).filter(|(_, width)| **width > 1);
    let most = split.map(|(tasks, _)| tasks).last().unwrap_or(0);
    let text = widths.iter().map(u32::to_string).collect::<Vec<_>>();
    [
        Constant::number(
            "mgps: departures until it decides, 8 engines",
            f64::from(settled(1).1),
        ),
        Constant::number(
            "mgps: most tasks with which loops are split, 8 engines",
            f64::from(most),
        ),
        Constant {
            name: "mgps: engines a loop for 1 to 8 tasks",
            value: Value::Text(text.join(", ")),
        },
    ]
}

/// Width that MGPS settles on with `tasks` tasks, and the number of departures after which it
/// changed.
fn settled(tasks: u32) -> (u32, u32) {
    let mut policy = Mgps::default();
    let begins = policy.width();
    let mut changed = 0;
    for departures in 1..=ROUNDS * ENGINES {
        let (task, class) = (TaskId(u64::from(departures % tasks)), ClassId(0));
        let arrival = Arrival {
            task,
            class,
            units: UNITS,
            engines_idle: ENGINES,
            engines: ENGINES,
            ready: tasks - 1,
            live: tasks,
            waiting: 0,
        };
        let now = u64::from(departures);
        let decision = policy.arrive(now, &arrival);
        let departure = Departure {
            task,
            class,
            units: UNITS,
            width: decision.width(),
            on_host: false,
            elapsed_ns: 1,
            work_ns: 0,
        };
        policy.depart(now, &departure);
        if changed == 0 && policy.width() != begins {
            changed = departures;
        }
    }
    (policy.width(), changed)
}

const ENGINES: u32 = 8;
/// Iterations of the papers' loops.
const UNITS: u32 = 228;
const ROUNDS: u32 = 4;
