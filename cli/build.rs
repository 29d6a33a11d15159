//! The version that `sidecore --version` prints: the package's, and the commit that it was built
//! from.
//!
//! The commit comes from `SIDECORE_COMMIT`, else from the record that `cargo package` leaves in a
//! published crate, else from git. A source archive has none of them: the version stands alone.
//! Must stay true: the same source and environment give the same text; no clock is read.

use std::path::Path;
use std::process::Command;

/// Digits of a commit that are shown.
const COMMIT_DIGITS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SIDECORE_COMMIT");
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let commit = match std::env::var("SIDECORE_COMMIT") {
        // Set but empty: the builder wants no commit.
        Ok(commit) => Some(commit),
        Err(_) => of_package(own).or_else(|| of_repository(own)),
    };
    let version = env!("CARGO_PKG_VERSION");
    let text = match commit.as_deref().and_then(digits) {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=SIDECORE_VERSION={text}");
}

/// The beginning of a commit's name; `None` if the text is none.
fn digits(text: &str) -> Option<&str> {
    let is_name = text.len() >= COMMIT_DIGITS && text.bytes().all(|it| it.is_ascii_hexdigit());
    is_name.then(|| &text[..COMMIT_DIGITS])
}

/// The commit in `.cargo_vcs_info.json`.
fn of_package(own: &Path) -> Option<String> {
    let text = std::fs::read_to_string(own.join(".cargo_vcs_info.json")).ok()?;
    let (_, rest) = text.split_once("\"sha1\"")?;
    rest.split('"').nth(1).map(str::to_owned)
}

/// The commit that is checked out, if this folder lies in a work tree of this workspace. An archive
/// that is unpacked inside another repository has no commit.
fn of_repository(own: &Path) -> Option<String> {
    let root = own.parent()?.canonicalize().ok()?;
    let top = git(&root, &["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).canonicalize().ok()? != root {
        return None;
    }
    // A commit moves the branch, not HEAD, and is entered in HEAD's log.
    for name in ["HEAD", "logs/HEAD"] {
        let path = git(&root, &["rev-parse", "--git-path", name])?;
        let path = root.join(path);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&root, &["rev-parse", "HEAD"])
}

/// The first line that git prints.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .current_dir(folder)
        .args(arguments)
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().next().map(str::to_owned)
}
