//! The machine that a run was made on.
//!
//! Why here: no figure without its machine, load and commit. Reads `/proc` and asks git; a fact
//! that cannot be found is reported as unknown. Source: proc(5).
//!
//! ```
//! use sidecore_measure::Machine;
//!
//! // The first lines of every result.
//! for line in Machine::of_this_program().lines() {
//!     println!("# {line}");
//! }
//! ```

use serde::{Deserialize, Serialize};
use sidecore_sys::cpu;
use sidecore_sys::machine::processor;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Description of the machine and its load, taken when a run begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The load average at the start: over 1, 5 and 15 minutes.
    pub load_start: String,
    /// The commit that was measured, or the crate's version where there is no repository.
    pub commit: String,
}

impl Machine {
    /// Describes this machine. `program` is the measured one: its repository's commit is looked up.
    #[must_use]
    pub fn look(program: &Path) -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = meminfo
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"));
        let memory_kib = total
            .and_then(|text| text.trim().trim_end_matches(" kB").parse::<u64>().ok())
            .unwrap_or(0);
        Self {
            cpu: processor(),
            cores: cpu::allowed().map_or(1, |cpus| cpus.len()),
            memory_bytes: memory_kib << 10,
            kernel: read_line("/proc/sys/kernel/osrelease"),
            load_start: load(),
            commit: commit(program),
        }
    }

    /// As [`Machine::look`], of the program that is running.
    #[must_use]
    pub fn of_this_program() -> Self {
        Self::look(&std::env::current_exe().unwrap_or_default())
    }

    /// Description in words, a line for each fact.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        vec![
            format!("machine: {}, {} cores, {gib:.1} GiB", self.cpu, self.cores),
            format!("kernel: {}", self.kernel),
            format!("load average at the start: {}", self.load_start),
            format!("commit: {}", self.commit),
        ]
    }
}

fn load() -> String {
    let line = read_line("/proc/loadavg");
    line.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn read_line(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}

/// The commit of the repository that the program was built in.
fn commit(program: &Path) -> String {
    let version = concat!("version ", env!("CARGO_PKG_VERSION")).to_owned();
    let in_workspace = |directory: &&Path| directory.join("core/sys/Cargo.toml").is_file();
    // An installed program lies in no repository.
    let Some(root) = program.ancestors().skip(1).find(in_workspace) else {
        return version;
    };
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        // Without the repository's complaints, for example about another owner.
        command.arg("-C").arg(root).args(arguments);
        let output = command.stderr(Stdio::null()).output().ok()?;
        (output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // A commit with changes can't be built again; the result says so.
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        None => version,
        Some(commit) => match git(&["status", "--porcelain", "--untracked-files=no"]) {
            Some(changes) if changes.is_empty() => commit,
            _ => format!("{commit} with changes"),
        },
    }
}
