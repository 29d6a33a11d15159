//! Needs of a step, as this machine meets them.
//!
//! Why here: a tool that is missing costs its step alone. Must stay true: a need is looked at once;
//! one that is not met names a remedy.

use crate::script::{Need, Script};
use rustix::fs::{Mode, OFlags};
use sidecore_sys::package::{Manager, Package};
use sidecore_sys::program;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// A need that this machine does not meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lacking {
    /// The need, in words.
    pub need: String,
    /// The way to meet it.
    pub remedy: String,
}

/// Looks at needs, and remembers what it saw.
pub(crate) struct Needs<'a> {
    script: &'a Script,
    /// A command of the tour's surroundings, for checks.
    shell: &'a dyn Fn(&str) -> Command,
    /// The reason why there is no sample.
    no_sample: Option<Lacking>,
    manager: Option<Manager>,
    seen: BTreeMap<&'a str, Option<Lacking>>,
}

impl<'a> Needs<'a> {
    pub(crate) fn new(
        script: &'a Script,
        shell: &'a dyn Fn(&str) -> Command,
        no_sample: Option<Lacking>,
    ) -> Self {
        Self {
            script,
            shell,
            no_sample,
            manager: Manager::here(),
            seen: BTreeMap::new(),
        }
    }

    /// Those of `names` that are not met.
    pub(crate) fn lacking(&mut self, names: &'a [String]) -> Vec<Lacking> {
        let mut lacking = Vec::new();
        for name in names {
            let needs = &self.script.needs;
            let is_check = needs.get(name).is_some_and(|need| need.check.is_some());
            // A check relies on the programs before it.
            if lacking.is_empty() || !is_check {
                lacking.extend(self.look(name));
            }
        }
        lacking
    }

    /// Several needs as one; the packages that they ask for are installed by one command.
    pub(crate) fn joined(&self, all: &[Lacking]) -> Lacking {
        // Without a package it is the command alone, by which remedies of packages are known.
        let install = Package::named("").command(self.manager);
        let (mut packages, mut remedies) = (Vec::new(), Vec::new());
        for Lacking { remedy, .. } in all {
            let (list, remedy) = match remedy.strip_prefix(&install) {
                Some(package) => (&mut packages, package),
                None => (&mut remedies, remedy.as_str()),
            };
            if !list.contains(&remedy) {
                list.push(remedy);
            }
        }
        let command = format!("{install}{}", packages.join(" "));
        if !packages.is_empty() {
            remedies.insert(0, &command);
        }
        let needs: Vec<_> = all.iter().map(|each| each.need.as_str()).collect();
        Lacking {
            need: needs.join(", "),
            remedy: remedies.join("; "),
        }
    }

    fn look(&mut self, name: &'a str) -> Option<Lacking> {
        if let Some(known) = self.seen.get(name) {
            return known.clone();
        }
        let lacking = match (name, self.script.needs.get(name)) {
            (_, Some(need)) => self.ask(name, need),
            ("root", None) => self.root(),
            (_, None) => self.no_sample.clone(),
        };
        self.seen.insert(name, lacking.clone());
        lacking
    }

    fn ask(&self, name: &str, need: &Need) -> Option<Lacking> {
        let mut refused = None;
        let is_met = if let Some(path) = &need.device {
            let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
            refused = opened.as_ref().err().copied();
            opened.is_ok()
        } else if let Some(line) = &need.check {
            let mut command = (self.shell)(line);
            // A check neither waits for input nor prints.
            command.stdin(Stdio::null()).stdout(Stdio::null());
            let status = command.stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        } else {
            program::find(need.program.as_deref().unwrap_or(name)).is_some()
        };
        if is_met {
            return None;
        }
        let is_closed = refused == Some(rustix::io::Errno::ACCESS);
        let remedy = match (&need.remedy, &need.device) {
            // It is there, so nothing has to be loaded.
            (_, Some(path)) if is_closed => format!("run as root `chmod 666 {}`", path.display()),
            (Some(remedy), _) => remedy.clone(),
            (None, _) => {
                let debian = need.debian.as_deref().unwrap_or(name);
                let package = Package {
                    debian,
                    fedora: need.fedora.as_deref().unwrap_or(debian),
                    alpine: need.alpine.as_deref().unwrap_or(debian),
                };
                package.command(self.manager)
            }
        };
        Some(Lacking {
            need: need.words.clone().unwrap_or_else(|| name.to_owned()),
            remedy,
        })
    }

    /// Root's rights: in a container, its user alone may have none of them.
    fn root(&self) -> Option<Lacking> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut lines = status.lines();
        let hex = lines.find_map(|line| line.strip_prefix("CapEff:"));
        let effective = hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
        // Where there is no /proc, the attempt says it.
        if effective.is_none_or(|bits| bits & 1 << CAP_SYS_ADMIN != 0) {
            return None;
        }
        let is_root = rustix::process::geteuid().is_root();
        Some(Lacking {
            need: "root (CAP_SYS_ADMIN)".to_owned(),
            remedy: match is_root {
                true => "start the container with --privileged",
                false => "run the tour as root",
            }
            .to_owned(),
        })
    }
}

/// linux/capability.h.
const CAP_SYS_ADMIN: u32 = 21;
