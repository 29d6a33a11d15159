//! Packages of this machine's distribution: the command that installs one.
//!
//! Why here: every message about a missing program ends with the command that brings it, and they
//! must agree. Must stay true: nothing is run; package managers are looked for, not asked. A
//! machine without a known one gets the package's name.
//!
//! ```
//! use sidecore_sys::package::{Manager, Package};
//!
//! let nbd = Package { debian: "libnbd-bin", fedora: "libnbd", alpine: "libnbd" };
//! assert_eq!(nbd.command(Some(Manager::Apk)), "apk add libnbd");
//! assert_eq!(nbd.command(None), "install libnbd-bin");
//! println!("to have nbdcopy: {}", nbd.command(Manager::here()));
//! ```

use crate::program;

/// A program that installs packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manager {
    /// Debian, Ubuntu and their like.
    Apt,
    /// Fedora and its like.
    Dnf,
    /// Alpine.
    Apk,
}

impl Manager {
    /// The one of this machine; none where it is another. Looks at file systems.
    #[must_use]
    pub fn here() -> Option<Self> {
        let known = [
            ("apt-get", Self::Apt),
            ("dnf", Self::Dnf),
            ("apk", Self::Apk),
        ];
        let found = known
            .into_iter()
            .find(|(name, _)| program::find(name).is_some());
        found.map(|(_, manager)| manager)
    }
}

/// A package, by its name in each family of distributions; several have blanks between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Package<'a> {
    /// In Debian and Ubuntu.
    pub debian: &'a str,
    /// In Fedora.
    pub fedora: &'a str,
    /// In Alpine.
    pub alpine: &'a str,
}

impl<'a> Package<'a> {
    /// One that has the same name everywhere.
    #[must_use]
    pub const fn named(name: &'a str) -> Self {
        Self {
            debian: name,
            fedora: name,
            alpine: name,
        }
    }

    /// The command that installs it; a sentence where the manager is not known.
    #[must_use]
    pub fn command(&self, manager: Option<Manager>) -> String {
        match manager {
            Some(Manager::Apt) => format!("apt install {}", self.debian),
            Some(Manager::Dnf) => format!("dnf install {}", self.fedora),
            Some(Manager::Apk) => format!("apk add {}", self.alpine),
            None => format!("install {}", self.debian),
        }
    }
}
