//! Running the tools of the user's own machine, and the libraries that they find.
//!
//! Must stay true: an SDK's folder may have libraries of the Cell's processors by the names of the
//! SDK's; those are not linked.

use crate::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
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

/// The options `-l…` among the arguments for which a folder of `-L` has this machine's code.
pub(crate) fn own_libraries(arguments: &[OsString]) -> Vec<String> {
    let words = || arguments.iter().filter_map(|argument| argument.to_str());
    let mut folders = Vec::new();
    let mut all = words();
    while let Some(word) = all.next() {
        let folder = match word.strip_prefix("-L") {
            Some("") => all.next(),
            other => other,
        };
        folders.extend(folder.map(PathBuf::from));
    }
    let named = words().filter(|word| {
        let name = word.strip_prefix("-l");
        name.is_some_and(|name| folders.iter().any(|folder| has(folder, name)))
    });
    named.map(ToOwned::to_owned).collect()
}

/// True where the folder has the library, as an archive or shared.
fn has(folder: &Path, name: &str) -> bool {
    ["a", "so"]
        .iter()
        .any(|ending| is_ours(&folder.join(format!("lib{name}.{ending}"))))
}

/// True for a file whose first object has this machine's code.
fn is_ours(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = File::open(path).and_then(|file| file.take(START_MAX).read_to_end(&mut start));
    let Some(object) = read
        .ok()
        .and_then(|_| start.windows(20).find(|part| part.starts_with(ELF)))
    else {
        return false;
    };
    object[18..] == MACHINE
}

const ELF: &[u8] = b"\x7fELF";
/// `e_machine` of x86-64, whose bytes other processors have the other way round.
const MACHINE: [u8; 2] = [62, 0];
/// Bytes in which an archive's first object begins, behind the table of its symbols.
const START_MAX: u64 = 1 << 20;
