//! A C program on libfabric itself: shared receives, and each atomic that the provider offers.
//! Prints a note and passes if libfabric is not installed (Debian: libfabric-dev; `scripts/setup`).
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests.

use std::process::Command;

#[test]
fn libfabric_s_shared_receives_and_atomics_do_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    let built = own.parent().unwrap().join("libsidecore_fi.so");
    std::os::unix::fs::symlink(built, folder.path().join("libsidecore-fi.so")).unwrap();
    let program = folder.path().join("words");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/words.c"))
        .args(["-lfabric", "-o"])
        .arg(&program)
        .output()
        .unwrap_or_else(|error| panic!("cc: {error}; scripts/setup installs it"));
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("rdma/fabric.h: No such file") {
        println!("skipped: rdma/fabric.h is not installed (Debian: libfabric-dev)");
        return;
    }
    assert!(output.status.success(), "{said}");
    let output = Command::new(&program)
        .arg("sidecore")
        .env("FI_PROVIDER_PATH", folder.path())
        .env_remove("SIDECORE_RDMA_SOCKET")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n");
}
