//! Every input of every corpus once more, on stable Rust: a regression test of old findings.

use sidecore_fuzz::{TARGETS, seeds};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The inputs of each target by their names. An archive holds a product's, a folder a target's.
fn corpora() -> BTreeMap<String, Vec<(String, Vec<u8>)>> {
    let mut corpora = BTreeMap::<String, Vec<_>>::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for archive in folder.read_dir().expect("corpora") {
        let file = File::open(archive.expect("an archive").path()).expect("an archive");
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        for entry in archive.entries().expect("an archive") {
            let mut entry = entry.expect("an entry");
            let mut input = Vec::new();
            entry.read_to_end(&mut input).expect("an input");
            let path = entry.path().expect("a name").into_owned();
            let path = path.to_str().expect("a plain name");
            let (target, name) = path.split_once('/').expect("a target's folder");
            let of_target = corpora.entry(target.to_owned()).or_default();
            of_target.push((name.to_owned(), input));
        }
    }
    corpora
}

#[test]
fn every_corpus_is_replayed() {
    let corpora = corpora();
    for (name, target) in TARGETS {
        let inputs = corpora.get(name).map_or(&[][..], Vec::as_slice);
        for (input_name, input) in inputs {
            let outcome = std::panic::catch_unwind(|| target(input));
            assert!(outcome.is_ok(), "{name}: {input_name} fails");
        }
        assert!(inputs.len() >= 8, "{name}: {} inputs", inputs.len());
    }
}

/// Inputs that are refused at once reach little of a decoder.
#[test]
fn seeds_of_zstd_are_whole_frames() {
    for seed in seeds::of_target("zstd").expect("files of the tree") {
        assert!(sidecore_fuzz::zstd::compare(&seed), "{:?}", &seed[..4]);
    }
}

#[test]
fn each_corpus_has_a_target_and_seeds() {
    let mut bytes = 0;
    for (name, inputs) in corpora() {
        let known = TARGETS.iter().any(|target| target.0 == name);
        assert!(known, "no target {name}");
        bytes += inputs.iter().map(|(_, input)| input.len()).sum::<usize>();
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
