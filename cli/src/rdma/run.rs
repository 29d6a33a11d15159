//! `sidecore rdma run`: a program on libibverbs and librdmacm without a kernel module.
//!
//! Must stay true: this process becomes the program, as with `offload run`; a program that the
//! library cannot reach is not started, and one line says why.

use crate::Outcome;
use anyhow::{Context, Result, bail};
use sidecore_sys::preload::{Library, Reach, reach, under_names};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
#[command(after_help = "\
Runs the program with Sidecore's libibverbs.so.1 and librdmacm.so.1 in place of the system's: it \
sees the device sidecore0, and its connections are iWARP over the kernel's TCP. No module, device \
or privilege is needed.

SIDECORE_VERBS_LIBRARY=FILE in the environment names the library, SIDECORE_VERBS_CRC=1 asks for \
CRCs.

Exit status: the program's; 2 if it could not be started.")]
pub(crate) struct Args {
    /// Use the running stack with this socket instead of the kernel's sockets
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl Args {
    /// Runs the command; returns only where the program could not be started.
    pub(crate) fn run(self) -> Result<Outcome> {
        let [program, arguments @ ..] = &self.command[..] else {
            bail!("no program is named; write it behind `--`");
        };
        let library = LIBRARY.locate()?;
        let folder = under_names(&library, &NAMES)
            .with_context(|| format!("cannot make links to {}", library.display()))?;
        let shown = Path::new(program).display();
        match reach(Path::new(program)) {
            Reach::Static => bail!("{shown} is linked statically: it loads no libraries"),
            Reach::Privileged => bail!(
                "{shown} runs as another user (set-user-ID or set-group-ID): the system does not \
                 let its libraries be replaced"
            ),
            _ => {}
        }
        let mut folders = folder.into_os_string();
        if let Some(others) = std::env::var_os(FOLDERS).filter(|others| !others.is_empty()) {
            folders.push(":");
            folders.push(others);
        }
        let mut command = Command::new(program);
        command.args(arguments).env(FOLDERS, folders);
        if let Some(socket) = self.socket {
            // The program may change its directory before it opens the device.
            let socket = std::path::absolute(&socket).unwrap_or(socket);
            command.env("SIDECORE_RDMA_SOCKET", socket);
        }
        let error = command.exec();
        Err(error).with_context(|| format!("cannot run {shown}"))
    }
}

/// The dynamic linker's variable: folders that it looks in first.
const FOLDERS: &str = "LD_LIBRARY_PATH";
/// Names that programs load the library by.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];
const LIBRARY: Library = Library {
    name: "libsidecore_verbs.so",
    installed_name: Some("libsidecore-verbs.so"),
    variable: "SIDECORE_VERBS_LIBRARY",
};
