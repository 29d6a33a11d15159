//! Running the tools of the user's own machine.

use crate::Error;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Becomes `tool`; returns only where that fails.
pub(crate) fn become_tool(tool: &str, arguments: &[OsString]) -> Result<ExitCode, Error> {
    // Not a child: signals, the terminal and the exit status are the tool's own.
    let source = Command::new(tool).args(arguments).exec();
    Err(Error::Start {
        tool: tool.into(),
        source,
    })
}

/// Runs a command and returns its exit status, 2 where a signal ended it.
pub(crate) fn run(command: &mut Command) -> Result<ExitCode, Error> {
    let status = command.status().map_err(|source| Error::Start {
        tool: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    // Tools' statuses fit; a signal's number is no status of its own.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(2)))
}

/// The user's compiler: SIDECORE_SPE_CC (SIDECORE_SPE_CXX) where it is set, else gcc (g++).
pub(crate) fn compiler(plus: bool) -> String {
    let (variable, usual) = if plus {
        ("SIDECORE_SPE_CXX", "g++")
    } else {
        ("SIDECORE_SPE_CC", "gcc")
    };
    std::env::var(variable)
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| beside_ours(usual).unwrap_or_else(|| usual.into()))
}

/// The first tool of the name on the path that is not a link to this program: drivers may be called
/// by the tool's own name.
fn beside_ours(name: &str) -> Option<String> {
    let own = std::env::current_exe().ok()?.canonicalize().ok()?;
    let paths = std::env::var_os("PATH")?;
    let mut tools = std::env::split_paths(&paths).map(|folder| folder.join(name));
    let found = tools.find(|tool| tool.canonicalize().is_ok_and(|real| real != own))?;
    found.into_os_string().into_string().ok()
}
