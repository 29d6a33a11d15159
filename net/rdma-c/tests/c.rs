//! The header compiles as C and C++ without a warning, and a C program
//! uses each function once over the kernel's loopback.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

#[path = "../../../daemon/c/tests/common/c.rs"]
mod c;

use std::process::Command;

#[test]
fn a_program_in_c_puts_gets_sends_and_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    // Installed under the names that its header and its soname have.
    let built = own.with_file_name("libsidecore_rdma_c.so");
    c::install(&built, "libsidecore_rdma", folder.path());
    let libraries = folder.path().display();
    for (language, standard) in c::LANGUAGES.into_iter().zip(["c99", "c++11"]) {
        let options = [
            format!("-std={standard}"),
            format!("-L{libraries}"),
            "-lsidecore_rdma".to_owned(),
            format!("-Wl,-rpath,{libraries}"),
        ];
        let root = env!("CARGO_MANIFEST_DIR");
        let program = c::compile_with(root, "rdma.c", language, folder.path(), &options);
        let output = Command::new(&program)
            .args(["", "127.0.0.1:0"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert_eq!(told, "right\n");
    }
}
