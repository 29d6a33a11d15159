//! Running the tools of the user's own machine, the libraries that they find, and options that
//! every compilation for a store has, the user's and that of the kit's own library.
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

/// The ABI of the store's images, and the assumptions of SPU source about its compiler.
pub(crate) const COMPILE: &[&str] = &[
    "-mx32",
    "-fPIE",
    "-mssse3",
    "-msse4.2",
    "-mpopcnt",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
    "-funsigned-char",
    "-fcommon",
    "-fno-strict-aliasing",
    "-flax-vector-conversions",
    "-fno-math-errno",
    "-Wno-psabi",
    "-Wno-main",
    "-U_FORTIFY_SOURCE",
    "-D__SPU__=1",
    "-D__VECTOR_KEYWORD_SUPPORTED__=1",
    "-D__EA32__=1",
    "-D__NO_CTYPE=1",
    // The C library's types of threads, which <stdlib.h> declares; include/spu/pthread.h has them.
    "-D_BITS_PTHREADTYPES_COMMON_H=1",
    "-D_BITS_SIGTHREAD_H=1",
    // The kernel's headers where Debian keeps them: only gcc-multilib has a link to them that x32
    // finds, and that package drives out the compilers for other processors.
    "-idirafter",
    "/usr/include/x86_64-linux-gnu",
];

/// Warnings that compilers of the time had not, or gave for less: no errors under `-Werror`.
pub(crate) const NO_ERRORS: &[&str] = &[
    "-Wno-error=address",
    "-Wno-error=address-of-packed-member",
    "-Wno-error=aggressive-loop-optimizations",
    "-Wno-error=array-bounds",
    "-Wno-error=attribute-warning",
    "-Wno-error=bool-compare",
    "-Wno-error=bool-operation",
    "-Wno-error=builtin-declaration-mismatch",
    "-Wno-error=cast-function-type",
    "-Wno-error=class-memaccess",
    "-Wno-error=clobbered",
    "-Wno-error=deprecated-copy",
    "-Wno-error=deprecated-declarations",
    "-Wno-error=duplicate-decl-specifier",
    "-Wno-error=expansion-to-defined",
    "-Wno-error=format",
    "-Wno-error=format-overflow",
    "-Wno-error=format-truncation",
    "-Wno-error=frame-address",
    "-Wno-error=ignored-attributes",
    "-Wno-error=ignored-qualifiers",
    "-Wno-error=implicit-fallthrough",
    "-Wno-error=int-in-bool-context",
    "-Wno-error=int-to-pointer-cast",
    "-Wno-error=logical-not-parentheses",
    "-Wno-error=maybe-uninitialized",
    "-Wno-error=memset-elt-size",
    "-Wno-error=memset-transposed-args",
    "-Wno-error=misleading-indentation",
    "-Wno-error=missing-attributes",
    "-Wno-error=missing-field-initializers",
    "-Wno-error=multistatement-macros",
    "-Wno-error=narrowing",
    "-Wno-error=nonnull",
    "-Wno-error=nonnull-compare",
    "-Wno-error=packed-not-aligned",
    "-Wno-error=pessimizing-move",
    "-Wno-error=pointer-sign",
    "-Wno-error=pointer-to-int-cast",
    "-Wno-error=redundant-move",
    "-Wno-error=restrict",
    "-Wno-error=return-type",
    "-Wno-error=sequence-point",
    "-Wno-error=shift-count-overflow",
    "-Wno-error=shift-negative-value",
    "-Wno-error=sizeof-array-argument",
    "-Wno-error=sizeof-pointer-div",
    "-Wno-error=sizeof-pointer-memaccess",
    "-Wno-error=stringop-overflow",
    "-Wno-error=stringop-truncation",
    "-Wno-error=subobject-linkage",
    "-Wno-error=switch-unreachable",
    "-Wno-error=tautological-compare",
    "-Wno-error=type-limits",
    "-Wno-error=uninitialized",
    "-Wno-error=unused-but-set-parameter",
    "-Wno-error=unused-but-set-variable",
    "-Wno-error=unused-const-variable",
    "-Wno-error=unused-local-typedefs",
    "-Wno-error=unused-result",
    "-Wno-error=write-strings",
];

/// Kinds of the compiler's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Error,
    Warning,
    /// More about the line before it.
    Note,
}

/// One of the compiler's lines.
pub(crate) struct Diagnostic<'a> {
    /// Line and column in the source; nothing for places in headers.
    pub(crate) place: Option<(usize, usize)>,
    pub(crate) kind: Kind,
    pub(crate) message: &'a str,
}

impl<'a> Diagnostic<'a> {
    /// A line by its marks; nothing for lines that have none.
    pub(crate) fn read(line: &'a str) -> Option<Self> {
        let marks = [
            (": error: ", Kind::Error),
            (": warning: ", Kind::Warning),
            (": note: ", Kind::Note),
        ];
        let found = marks.iter().find_map(|(mark, kind)| {
            let (place, message) = line.split_once(mark)?;
            Some((place, *kind, message))
        });
        let (place, kind, message) = found?;
        let mut parts = place.rsplitn(3, ':');
        let column = parts.next()?.parse().ok()?;
        let line = parts.next()?.parse().ok()?;
        // Headers of macros have names of their own; all else is one file.
        let source = parts.next()?.ends_with(".i");
        Some(Self {
            place: source.then_some((line, column)),
            kind,
            message,
        })
    }
}
