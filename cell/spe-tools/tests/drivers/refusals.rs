//! Refusals, errors and the cache.

use crate::common::*;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn refusals_say_why() {
    let Some(folder) = folder() else { return };
    let refused = |name: &str, arguments: &str, reason: &str| {
        let output = driver(folder.path(), name, arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{name} {arguments}: {errors}"
        );
        assert!(errors.contains(reason), "{name} {arguments}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    };
    refused("spu-as", "-o a.o a.s", "SPU assembly cannot be assembled");
    refused(
        "spu-gcc",
        "-c start.S",
        "start.S: SPU assembly cannot be assembled",
    );
    refused(
        "spu-gcc",
        "--lanes=most -c empty.c",
        "--lanes=auto|exact|off",
    );
    refused("ppu-gcc", "--pointers=2 -c empty.c", "--pointers=4|8");
    refused("ppu-embedspu", "-m32 one", "usage: ppu-embedspu");
    refused(
        "ppu-embedspu",
        "one empty.c two.o",
        "empty.c is no ELF file",
    );
    let mut image = b"\x7fELF\x01\x02\x01".to_vec();
    image.resize(52, 0);
    image[18..20].copy_from_slice(&[0, 23]);
    std::fs::write(folder.path().join("real"), image).expect("files are written");
    driven(folder.path(), "spu-gcc", "-o whole library.c -lm");
    let whole = std::fs::read(folder.path().join("whole")).expect("is read");
    for bytes in [20, 51, 60, 200, whole.len() / 2] {
        std::fs::write(folder.path().join("cut"), &whole[..bytes]).expect("is written");
        refused("embedspu", "one cut two.o", "cut is cut off; link it again");
    }
    refused(
        "embedspu",
        "one real two.o",
        "compile its source with spu-gcc",
    );
}

#[test]
fn an_error_of_the_compiler_is_the_drivers() {
    let Some(folder) = folder() else { return };
    std::fs::write(folder.path().join("wrong.c"), "\nvector float x = y;\n").expect("is written");
    let output = driver(folder.path(), "spu-gcc", "-c wrong.c");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("wrong.c:2:"), "{errors}");
}

/// Leftovers of a killed process in the cache go at the next one's work.
#[test]
fn folders_of_killed_processes_are_removed() {
    let Some(folder) = folder() else { return };
    let cache = folder.path().join("cache");
    let run = |name: &Path, arguments: &[&str]| {
        let mut command = Command::new(name);
        command.args(arguments).current_dir(folder.path());
        command
            .env("SIDECORE_SPE_CACHE", &cache)
            .output()
            .expect("starts")
    };
    // No process has this number; one has this test's.
    let (dead, live) = (4_190_000_000_u32, std::process::id());
    let make = |path: PathBuf| {
        std::fs::create_dir_all(path.join("include")).expect("folders are made");
        path
    };
    let left = [dead, live].map(|number| make(cache.join(format!("unpacking-{number}"))));
    let output = run(&program(), &[]);
    assert!(output.status.success() && !left[0].exists() && left[1].exists());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let kit = text
        .split('\'')
        .nth(1)
        .map(PathBuf::from)
        .expect("the path");
    let left = make(kit.with_file_name(format!("work-{dead}")));
    std::fs::write(folder.path().join("main.c"), "int main() { return 0; }\n").expect("written");
    let output = run(&kit.join("spu-gcc"), &["-o", "image", "main.c"]);
    assert!(output.status.success() && !left.exists(), "{output:?}");
}

#[test]
fn a_cache_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder for the test");
    let run = || {
        let mut command = Command::new(program());
        command
            .env("SIDECORE_SPE_CACHE", folder.path())
            .output()
            .expect("the example runs")
    };
    assert!(run().status.success());
    let kit = std::fs::read_dir(folder.path())
        .expect("the kit is there")
        .flatten()
        .next();
    let kit = kit.expect("one kit is there").path();
    std::fs::set_permissions(&kit, std::fs::Permissions::from_mode(0o777)).expect("is changed");
    let output = run();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("mode 777"), "{errors}");
}
