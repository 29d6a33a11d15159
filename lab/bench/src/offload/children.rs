//! This program once more, as `offload peer ROLE`: the processes of the bench.
//!
//! Why here: processes that spin, block, keep a core busy or use the daemon must be processes, and
//! nothing needs to be installed for them.
//! Must stay true: as `crate::measure::child` says. Source: own.

use super::BenchError;
use super::roles::Role;
use crate::measure::child::Speaker;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

/// Starts a role, and waits until it is ready.
pub(crate) fn start(
    program: &Path,
    role: &Role,
    cancel: &AtomicBool,
) -> Result<Speaker, BenchError> {
    let mut child = begin(program, role)?;
    child.expect_ready(cancel)?;
    Ok(child)
}

/// Starts several, which get ready side by side.
pub(crate) fn start_all<'r>(
    program: &Path,
    roles: impl Iterator<Item = &'r Role>,
    cancel: &AtomicBool,
) -> Result<Vec<Speaker>, BenchError> {
    let begun: Result<Vec<Speaker>, BenchError> = roles.map(|role| begin(program, role)).collect();
    let mut children = begun?;
    for child in &mut children {
        child.expect_ready(cancel)?;
    }
    Ok(children)
}

/// Starts a role as user `uid`, and waits until it is ready. Needs root.
pub(crate) fn start_as(
    uid: u32,
    program: &Path,
    role: &Role,
    cancel: &AtomicBool,
) -> Result<Speaker, BenchError> {
    let mut command = command(program, role)?;
    command.uid(uid).gid(uid).env_remove("XDG_RUNTIME_DIR");
    let mut child = Speaker::spawn(command.current_dir("/"))?;
    child.expect_ready(cancel)?;
    Ok(child)
}

fn begin(program: &Path, role: &Role) -> Result<Speaker, BenchError> {
    Ok(Speaker::spawn(&mut command(program, role)?)?)
}

fn command(program: &Path, role: &Role) -> Result<Command, BenchError> {
    let words = serde_json::to_string(role).map_err(|error| BenchError::Io {
        what: "write a role".into(),
        source: error.into(),
    })?;
    let mut command = Command::new(program);
    command.args(["offload", "peer", &words]);
    Ok(command)
}
