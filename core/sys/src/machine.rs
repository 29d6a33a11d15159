//! The machine that a run was made on.
//!
//! Why here: no figure without its machine, load and commit. Reads `/proc` and asks git; a fact
//! that cannot be found is reported as unknown. Source: proc(5).
//!
//! ```
//! use sidecore_sys::machine::{Machine, apart};
//!
//! // The first lines of every result.
//! for line in Machine::of_this_program().lines() {
//!     println!("# {line}");
//! }
//! // Two threads that are to share nothing go on the first two cores.
//! let mut cores = apart(&sidecore_sys::cpu::allowed()?);
//! cores.truncate(2);
//! assert!(!cores.is_empty());
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```

use serde::{Deserialize, Serialize};
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
        let memory_kib = field(&meminfo, "MemTotal")
            .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok())
            .unwrap_or(0);
        Self {
            cpu: processor(),
            cores: crate::cpu::allowed().map_or(1, |cpus| cpus.len()),
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

/// The processor's name, family and model.
#[must_use]
pub fn processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let family = field(&cpuinfo, "cpu family").unwrap_or_default();
    let model = field(&cpuinfo, "model\t").unwrap_or_default();
    let name = field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".into());
    format!("{name} (family {family}, model {model})")
}

fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Orders cores so that the first two share no execution units, where the machine has such a pair:
/// two threads of one core would reach each other through its own cache.
#[must_use]
pub fn apart(cpus: &[usize]) -> Vec<usize> {
    let Some((&first, rest)) = cpus.split_first() else {
        return Vec::new();
    };
    let directory = format!("/sys/devices/system/cpu/cpu{first}/topology/thread_siblings_list");
    let siblings = parse_cpu_list(&fs::read_to_string(directory).unwrap_or_default());
    let (near, far): (Vec<usize>, Vec<usize>) = rest.iter().partition(|cpu| siblings.contains(cpu));
    std::iter::once(first).chain(far).chain(near).collect()
}

/// A list as the kernel writes it: `0,4-6`.
fn parse_cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse::<usize>().ok()?..=to.trim().parse::<usize>().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
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
    let Some(root) = program.ancestors().skip(1).find(in_workspace) else {
        return version;
    };
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(root).args(arguments);
        let output = command.stderr(Stdio::null()).output().ok()?;
        (output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        None => version,
        Some(commit) => match git(&["status", "--porcelain", "--untracked-files=no"]) {
            Some(changes) if changes.is_empty() => commit,
            _ => format!("{commit} with changes"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read_and_nothing_is_lost_by_ordering() {
        assert_eq!(parse_cpu_list("0,4-6\n"), [0, 4, 5, 6]);
        assert_eq!(parse_cpu_list(""), [0; 0]);
        let mut ordered = apart(&[0, 1, 2, 3]);
        assert_eq!(ordered[0], 0);
        ordered.sort_unstable();
        assert_eq!(ordered, [0, 1, 2, 3]);
    }
}
