//! Source as it was written for the compilers of the time: a host's assembly becomes C that does
//! the same; C++ of SPU programs finds its library's templates.
//!
//! Without an x32 ABI of the compiler's, tests that need one report that and pass.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The drivers' folder, of a kit in the build's own temporary folder.
fn drivers() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(Path::parent);
    let program = folder
        .expect("tests lie in deps")
        .join("examples/spe-driver");
    let output = cache(&mut Command::new(program)).output();
    let text = String::from_utf8(output.expect("the example runs").stdout);
    let text = text.expect("shell lines are text");
    PathBuf::from(text.split('\'').nth(1).expect("the folder is quoted"))
}

/// A program of the archive, which has each under a line `-- NAME --`.
fn program(name: &str) -> &'static str {
    let programs = include_str!("programs.txtar");
    let (_, text) = programs
        .split_once(&format!("-- {name} --\n"))
        .expect("the program is there");
    let end = text.find("\n-- ").map_or(text.len(), |end| end + 1);
    &text[..end]
}

fn cache(command: &mut Command) -> &mut Command {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    command.env("SIDECORE_SPE_CACHE", folder.join("assembly-cache"))
}

/// Compiles a source of the folder's by a driver, with options between blanks.
fn compiled(folder: &Path, driver: &str, options: &str) -> Output {
    let mut command = Command::new(drivers().join(driver));
    command.args(options.split_whitespace()).current_dir(folder);
    cache(&mut command).output().expect("a driver starts")
}

/// True where gcc has the ABI of a store; a line where it has not.
fn has_x32(folder: &Path) -> bool {
    std::fs::write(folder.join("empty.c"), "#include <stdio.h>\n").expect("written");
    let mut probe = Command::new("gcc");
    probe.args(["-mx32", "-c", "empty.c"]).current_dir(folder);
    let has = probe.output().is_ok_and(|output| output.status.success());
    if !has {
        eprintln!("skipped: gcc -mx32 needs gcc-multilib and libc6-dev-x32 (scripts/setup)");
    }
    has
}

#[test]
fn templates_of_the_library_run_on_an_spu() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let folder = folder.path();
    if !has_x32(folder) {
        return;
    }
    let source = program("templates.cc");
    std::fs::write(folder.join("templates.cc"), source).expect("written");
    for options in ["-O0", "-O2 -ansi"] {
        let options = format!("{options} -Wall -o image templates.cc");
        let output = compiled(folder, "spu-g++", &options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{options}: {said}");
        let wanted = ("19 5 18 7 1 2.5\n".to_owned(), Some(0));
        assert_eq!(ran(folder, "image", &[]), wanted, "{options}");
    }
    let image = std::fs::read(folder.join("image")).expect("it was linked");
    let name = b".table.of.host\0";
    assert!(image.windows(name.len()).any(|part| part == name));
}

/// Compiles the test's host and runs an image in it, with words of its mailbox; returns its output
/// and its status.
fn ran(folder: &Path, image: &str, mailbox: &[&str]) -> (String, Option<i32>) {
    let source = program("host.c");
    std::fs::write(folder.join("host.c"), source).expect("written");
    // Addresses that a word has room for.
    let host = Command::new("gcc")
        .args(["-O1", "-no-pie", "-o", "host", "host.c"])
        .current_dir(folder)
        .status();
    assert!(host.expect("gcc starts").success());
    let output = Command::new(folder.join("host"))
        .arg(image)
        .args(mailbox)
        .current_dir(folder)
        .output();
    let output = output.expect("the host runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    (printed, output.status.code())
}

#[test]
fn numbers_that_are_cast_to_pointers_are_places_of_the_store() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let folder = folder.path();
    if !has_x32(folder) {
        return;
    }
    for (name, source) in [
        ("places.c", program("places.c")),
        ("places.cc", program("places.cc")),
    ] {
        std::fs::write(folder.join(name), source).expect("written");
    }
    for (driver, options) in [
        ("spu-gcc", "-O0 places.c"),
        ("spu-gcc", "-O2 -Wall -Werror places.c"),
        ("spu-gcc", "-O3 --lanes=exact places.c"),
        ("spu-g++", "-O0 -Wall -Werror places.cc"),
        ("spu-g++", "-O2 -std=c++11 places.cc"),
    ] {
        let output = compiled(folder, driver, &format!("{options} -o image"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{options}: {said}");
        let ended = ran(folder, "image", &["0x38000"]);
        assert_eq!(ended, (String::new(), Some(0)), "{driver} {options}");
    }
}

/// Casts between pointers, which the same source without them shows.
#[test]
fn code_without_such_casts_is_the_same() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let folder = folder.path();
    if !has_x32(folder) {
        return;
    }
    let source = |cast: &str, number: &str| {
        format!(
            "#include <spu_mfcio.h>\nextern void *f(char *);\nunsigned g(char *p, int **q) {{\n\
             void *a = {cast}p; char *b = {cast}f({cast}q); *q = {cast}(b + 4);\n\
             return a == b ? {number}p & 15 : {number}p; }}\n"
        )
    };
    for options in ["-O0", "-O2", "-O2 -flto"] {
        let mut objects = Vec::new();
        // An extension is no cast to the pass, and nothing to the compiler.
        for cast in ["(void *)", "(__typeof__(a))"] {
            let text = source(cast, "(unsigned)");
            std::fs::write(folder.join("same.c"), text).expect("written");
            let output = compiled(folder, "spu-gcc", &format!("{options} -c same.c"));
            assert!(output.status.success(), "{output:?}");
            objects.push(std::fs::read(folder.join("same.o")).expect("it was written"));
        }
        assert!(
            options.ends_with("lto") || objects[0] == objects[1],
            "{options}"
        );
        let mark = b"__sidecore_place";
        let marked = objects[0].windows(mark.len()).any(|part| part == mark);
        assert!(!marked, "{options}");
    }
}

#[test]
fn assembly_of_the_powerpc_runs_here() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let source = program("assembly.c");
    std::fs::write(folder.path().join("assembly.c"), source).expect("written");
    for (driver, options) in [
        ("ppu-gcc", "-O0"),
        ("ppu-gcc", "-O2 -std=gnu89"),
        ("ppu-g++", "-O2 -x c++"),
        ("ppu32-gcc", "-O2"),
    ] {
        if driver == "ppu32-gcc" && !has_x32(folder.path()) {
            continue;
        }
        let options = format!("{options} -Wall -Werror -o own assembly.c");
        let output = compiled(folder.path(), driver, &options);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{driver} {options}: {said}");
        let own = Command::new(folder.path().join("own")).output();
        let own = own.expect("the program starts");
        let printed = String::from_utf8_lossy(&own.stdout);
        assert_eq!(own.status.code(), Some(0), "{driver} {options}: {printed}");
    }
}

/// One line names the instruction; the assembler's own error follows it.
#[test]
fn an_instruction_that_is_not_known_is_named() {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let source = "int f(int x) {\n\tint y;\n\tasm(\"mr %0,%1\\n lswi %0,%1,4\" : \"=r\"(y)\n\
                  : \"r\"(x));\n\treturn y;\n}\n";
    std::fs::write(folder.path().join("other.c"), source).expect("written");
    let output = compiled(folder.path(), "ppu-gcc", "-c other.c");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{said}");
    let wanted = "other.c:3: warning: assembly: `lswi` is not known here";
    assert!(said.lines().any(|line| line == wanted), "{said}");
}
