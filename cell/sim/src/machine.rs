//! A machine and its task mix, as a TOML file describes them.
//!
//! Why here: the papers' blade is one such file, built in; another answers "what would 64 engines
//! do with my task mix".
//! Must stay true: a file is read strictly (unknown keys, wrong types and values out of range are
//! one clear line each); a machine that was read can be simulated, whatever its values.

use serde::Deserialize;
use sidecore_bare::width::ToUsize;
use std::path::Path;

/// A host, its engines and the task that all of them work at.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name in reports.
    pub name: String,
    /// The cores that run the tasks' serial parts.
    pub host: Host,
    /// The accelerator cores that tasks off-load to.
    pub engines: Engines,
    /// The work of each task.
    pub task: Task,
}

/// The cores that run the tasks' serial parts (the papers' PPEs).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Cores, 1 to 64.
    pub cores: u32,
    /// Hardware threads of each, 1 to 8.
    pub threads_per_core: u32,
    /// Factor, from 1, by which work takes longer while one more thread of its core is busy. Each
    /// further busy thread adds as much again.
    #[serde(default = "one")]
    pub smt_factor: f64,
    /// A switch from one task to another, in microseconds.
    pub switch_us: f64,
    /// Time that a task loses when it comes back to a thread that another has used (caches, TLB),
    /// in microseconds.
    #[serde(default)]
    pub cold_resume_us: f64,
    /// Growth of host work with each further live task of its core, as a share. 0: none.
    #[serde(default)]
    pub growth_per_live: f64,
    /// The operating system's time slice in milliseconds, for the policy `linux`.
    #[serde(default = "quantum_ms")]
    pub quantum_ms: f64,
}

/// The accelerator cores that tasks off-load to (the papers' SPEs).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engines {
    /// Number of engines, 1 to 64.
    pub count: u32,
}

/// The work of each task: off-loads, each after some work on the host.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Name in reports.
    pub name: String,
    /// Off-loads of one task.
    pub offloads: u64,
    /// Kinds of off-loaded loops, 1 to 64.
    #[serde(rename = "loop")]
    pub loops: Vec<Loop>,
}

/// One kind of off-loaded loop.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    /// Name in reports.
    pub name: String,
    /// Share of the off-loads, relative to the other loops' shares.
    #[serde(default = "one")]
    pub share: f64,
    /// Host work before it, in microseconds, on average (exponential).
    pub host_us: f64,
    /// Its time on one engine, in microseconds, on average (exponential).
    pub engine_us: f64,
    /// Its time on the host, in microseconds; 2 times `engine_us` unless given.
    pub host_version_us: Option<f64>,
    /// Into how many pieces it can be cut.
    pub units: u32,
    /// Its time on 1, 2, 3 ... engines, relative to one; more engines take the last one's time.
    pub time_by_width: Option<Vec<f64>>,
    /// Without `time_by_width`: the part that cannot be split.
    pub serial_share: Option<f64>,
    /// Without `time_by_width`: the cost of each further engine, in microseconds.
    pub split_us: Option<f64>,
}

/// The papers' blade, one Cell.
const CELL: &str = include_str!("../machines/cell.toml");

impl Machine {
    /// The papers' blade with one Cell, with cold resumes.
    ///
    /// # Errors
    /// Never: the description is built in, and a test reads it.
    pub fn cell() -> Result<Self, CellError> {
        Self::parse("the built-in machine", CELL)
    }

    /// The same blade with both of its Cells.
    #[must_use]
    pub(crate) fn with_cells(mut self, cells: u32) -> Self {
        self.host.cores *= cells;
        self.engines.count *= cells;
        // Other numbers keep the name, and the report says the engines.
        if cells == 2 {
            self.name = format!("two {}s", self.name);
        }
        self
    }

    /// The same machine, with host work that grows with live tasks instead of cold resumes: the
    /// rival explanation of Table 1, which fits within 4 % too.
    #[must_use]
    pub(crate) fn with_contention(mut self, contention: &Contention) -> Self {
        self.host.smt_factor = contention.smt_factor;
        self.host.switch_us = contention.switch_us;
        // Either explains the slowdown; with both it would count twice.
        self.host.cold_resume_us = 0.0;
        self.host.growth_per_live = contention.growth_per_live;
        self.name = format!("{}, host contention", self.name);
        self
    }

    /// The same machine, with this cost of a switch and no other loss.
    #[must_use]
    pub(crate) fn with_switch_us(mut self, switch_us: f64) -> Self {
        self.host.switch_us = switch_us;
        self.host.cold_resume_us = 0.0;
        self.name = format!("{}, switch {switch_us} us", self.name);
        self
    }

    /// Reads a description from a file.
    ///
    /// # Errors
    /// [`CellError::Read`], [`CellError::Parse`], [`CellError::Value`].
    pub fn read(path: &Path) -> Result<Self, CellError> {
        let name = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&name, &text),
            Err(source) => Err(CellError::Read { name, source }),
        }
    }

    /// Reads a description; `name` is for messages.
    ///
    /// # Errors
    /// [`CellError::Parse`], [`CellError::Value`].
    pub fn parse(name: &str, text: &str) -> Result<Self, CellError> {
        let machine: Self = toml::from_str(text).map_err(|error| CellError::Parse {
            name: name.into(),
            line: error
                .span()
                // The parser's own message has several lines and a picture; ours has the number.
                .map_or(0, |span| 1 + text[..span.start].matches('\n').count()),
            reason: error.message().replace('\n', " "),
        })?;
        machine.check().map_err(|reason| CellError::Value {
            name: name.into(),
            reason,
        })?;
        Ok(machine)
    }

    /// Host threads.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.host.cores * self.host.threads_per_core
    }

    fn check(&self) -> Result<(), String> {
        let host = &self.host;
        count("host.cores", host.cores, 64)?;
        count("host.threads_per_core", host.threads_per_core, 8)?;
        count("engines.count", self.engines.count, 64)?;
        within("host.smt_factor", host.smt_factor, 1.0, 8.0)?;
        within("host.switch_us", host.switch_us, 0.0, 1e6)?;
        within("host.cold_resume_us", host.cold_resume_us, 0.0, 1e6)?;
        within("host.growth_per_live", host.growth_per_live, 0.0, 100.0)?;
        within("host.quantum_ms", host.quantum_ms, 0.01, 1e4)?;
        if self.task.offloads == 0 || self.task.offloads > OFFLOADS_MAX {
            return Err(format!(
                "task.offloads is {}; give 1 to {OFFLOADS_MAX}",
                self.task.offloads
            ));
        }
        // A bound, so that no file makes a run endless.
        let loops = self.task.loops.len();
        if loops == 0 || loops > 64 {
            return Err(format!("there are {loops} [[task.loop]]; give 1 to 64"));
        }
        for (index, each) in self.task.loops.iter().enumerate() {
            each.check()
                .map_err(|reason| format!("task.loop {} ({}): {reason}", index + 1, each.name))?;
        }
        Ok(())
    }
}

impl Loop {
    /// Its time on `width` engines, relative to one engine.
    #[must_use]
    pub(crate) fn relative_time(&self, width: u32) -> f64 {
        // A loop of few units gains nothing by more engines.
        let width = width.clamp(1, self.units);
        match &self.time_by_width {
            Some(times) => times[width.to_usize().min(times.len()) - 1],
            None => {
                let serial = self.serial_share.unwrap_or(0.0);
                // Paid for each further engine, one after the other.
                let cost = self.split_us.unwrap_or(0.0) / self.engine_us;
                serial + (1.0 - serial) / f64::from(width) + cost * f64::from(width - 1)
            }
        }
    }

    /// Its time on the host, in microseconds.
    #[must_use]
    pub(crate) fn host_version_us(&self) -> f64 {
        self.host_version_us.unwrap_or(2.0 * self.engine_us)
    }

    /// The least of its times on up to `engines` engines, relative to one.
    #[must_use]
    pub(crate) fn best_relative_time(&self, engines: u32) -> f64 {
        (1..=engines)
            .map(|width| self.relative_time(width))
            .fold(1.0, f64::min)
    }

    fn check(&self) -> Result<(), String> {
        within("share", self.share, 1e-6, 1e6)?;
        within("host_us", self.host_us, 1e-3, 1e9)?;
        within("engine_us", self.engine_us, 1e-3, 1e9)?;
        within("host_version_us", self.host_version_us(), 1e-3, 1e9)?;
        if self.units == 0 {
            return Err("units is 0; a loop has at least 1".into());
        }
        if let Some(times) = &self.time_by_width {
            if self.serial_share.is_some() || self.split_us.is_some() {
                return Err("give time_by_width, or serial_share and split_us, not both".into());
            }
            // All times are relative to it: another value would scale the loop twice.
            if times.first() != Some(&1.0) {
                return Err("time_by_width begins with 1.0, the time on one engine".into());
            }
            for &time in times {
                within("time_by_width", time, 1e-3, 1e3)?;
            }
        }
        within("serial_share", self.serial_share.unwrap_or(0.0), 0.0, 1.0)?;
        within("split_us", self.split_us.unwrap_or(0.0), 0.0, 1e6)
    }
}

/// The rival explanation of Table 1: no cold resumes, but host work that grows with live tasks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Contention {
    /// Factor by which work takes longer while another thread of the same core is busy.
    pub smt_factor: f64,
    /// A switch, in microseconds.
    pub switch_us: f64,
    /// Growth of host work with each further live task, as a share.
    pub growth_per_live: f64,
}

fn count(key: &str, value: u32, most: u32) -> Result<(), String> {
    if value == 0 || value > most {
        return Err(format!("{key} is {value}; give 1 to {most}"));
    }
    Ok(())
}

fn within(key: &str, value: f64, least: f64, most: f64) -> Result<(), String> {
    // Not a number is within nothing.
    if value >= least && value <= most {
        return Ok(());
    }
    Err(format!("{key} is {value}; give {least} to {most}"))
}

fn one() -> f64 {
    1.0
}

fn quantum_ms() -> f64 {
    10.0
}

/// Off-loads of a task, at most: time stays exact in double precision.
const OFFLOADS_MAX: u64 = 1_000_000_000_000;

/// Errors of reading a machine description.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CellError {
    /// The file cannot be read.
    #[error("cannot read the machine {name}: {source}")]
    Read {
        /// The file.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is no machine description.
    #[error("{name}, line {line}: {reason}; docs/machines shows complete descriptions")]
    Parse {
        /// The file.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The fault.
        reason: String,
    },
    /// A value is out of range.
    #[error("{name}: {reason}")]
    Value {
        /// The file.
        name: String,
        /// The value, and its range.
        reason: String,
    },
}
