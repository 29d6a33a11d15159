//! Loaded kernels from the outside: `daemon --kernels`, `offload kernels`, `offload call --hash`.
//!
//! Must stay true: every daemon that a test starts ends with the test, also when it fails.
//!
//! The page for authors of kernels, from an empty directory: its manifests, each with one crate to
//! depend on, and the programs after each build and run.

// A test's helpers may fail it too.
#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

fn sidecore(arguments: &[&str]) -> Output {
    // A hang fails the test instead of stopping it.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "300", env!("CARGO_BIN_EXE_sidecore")]);
    command.args(arguments).output().unwrap()
}

/// A daemon that has said `ready`; ended on drop.
struct Serving(Child);

impl Serving {
    fn start(socket: &Path, kernels: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sidecore"))
            .args(["daemon", "--engines", "1", "--socket"])
            .arg(socket)
            .arg("--kernels")
            .arg(kernels)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let mut serving = Self(child);
        if !line.starts_with("ready ") {
            panic!("the daemon said {}", serving.said());
        }
        serving
    }

    /// Ends it; its standard error.
    fn said(&mut self) -> String {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let read = |mut pipe: ChildStderr| {
            let mut said = String::new();
            pipe.read_to_string(&mut said).map(|_| said)
        };
        self.0
            .stderr
            .take()
            .map_or(String::new(), |pipe| read(pipe).unwrap())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn close(file: &Path) {
    fs::set_permissions(file, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_daemon_loads_a_folder_lists_it_and_names_what_it_refuses() {
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("NOT tested: there is no C compiler `cc`");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kernels");
    fs::create_dir(&kernels).unwrap();
    close(&kernels);
    close(folder.path());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let object = kernels.join("word_sum.so");
    let compiled = Command::new("cc")
        .args(["-O2", "-fPIC", "-shared", "-I"])
        .arg(root.join("../daemon/kernel-abi/include"))
        .arg(root.join("../daemon/loader/examples/c/word_sum.c"))
        .arg("-o")
        .arg(&object)
        .status()
        .unwrap();
    assert!(compiled.success());
    close(&object);
    let broken = kernels.join("broken.so");
    fs::write(&broken, "no object").unwrap();
    close(&broken);
    let socket = folder.path().join("daemon.sock");
    let mut daemon = Serving::start(&socket, &kernels);
    let socket = socket.to_str().unwrap();

    let listed = sidecore(&["offload", "kernels", "--socket", socket, "--json"]);
    assert!(listed.status.success());
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let of = |name: &str| {
        let kernels = listed["kernels"].as_array().unwrap();
        let found = kernels.iter().find(|kernel| kernel["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not in {listed}"))
    };
    let hash = Command::new("sha256sum").arg(&object).output().unwrap();
    let hash = String::from_utf8(hash.stdout).unwrap();
    let hash = hash.split(' ').next().unwrap();
    assert_eq!(of("word_sum")["hash"], hash);
    assert_eq!(of("word_sum")["version"], 1);
    for built_in in [
        "echo",
        "inflate",
        "sha256",
        "aes256gcm_open",
        "zstd_compress",
    ] {
        assert_eq!(of(built_in)["hash"].as_str().unwrap().len(), 64);
    }
    let text = sidecore(&["offload", "kernels", "--socket", socket]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.lines()
            .any(|line| line.starts_with("word_sum ") && line.ends_with(hash))
    );

    let input = folder.path().join("input");
    fs::write(&input, [1; 4096]).unwrap();
    let input = input.to_str().unwrap();
    let call = |more: &[&str]| {
        let fixed = [
            "offload", "call", "word_sum", "--socket", socket, "--input", input,
        ];
        sidecore(&[&fixed[..], more].concat())
    };
    let sum = u64::from_le_bytes([1; 8]).wrapping_mul(512);
    for more in [&[][..], &["--hash", hash]] {
        let output = call(more);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(said.starts_with(&format!("word_sum: {sum} ")), "{said}");
        assert!(said.contains("1 calls on the daemon's engines"), "{said}");
    }
    let other = call(&["--hash", &"0".repeat(64)]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("no daemon serves `word_sum`"));

    let said = daemon.said();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("broken.so is not loaded: "), "{said}");
}

#[test]
fn a_folder_that_others_can_write_keeps_the_daemon_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kernels");
    fs::create_dir(&kernels).unwrap();
    fs::set_permissions(&kernels, Permissions::from_mode(0o777)).unwrap();
    let socket = folder.path().join("daemon.sock");
    let missing = folder.path().join("missing");
    for (kernels, words) in [
        (&kernels, "chmod go-w"),
        (&missing, "cannot read the kernels in"),
    ] {
        let output = sidecore(&[
            "daemon",
            "--socket",
            socket.to_str().unwrap(),
            "--kernels",
            kernels.to_str().unwrap(),
        ]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(
            errors.contains(words) && errors.trim_end().lines().count() == 1,
            "{errors}"
        );
        assert!(!socket.exists());
    }
}

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
