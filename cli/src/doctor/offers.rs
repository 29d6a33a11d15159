//! Devices, sockets, huge pages, counters and cores that this machine offers to this process.
//!
//! Why here: only the operating system knows, and a service that is refused something can report
//! only its own need; this asks for everything at once. Must stay true: nothing is changed or left
//! open. Every facility that can be requested is requested rather than looked up, because a file's
//! presence says little in a container. Source: the man page or kernel document named at each
//! check.

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::Resource;
use serde::Serialize;
use sidecore_sys::counters::{Event, EventCounter};
use sidecore_sys::{cpu, machine, program};
use std::fs;
use std::path::Path;

/// A device or facility that a machine may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Offer {
    /// Name of the device or facility.
    pub(super) name: &'static str,
    /// True if this process can use it.
    pub(super) there: bool,
    /// Result of the check, for the user to read.
    pub(super) found: String,
    /// Use that Sidecore makes of it.
    pub(super) used_for: &'static str,
    /// Command that would provide it, if it is missing and there is one.
    pub(super) remedy: Option<&'static str>,
}

/// Checks everything. Takes some milliseconds.
pub(super) fn ask() -> Vec<Offer> {
    vec![
        cores(),
        isolated(),
        vector(),
        clock(),
        transparent(),
        medium(),
        reserved("reserved pages, 2 MiB", 2048, "sysctl vm.nr_hugepages=64"),
        reserved(
            "reserved pages, 1 GiB",
            1 << 20,
            "echo 1 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
        ),
        locking(),
        running_first(),
        counting(),
        device(
            "FUSE",
            "/dev/fuse",
            "block mount",
            "modprobe fuse; in a container: --device /dev/fuse",
        ),
        program(
            "fusermount3",
            "block mount --file-only, without root",
            "apt-get install fuse3",
        ),
        device(
            "loop devices",
            "/dev/loop-control",
            "block mount, block attach",
            "modprobe loop; in a container: --device /dev/loop-control",
        ),
        device(
            "ublk",
            "/dev/ublk-control",
            "block attach",
            "modprobe ublk_drv",
        ),
        device(
            "NBD client",
            "/dev/nbd0",
            "an NBD server's image as a block device",
            "modprobe nbd; apt-get install nbd-client",
        ),
        device(
            "TUN/TAP",
            "/dev/net/tun",
            "net up, over tap",
            "modprobe tun; in a container: --device /dev/net/tun",
        ),
        administers_networks(),
        socket(
            "AF_PACKET",
            AddressFamily::PACKET,
            "net up, over packet",
            "run as root, or setcap cap_net_raw,cap_net_admin+ep on the binary",
        ),
        socket(
            "AF_XDP",
            AddressFamily::from_raw(44),
            "net up, over xdp",
            "a kernel with CONFIG_XDP_SOCKETS, and root or cap_net_raw",
        ),
        mpi(),
    ]
}

/// sched_getaffinity(2).
fn cores() -> Offer {
    let allowed = cpu::allowed().map_or(0, |cpus| cpus.len());
    Offer {
        name: "cores",
        there: allowed > 1,
        found: format!("{allowed} for this process, {}", machine::processor()),
        used_for: "engines",
        remedy: (allowed < 2).then_some("taskset or the container's cpuset gives one core only"),
    }
}

/// Documentation/admin-guide/kernel-parameters.txt, `isolcpus`; cgroup-v2.rst, `cpuset`.
fn isolated() -> Offer {
    let cpus = line("/sys/devices/system/cpu/isolated").unwrap_or_default();
    Offer {
        name: "isolated cores",
        there: !cpus.is_empty(),
        found: match cpus.as_str() {
            "" => "none: the kernel may put anything on an engine's core".to_owned(),
            cpus => format!("cores {cpus}"),
        },
        used_for: "engines that poll (net, the daemon) without being preempted",
        remedy: cpus
            .is_empty()
            .then_some("boot with isolcpus=LIST, or keep others off: systemd's AllowedCPUs="),
    }
}

fn vector() -> Offer {
    #[cfg(target_arch = "x86_64")]
    let there = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    let there = false;
    let found = if there {
        "yes"
    } else {
        "no: portable kernels are used"
    };
    Offer {
        name: "AVX2 and FMA",
        there,
        found: found.to_owned(),
        used_for: "phylo's likelihood kernels",
        remedy: None,
    }
}

/// Documentation/timers/timekeeping.rst.
fn clock() -> Offer {
    let source = line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let found = source.unwrap_or_else(|| "unknown".to_owned());
    Offer {
        name: "clock",
        there: matches!(found.as_str(), "tsc" | "arch_sys_counter" | "kvm-clock"),
        used_for: "time without a system call",
        remedy: (found == "hpet" || found == "acpi_pm").then_some(
            "reading the time is slow here; the kernel distrusts the time stamp counter",
        ),
        found,
    }
}

/// Documentation/admin-guide/mm/transhuge.rst.
fn transparent() -> Offer {
    let setting = chosen("/sys/kernel/mm/transparent_hugepage/enabled");
    let there = matches!(setting.as_str(), "always" | "madvise");
    Offer {
        name: "transparent pages, 2 MiB",
        there,
        found: setting,
        used_for: "local stores, caches",
        remedy: (!there).then_some("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
    }
}

fn medium() -> Offer {
    let setting = chosen("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled");
    let there = matches!(setting.as_str(), "always" | "madvise" | "inherit");
    Offer {
        name: "transparent pages, 64 KiB",
        there,
        used_for: "tlb",
        remedy: (setting == "never")
            .then_some("echo madvise > /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"),
        found: setting,
    }
}

/// Documentation/admin-guide/mm/hugetlbpage.rst.
fn reserved(name: &'static str, kib: usize, remedy: &'static str) -> Offer {
    let directory = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB");
    let count = |file: &str| line(&format!("{directory}/{file}"))?.parse::<u64>().ok();
    let (free, all) = (count("free_hugepages"), count("nr_hugepages"));
    let known = Path::new(&directory).is_dir();
    Offer {
        name,
        there: free.is_some_and(|free| free > 0),
        found: match (free, all) {
            (Some(free), Some(all)) => format!("{free} free of {all}"),
            _ => "the processor or the kernel has none".to_owned(),
        },
        used_for: "local stores, where tlb --learn found that they pay",
        remedy: (known && free == Some(0)).then_some(remedy),
    }
}

/// mlock(2), getrlimit(2).
fn locking() -> Offer {
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let exempt = may(CAP_IPC_LOCK);
    let enough = exempt || limit.is_none_or(|bytes| bytes >= LOCK_ENOUGH_BYTES);
    Offer {
        name: "locked memory",
        there: enough,
        found: match limit {
            Some(bytes) if !exempt => format!("up to {} MiB", bytes >> 20),
            _ => "unlimited".to_owned(),
        },
        used_for: "local stores, memory shared with the daemon",
        remedy: (!enough).then_some("ulimit -l unlimited, or LimitMEMLOCK= in a unit"),
    }
}

/// sched(7).
fn running_first() -> Offer {
    let there = may(CAP_SYS_NICE);
    let found = if there {
        "cap_sys_nice"
    } else {
        "no cap_sys_nice"
    };
    Offer {
        name: "real-time priority",
        there,
        found: found.to_owned(),
        used_for: "the daemon's heart, so that a busy machine does not look like a dead daemon",
        remedy: (!there).then_some("run as root, or setcap cap_sys_nice+ep on the binary"),
    }
}

/// perf_event_open(2).
fn counting() -> Offer {
    let opened = EventCounter::open(Event::LoadTranslationMisses);
    let paranoid = line("/proc/sys/kernel/perf_event_paranoid");
    let remedy = match (&opened, paranoid.and_then(|text| text.parse::<i32>().ok())) {
        (Ok(_), _) => None,
        (Err(_), Some(level)) if level > 2 => Some("sysctl kernel.perf_event_paranoid=2"),
        (Err(_), Some(_)) => Some(
            "in a virtual machine: have the host pass its counters on (QEMU: -cpu host,pmu=on)",
        ),
        (Err(_), None) => Some("a kernel with CONFIG_PERF_EVENTS"),
    };
    Offer {
        name: "event counters",
        there: opened.is_ok(),
        found: match opened {
            Ok(_) => "the processor's own".to_owned(),
            Err(error) => format!("none ({error})"),
        },
        used_for: "tlb checks its penalties by them",
        remedy,
    }
}

fn device(
    name: &'static str,
    path: &'static str,
    used_for: &'static str,
    remedy: &'static str,
) -> Offer {
    let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    Offer {
        name,
        there: opened.is_ok(),
        found: match opened {
            Ok(_) => path.to_owned(),
            Err(error) => format!("{path}: {}", std::io::Error::from(error)),
        },
        used_for,
        remedy: opened.is_err().then_some(remedy),
    }
}

fn socket(
    name: &'static str,
    family: AddressFamily,
    used_for: &'static str,
    remedy: &'static str,
) -> Offer {
    let opened = rustix::net::socket(family, SocketType::RAW, None);
    Offer {
        name,
        there: opened.is_ok(),
        found: match opened {
            Ok(_) => "may be opened".to_owned(),
            Err(error) => std::io::Error::from(error).to_string(),
        },
        used_for,
        remedy: opened.is_err().then_some(remedy),
    }
}

/// capabilities(7): the capability for making a TAP device.
fn administers_networks() -> Offer {
    let there = may(CAP_NET_ADMIN);
    let found = if there {
        "cap_net_admin"
    } else {
        "no cap_net_admin"
    };
    Offer {
        name: "network administration",
        there,
        found: found.to_owned(),
        used_for: "making TAP devices, attaching XDP programs",
        remedy: (!there).then_some("run as root, or setcap cap_net_admin+ep on the binary"),
    }
}

/// True if this process has the capability, a number of capabilities(7).
fn may(capability: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let hex = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let effective = hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|bits| bits & 1 << capability != 0)
}

/// Checks for a program of another package.
fn program(name: &'static str, used_for: &'static str, remedy: &'static str) -> Offer {
    let found = program::find(name);
    Offer {
        name,
        there: found.is_some(),
        used_for,
        remedy: found.is_none().then_some(remedy),
        found: found.map_or("not installed".to_owned(), |path| {
            path.display().to_string()
        }),
    }
}

fn mpi() -> Offer {
    let found = program::find("mpirun");
    Offer {
        name: "MPI",
        there: found.is_some(),
        used_for: "phylo across machines, in a build with --features mpi",
        remedy: found.is_none().then_some("apt-get install openmpi-bin"),
        found: found.map_or("no mpirun".to_owned(), |path| path.display().to_string()),
    }
}

/// The word in brackets of a setting that lists all it could be.
fn chosen(path: &str) -> String {
    let text = line(path).unwrap_or_else(|| "not in this kernel".to_owned());
    let inside = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text.clone(), |(word, _)| word.to_owned())
}

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

const LOCK_ENOUGH_BYTES: u64 = 64 << 20;
/// linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_NICE: u32 = 23;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_needs_no_remedy_and_names_are_told_apart() {
        let offers = ask();
        for offer in &offers {
            assert!(!offer.found.is_empty(), "{offer:?}");
            assert!(!offer.there || offer.remedy.is_none(), "{offer:?}");
        }
        let mut names: Vec<_> = offers.iter().map(|offer| offer.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), offers.len());
    }
}
