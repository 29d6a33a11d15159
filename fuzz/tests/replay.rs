//! Every input of every corpus once more, on stable Rust: a finding that was mended stays mended.

use sidecore_fuzz::{TARGETS, seeds};
use std::path::{Path, PathBuf};

fn corpus(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let entries = folder
        .read_dir()
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

#[test]
fn every_corpus_is_replayed() {
    for (name, target) in TARGETS {
        let files = corpus(name);
        assert!(files.len() >= 8, "{name}: {} inputs", files.len());
        for path in files {
            let input = std::fs::read(&path).expect("a file of the corpus");
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "{} fails", path.display());
        }
    }
}

#[test]
fn each_corpus_has_a_target_and_seeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut bytes = 0;
    for entry in folder.read_dir().expect("corpora") {
        let entry = entry.expect("a folder");
        let name = entry.file_name().into_string().expect("a plain name");
        assert!(
            TARGETS.iter().any(|target| target.0 == name),
            "no target {name}"
        );
        let sizes = corpus(&name).into_iter();
        bytes += sizes
            .map(|path| path.metadata().expect("a file").len())
            .sum::<u64>();
    }
    assert!(
        bytes < 2 << 20,
        "the corpora have {bytes} bytes; minimise them"
    );
    for (name, target) in TARGETS {
        let seeds = seeds::of_target(name).expect("files of the tree");
        assert!(!seeds.is_empty(), "{name} has no seeds");
        seeds.iter().for_each(|seed| target(seed));
    }
}
