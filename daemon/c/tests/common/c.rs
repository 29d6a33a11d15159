//! Compiles a program in C, as C and as C++, without a warning.
//!
//! Why here: each C header of the workspace is tested in this way: this crate's, and others' by
//! this file's path. Must stay true: a message of a strict compiler is a failed test.
#![allow(dead_code)] // Each test uses what it needs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A compiler and the language that it takes sources for.
pub(crate) const LANGUAGES: [(&str, &str); 2] = [("cc", "c"), ("c++", "c++")];

/// Compiles `tests/SOURCE` of the crate at `root` against its `include/`; the program is in
/// `folder`.
pub(crate) fn compile(root: &str, source: &str, language: (&str, &str), folder: &Path) -> PathBuf {
    compile_with(root, source, language, folder, &[])
}

/// The same against `libsidecore.so`, which lies next to this test's program.
pub(crate) fn compile_and_link(
    root: &str,
    source: &str,
    language: (&str, &str),
    folder: &Path,
) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    install(
        &program.with_file_name("libsidecore.so"),
        "libsidecore",
        folder,
    );
    let libraries = folder.display();
    let link = [
        format!("-L{libraries}"),
        "-lsidecore".to_owned(),
        format!("-Wl,-rpath,{libraries}"),
    ];
    compile_with(root, source, language, folder, &link)
}

/// Puts links to a built library into a folder, by the names under which a package installs it: for
/// the linker, and with the interface's version for programs that were linked.
pub(crate) fn install(built: &Path, name: &str, folder: &Path) {
    let version = format!(
        "{}.{}",
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR")
    );
    let interface = match version.split_once('.') {
        Some(("0", _)) | None => version.as_str(),
        Some((major, _)) => major,
    };
    for link in [format!("{name}.so"), format!("{name}.so.{interface}")] {
        let made = std::os::unix::fs::symlink(built, folder.join(&link));
        let is_there = |error: &std::io::Error| error.kind() == ErrorKind::AlreadyExists;
        assert!(made.as_ref().err().is_none_or(is_there), "{link}: {made:?}");
    }
}

/// The same with more options of the compiler: of the language, and of the linker.
pub(crate) fn compile_with(
    root: &str,
    source: &str,
    (compiler, language): (&str, &str),
    folder: &Path,
    options: &[String],
) -> PathBuf {
    let root = Path::new(root);
    let stem = source.trim_end_matches(".c");
    let program = folder.join(format!("{stem}-{language}"));
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .args(["-O2", "-x", language])
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests").join(source))
        .args(["-x", "none"])
        .args(options)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}; scripts/setup installs it"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler}: {said}");
    program
}
