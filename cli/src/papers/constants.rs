//! Constants of this program for which a document has a figure.
//!
//! Why here: the values come from the code itself, so that the page cannot go out of date. Must
//! stay true: nothing is measured here; each row names its source in the code.

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sidecore_cell_sim::Machine;
use sidecore_sched::{Arrival, ClassId, Departure, Mgps, Policy, TaskId};

/// The rows, in the shape of a bench's.
pub(super) fn report() -> Result<Value> {
    let cell = Machine::cell()?;
    let each = cell.task.loops.first().context("the Cell has no task")?;
    let offloads = cell.task.offloads as f64;
    let mut rows = vec![
        row(
            "cell: bytes in a block",
            sidecore_cell_sim::paper::BLOCK_BYTES,
        ),
        row(
            "block: bytes in a frame unless told otherwise",
            crate::block::FRAME_BYTES as f64,
        ),
        row("cell: host work between off-loads", each.host_us),
        row("cell: an off-load", each.engine_us),
        row(
            "cell: a bootstrap on the host alone",
            offloads * each.host_version_us.unwrap_or(0.0) * 1e-6,
        ),
        row("cell: a switch", cell.host.switch_us),
        row("cell: time slice", cell.host.quantum_ms),
    ];
    let net = sidecore_net::Config::default();
    rows.push(row("net: sessions at once", net.sessions_max as f64));
    rows.push(row(
        "net: a session's receive window",
        f64::from(net.receive_bytes),
    ));
    rows.extend(mgps());
    Ok(json!({ "rows": rows }))
}

fn row(name: &str, here: f64) -> Value {
    json!({ "name": name, "here": here })
}

/// The rules of MGPS, queried with eight engines.
fn mgps() -> [Value; 3] {
    let widths: Vec<u32> = (1..=ENGINES).map(|tasks| settled(tasks).0).collect();
    let most = widths.iter().rposition(|width| *width > 1);
    let text = widths.iter().map(u32::to_string).collect::<Vec<_>>();
    [
        row(
            "mgps: departures until it decides, 8 engines",
            f64::from(settled(1).1),
        ),
        row(
            "mgps: most tasks with which loops are split, 8 engines",
            most.map_or(0.0, |index| (index + 1) as f64),
        ),
        json!({ "name": "mgps: engines a loop for 1 to 8 tasks", "text": text.join(", ") }),
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
