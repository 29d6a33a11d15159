//! Files that are read once from the start, among them standard input, which is named `-`.
//!
//! Why here: every command that reads a file once takes `-`, and two of its options cannot both
//! have it. Must stay true: no more than the bound is read. Source: own.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// True once standard input was taken.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Opens a file to read it once, from the start to its end; `-` is standard input.
///
/// # Errors
/// The system's; that standard input was taken before.
pub fn open(path: &Path) -> io::Result<File> {
    if path != Path::new("-") {
        return File::open(path);
    }
    // Relaxed: the flag alone decides.
    if TAKEN.swap(true, Ordering::Relaxed) {
        let said = "it is standard input, which another option reads: name a file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
    }
    let stdin = rustix::io::dup(rustix::stdio::stdin())?;
    Ok(File::from(stdin))
}

/// Reads all bytes of a file; `-` is standard input.
///
/// # Errors
/// As [`open`]; more than `bytes_max`.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more, to see that there is more.
    let file = open(path)?;
    let read = file
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    if u64::try_from(read).is_ok_and(|read| read <= bytes_max) {
        return Ok(bytes);
    }
    let said = format!("it has more than {bytes_max} bytes, which is all that may be read");
    Err(io::Error::new(io::ErrorKind::InvalidData, said))
}

/// Reads a file as text; `-` is standard input.
///
/// # Errors
/// As [`read`]; what is no UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    String::from_utf8(read(path, bytes_max)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        std::fs::write(&path, "four").expect("written");
        assert_eq!(read_text(&path, 4).expect("read"), "four");
        assert!(read(&path, 3).is_err());
        assert!(read(&folder.path().join("none"), 3).is_err());
    }
}
