#![doc = include_str!("../README.md")]
//!
//! Top-down: [`register`] takes a folder's kernels into a registry; `folder` decides which files
//! are trusted and copies them; `object` gives such a copy to the dynamic linker and checks its
//! table; `kernel` runs one of its kernels for a request. `child` does the last two in processes of
//! their own, which [`serve_as_host`] is the main function of.
//!
//! Must stay true: the linked bytes are the copy that was hashed, from a file that only root and
//! this user can have written. Objects stay loaded until the process ends. Called on the thread
//! that starts a daemon; kernels run on engines.

mod child;
mod error;
mod folder;
mod kernel;
mod object;

pub use child::{HostProgram, Limits, Loading, serve_as_host};
pub use error::{Fault, FolderError, ObjectError};

use sidecore_daemon::served::Registry;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A file of a folder of kernels that was not loaded.
#[derive(Debug)]
pub struct Refused {
    /// Its path.
    pub file: PathBuf,
    /// The reason.
    pub reason: ObjectError,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not loaded: {}", self.file.display(), self.reason)
    }
}

/// A registry with the kernels of a folder, and the files that were refused.
#[derive(Debug)]
pub struct Registered {
    /// The kernels that there were, and those of the folder.
    pub registry: Registry,
    /// The files that were refused, each with its reason. None of their kernels is there.
    pub refused: Vec<Refused>,
}

/// Adds the kernels of all files in `folder` whose names end in `.so`, in the order of their names.
/// A file that is not fit is refused, with all its kernels; the others are loaded.
///
/// # Errors
/// [`FolderError`] where the folder cannot be read, or another user could change it: then nothing
/// is loaded.
pub fn register(
    registry: Registry,
    folder: &Path,
    loading: &Loading,
) -> Result<Registered, FolderError> {
    let folder = folder::Folder::open(folder)?;
    let mut registered = Registered {
        registry,
        refused: Vec::new(),
    };
    for name in folder.objects()? {
        if let Err(reason) = add(&mut registered.registry, &folder, &name, loading) {
            let file = folder.path().join(&name);
            registered.refused.push(Refused { file, reason });
        }
    }
    Ok(registered)
}

/// As [`register`], of several folders, one after the other; `on_refused` gets each file that was
/// refused.
///
/// # Errors
/// As [`register`], of the first folder that cannot be used.
pub fn register_all(
    mut registry: Registry,
    folders: &[PathBuf],
    loading: &Loading,
    mut on_refused: impl FnMut(&Refused),
) -> Result<Registry, FolderError> {
    for folder in folders {
        let loaded = register(registry, folder, loading)?;
        loaded.refused.iter().for_each(&mut on_refused);
        registry = loaded.registry;
    }
    Ok(registry)
}

/// Adds all kernels of one file, or none.
fn add(
    registry: &mut Registry,
    folder: &folder::Folder,
    name: &OsString,
    loading: &Loading,
) -> Result<(), ObjectError> {
    let copy = folder.copy(name)?;
    // A copy: a kernel that is refused takes those of its file with it.
    let mut with_all = registry.clone();
    if let Some(program) = &loading.host {
        for kernel in child::load(copy, program, &loading.limits)? {
            with_all = with_all.with_foreign(kernel)?;
        }
    } else {
        for kernel in object::load(copy)?.kernels {
            with_all = with_all.with_foreign(kernel)?;
        }
    }
    *registry = with_all;
    Ok(())
}

/// The default folders whose kernels a daemon of root loads, as far as they exist. None for other
/// users.
#[must_use]
pub fn default_folders() -> Vec<PathBuf> {
    let is_root = sidecore_sys::local_socket::effective_uid() == 0;
    let folders = FOLDERS.iter().map(PathBuf::from);
    folders
        .filter(|folder| is_root && folder.is_dir())
        .collect()
}

/// The kernel in C that is the template for others, as text.
pub const TEMPLATE: &str = include_str!("../examples/c/word_sum.c");

pub use sidecore_kernel_abi::HEADER;

/// Kernels of packages, and of the machine's administrator.
const FOLDERS: [&str; 2] = [
    "/usr/lib/sidecore/kernels",
    "/usr/local/lib/sidecore/kernels",
];
