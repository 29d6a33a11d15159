//! Files that are written once, as a whole, among them standard output, which is named `-`.
//!
//! Why here: every command that writes a result takes `-`. Must stay true: where anything fails the
//! old file stays as it is; pipes and devices are written to directly. Source: own.

use crate::folder::{check_named, write_named};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// A file of this name.
    #[error("cannot write {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Standard output.
    #[error("{0}")]
    Standard(#[from] io::Error),
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> OutputError {
    let path = path.to_owned();
    move |source| OutputError::File { path, source }
}

/// Writes a file: all of it, or, where anything fails, nothing.
///
/// # Errors
/// [`OutputError`].
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<(), OutputError> {
    let contents = contents.as_ref();
    if path == Path::new("-") {
        let mut out = io::stdout().lock();
        out.write_all(contents)?;
        return Ok(out.flush()?);
    }
    let written = write_named(path, NEW_FILE_MODE, |file| file.write_all(contents));
    written.map_err(failed(path))
}

/// Makes sure that [`write()`] can write there, before the work that makes the contents. The old
/// file stays.
///
/// # Errors
/// [`OutputError`].
pub fn check(path: &Path) -> Result<(), OutputError> {
    match path == Path::new("-") {
        true => Ok(()),
        false => check_named(path).map_err(failed(path)),
    }
}

/// As open(2) gives it, less the umask.
const NEW_FILE_MODE: u32 = 0o666;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_a_fault_names_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        check(&path).expect("it can be made");
        assert!(!path.exists());
        write(&path, "one").expect("written");
        write(&path, b"2").expect("replaced");
        assert_eq!(std::fs::read(&path).expect("read"), b"2");
        let nowhere = path.join("b");
        for refused in [check(&nowhere), write(&nowhere, "")] {
            let said = refused.expect_err("a file is no folder").to_string();
            assert_eq!(said, format!("cannot write {}", nowhere.display()));
        }
    }
}
