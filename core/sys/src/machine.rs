//! The processor that this machine has, and cores that share nothing.
//!
//! Why here: what was learned of one processor must not be used on another; threads that are
//! compared go on cores of their own. Source: proc(5).
//!
//! ```
//! use sidecore_sys::machine::apart;
//!
//! // Two threads that are to share nothing go on the first two cores.
//! let mut cores = apart(&sidecore_sys::cpu::allowed()?);
//! cores.truncate(2);
//! assert!(!cores.is_empty());
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```

use std::fs;

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
