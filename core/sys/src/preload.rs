//! Preloaded libraries: where they are installed, and how a program loads them.
//!
//! Must stay true: a path that the user has named is used or refused, never ignored.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// A library that a program loads first.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    /// Its file's name.
    pub name: &'static str,
    /// The variable of the environment that may say where it is.
    pub variable: &'static str,
}

/// Reasons why a library cannot be preloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PreloadError {
    /// The variable names something else.
    #[error("{variable} names {}, which is no file", path.display())]
    NoFile {
        /// The variable.
        variable: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// It is neither built nor installed.
    #[error(
        "{name} is neither beside {} nor in ../lib; build it (cargo build) or name it in \
         {variable}",
        program.display()
    )]
    Missing {
        /// Its name.
        name: &'static str,
        /// This program.
        program: PathBuf,
        /// The variable that may name it.
        variable: &'static str,
    },
    /// The dynamic linker would read its path as several.
    #[error(
        "{} cannot be preloaded: its path has a colon or a blank; name another place in {variable}",
        path.display()
    )]
    Path {
        /// The library.
        path: PathBuf,
        /// The variable that may name another.
        variable: &'static str,
    },
    /// The system does not say where this program is.
    #[error("cannot find this program or its working directory: {0}")]
    Here(#[from] io::Error),
}

impl Library {
    /// Its path: from the environment, next to this program, or from the installation.
    ///
    /// # Errors
    /// It is not found, or cannot be preloaded from there.
    pub fn find(&self) -> Result<PathBuf, PreloadError> {
        let Self { name, variable } = *self;
        if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            return match path.is_file() {
                true => Ok(std::path::absolute(&path)?),
                false => Err(PreloadError::NoFile { variable, path }),
            };
        }
        let program = std::env::current_exe()?;
        let folder = program.parent().unwrap_or(Path::new("/"));
        let places = PLACES.map(|place| folder.join(place).join(name));
        let found = first_or_newer(&places).and_then(|place| place.canonicalize().ok());
        let Some(found) = found else {
            return Err(PreloadError::Missing {
                name,
                program,
                variable,
            });
        };
        // The dynamic linker splits its list at colons and blanks.
        let bytes = found.as_os_str().as_encoded_bytes();
        if bytes.iter().any(|byte| b": ".contains(byte)) {
            return Err(PreloadError::Path {
                path: found,
                variable,
            });
        }
        Ok(found)
    }
}

/// The first of the places that has a file. Of the first two, which are cargo's, the newer one: a
/// build of one package leaves a copy in the first that later builds of the program do not replace.
fn first_or_newer(places: &[PathBuf; 4]) -> Option<&PathBuf> {
    let written = |place: &PathBuf| place.metadata().and_then(|found| found.modified()).ok();
    let cargos = places[..2].iter().filter(|place| place.is_file());
    let newer = cargos.max_by_key(|place| written(place));
    newer.or_else(|| places[2..].iter().find(|place| place.is_file()))
}

/// The list of libraries to preload ([`PRELOAD`]), with `library` first and the existing ones
/// behind it.
#[must_use]
pub fn list(library: PathBuf) -> OsString {
    let mut list = library.into_os_string();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// The dynamic linker's variable.
pub const PRELOAD: &str = "LD_PRELOAD";
/// Next to the program, in cargo's folder for dependencies, and where packages install libraries.
const PLACES: [&str; 4] = [".", "deps", "../lib/sidecore", "../lib"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_stale_copy_is_passed_over() {
        let folder = std::env::temp_dir().join(format!("preload-{}", std::process::id()));
        let places = ["a", "b", "c", "d"].map(|place| folder.join(place));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(first_or_newer(&places), None);
        let write = |place: &PathBuf, age: u64| {
            let file = std::fs::File::create(place).unwrap();
            let then = SystemTime::now() - Duration::from_secs(age);
            file.set_modified(then).unwrap();
        };
        write(&places[3], 0);
        assert_eq!(first_or_newer(&places), Some(&places[3]));
        write(&places[1], 10);
        assert_eq!(first_or_newer(&places), Some(&places[1]));
        write(&places[0], 100);
        assert_eq!(first_or_newer(&places), Some(&places[1]));
        write(&places[0], 5);
        assert_eq!(first_or_newer(&places), Some(&places[0]));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
