//! Unmodified programs run under this library, and programs without it read their output.
//!
//! The library is the one that this test's own build made. A missing program is reported and
//! skipped.

#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The shared object, which cargo puts next to the tests.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let path = program.with_file_name("libsidecore_z.so");
    assert!(path.is_file(), "{} was not built", path.display());
    path
}

fn have(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("NOT TESTED: {program} is missing (scripts/setup)");
    }
    found
}

/// Runs it with the library, or without.
fn run(preloaded: bool, folder: &Path, program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command
        .args(["300", program])
        .args(arguments)
        .current_dir(folder);
    command.env("SIDECORE_ZLIB", "local");
    for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"] {
        command.env(name, "A Test");
    }
    for name in ["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
        command.env(name, "test@localhost");
    }
    if preloaded {
        command.env("LD_PRELOAD", library());
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    assert!(!said.contains("sidecore"), "it printed: {said}");
    output
}

/// Functions of a library, each behind its version and a blank: the name alone where it has none.
fn functions(library: &Path) -> BTreeSet<(String, String)> {
    let output = Command::new("nm")
        .arg("-D")
        .arg("--defined-only")
        .arg(library)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .filter_map(|line| line.split_once(" T "))
        .map(|(_, symbol)| symbol.split_once("@@").unwrap_or((symbol, "")))
        .map(|(name, version)| (version.to_owned(), name.to_owned()))
        .collect()
}

/// The system's zlib.
fn systems() -> Option<PathBuf> {
    let folders = [
        "/usr/lib/x86_64-linux-gnu",
        "/lib/x86_64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
    ];
    let mut all = folders
        .map(|folder| Path::new(folder).join("libz.so.1"))
        .into_iter();
    let found = all.find(|path| path.is_file());
    if found.is_none() {
        eprintln!("NOT TESTED: no libz.so.1 to compare with");
    }
    found
}

#[test]
fn every_function_of_the_systems_zlib_is_there_with_its_version_and_nothing_strange() {
    let ours = functions(&library());
    for (version, name) in [
        ("", "deflate"),
        ("ZLIB_1.2.0", "inflateBack"),
        ("", "gzprintf"),
        ("ZLIB_1.2.7.1", "gzvprintf"),
        ("ZLIB_1.2.12", "crc32_combine_op"),
        ("ZLIB_1.2.9", "uncompress2"),
    ] {
        let symbol = (version.to_owned(), name.to_owned());
        assert!(ours.contains(&symbol), "{name} of {version}: {ours:?}");
    }
    let Some(system) = systems() else {
        return;
    };
    let theirs = functions(&system);
    // Ours has no version, so that references with any lead to it.
    let missing: Vec<_> = theirs
        .difference(&ours)
        .filter(|(_, name)| name != "deflateUsed")
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    let more: Vec<_> = ours
        .difference(&theirs)
        .filter(|(_, name)| !["deflateUsed", "prctl"].contains(&name.as_str()))
        .collect();
    assert!(
        more.is_empty(),
        "names that may be a program's own: {more:?}"
    );
}

/// A program that refers to every symbol with the version that the system's zlib has for it, and
/// that finds each by `dlvsym`.
const EVERY_SYMBOL: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int finds(const char *name, const char *version) {
  void *symbol = *version ? dlvsym(RTLD_DEFAULT, name, version) : dlsym(RTLD_DEFAULT, name);
  Dl_info info;
  if (symbol && dladdr(symbol, &info) && strstr(info.dli_fname, OURS)) return 1;
  fprintf(stderr, "%s@%s is not found\n", name, version);
  return 0;
}

int main(void) {
  int found = 1;
  for (unsigned n = 0; n < sizeof all / sizeof *all; n++) {
    found &= all[n] && finds(names[n], versions[n]);
    if (*versions[n] && dlvsym(RTLD_DEFAULT, names[n], "ZLIB_0.1")) {
      fprintf(stderr, "%s has a version that zlib never had\n", names[n]);
      found = 0;
    }
  }
  puts(found ? "all symbols" : "not all");
  return !found;
}
"#;

/// Debian's zlib has versions for most of its symbols, and programs ask for them.
#[test]
fn references_of_every_version_lead_to_this_library() {
    let Some(system) = systems() else {
        return;
    };
    if !have("cc") {
        return;
    }
    let symbols = functions(&system);
    if symbols.iter().all(|(version, _)| version.is_empty()) {
        eprintln!("NOT TESTED: this system's zlib has no versions");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let list = |each: &dyn Fn(&str, &str) -> String| -> String {
        let symbols = symbols.iter();
        symbols.map(|(version, name)| each(version, name)).collect()
    };
    let source = format!(
        "{}void (*all[])(void) = {{{}}};\nconst char *names[] = {{{}}}, *versions[] = {{{}}};{}",
        list(&|_, name| format!("extern void {name}(void);\n")),
        list(&|_, name| format!("{name}, ")),
        list(&|_, name| format!("\"{name}\", ")),
        list(&|version, _| format!("\"{version}\", ")),
        EVERY_SYMBOL
    );
    std::fs::write(folder.path().join("all.c"), source).unwrap();
    // Preloaded, and in the place of the system's.
    std::os::unix::fs::symlink(library(), folder.path().join("libz.so.1")).unwrap();
    for (program, ours) in [
        ("preloaded", "libsidecore_z.so"),
        ("replaced", "/libz.so.1"),
    ] {
        let compiled = Command::new("cc")
            .current_dir(folder.path())
            .arg(format!("-DOURS=\"{ours}\""))
            .args(["-o", program, "all.c"])
            .arg(&system)
            .arg("-ldl")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{said}");
        let mut command = Command::new(folder.path().join(program));
        match program {
            "preloaded" => command.env("LD_PRELOAD", library()),
            _ => command.env("LD_LIBRARY_PATH", folder.path()),
        };
        let output = command.output().unwrap();
        // The loader says there where a library lacks a version that a program names.
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said, "", "{program}");
        assert_eq!(output.stdout, b"all symbols\n", "{program}");
        let bindings = command.env("LD_DEBUG", "bindings").output().unwrap();
        let bindings = String::from_utf8_lossy(&bindings.stderr);
        for (version, name) in &symbols {
            let symbol = match version.as_str() {
                "" => format!("`{name}'"),
                version => format!("`{name}' [{version}]"),
            };
            let is_bound =
                |line: &str| line.contains(&format!("{ours} ")) && line.ends_with(&symbol);
            assert!(
                bindings.lines().any(is_bound),
                "{symbol} is not this library's:\n{bindings}"
            );
        }
    }
}

#[test]
fn python_reads_what_it_wrote_with_and_without() {
    if !have("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let write = r#"
import gzip, zipfile, zlib, random
random.seed(1)
data = b"".join(b"%d line of a text %d\n" % (n, random.randrange(1000)) for n in range(60000))
open("raw", "wb").write(data)
open("whole.z", "wb").write(zlib.compress(data, 9))
object = zlib.compressobj(6)
with open("parts.z", "wb") as out:
    for at in range(0, len(data), 7001):
        out.write(object.compress(data[at:at + 7001]))
        if at % 3 == 0:
            out.write(object.flush(zlib.Z_SYNC_FLUSH))
    out.write(object.flush())
with gzip.open("text.gz", "wb") as out:
    out.write(data)
with zipfile.ZipFile("all.zip", "w", zipfile.ZIP_DEFLATED) as out:
    out.writestr("raw", data)
"#;
    let read = r#"
import gzip, zipfile, zlib
data = open("raw", "rb").read()
assert zlib.decompress(open("whole.z", "rb").read()) == data
object = zlib.decompressobj()
got = b""
for piece in iter(lambda file=open("parts.z", "rb"): file.read(999), b""):
    got += object.decompress(piece, 5000)
    while object.unconsumed_tail:
        got += object.decompress(object.unconsumed_tail, 5000)
assert got + object.flush() == data and object.eof
assert gzip.open("text.gz").read() == data
assert zipfile.ZipFile("all.zip").read("raw") == data
"#;
    for writer in [false, true] {
        run(writer, folder.path(), "python3", &["-c", write]);
        for reader in [false, true] {
            run(reader, folder.path(), "python3", &["-c", read]);
        }
    }
}

#[test]
fn cpythons_own_tests_pass() {
    if !have("python3") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let there = Command::new("python3")
        .args(["-c", "import test.test_zlib"])
        .output()
        .unwrap();
    if !there.status.success() {
        eprintln!("NOT TESTED: CPython's tests are missing (libpython3-testsuite)");
        return;
    }
    run(
        true,
        folder.path(),
        "python3",
        &["-m", "test", "test_zlib", "test_gzip"],
    );
}

#[test]
fn git_packs_clones_and_checks() {
    if !have("git") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let repository = folder.path().join("repository");
    std::fs::create_dir(&repository).unwrap();
    let git = |preloaded, arguments: &[&str]| run(preloaded, &repository, "git", arguments);
    git(true, &["init", "-q", "-b", "main"]);
    for round in 0..4_u32 {
        let text: String = (0..40_000_u32)
            .map(|line| format!("{} of {round}\n", line.wrapping_mul(2_654_435_761 + round)))
            .collect();
        std::fs::write(repository.join(format!("file-{}", round % 3)), text).unwrap();
        git(round % 2 == 0, &["add", "."]);
        git(round % 2 == 0, &["commit", "-q", "-m", "a change"]);
    }
    git(false, &["fsck", "--full", "--strict"]);
    git(true, &["gc", "-q", "--aggressive"]);
    git(false, &["fsck", "--full", "--strict"]);
    git(true, &["fsck", "--full", "--strict"]);
    let path = repository.to_str().unwrap();
    for (name, preloaded) in [("with", true), ("without", false)] {
        run(
            preloaded,
            folder.path(),
            "git",
            &["clone", "-q", "--no-local", path, name],
        );
        let clone = folder.path().join(name);
        let status = run(!preloaded, &clone, "git", &["status", "--short"]);
        assert!(status.stdout.is_empty());
        assert_eq!(
            std::fs::read(clone.join("file-0")).unwrap(),
            std::fs::read(repository.join("file-0")).unwrap()
        );
    }
}

#[test]
fn c_programs_find_what_zlibs_own_tests_look_for() {
    if !have("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/calls.c");
    let program = folder.path().join("calls");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-lz")
        .output()
        .unwrap();
    if !compiled.status.success() {
        let said = String::from_utf8_lossy(&compiled.stderr);
        assert!(said.contains("zlib.h") || said.contains("-lz"), "{said}");
        eprintln!("NOT TESTED: zlib.h or libz is missing (zlib1g-dev)");
        return;
    }
    let program = program.to_str().unwrap();
    // The system's library passes the same, or the test is wrong.
    for preloaded in [false, true] {
        let output = run(preloaded, folder.path(), program, &[]);
        assert_eq!(output.stdout, b"all calls\n");
    }
}

/// `pigz` joins raw streams at bits, by `deflatePending` and `deflatePrime`.
#[test]
fn pigz_writes_what_gzip_reads() {
    if !have("pigz") || !have("gzip") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let text: String = (0..300_000_u32)
        .map(|line| format!("{} is line {line}\n", line.wrapping_mul(2_654_435_761)))
        .collect();
    std::fs::write(here.join("raw"), &text).unwrap();
    for ways in [
        "-p2", "-p1", "-ip2", "-1p2", "-9p2", "-0p2", "-Up2", "-Rp2", "-Hp2",
    ] {
        let packed = run(true, here, "pigz", &[ways, "-c", "raw"]).stdout;
        std::fs::write(here.join("packed.gz"), packed).unwrap();
        for (preloaded, reader) in [(false, "gzip"), (true, "pigz")] {
            let again = run(preloaded, here, reader, &["-dc", "packed.gz"]).stdout;
            assert!(again == text.as_bytes(), "{ways}, read by {reader}");
        }
    }
}

/// `mksquashfs` deflates in threads of its own, `qemu-img` raw streams with a small window.
#[test]
fn images_of_other_programs_are_read_by_others() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::create_dir(here.join("tree")).unwrap();
    let text: String = (0..200_000_u32)
        .map(|line| format!("{} is line {line}\n", line.wrapping_mul(2_654_435_761)))
        .collect();
    std::fs::write(here.join("tree/raw"), &text).unwrap();
    if have("mksquashfs") && have("unsquashfs") {
        for writer in [false, true] {
            let words = "tree image -comp gzip -noappend -quiet -no-progress -processors 4";
            let words: Vec<&str> = words.split(' ').collect();
            run(writer, here, "mksquashfs", &words);
            for reader in [false, true] {
                let words = ["-q", "-n", "-f", "-d", "out", "image"];
                run(reader, here, "unsquashfs", &words);
                let got = std::fs::read(here.join("out/raw")).unwrap();
                assert!(got == text.as_bytes(), "written {writer}, read {reader}");
            }
        }
    }
    if have("qemu-img") {
        for writer in [false, true] {
            let words = "convert -c -f raw -O qcow2 -o compression_type=zlib tree/raw image.qcow2";
            let words: Vec<&str> = words.split(' ').collect();
            run(writer, here, "qemu-img", &words);
            for reader in [false, true] {
                let words = "compare -f qcow2 -F raw image.qcow2 tree/raw";
                let words: Vec<&str> = words.split(' ').collect();
                run(reader, here, "qemu-img", &words);
            }
        }
    }
}

/// Compiles a C++ program of this folder; `None` where there is no compiler.
fn compiled(folder: &Path) -> Option<PathBuf> {
    if !have("g++") {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/limits.cc");
    let program = folder.join("limits");
    let output = Command::new("g++")
        .args(["-O1", "-std=c++17", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-lz")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Without zlib's header there is nothing to compile against.
    if said.contains("zlib.h: No such file") {
        eprintln!("NOT TESTED: zlib.h is missing (scripts/setup)");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(program)
}

#[test]
fn exceptions_of_an_allocator_reach_the_program_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path()) else {
        return;
    };
    let program = program.to_str().unwrap();
    let output = run(true, folder.path(), program, &["throws"]);
    // Only there are they caught on their way.
    if cfg!(target_arch = "x86_64") {
        assert_eq!(String::from_utf8_lossy(&output.stdout), "caught several\n");
    }
    run(true, folder.path(), program, &["forks"]);
}

#[test]
fn a_stream_that_was_begun_needs_no_system_call() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled(folder.path()) else {
        return;
    };
    for step in ["deflates", "inflates"] {
        let output = run(true, folder.path(), program.to_str().unwrap(), &[step]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "done\n", "{step}");
    }
}
