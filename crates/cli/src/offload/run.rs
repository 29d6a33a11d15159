//! `sidecore offload run`: a program with zlib's functions off-loaded.
//!
//! Why here: the library is preloaded by the dynamic linker, which a person should not have to
//! spell out. Must stay true: this process becomes the program, so that its exit status, signals,
//! terminal and children are its own; nothing is printed unless it cannot start.

use crate::Outcome;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of `offload run`.
#[derive(clap::Args)]
#[command(after_help = "\
Runs the program with libsidecore_z.so preloaded: large buffers are deflated on a daemon's engines \
where one serves, else by the program itself; the output is the same. Programs that are linked \
statically, or run as another user than who starts them, are not reached.

SIDECORE_ZLIB=local in the environment looks for no daemon, SIDECORE_ZLIB=off leaves all to the \
library beneath, SIDECORE_ZLIB_LIBRARY=FILE names the library.

Exit status: the program's; 2 if it could not be started.")]
pub(crate) struct Args {
    /// The daemon's socket [default: the own user's, else /run/sidecore/daemon.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Args {
    /// Runs the command; returns only where the program could not be started.
    pub(crate) fn run(self) -> Result<Outcome> {
        let library = library()?;
        let [program, arguments @ ..] = self.command.as_slice() else {
            bail!("no program is named; write it behind `--`");
        };
        let mut preload = library.into_os_string();
        if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        let mut command = Command::new(program);
        command.args(arguments).env(PRELOAD, preload);
        if let Some(socket) = self.socket {
            // The program may change its directory before it first needs a daemon.
            let socket = std::path::absolute(&socket).unwrap_or(socket);
            command.env("SIDECORE_ZLIB_SOCKET", socket);
        }
        let error = command.exec();
        Err(error).with_context(|| format!("cannot run {}", Path::new(program).display()))
    }
}

/// The library: where the environment says, or beside this program, or where it is installed.
fn library() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(LIBRARY).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("{LIBRARY} names {}, which is no file", path.display());
        }
        return std::path::absolute(&path).context("cannot find the working directory");
    }
    let program = std::env::current_exe().context("cannot find this program")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [".", "../lib/sidecore", "../lib"].map(|place| folder.join(place).join(NAME));
    // The dynamic linker splits its list at colons and blanks.
    let found = places.iter().find(|place| place.is_file());
    let Some(found) = found.and_then(|place| place.canonicalize().ok()) else {
        bail!(
            "{NAME} is neither beside {} nor in ../lib; build it (cargo build -p sidecore-zlib) \
             or name it in {LIBRARY}",
            program.display()
        );
    };
    if found
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| b": ".contains(byte))
    {
        bail!(
            "{} cannot be preloaded: its path has a colon or a blank; name another place in \
             {LIBRARY}",
            found.display()
        );
    }
    Ok(found)
}

const NAME: &str = "libsidecore_z.so";
const LIBRARY: &str = "SIDECORE_ZLIB_LIBRARY";
const PRELOAD: &str = "LD_PRELOAD";
