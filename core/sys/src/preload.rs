//! Libraries that come with the program: where they are installed, and how another program loads
//! them first.
//!
//! They are looked for in this order: the file that the library's variable of the environment
//! names; the program's own folder; `lib/` in it, as in the release's archive; `../lib/sidecore`
//! and `../lib`, as below `/usr/local`; `/usr/lib/sidecore`, where packages put them.
//!
//! Must stay true: a path that the user has named is used or refused, never ignored.

use crate::folder::{Folder, FolderError};
use rustix::fs::{readlinkat, symlinkat};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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
    /// The command line is empty.
    #[error("no program is named; write it behind `--`")]
    NoProgram,
    /// The program loads no libraries.
    #[error("{} is linked statically: it loads no libraries", program.display())]
    Static {
        /// The program.
        program: PathBuf,
    },
    /// The program ignores the variables of the dynamic linker.
    #[error(
        "{} runs as another user (set-user-ID or set-group-ID): the system does not let its \
         libraries be replaced",
        program.display()
    )]
    Privileged {
        /// The program.
        program: PathBuf,
    },
    /// The library cannot be given the names that programs look for.
    #[error("cannot make links to {}", library.display())]
    Links {
        /// The library.
        library: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program cannot be started.
    #[error("cannot run {}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Library {
    /// Its path, for [`list`] of [`PRELOAD`].
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

impl Library {
    /// Becomes the program of a command line (execve(2)), with this library preloaded and a
    /// variable of the environment set, if it has a value. Returns only where that fails.
    ///
    /// # Errors
    /// The library is not found, or the program cannot be started.
    pub fn exec(
        &self,
        command_line: &[OsString],
        variable: (&str, Option<OsString>),
    ) -> Result<Infallible, PreloadError> {
        let preloaded = list(PRELOAD, for_glibc(self.find()?));
        let variables = [(PRELOAD, Some(preloaded)), variable];
        Err(become_program(command_line, &variables))
    }

    /// As [`Self::exec`], with this library where the program looks for one of `names`.
    ///
    /// # Errors
    /// The library is not found, the program cannot be started, or it loads no libraries that its
    /// starter chooses.
    pub fn exec_under(
        &self,
        names: &[&str],
        command_line: &[OsString],
        variable: (&str, Option<OsString>),
    ) -> Result<Infallible, PreloadError> {
        let program = command_line.first().ok_or(PreloadError::NoProgram)?;
        let program = PathBuf::from(program);
        let library = self.locate()?;
        match reach(&program) {
            Reach::Static => return Err(PreloadError::Static { program }),
            Reach::Privileged => return Err(PreloadError::Privileged { program }),
            Reach::Reached => {}
        }
        let folder = match under_names(&library, names) {
            Ok(folder) => folder,
            Err(source) => return Err(PreloadError::Links { library, source }),
        };
        // Preloaded, too: calls of the C library that it has as well are the program's own then.
        let first = names.first().map(|name| for_glibc(folder.join(name)));
        let preloaded = first.map(|first| list(PRELOAD, first));
        let folders = list(FOLDERS, folder);
        let variables = [(FOLDERS, Some(folders)), (PRELOAD, preloaded), variable];
        Err(become_program(command_line, &variables))
    }
}

/// Becomes a program, with variables of the environment that have a value; returns why it cannot.
fn become_program(
    command_line: &[OsString],
    variables: &[(&str, Option<OsString>)],
) -> PreloadError {
    let [program, arguments @ ..] = command_line else {
        return PreloadError::NoProgram;
    };
    let mut command = Command::new(program);
    command.args(arguments);
    for (variable, value) in variables {
        if let Some(value) = value {
            command.env(variable, value);
        }
    }
    PreloadError::Start {
        program: program.into(),
        source: command.exec(),
    }
}

/// The newer of cargo's two: a build of one package leaves a copy in the first that later builds of
/// the program do not replace.
fn newer(places: &[PathBuf; 2]) -> Option<&PathBuf> {
    let written = |place: &PathBuf| place.metadata().and_then(|found| found.modified()).ok();
    let there = places.iter().filter(|place| place.is_file());
    there.max_by_key(|place| written(place))
}

/// The value for a variable of the environment that lists paths, as [`PRELOAD`] does: `first`, and
/// the existing ones behind it.
#[must_use]
pub fn list(variable: &str, first: PathBuf) -> OsString {
    let mut list = first.into_os_string();
    if let Some(others) = std::env::var_os(variable).filter(|others| !others.is_empty()) {
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
fn for_glibc(library: PathBuf) -> PathBuf {
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

/// A folder that has a library under other names, as the dynamic linker looks for them: one of this
/// user's, in `$XDG_RUNTIME_DIR` or the temporary folder, which stays for later programs.
///
/// # Errors
/// It cannot be made, or is another user's.
fn under_names(library: &Path, names: &[&str]) -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let place = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let place = place.filter(|place| place.is_dir());
    // A library of another place has a folder of its own: several versions may be in use.
    let mut hasher = DefaultHasher::new();
    hasher.write(library.as_os_str().as_encoded_bytes());
    let path = place.unwrap_or_else(std::env::temp_dir);
    let path = path.join(format!(
        "sidecore-libraries-{user}-{:016x}",
        hasher.finish()
    ));
    // Anyone may have made a folder of this name in the temporary one: its links would be loaded.
    let folder = Folder::create_own(&path, 0o700).map_err(FolderError::into_io)?;
    if folder.stat()?.st_uid != user {
        let text = format!("{} is not this user's", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    for name in names {
        let target = readlinkat(&folder, *name, Vec::new());
        if target.is_ok_and(|it| it.as_bytes() == library.as_os_str().as_encoded_bytes()) {
            continue;
        }
        // Renamed into place: another program may be starting at the same time.
        let new = folder.unused_name();
        symlinkat(library, &folder, &new)?;
        let renamed = folder.rename(&new, OsStr::new(name));
        renamed.inspect_err(|_| {
            // Best effort: the error that led here is the one to report.
            folder.remove_file(&new).ok();
        })?;
    }
    Ok(path)
}

/// Reach of a program by libraries that its starter chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// It does, or is a script, or is not found.
    Reached,
    /// It loads none.
    Static,
    /// It runs as another user or group, and ignores the variables of the dynamic linker.
    Privileged,
}

/// Looks at a program, by its path or its name.
#[must_use]
fn reach(program: &Path) -> Reach {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = match program.as_os_str().as_encoded_bytes().contains(&b'/') {
        true => Some(program.to_path_buf()),
        false => {
            let mut all = std::env::split_paths(&path).map(|folder| folder.join(program));
            all.find(|place| place.is_file())
        }
    };
    let opened = found.and_then(|place| std::fs::File::open(place).ok());
    let Some(file) = opened else {
        return Reach::Reached;
    };
    let other = file.metadata().is_ok_and(|found| {
        let sets_user = found.mode() & 0o4000 != 0;
        let sets_group = found.mode() & 0o2000 != 0;
        sets_user && found.uid() != rustix::process::getuid().as_raw()
            || sets_group && found.gid() != rustix::process::getgid().as_raw()
    });
    if other {
        return Reach::Privileged;
    }
    match has_interpreter(&file) {
        Some(false) => Reach::Static,
        _ => Reach::Reached,
    }
}

/// True if an ELF program of 64 bits names a dynamic linker; none if it is something else.
fn has_interpreter(file: &std::fs::File) -> Option<bool> {
    // elf(5): `e_phoff` at 32, `e_phentsize` at 54, `e_phnum` at 56; `p_type` is first, PT_INTERP
    // 3.
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0).ok()?;
    if &head[..5] != b"\x7fELF\x02" {
        return None;
    }
    let word = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    let offset = u64::from_le_bytes(head[32..40].try_into().ok()?);
    let mut kinds = (0..word(56)).filter_map(|index| {
        let mut kind = [0; 4];
        let at = offset.checked_add(u64::from(index) * u64::from(word(54)))?;
        file.read_exact_at(&mut kind, at).ok()?;
        Some(u32::from_le_bytes(kind))
    });
    Some(kinds.any(|kind| kind == 3))
}

/// The dynamic linker's variable.
pub const PRELOAD: &str = "LD_PRELOAD";
/// Its variable for the folders that it looks in first.
const FOLDERS: &str = "LD_LIBRARY_PATH";
/// Next to the program, and in cargo's folder for dependencies.
const CARGOS: [&str; 2] = [".", "deps"];
/// Folders of libraries in packages and archives, from the program's folder.
const INSTALLED: [&str; 5] = [".", "lib", "../lib/sidecore", "../lib", PACKAGED];
/// Their folder in Debian's package, wherever the program is.
const PACKAGED: &str = "/usr/lib/sidecore";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::time::{Duration, SystemTime};

    #[test]
    fn links_are_made_once_and_follow_the_library() {
        let folder = std::env::temp_dir().join(format!("names-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let library = folder.join("library.so");
        let made = under_names(&library, &["liba.so.1", "libb.so.1"]).unwrap();
        assert_eq!(under_names(&library, &["liba.so.1"]).unwrap(), made);
        for name in ["liba.so.1", "libb.so.1"] {
            assert_eq!(std::fs::read_link(made.join(name)).unwrap(), library);
        }
        let other = under_names(&folder.join("other.so"), &["liba.so.1"]).unwrap();
        assert_ne!(other, made);
        // A library that has moved: the link is made anew, and nothing else is left there.
        std::fs::remove_file(made.join("liba.so.1")).unwrap();
        symlink("elsewhere", made.join("liba.so.1")).unwrap();
        under_names(&library, &["liba.so.1"]).unwrap();
        assert_eq!(std::fs::read_link(made.join("liba.so.1")).unwrap(), library);
        assert_eq!(std::fs::read_dir(&made).unwrap().count(), 2);
        // A folder that others may write to is not used.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&made, mode).unwrap();
        let refused = under_names(&library, &["liba.so.1"]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        for one in [folder, made, other] {
            std::fs::remove_dir_all(one).unwrap();
        }
    }

    #[test]
    fn the_first_of_a_list_precedes_those_of_the_variable() {
        let first = PathBuf::from("/first");
        assert_eq!(list("NO_SUCH_LIBRARY_HERE", first.clone()), "/first");
        let path = std::env::var("PATH").unwrap();
        assert_eq!(list("PATH", first), *format!("/first:{path}"));
    }

    #[test]
    fn programs_that_load_no_libraries_are_told_apart() {
        let folder = std::env::temp_dir().join(format!("reach-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        // An ELF file of one program header: a segment to load, or the dynamic linker's name.
        for (kind, expected) in [(1_u32, Reach::Static), (3, Reach::Reached)] {
            let mut bytes = vec![0; 64 + 56];
            bytes[..5].copy_from_slice(b"\x7fELF\x02");
            (bytes[32], bytes[54], bytes[56]) = (64, 56, 1);
            bytes[64..68].copy_from_slice(&kind.to_le_bytes());
            std::fs::write(&program, bytes).unwrap();
            assert_eq!(reach(&program), expected);
        }
        std::fs::write(&program, "#!/bin/sh\n").unwrap();
        assert_eq!(reach(&program), Reach::Reached);
        assert_eq!(reach(&folder.join("nowhere")), Reach::Reached);
        std::fs::remove_dir_all(folder).unwrap();
    }

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
