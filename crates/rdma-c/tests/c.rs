//! The header compiles as C and C++ without a warning, has the layouts of the library, and a
//! program in C does everything once over the kernel's loopback.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_rdma_c::{RawCompletion, RawEvent, RawOptions, RawPiece, RawRegion, RawWork};
use std::path::Path;
use std::process::Command;

#[test]
fn a_program_in_c_puts_gets_sends_and_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = std::env::current_exe().unwrap();
    // Installed under the name that its header and its soname have.
    let built = own.parent().unwrap().join("libsidecore_rdma_c.so");
    std::os::unix::fs::symlink(built, folder.path().join("libsidecore_rdma.so")).unwrap();
    let libraries = folder.path().display();
    for (compiler, language, standard) in [("cc", "c", "c99"), ("c++", "c++", "c++11")] {
        let program = folder.path().join(language);
        let output = Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"])
            .args(["-x", language, &format!("-std={standard}")])
            .arg("-I")
            .arg(root.join("include"))
            .arg(root.join("tests/rdma.c"))
            .args(["-x", "none", &format!("-L{libraries}"), "-lsidecore_rdma"])
            .arg(format!("-Wl,-rpath,{libraries}"))
            .arg("-o")
            .arg(&program)
            .output()
            .unwrap_or_else(|error| panic!("{compiler}: {error}; scripts/setup installs it"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler}: {said}");
        let output = Command::new(&program)
            .args(["", "127.0.0.1:0"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let sizes = [
            size_of::<RawRegion>(),
            size_of::<RawPiece>(),
            size_of::<RawOptions>(),
            size_of::<RawWork>(),
            size_of::<RawCompletion>(),
            size_of::<RawEvent>(),
        ]
        .map(|bytes| format!(" {bytes}"))
        .concat();
        let told = String::from_utf8_lossy(&output.stdout);
        assert_eq!(told, format!("sizes{sizes}\nright\n"));
    }
}
