//! Libraries that come with the program: where they are installed, and how another program loads
//! them first.
//!
//! They are looked for in this order: the file that the library's variable of the environment
//! names; the program's own folder; `lib/` in it, as in the release's archive; `../lib/sidecore`
//! and `../lib`, as below `/usr/local`; `/usr/lib/sidecore`, where packages put them.
//!
//! Must stay true: a path that the user has named is used or refused, never ignored.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// A library that comes with the program.
#[derive(Debug, Clone, Copy)]
pub struct Library {
    /// Its file's name.
    pub name: &'static str,
    /// Its name where it is installed; none if that is the same.
    pub installed_name: Option<&'static str>,
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
    /// It is not installed.
    #[error(
        "{name} is not installed: it comes with the package `sidecore` and in the release's \
         archive, not with the program alone; looked next to {}, in ../lib/sidecore and in \
         {PACKAGED}; {variable} may name it",
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
    /// Its path, for [`list`].
    ///
    /// # Errors
    /// It is not found, or cannot be preloaded from there.
    pub fn find(&self) -> Result<PathBuf, PreloadError> {
        let found = self.locate()?;
        // The dynamic linker splits its list at colons and blanks.
        let bytes = found.as_os_str().as_encoded_bytes();
        match bytes.iter().any(|byte| b": ".contains(byte)) {
            true => Err(PreloadError::Path {
                path: found,
                variable: self.variable,
            }),
            false => Ok(found),
        }
    }

    /// Its path: the first of the places in this module's head that has it.
    ///
    /// # Errors
    /// It is not found.
    pub fn locate(&self) -> Result<PathBuf, PreloadError> {
        let Self { name, variable, .. } = *self;
        if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
            let path = PathBuf::from(path);
            return match path.is_file() {
                true => Ok(std::path::absolute(&path)?),
                false => Err(PreloadError::NoFile { variable, path }),
            };
        }
        let program = std::env::current_exe()?;
        let folder = program.parent().unwrap_or(Path::new("/"));
        let installed_name = self.installed_name.unwrap_or(name);
        let built = CARGOS.map(|place| folder.join(place).join(name));
        let installed = INSTALLED.map(|place| folder.join(place).join(installed_name));
        let found = newer(&built).or_else(|| installed.iter().find(|place| place.is_file()));
        let found = found.and_then(|place| place.canonicalize().ok());
        found.ok_or(PreloadError::Missing {
            name,
            program,
            variable,
        })
    }
}

/// The newer of cargo's two: a build of one package leaves a copy in the first that later builds of
/// the program do not replace.
fn newer(places: &[PathBuf; 2]) -> Option<&PathBuf> {
    let written = |place: &PathBuf| place.metadata().and_then(|found| found.modified()).ok();
    let there = places.iter().filter(|place| place.is_file());
    there.max_by_key(|place| written(place))
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

/// The path as glibc's dynamic linker alone finds it. Programs of another C library run without the
/// library: musl's linker skips a path that does not exist, and ends the program (127) where a
/// library wants functions that musl lacks.
///
/// glibc replaces `$LIB` by the folder of its libraries (ld.so(8)); from there the path goes up to
/// the root. Where there is no such folder, the path is returned as it is.
#[must_use]
pub fn for_glibc(library: PathBuf) -> PathBuf {
    let triplet = format!("/lib/{}-linux-gnu", std::env::consts::ARCH);
    let has_folder = [triplet.as_str(), "/lib64"]
        .iter()
        .any(|folder| Path::new(folder).is_dir());
    if !has_folder || !library.is_absolute() {
        return library;
    }
    // More steps than any such folder has: the root's parent is the root.
    let mut path = OsString::from("/$LIB");
    path.push("/..".repeat(8));
    path.push(library);
    path.into()
}

/// The dynamic linker's variable.
pub const PRELOAD: &str = "LD_PRELOAD";
/// Next to the program, and in cargo's folder for dependencies.
const CARGOS: [&str; 2] = [".", "deps"];
/// Folders of libraries in packages and archives, from the program's folder.
const INSTALLED: [&str; 5] = [".", "lib", "../lib/sidecore", "../lib", PACKAGED];
/// Their folder in Debian's package, wherever the program is.
const PACKAGED: &str = "/usr/lib/sidecore";

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_stale_copy_is_passed_over() {
        let folder = std::env::temp_dir().join(format!("preload-{}", std::process::id()));
        let places = ["a", "b"].map(|place| folder.join(place));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(newer(&places), None);
        let write = |place: &PathBuf, age: u64| {
            let file = std::fs::File::create(place).unwrap();
            let then = SystemTime::now() - Duration::from_secs(age);
            file.set_modified(then).unwrap();
        };
        write(&places[1], 10);
        assert_eq!(newer(&places), Some(&places[1]));
        write(&places[0], 100);
        assert_eq!(newer(&places), Some(&places[1]));
        write(&places[0], 5);
        assert_eq!(newer(&places), Some(&places[0]));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_missing_library_names_the_package_and_the_variable() {
        let library = Library {
            name: "libno-such-library-here.so",
            installed_name: None,
            variable: "NO_SUCH_LIBRARY_HERE",
        };
        let said = library.find().unwrap_err().to_string();
        for word in ["the package `sidecore`", library.variable, PACKAGED] {
            assert!(said.contains(word), "{said}");
        }
    }
}
