//! The checks, one for each facility.
//!
//! Source: the man page or kernel document named at each check.

use crate::cause::{Cause, Module, Package};
use crate::{Built, Offer};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::Resource;
use sidecore_sys::counters::{Event, EventCounter};
use sidecore_sys::{cpu, machine, program};
use std::fs;
use std::path::Path;

/// Checks everything. Takes some milliseconds.
pub(super) fn ask(built: Built) -> Vec<Offer> {
    let mut offers = processor().to_vec();
    offers.extend(memory());
    offers.extend([
        capability(
            "real-time priority",
            (CAP_SYS_NICE, "cap_sys_nice"),
            "the daemon's heartbeat: without it a busy machine may look like a dead daemon",
        ),
        counting(),
    ]);
    offers.extend(images());
    offers.extend(networks());
    offers.extend([compiler(), x32_headers(), mpi(built)]);
    offers
}

fn processor() -> [Offer; 5] {
    let is_x86_64 = cfg!(target_arch = "x86_64");
    let architecture = Offer::of(
        "x86-64",
        std::env::consts::ARCH,
        "spe: a local store's code is x32 code",
        (!is_x86_64).then(|| Cause::new("another processor", None)),
    );
    [cores(), architecture, isolated(), vector(), clock()]
}

fn memory() -> [Offer; 5] {
    [
        transparent(
            "transparent pages, 2 MiB",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "local stores, caches",
        ),
        transparent(
            "transparent pages, 64 KiB",
            "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
            "tlb",
        ),
        reserved("reserved pages, 2 MiB", 2048, "sysctl vm.nr_hugepages=64"),
        reserved(
            "reserved pages, 1 GiB",
            1 << 20,
            "echo 1 > /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
        ),
        locking(),
    ]
}

fn images() -> [Offer; 6] {
    let fuse3 = Package::named("fuse3");
    [
        device(
            "FUSE",
            "/dev/fuse",
            "block mount",
            Module {
                name: "fuse",
                option: "CONFIG_FUSE_FS",
                since: (2, 6),
            },
        ),
        program("fusermount3", "block mount --rootless, as a user", fuse3),
        capability(
            "system administration",
            (CAP_SYS_ADMIN, "cap_sys_admin"),
            "block mount by the kernel's file systems, block attach",
        ),
        device(
            "loop devices",
            "/dev/loop-control",
            "block mount, block attach",
            Module {
                name: "loop",
                option: "CONFIG_BLK_DEV_LOOP",
                since: (3, 1),
            },
        ),
        device(
            "ublk",
            "/dev/ublk-control",
            "block attach",
            Module {
                name: "ublk_drv",
                option: "CONFIG_BLK_DEV_UBLK",
                since: (6, 5),
            },
        ),
        device(
            "NBD client",
            "/dev/nbd0",
            "an NBD server's image as a block device",
            Module {
                name: "nbd",
                option: "CONFIG_BLK_DEV_NBD",
                since: (2, 6),
            },
        ),
    ]
}

fn networks() -> [Offer; 4] {
    [
        device(
            "TUN/TAP",
            "/dev/net/tun",
            "net up, over tap",
            Module {
                name: "tun",
                option: "CONFIG_TUN",
                since: (2, 6),
            },
        ),
        capability(
            "network administration",
            (CAP_NET_ADMIN, "cap_net_admin"),
            "making TAP devices, attaching XDP programs",
        ),
        socket(
            "AF_PACKET",
            AddressFamily::PACKET,
            "net up, over packet",
            Module {
                name: "af_packet",
                option: "CONFIG_PACKET",
                since: (2, 6),
            },
        ),
        socket(
            "AF_XDP",
            AddressFamily::from_raw(44),
            "net up, over xdp",
            Module {
                name: "xsk_diag",
                option: "CONFIG_XDP_SOCKETS",
                since: (4, 18),
            },
        ),
    ]
}

impl Offer {
    /// Findings about a facility, which can be used unless there is a cause against it.
    fn of(
        name: &'static str,
        found: impl Into<String>,
        used_for: &'static str,
        cause: Option<Cause>,
    ) -> Self {
        Self {
            name,
            there: cause.is_none(),
            found: found.into(),
            used_for,
            cause: cause.as_ref().map(|cause| cause.name),
            remedy: cause.and_then(|cause| cause.remedy),
        }
    }
}

/// sched_getaffinity(2).
fn cores() -> Offer {
    let allowed = cpu::allowed().map_or(0, |cpus| cpus.len());
    // A quota of a container's limits time, not cores: engines that poll would be throttled.
    let affordable = cpu::affordable();
    let quota = match affordable < allowed {
        true => format!(", the time of {affordable}"),
        false => String::new(),
    };
    let found = format!(
        "{allowed} for this process{quota}, {}",
        machine::processor()
    );
    // One core is no place for an engine: it would take the time of what it serves.
    let cause = (affordable < 2).then(|| match allowed {
        ..2 => {
            let remedy =
                "a machine with two cores; taskset or the container's cpuset may hide them";
            Cause::new("one core", remedy.to_owned())
        }
        2.. => {
            let remedy = "a quota of two cores or more (cpu.max; --cpus of containers)";
            Cause::new("a quota of less than two cores", remedy.to_owned())
        }
    });
    Offer::of("cores", found, "engines", cause)
}

/// Documentation/admin-guide/kernel-parameters.txt, `isolcpus`; cgroup-v2.rst, `cpuset`.
fn isolated() -> Offer {
    // The file is empty, not absent, on a kernel that isolates nothing.
    let cpus = line("/sys/devices/system/cpu/isolated").unwrap_or_default();
    let (found, cause) = match cpus.as_str() {
        "" => {
            let remedy = "boot with isolcpus=LIST, or keep others off: systemd's AllowedCPUs=";
            let cause = Cause::new("not set up", remedy.to_owned());
            let found = "none: the kernel may put anything on an engine's core";
            (found.to_owned(), Some(cause))
        }
        cpus => (format!("cores {cpus}"), None),
    };
    let used_for = "engines that poll (net, the daemon) without being preempted";
    Offer::of("isolated cores", found, used_for, cause)
}

fn vector() -> Offer {
    #[cfg(target_arch = "x86_64")]
    // The kernels use both; a processor with one of them alone is older than either needs.
    let there = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    let there = false;
    let found = if there {
        "yes"
    } else {
        "no: portable kernels are used"
    };
    let cause = (!there).then(|| Cause::new("another processor", None));
    Offer::of("AVX2 and FMA", found, "phylo's likelihood kernels", cause)
}

/// Documentation/timers/timekeeping.rst.
fn clock() -> Offer {
    let source = line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let found = source.unwrap_or_else(|| "unknown".to_owned());
    let cause = match found.as_str() {
        // Read in user space by the vDSO; the others take a system call, or a slow bus, each time.
        "tsc" | "arch_sys_counter" | "kvm-clock" => None,
        "hpet" | "acpi_pm" => Some(Cause::new(
            "slow clock",
            "boot with tsc=reliable, if its time stamp counter can be trusted".to_owned(),
        )),
        _ => Some(Cause::new("unknown clock", None)),
    };
    Offer::of("clock", found, "time without a system call", cause)
}

/// Documentation/admin-guide/mm/transhuge.rst.
fn transparent(name: &'static str, path: &str, used_for: &'static str) -> Offer {
    let setting = chosen(path);
    let cause = match setting.as_deref() {
        // Ours are asked for by madvise, so that setting is enough.
        Some("always" | "madvise" | "inherit") => None,
        Some(_) => Some(Cause::new(
            "switched off",
            format!("echo madvise > {path}, as root"),
        )),
        None => Some(Cause::new(
            "kernel lacks it",
            "a newer kernel, with CONFIG_TRANSPARENT_HUGEPAGE".to_owned(),
        )),
    };
    let found = setting.unwrap_or_else(|| "not in this kernel".to_owned());
    Offer::of(name, found, used_for, cause)
}

/// Documentation/admin-guide/mm/hugetlbpage.rst.
fn reserved(name: &'static str, kib: usize, remedy: &'static str) -> Offer {
    let directory = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB");
    let count = |file: &str| line(format!("{directory}/{file}"))?.parse::<u64>().ok();
    // Both: pages that others hold are reserved, and of no use here.
    let (free, all) = (count("free_hugepages"), count("nr_hugepages"));
    let found = match (free, all) {
        (Some(free), Some(all)) => format!("{free} free of {all}"),
        _ => "the processor or the kernel has none".to_owned(),
    };
    let cause = match free {
        Some(0) => Some(Cause::new("none reserved", format!("{remedy}, as root"))),
        Some(_) => None,
        None => Some(Cause::new("kernel lacks it", None)),
    };
    let used_for = "local stores, where tlb --learn found that they pay";
    Offer::of(name, found, used_for, cause)
}

/// mlock(2), getrlimit(2).
fn locking() -> Offer {
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    // With the capability the limit does not count.
    let exempt = may(CAP_IPC_LOCK);
    let enough = exempt || limit.is_none_or(|bytes| bytes >= LOCK_ENOUGH_BYTES);
    let found = match limit {
        Some(bytes) if !exempt => format!("up to {} MiB", bytes >> 20),
        _ => "unlimited".to_owned(),
    };
    let cause = (!enough).then(|| {
        let remedy = "ulimit -l unlimited, or LimitMEMLOCK= in a unit";
        Cause::new("limit too low", remedy.to_owned())
    });
    let used_for = "local stores, memory shared with the daemon";
    Offer::of("locked memory", found, used_for, cause)
}

/// perf_event_open(2).
fn counting() -> Offer {
    // Opened, not looked up: hypervisors hide counters that the files promise.
    let opened = EventCounter::open(Event::LoadTranslationMisses);
    let paranoid = line("/proc/sys/kernel/perf_event_paranoid");
    let level = paranoid.and_then(|text| text.parse::<i32>().ok());
    let cause = match (&opened, level) {
        (Ok(_), _) => None,
        // Above 2 an ordinary user may count nothing at all.
        (Err(_), Some(level)) if level > 2 => Some(Cause::new(
            "permission denied",
            "sysctl kernel.perf_event_paranoid=2, as root".to_owned(),
        )),
        (Err(_), Some(_)) => Some(Cause::new(
            "hidden by the host",
            "have the host pass its counters on (QEMU: -cpu host,pmu=on)".to_owned(),
        )),
        (Err(_), None) => Some(Cause::new(
            "kernel lacks it",
            "a kernel with CONFIG_PERF_EVENTS".to_owned(),
        )),
    };
    let found = match opened {
        Ok(_) => "the processor's own".to_owned(),
        Err(error) => format!("none ({error})"),
    };
    let used_for = "tlb checks its penalties by them";
    Offer::of("event counters", found, used_for, cause)
}

fn device(name: &'static str, path: &'static str, used_for: &'static str, module: Module) -> Offer {
    // Opened as its users do: permission, module and device node are checked at once.
    match rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Offer::of(name, path, used_for, None),
        Err(error) => {
            let found = format!("{path}: {}", std::io::Error::from(error));
            let cause = Cause::of_device(error, path, &module);
            Offer::of(name, found, used_for, Some(cause))
        }
    }
}

fn socket(
    name: &'static str,
    family: AddressFamily,
    used_for: &'static str,
    module: Module,
) -> Offer {
    // Opened and closed again: only the attempt asks for the rights.
    match rustix::net::socket(family, SocketType::RAW, None) {
        Ok(_) => Offer::of(name, "may be opened", used_for, None),
        Err(error) => {
            let cause = match error {
                // The kernel asks for the right before it looks for the family.
                Errno::PERM | Errno::ACCESS => Cause::no_capability("cap_net_raw,cap_net_admin"),
                _ => module.unknown_family(),
            };
            let found = std::io::Error::from(error).to_string();
            Offer::of(name, found, used_for, Some(cause))
        }
    }
}

/// capabilities(7).
fn capability(
    name: &'static str,
    (number, capability): (u32, &'static str),
    used_for: &'static str,
) -> Offer {
    match may(number) {
        true => Offer::of(name, capability, used_for, None),
        false => {
            let cause = Cause::no_capability(capability);
            Offer::of(name, format!("no {capability}"), used_for, Some(cause))
        }
    }
}

/// True if this process has the capability, a number of capabilities(7).
fn may(capability: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    // Effective: a permitted capability that is not raised does not help.
    let hex = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let effective = hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    effective.is_some_and(|bits| bits & 1 << capability != 0)
}

/// Checks for a program of another package.
fn program(name: &'static str, used_for: &'static str, package: Package) -> Offer {
    match program::find(name) {
        Some(path) => Offer::of(name, path.display().to_string(), used_for, None),
        None => {
            let cause = Cause::no_package(&package);
            Offer::of(name, "not installed", used_for, Some(cause))
        }
    }
}

/// The compiler that the Cell's drivers start.
fn compiler() -> Offer {
    let gcc = Package {
        debian: "gcc binutils libc6-dev",
        fedora: "gcc binutils",
        alpine: "gcc binutils musl-dev",
        arch: "gcc binutils",
    };
    Offer {
        name: "C compiler",
        ..program("gcc", "spe: the Cell's programs", gcc)
    }
}

/// The headers of the x32 ABI, for which SPU programs are compiled.
fn x32_headers() -> Offer {
    let used_for = "spe: SPU programs are compiled as x32 code";
    let package = Package {
        debian: "gcc-multilib libc6-dev-x32",
        ..Package::named("a C library for x32")
    };
    // Distributions have them at different places; one is enough.
    let mut places = X32_HEADERS.iter();
    match places.find(|place| Path::new(place).is_file()) {
        Some(place) => Offer::of("x32 headers", *place, used_for, None),
        None => {
            let cause = Cause::no_package(&package);
            Offer::of("x32 headers", "not installed", used_for, Some(cause))
        }
    }
}

fn mpi(built: Built) -> Offer {
    let used_for = "phylo search across machines";
    let package = Package {
        debian: "openmpi-bin",
        fedora: "openmpi",
        alpine: "openmpi",
        arch: "openmpi",
    };
    match (built.with_mpi, program::find("mpirun")) {
        (true, Some(path)) => Offer::of("MPI", path.display().to_string(), used_for, None),
        (true, None) => {
            let cause = Cause::no_package(&package);
            Offer::of("MPI", "no mpirun", used_for, Some(cause))
        }
        (false, found) => {
            let there = match found {
                Some(path) => format!("; {} is there", path.display()),
                None => String::new(),
            };
            let found = format!("this program was built without it{there}");
            let remedy = "build the program with the feature mpi (docs/install.md)";
            let cause = Cause::new("built without it", remedy.to_owned());
            Offer::of("MPI", found, used_for, Some(cause))
        }
    }
}

/// The word in brackets of a setting that lists all it could be; `None` where there is no such
/// setting.
fn chosen(path: &str) -> Option<String> {
    let text = line(path)?;
    // Files of sysfs list all settings, with the present one in brackets.
    let inside = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    Some(inside.map_or(text.clone(), |(word, _)| word.to_owned()))
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// In Debian's and in other distributions' folders.
const X32_HEADERS: [&str; 2] = [
    "/usr/include/x86_64-linux-gnu/gnu/stubs-x32.h",
    "/usr/include/gnu/stubs-x32.h",
];
const LOCK_ENOUGH_BYTES: u64 = 64 << 20;
/// linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_NICE: u32 = 23;
