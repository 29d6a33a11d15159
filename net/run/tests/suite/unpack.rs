//! The cases as files: each `cases/SUBJECT.txtar` holds several, each under a line `-- NAME --`.
//!
//! Why here: two crates' tests run the cases; `net/preload/tests/kernel.rs` includes this file.

use std::path::{Path, PathBuf};

/// Writes every case into `folder`, next to what they share; returns the cases' paths.
pub(crate) fn unpacked(folder: &Path) -> Vec<PathBuf> {
    let mut cases = Vec::new();
    for entry in folder_of_cases().read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "txtar") {
            std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // The first part is what stands before the first heading.
        for part in format!("\n{text}").split("\n-- ").skip(1) {
            let (name, case) = part.split_once(" --\n").unwrap();
            let path = folder.join(name);
            assert!(!path.exists(), "two cases are called {name}");
            std::fs::write(&path, case).unwrap();
            cases.push(path);
        }
    }
    cases
}

pub(crate) fn folder_of_cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../run/tests/cases")
}
