//! The scripts of `tests/drill/`, each a case of its own, and the parser under damaged text.
//!
//! A script's head says which rule of which document it is about; `sidecore net drill FILE` plays one
//! by hand.

use std::path::{Path, PathBuf};

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drill");
    let entries = std::fs::read_dir(folder).expect("the folder of scripts");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut scripts: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "drill"))
        .collect();
    scripts.sort();
    scripts
}

#[test]
fn every_script_comes_true() {
    let only = std::env::var("DRILL").unwrap_or_default();
    let mut wrong = Vec::new();
    let scripts = scripts();
    assert!(!scripts.is_empty());
    for path in scripts {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if !name.contains(&only) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a script");
        match sidecore_net::drill::run(&name, &text) {
            Ok(_) => {}
            Err(error) => wrong.push(error.to_string()),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
