//! The page for who writes kernels, from an empty directory: its manifest, with one crate to depend
//! on, and its programs build and run.

use std::path::Path;
use std::process::Command;

const PAGE: &str = include_str!("../../../docs/users/kernels.md");

#[test]
fn the_pages_programs_need_one_dependency() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| std::fs::write(directory.path().join(path), text).unwrap();
    let manifests = blocks("toml");
    let [manifest] = &manifests[..] else {
        panic!("{} manifests", manifests.len());
    };
    // Until it is published, and with it the versions that this workspace has.
    let patch = format!("[patch.crates-io]\nsidecore-offload.path = {here:?}\n[workspace]\n");
    write("Cargo.toml", &format!("{manifest}\n{patch}"));
    let lock = here.join("../../Cargo.lock");
    std::fs::copy(lock, directory.path().join("Cargo.lock")).unwrap();
    let programs = blocks("rust");
    assert!(
        programs.len() >= 2,
        "the page has {} programs",
        programs.len()
    );
    std::fs::create_dir_all(directory.path().join("src/bin")).unwrap();
    for (number, program) in programs.iter().enumerate() {
        write(&format!("src/bin/program-{number}.rs"), program);
    }
    for number in 0..programs.len() {
        let ended = Command::new(env!("CARGO"))
            .args(["run", "--offline", "--quiet", "--bin"])
            .arg(format!("program-{number}"))
            .current_dir(directory.path())
            // Kept from run to run, as it takes a while.
            .env("CARGO_TARGET_DIR", here.join("../../target/one-dependency"))
            .env_remove("RUSTFLAGS")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "program {number}: {said}");
    }
}

/// Code of the page in this language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let starts = PAGE.split(&fence).skip(1);
    starts.filter_map(|rest| rest.split("```").next()).collect()
}
