//! A C program on libfabric itself: shared receives, and each atomic that the provider offers.
//! Prints a note and passes if libfabric is not installed (Debian: libfabric-dev; `scripts/setup`).
//!
//! Compares sizes and last offsets of all layouts with libfabric's headers, by a small C program.
//! Prints a note and passes if they are not installed (Debian: libfabric-dev; `scripts/setup`).
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests.

use std::fmt::Write;
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

#[test]
fn layouts_are_those_of_the_headers() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    let mut text = String::from(
        "#include <rdma/fabric.h>\n#include <rdma/fi_domain.h>\n#include <rdma/fi_endpoint.h>\n\
         #include <rdma/fi_cm.h>\n#include <rdma/fi_rma.h>\n#include <rdma/fi_eq.h>\n\
         #include <rdma/fi_atomic.h>\n\
         #include <rdma/providers/fi_prov.h>\n#include <stddef.h>\n#include <stdio.h>\n\
         int main(void) {\n",
    );
    let layouts = sidecore_fi::layouts();
    for (name, _, field, _) in &layouts {
        let field = field.trim_end_matches('_');
        writeln!(
            text,
            "printf(\"{name} %zu {field} %zu\\n\", sizeof(struct {name}), \
             offsetof(struct {name}, {field}));"
        )
        .unwrap();
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).unwrap();
    let header = Command::new("cc")
        .args([
            "-fsyntax-only",
            "-include",
            "rdma/fabric.h",
            "-xc",
            "/dev/null",
        ])
        .output()
        .unwrap_or_else(|error| panic!("cc: {error}; scripts/setup installs it"));
    if !header.status.success() {
        println!("not compared: rdma/fabric.h is not installed (Debian: libfabric-dev)");
        return;
    }
    let program = folder.path().join("layout");
    let output = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let output = Command::new(&program).output().unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    let own: String = layouts
        .iter()
        .map(|(name, bytes, field, offset)| {
            format!("{name} {bytes} {} {offset}\n", field.trim_end_matches('_'))
        })
        .collect();
    assert!(layouts.len() > 35);
    assert_eq!(own, expected);
}
