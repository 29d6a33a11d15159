//! The page for authors of kernels, from an empty directory: its manifests, each with one crate to
//! depend on, and the programs after each build and run.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use std::path::Path;
use std::process::Command;

const PAGE: &str = include_str!("../../../docs/users/kernels.md");

/// The crates that the page's manifests name, and their folders.
const CRATES: [(&str, &str); 2] = [
    ("sidecore-offload", "core/pool"),
    ("sidecore-daemon", "daemon/daemon"),
];

#[test]
fn the_pages_programs_need_one_dependency_each() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let parts: Vec<&str> = PAGE.split("```toml\n").skip(1).collect();
    assert_eq!(parts.len(), CRATES.len(), "manifests on the page");
    for (part, (name, folder)) in parts.into_iter().zip(CRATES) {
        let (manifest, text) = part.split_once("```").unwrap();
        assert_eq!(manifest.matches("sidecore-").count(), 1, "{manifest}");
        assert!(manifest.contains(name), "{manifest}");
        let programs = programs(text);
        assert!(!programs.is_empty(), "no program needs {name}");
        build_and_run(&root, manifest, (name, folder), &programs);
    }
}

fn build_and_run(root: &Path, manifest: &str, (name, folder): (&str, &str), programs: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| std::fs::write(directory.path().join(path), text).unwrap();
    // Until they are published: the crates and the versions of this workspace.
    let path = root.join(folder);
    let patch = format!("[patch.crates-io]\n{name}.path = {path:?}\n[workspace]\n");
    write("Cargo.toml", &format!("{manifest}\n{patch}"));
    std::fs::copy(root.join("Cargo.lock"), directory.path().join("Cargo.lock")).unwrap();
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
            .env("CARGO_TARGET_DIR", root.join("target/one-dependency"))
            .env_remove("RUSTFLAGS")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{name}, program {number}: {said}");
    }
}

/// Programs in Rust of a part of the page.
fn programs(text: &str) -> Vec<&str> {
    let starts = text.split("```rust\n").skip(1);
    starts.filter_map(|rest| rest.split("```").next()).collect()
}
