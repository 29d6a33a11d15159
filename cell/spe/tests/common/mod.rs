//! Builds the tests' programs: SPU sources with `gcc -mx32`, host programs against libspe2.

mod gcc;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder with built programs.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    /// `None`, said in one line, where this machine's compiler has no x32.
    pub(crate) fn new() -> Option<Bench> {
        let folder = tempfile::tempdir().expect("a folder");
        let probe = folder.path().join("probe.c");
        std::fs::write(&probe, "int main(void) { return 0; }\n").expect("written");
        let built = Command::new("gcc")
            .args(["-mx32", "-c", "-o", "/dev/null"])
            .arg(&probe)
            .output();
        if !built.is_ok_and(|built| built.status.success()) {
            eprintln!("no gcc with -mx32 (packages gcc-multilib, libc6-dev-x32): nothing tested");
            return None;
        }
        gcc::unpack(folder.path());
        Some(Bench { folder })
    }

    /// Adds a file that programs include.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).expect("written");
    }

    /// Builds `NAME.c` of `tests/programs.txtar` for the store.
    pub(crate) fn spu(&self, name: &str) -> PathBuf {
        self.spu_with(name, &[])
    }

    /// The same with options.
    pub(crate) fn spu_with(&self, name: &str, options: &[&str]) -> PathBuf {
        let to = self.folder.path().join(name);
        let mut gcc = Command::new("gcc");
        gcc.args(gcc::OPTIONS)
            .arg("-o")
            .arg(&to)
            .arg(self.folder.path().join(format!("{name}.c")))
            .args(options);
        succeeded(&gcc.output().expect("gcc"));
        to
    }

    /// Builds `NAME.c` of `tests/programs.txtar` for the host.
    pub(crate) fn host(&self, name: &str) -> PathBuf {
        let to = self.folder.path().join(name);
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-g", "-Wall", "-pthread", "-o"])
            .arg(&to)
            .arg(self.folder.path().join(format!("{name}.c")))
            .arg("-I")
            .arg(root().join("include"))
            .arg(library())
            .arg(format!("-Wl,-rpath,{}", self.folder.path().display()));
        succeeded(&gcc.output().expect("gcc"));
        let link = self.folder.path().join("libspe2.so.2");
        std::os::unix::fs::symlink(library(), link).ok();
        to
    }

    /// A host program with the SPU program that belongs to it, started with its path.
    pub(crate) fn pair(&self, name: &str) -> Command {
        let spu = self.spu(&format!("{name}_spu"));
        let mut host = Command::new(self.host(&format!("{name}_host")));
        host.arg(spu);
        host
    }
}

/// Runs a command that must succeed.
pub(crate) fn passes(command: &mut Command) -> String {
    let output = command.output().expect("started");
    succeeded(&output);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The library, which cargo builds before its tests.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    let folder = own.parent().expect("a folder");
    [folder, folder.parent().expect("a folder")]
        .iter()
        .map(|folder| folder.join("libspe2.so"))
        .find(|path| path.exists())
        .expect("libspe2.so beside the test")
}
