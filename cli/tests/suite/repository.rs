//! The repository's text files, read once for all tests that look at them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every file outside of `target` and `.git`, by its path from the root; contents that are no text
/// have replacement characters.
pub(super) fn files() -> &'static BTreeMap<String, String> {
    static FILES: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    FILES.get_or_init(|| {
        let (root, mut found) = (root(), BTreeMap::new());
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in folder.read_dir().expect("a folder of the repository") {
                let path = entry.expect("an entry").path();
                let name = path.strip_prefix(&root).expect("below the root");
                let name = name.to_str().expect("a name in UTF-8").to_owned();
                // A link may lead to a folder above.
                if path.is_symlink() || matches!(&*name, "target" | ".git") {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let bytes = std::fs::read(&path).expect("a readable file");
                    found.insert(name, String::from_utf8_lossy(&bytes).into_owned());
                }
            }
        }
        found
    })
}
