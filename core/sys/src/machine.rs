//! The processor that this machine has, places of its cores, and cores that share nothing.
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

use rustix::process::Resource;
use rustix::thread::CapabilitySet;
use std::fs;
use std::path::Path;

/// The processor's name, family and model.
#[must_use]
pub fn processor() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let family = field(&cpuinfo, "cpu family").unwrap_or_default();
    let model = field(&cpuinfo, "model\t").unwrap_or_default();
    let name = field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".into());
    format!("{name} (family {family}, model {model})")
}

/// The memory that this process's control group and those above it may have, in bytes: the least
/// limit of all; `None` without one. Source: cgroup-v2.rst, `memory.max`; memory.rst of version 1.
#[must_use]
pub fn memory_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    memory_limit_in(Path::new("/sys/fs/cgroup"), &groups)
}

/// `groups` are lines as of /proc/self/cgroup.
fn memory_limit_in(root: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let (mount, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = mount.join(path.trim_start_matches('/'));
        let of = |folder: &Path| {
            let text = fs::read_to_string(folder.join(file)).ok()?;
            text.trim().parse().ok()
        };
        // A container sees its own group at the root, whatever the path says.
        let above = group
            .ancestors()
            .take_while(|folder| folder.starts_with(&mount));
        above.filter_map(of).min()
    });
    // Version 1 writes the largest number of pages where there is no limit.
    limits.min().filter(|&bytes: &u64| bytes < 1 << 60)
}

/// Bytes that this process may lock in memory; `None` without a limit. Source: mlock(2),
/// getrlimit(2).
#[must_use]
pub fn lock_limit() -> Option<u64> {
    let held = rustix::thread::capabilities(None);
    let may = held.is_ok_and(|held| held.effective.contains(CapabilitySet::IPC_LOCK));
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    limit.filter(|_| !may)
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

/// Place of a core among the machine's caches and memories. Cores with an equal one share their
/// last-level cache, as far as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The NUMA node; 0 where the kernel names none.
    pub node: usize,
    /// The first core of those that share its last-level cache; none where the kernel lists none.
    pub cache: Option<usize>,
}

/// Place of a core. Reads some ten files, which takes some 100 us; does not fail. Source:
/// Documentation/ABI/testing/sysfs-devices-system-cpu.
#[must_use]
pub fn place(cpu: usize) -> Place {
    place_in(Path::new("/sys/devices/system/cpu"), cpu)
}

fn place_in(root: &Path, cpu: usize) -> Place {
    let core = root.join(format!("cpu{cpu}"));
    let cache = |index: usize| {
        let folder = core.join(format!("cache/index{index}"));
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let level: u32 = read("level")?.trim().parse().ok()?;
        let first = parse_cpu_list(&read("shared_cpu_list")?)
            .into_iter()
            .min()?;
        Some((level, first))
    };
    // Their numbers have no gap; a core has four as a rule.
    let caches = (0..CACHES_MAX).map_while(cache);
    let last = caches.max_by_key(|&(level, _)| level);
    let mut entries = fs::read_dir(&core).into_iter().flatten().flatten();
    let node = entries.find_map(|entry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("node")?.parse().ok()
    });
    Place {
        node: node.unwrap_or(0),
        cache: last.map(|(_, first)| first),
    }
}

/// Caches of a core that are looked at.
const CACHES_MAX: usize = 16;

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
    fn the_least_limit_of_memory_on_the_way_up_holds() {
        let root = std::env::temp_dir().join(format!("sidecore-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("pods/one/memory.max", "max\n");
        write("pods/memory.max", "1048576\n");
        write("memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/a/memory.limit_in_bytes", "4096\n");
        let limit = |groups: &str| memory_limit_in(&root, groups);
        assert_eq!(limit("0::/pods/one\n"), Some(1 << 20));
        assert_eq!(limit("0::/else\n"), None);
        assert_eq!(limit("4:cpu:/a\n3:memory:/a/b\n0::/\n"), Some(4096));
        write("memory/a/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("3:memory:/a/b\n"), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn lists_of_cores_are_read_and_nothing_is_lost_by_ordering() {
        assert_eq!(parse_cpu_list("0,4-6\n"), [0, 4, 5, 6]);
        assert_eq!(parse_cpu_list(""), [0; 0]);
        let mut ordered = apart(&[0, 1, 2, 3]);
        assert_eq!(ordered[0], 0);
        ordered.sort_unstable();
        assert_eq!(ordered, [0, 1, 2, 3]);
    }

    #[test]
    fn a_core_is_placed_by_its_last_cache_and_its_node() {
        let root = std::env::temp_dir().join(format!("sidecore-cores-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let file = root.join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("cpu9/cache/index0/level", "1\n");
        write("cpu9/cache/index0/shared_cpu_list", "9\n");
        write("cpu9/cache/index1/level", "3\n");
        write("cpu9/cache/index1/shared_cpu_list", "8-11,24-27\n");
        write("cpu9/cache/index2/level", "2\n");
        write("cpu9/cache/index2/shared_cpu_list", "9,25\n");
        write("cpu9/node1/cpulist", "");
        write("cpu8/topology/core_id", "0\n");
        let place = place_in(&root, 9);
        assert_eq!((place.node, place.cache), (1, Some(8)));
        // Nothing is known of these.
        for cpu in [8, 7] {
            assert_eq!(place_in(&root, cpu), Place::default());
        }
        fs::remove_dir_all(root).unwrap();
        assert_eq!(super::place(100_000), Place::default());
    }
}
