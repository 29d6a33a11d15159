//! Every input of every corpus once more, on stable Rust: a regression test of old findings.

use sidecore_fuzz::{TARGETS, seeds};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Calls `visit` with each input of a corpus and its name; returns the number of inputs.
fn each_input(name: &str, mut visit: impl FnMut(&Path, &[u8])) -> usize {
    let path = folder().join(format!("{name}.tar.gz"));
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let mut count = 0;
    for entry in archive.entries().expect("an archive") {
        let mut entry = entry.expect("an entry");
        let mut input = Vec::new();
        entry.read_to_end(&mut input).expect("an input");
        visit(&entry.path().expect("a name"), &input);
        count += 1;
    }
    count
}

#[test]
fn every_corpus_is_replayed() {
    for (name, target) in TARGETS {
        let count = each_input(name, |input_name, input| {
            let outcome = std::panic::catch_unwind(|| target(input));
            assert!(outcome.is_ok(), "{name}: {} fails", input_name.display());
        });
        assert!(count >= 8, "{name}: {count} inputs");
    }
}

#[test]
fn each_corpus_has_a_target_and_seeds() {
    let mut bytes = 0;
    for entry in folder().read_dir().expect("corpora") {
        let name = entry.expect("an archive").file_name();
        let name = name.into_string().expect("a plain name");
        let name = name.strip_suffix(".tar.gz").expect("an archive's name");
        assert!(
            TARGETS.iter().any(|target| target.0 == name),
            "no target {name}"
        );
        each_input(name, |_, input| bytes += input.len());
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
