//! Hosts whose pointers have 4 bytes, as programs of 32 bits had: the compiler's x32 code in an
//! ordinary 64-bit program.
//!
//! Why so: structures with pointers and words that travel by DMA agree with the SPU's, whose code
//! is x32 code as well; libspe2 and the C library stay the system's. The compiler makes x32 code,
//! the assembler 64-bit objects of it; all memory of the program lies below 4 GiB. Some calls have
//! arguments or results with another layout in the C library. These go through the functions of
//! `narrow` of the kit, by other names.
//!
//! Must stay true: an object says that its pointers have 4 bytes by the symbol [`MARK`], which
//! links those functions.

use crate::{Error, Kit, tool};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, ExitCode};

/// The symbol that all objects of such hosts need.
const MARK: &str = "__sidecore_pointers_of_4_bytes";

/// A compiler's arguments for x32 code.
pub(crate) fn compiler_arguments(arguments: &[OsString]) -> Vec<OsString> {
    let word = |argument: &OsString| {
        if argument == "-m64" {
            "-mx32".into()
        } else {
            argument.clone()
        }
    };
    arguments.iter().map(word).collect()
}

/// Assembles x32 code into a 64-bit object, and names the calls that go through our functions.
pub(crate) fn assemble(
    kit: &Kit,
    assembler: &OsString,
    arguments: &[OsString],
) -> Result<ExitCode, Error> {
    let output = arguments
        .iter()
        .position(|argument| argument == "-o")
        .and_then(|place| arguments.get(place + 1));
    let input = arguments.last();
    if let Some(input) = input.filter(|input| Path::new(input).is_file()) {
        let text = std::fs::read(input).map_err(Error::file("read", input))?;
        // Compilers begin their assembly so; people do not.
        // gcc's own temporary file, unless the user's is assembled.
        if text.starts_with(b"\t.file") {
            let added = additions(&text);
            let mut file = std::fs::OpenOptions::new()
                .append(true)
                .open(input)
                .map_err(Error::file("write", input))?;
            std::io::Write::write_all(&mut file, added.as_bytes())
                .map_err(Error::file("write", input))?;
        }
    }
    let ended = tool::run(Command::new(assembler).args(arguments))?;
    let Some(output) = output.filter(|_| ended == ExitCode::SUCCESS) else {
        return Ok(ended);
    };
    let mut names = OsString::from("--redefine-syms=");
    names.push(kit.path("narrow/names"));
    tool::run(Command::new("objcopy").arg(names).arg(output))
}

/// Lines behind an assembly: the mark, and a reference from read-only memory to each symbol whose
/// address is in data. A linker gives an address below 4 GiB only to functions that such memory
/// refers to.
fn additions(text: &[u8]) -> String {
    let mut defined = BTreeSet::new();
    let mut used = BTreeSet::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else {
            continue;
        };
        if let Some(label) = line.strip_suffix(':') {
            defined.insert(label);
        } else if let Some(value) = line.strip_prefix("\t.long\t") {
            let name = value.split(['+', '-']).next().unwrap_or_default();
            // Numbers are data as well.
            let symbol =
                name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
            // A sum with an offset points into data, not to a function.
            if symbol && name.len() == value.len() {
                used.insert(name);
            }
        }
    }
    let mut lines = format!("\t.section .rodata.sidecore,\"a\",@progbits\n\t.long {MARK}\n");
    for name in used.difference(&defined) {
        lines.push_str(&format!("\t.long {name}\n"));
    }
    lines
}

/// Objects that a link has, by the size of their pointers.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// True where one has pointers of 4 bytes.
    pub(crate) narrow: bool,
    /// Objects with code whose pointers have 8 bytes.
    pub(crate) wide: Vec<String>,
}

impl Objects {
    /// Looks into the objects and archives among a link's arguments.
    pub(crate) fn read(arguments: &[OsString]) -> Self {
        let mut objects = Self::default();
        for argument in arguments {
            let path = Path::new(argument);
            let ending = path.extension().and_then(OsStr::to_str);
            if !matches!(ending, Some("o" | "a" | "obj")) {
                continue;
            }
            let Ok(bytes) = std::fs::read(path) else {
                continue;
            };
            let has = |text: &str| {
                let text = text.as_bytes();
                bytes.windows(text.len()).any(|part| part == text)
            };
            if has(MARK) {
                objects.narrow = true;
            // Objects without compiled code, such as embedded images, go with either.
            } else if has("GCC: (") && !has(".rodata.speelf") {
                objects.wide.push(path.display().to_string());
            }
        }
        objects
    }
}
