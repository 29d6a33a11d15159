//! Libraries of ours that programs load: where they lie, and how a program is told.
//!
//! Must stay true: what a person has named is used or refused, never passed over.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A library, by its file's name and the variable that may say where it is.
pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) variable: &'static str,
}

impl Library {
    /// Its path: where the environment says, or beside this program, or where it is installed.
    ///
    /// # Errors
    /// It is nowhere, or cannot be preloaded from there.
    pub(crate) fn find(&self) -> Result<PathBuf> {
        let Self { name, variable } = self;
        if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            if !path.is_file() {
                bail!("{variable} names {}, which is no file", path.display());
            }
            return std::path::absolute(&path).context("cannot find the working directory");
        }
        let program = std::env::current_exe().context("cannot find this program")?;
        let folder = program.parent().unwrap_or(Path::new("/"));
        let places = PLACES.map(|place| folder.join(place).join(name));
        let found = places.iter().find(|place| place.is_file());
        let Some(found) = found.and_then(|place| place.canonicalize().ok()) else {
            bail!(
                "{name} is neither beside {} nor in ../lib; build it (cargo build) or name it in \
                 {variable}",
                program.display()
            );
        };
        // The dynamic linker splits its list at colons and blanks.
        let bytes = found.as_os_str().as_encoded_bytes();
        if bytes.iter().any(|byte| b": ".contains(byte)) {
            bail!(
                "{} cannot be preloaded: its path has a colon or a blank; name another place in \
                 {variable}",
                found.display()
            );
        }
        Ok(found)
    }
}

/// The list of libraries to preload, with `library` first and those that are there behind.
pub(crate) fn list(library: PathBuf) -> OsString {
    let mut list = library.into_os_string();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// The dynamic linker's variable.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";
/// Beside the program, where cargo leaves what it depends on, and where packages put libraries.
const PLACES: [&str; 4] = [".", "deps", "../lib/sidecore", "../lib"];
