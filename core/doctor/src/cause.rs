//! Causes for which a facility cannot be used, and the remedy for each.
//!
//! Must stay true: a remedy answers the error that the system gave. A device that may not be opened
//! needs no module, and a module that is not loaded no permission.

use rustix::io::Errno;
use sidecore_sys::program;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A cause and its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cause {
    /// The cause in one word or two.
    pub(super) name: &'static str,
    /// Command or change that helps.
    pub(super) remedy: Option<String>,
}

impl Cause {
    pub(super) fn new(name: &'static str, remedy: impl Into<Option<String>>) -> Self {
        let remedy = remedy.into();
        Self { name, remedy }
    }

    /// Cause of an error when the device at `path` was opened, which the kernel's `module` makes.
    pub(super) fn of_device(error: Errno, path: &str, module: &Module) -> Self {
        match error {
            Errno::ACCESS => Self::new(DENIED, permission(path, geteuid())),
            // The file's mode answers ACCESS; PERM on opening a device is a control group's rule.
            Errno::PERM => Self::new(
                DENIED,
                format!("start the container with --device {path}: its rules refuse the device"),
            ),
            Errno::NOENT | Errno::NODEV | Errno::NXIO => module.missing(path),
            Errno::BUSY => Self::new("in use", format!("end the program that has {path} open")),
            _ => Self::new("refused", None),
        }
    }

    /// A program of another package.
    pub(super) fn no_package(package: &Package) -> Self {
        Self::new("package missing", package.command())
    }

    /// A capability (capabilities(7)) that the process does not have.
    pub(super) fn no_capability(names: &str) -> Self {
        let remedy = match names {
            // On the program's file it would make every user root.
            "cap_sys_admin" => {
                "run as root; `block mount --rootless` and `block serve` do without it".into()
            }
            _ => format!("run as root, or `setcap {names}+ep` on the program's file"),
        };
        Self::new(DENIED, remedy)
    }
}

/// Every refusal of rights.
const DENIED: &str = "permission denied";

fn geteuid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Remedy for a device that is there and may not be opened by the user `uid`.
fn permission(path: &str, uid: u32) -> String {
    let Ok(found) = fs::metadata(path) else {
        return format!("run as root: a folder above {path} is closed");
    };
    // A group without both rights, or root's own, is no remedy.
    let group = (found.mode() & 0o060 == 0o060 && found.gid() != 0)
        .then(|| group_name(&fs::read_to_string("/etc/group").ok()?, found.gid()))
        .flatten();
    match group {
        // Root without rights is in a namespace: its groups change nothing.
        Some(group) if uid != 0 => {
            let join = format!("usermod -aG {group} USER, then log in again");
            format!("join the group {group} ({join}), or run as root")
        }
        _ => as_root(path),
    }
}

/// Remedy for a device that is root's.
fn as_root(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    match FOR_ALL.contains(&name) {
        true => format!(
            "run as root; or for all users a rule of udev: KERNEL==\"{name}\", MODE=\"0666\""
        ),
        false => "run as root".into(),
    }
}

/// Devices that distributions open to all users. Others, once open, would give disks of the
/// machine away.
const FOR_ALL: [&str; 2] = ["fuse", "tun"];

/// The name of a group in the text of /etc/group.
fn group_name(text: &str, gid: u32) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number = fields.nth(1)?;
        (number.parse() == Ok(gid)).then(|| name.to_owned())
    })
}

/// A module of the kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Module {
    /// Its name, as modprobe takes it.
    pub(super) name: &'static str,
    /// The kernel's option that builds it.
    pub(super) option: &'static str,
    /// First version of Linux that has it.
    pub(super) since: (u32, u32),
}

impl Module {
    /// Cause of its device's absence.
    fn missing(&self, path: &str) -> Cause {
        let release = release();
        self.missing_in(&release, &Modules::of(&release), path)
    }

    fn missing_in(&self, release: &str, modules: &Modules, path: &str) -> Cause {
        let (major, minor) = self.since;
        let Self { name, option, .. } = self;
        // First, since no module helps a kernel that is too old.
        if version(release).is_some_and(|version| version < self.since) {
            let remedy = format!("Linux {major}.{minor} or newer; this is {release}");
            return Cause::new("kernel too old", remedy);
        }
        match modules {
            Modules::Unknown => Cause::new(
                "device missing",
                format!(
                    "start the container with --device {path}; outside of one: modprobe {name}, as \
                     root"
                ),
            ),
            modules if modules.has(name) => Cause::new(
                "module not loaded",
                format!("modprobe {name}, as root; in a container: --device {path}"),
            ),
            _ => Cause::new(
                "module missing",
                format!("a kernel with {option}; this one, {release}, has no module {name}"),
            ),
        }
    }

    /// Cause of an address family that the kernel does not know.
    pub(super) fn unknown_family(&self) -> Cause {
        let release = release();
        let (major, minor) = self.since;
        if version(&release).is_some_and(|version| version < self.since) {
            let remedy = format!("Linux {major}.{minor} or newer; this is {release}");
            return Cause::new("kernel too old", remedy);
        }
        Cause::new("kernel lacks it", format!("a kernel with {}", self.option))
    }
}

/// Modules that are installed for the running kernel.
enum Modules {
    /// Lists of modules.dep and modules.builtin.
    Listed(String),
    /// None: a container, as a rule.
    Unknown,
}

impl Modules {
    fn of(release: &str) -> Self {
        let folder = format!("/lib/modules/{release}");
        let read = |name: &str| fs::read_to_string(Path::new(&folder).join(name));
        match (read("modules.dep"), read("modules.builtin")) {
            // A container has the host's kernel and not its modules' folder: nothing can be
            // concluded.
            (Err(_), Err(_)) => Self::Unknown,
            (dep, builtin) => {
                let [dep, builtin] = [dep, builtin].map(Result::unwrap_or_default);
                Self::Listed(format!("{dep}\n{builtin}"))
            }
        }
    }

    fn has(&self, name: &str) -> bool {
        let Self::Listed(list) = self else {
            return false;
        };
        // kernel/fs/fuse/fuse.ko.xz: ..., with `-` for `_` in some names.
        let plain = |text: &str| text.replace('-', "_");
        list.lines().any(|line| {
            let path = line.split(':').next().unwrap_or_default();
            let file = path.rsplit('/').next().unwrap_or_default();
            file.split(".ko").next().map(plain) == Some(plain(name))
        })
    }
}

/// The running kernel's release: `6.1.0-13-amd64`.
fn release() -> String {
    let uname = rustix::system::uname();
    uname.release().to_string_lossy().into_owned()
}

/// The version of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A package, by its name in the families of distributions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Package {
    pub(super) debian: &'static str,
    pub(super) fedora: &'static str,
    pub(super) alpine: &'static str,
    pub(super) arch: &'static str,
}

impl Package {
    /// The same name everywhere.
    pub(super) const fn named(name: &'static str) -> Self {
        Self {
            debian: name,
            fedora: name,
            alpine: name,
            arch: name,
        }
    }

    /// The command that installs it here.
    pub(super) fn command(&self) -> String {
        let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        self.command_of(&release, |name| program::find(name).is_some())
    }

    /// The same for the text of /etc/os-release, where `has` knows the programs.
    fn command_of(&self, release: &str, has: impl Fn(&str) -> bool) -> String {
        let managers = [
            ("debian", "apt-get", "apt-get install", self.debian),
            ("fedora", "dnf", "dnf install", self.fedora),
            ("alpine", "apk", "apk add", self.alpine),
            ("arch", "pacman", "pacman -S", self.arch),
        ];
        // ID_LIKE, too: derived distributions use their parent's manager.
        let families = release.lines().filter_map(|line| {
            let (key, value) = line.split_once('=')?;
            let is_family = key == "ID" || key == "ID_LIKE";
            is_family.then(|| value.trim_matches('"'))
        });
        let families: Vec<&str> = families.flat_map(|value| value.split(' ')).collect();
        // By the release first: a machine may have the tools of several families.
        let by_name = managers
            .iter()
            .find(|(family, ..)| families.contains(family));
        let by_program = || managers.iter().find(|(_, program, ..)| has(program));
        match by_name.or_else(by_program) {
            Some((_, _, command, package)) => format!("{command} {package}"),
            None => format!("install the package {}", self.debian),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UBLK: Module = Module {
        name: "ublk_drv",
        option: "CONFIG_BLK_DEV_UBLK",
        since: (6, 5),
    };

    #[test]
    fn an_absent_device_is_told_apart_from_a_closed_one() {
        let listed = Modules::Listed("kernel/drivers/block/ublk-drv.ko.xz:\n".into());
        let of = |release: &str, modules: &Modules| {
            let cause = UBLK.missing_in(release, modules, "/dev/ublk-control");
            (cause.name, cause.remedy.expect("a remedy"))
        };
        let (name, remedy) = of("6.12.1-amd64", &listed);
        assert_eq!(name, "module not loaded");
        assert!(remedy.starts_with("modprobe ublk_drv"), "{remedy}");
        let (name, remedy) = of("5.10.0-8", &listed);
        assert_eq!(name, "kernel too old");
        assert_eq!(remedy, "Linux 6.5 or newer; this is 5.10.0-8");
        assert_eq!(
            of("6.12.1", &Modules::Listed(String::new())).0,
            "module missing"
        );
        assert!(
            of("6.12.1", &Modules::Unknown)
                .1
                .contains("--device /dev/ublk-control")
        );
        for error in [Errno::ACCESS, Errno::PERM] {
            let cause = Cause::of_device(error, "/dev/null", &UBLK);
            assert_eq!(cause.name, "permission denied");
            assert!(!cause.remedy.expect("a remedy").contains("modprobe"));
        }
    }

    #[test]
    fn no_remedy_gives_the_machine_away() {
        for (path, is_open) in [
            ("/dev/fuse", true),
            ("/dev/net/tun", true),
            ("/dev/loop-control", false),
            ("/dev/nbd0", false),
        ] {
            let remedy = as_root(path);
            assert!(remedy.starts_with("run as root"), "{remedy}");
            assert_eq!(remedy.contains("0666"), is_open, "{path}: {remedy}");
        }
        let remedy = |names| Cause::no_capability(names).remedy.expect("a remedy");
        assert!(!remedy("cap_sys_admin").contains("setcap"));
        assert!(remedy("cap_sys_nice").contains("setcap cap_sys_nice+ep"));
    }

    #[test]
    fn the_package_is_that_of_the_distribution() {
        let package = Package {
            alpine: "fuse3-tools",
            ..Package::named("fuse3")
        };
        let of = |release: &str| package.command_of(release, |_| false);
        assert_eq!(of("ID=ubuntu\nID_LIKE=debian\n"), "apt-get install fuse3");
        assert_eq!(of("ID=alpine\n"), "apk add fuse3-tools");
        assert_eq!(
            of("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n"),
            "dnf install fuse3"
        );
        assert_eq!(of("ID=other\n"), "install the package fuse3");
        let by_program = package.command_of("", |name| name == "pacman");
        assert_eq!(by_program, "pacman -S fuse3");
    }

    #[test]
    fn groups_and_versions_are_read() {
        let groups = "root:x:0:\nkvm:x:106:someone\n";
        assert_eq!(group_name(groups, 106).as_deref(), Some("kvm"));
        assert_eq!(group_name(groups, 7), None);
        assert_eq!(version("6.1.0-13-amd64"), Some((6, 1)));
        assert_eq!(version("6"), None);
    }
}
