//! `ppu-embedspu`: an SPU program as an object that the host links, with a handle of a name.
//!
//! Must stay true: the handle has the layout of libspe2's `spe_program_handle_t`: its own size, the
//! image's address, and the address of shared symbols, of which there are none.

use crate::{Error, tool};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Runs with the arguments of `embedspu`: options, symbol, program, object.
pub(crate) fn run(name: &str, arguments: &[OsString]) -> Result<ExitCode, Error> {
    let words = arguments
        .iter()
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>();
    let names = words
        .iter()
        .filter(|word| !word.starts_with('-'))
        .collect::<Vec<_>>();
    let [symbol, program, object] = names.as_slice() else {
        return Err(Error::Usage(format!(
            "{name} [-m32|-m64] SYMBOL SPU-PROGRAM OBJECT"
        )));
    };
    let image = std::fs::read(&***program).map_err(Error::file("read", &***program))?;
    check(program, &image)?;
    let path = std::path::absolute(&***program).map_err(Error::file("find", &***program))?;
    let text = assembly(symbol, &path)?;
    let mut command = Command::new(tool::compiler(false));
    command.args(["-m64", "-x", "assembler", "-c", "-", "-o"]);
    command.arg(&***object).stdin(std::process::Stdio::piped());
    let start = |source| Error::Start {
        tool: tool::compiler(false),
        source,
    };
    let mut child = command.spawn().map_err(start)?;
    if let Some(mut input) = child.stdin.take() {
        use std::io::Write as _;
        input.write_all(text.as_bytes()).map_err(start)?;
    }
    let status = child.wait().map_err(start)?;
    Ok(ExitCode::from(u8::from(!status.success())))
}

/// Refuses an image that no context could load.
fn check(program: &str, image: &[u8]) -> Result<(), Error> {
    let refused = |reason: &str| Error::Refused(format!("{program} {reason}"));
    let refuse = |reason: &str| Err(refused(reason));
    let machine = image.get(18..20);
    match image.get(..6) {
        Some(b"\x7fELF\x01\x01") if machine == Some(&[62, 0]) => match is_whole(image) {
            Some(true) => Ok(()),
            _ => refuse("is cut off; link it again"),
        },
        Some(b"\x7fELF\x01\x02") if machine == Some(&[0, 23]) => {
            let read = sidecore_spu::Executable::parse(image);
            read.map(|_| ())
                .map_err(|error| refused(&error.to_string()))
        }
        Some(start) if start.starts_with(b"\x7fELF") => {
            refuse("is not made by spu-gcc: no 32-bit x86-64 ELF file")
        }
        _ => refuse("is no ELF file"),
    }
}

/// True where the file has all that its program headers name; `None` where these are not there.
fn is_whole(image: &[u8]) -> Option<bool> {
    let number = |at: usize, bytes: usize| {
        let field = image.get(at..at.checked_add(bytes)?)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    };
    let (table, count) = (number(28, 4)?, number(44, 2)?);
    for index in 0..count {
        let header = table.checked_add(32 * index)?;
        let end = number(header + 4, 4)?.checked_add(number(header + 16, 4)?)?;
        if end > image.len() {
            return Some(false);
        }
    }
    Some(true)
}

/// The object's source.
fn assembly(symbol: &str, program: &Path) -> Result<String, Error> {
    let named = !symbol.is_empty()
        && symbol
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !symbol.starts_with(|first: char| first.is_ascii_digit());
    if !named {
        return Err(Error::Refused(format!("{symbol} is no name of C")));
    }
    let path = program
        .to_string_lossy()
        .replace('\\', r"\\")
        .replace('"', "\\\"");
    let mut text = String::new();
    // Strings are easier to read here than in a file of their own, since sizes vary.
    let _ = write!(
        text,
        ".section .rodata.speelf,\"a\",@progbits\n\
         .balign 128\n\
         .Limage:\n\
         .incbin \"{path}\"\n\
         .section .data.spehandle,\"aw\",@progbits\n\
         .balign 8\n\
         .globl {symbol}\n\
         .type {symbol},@object\n\
         .size {symbol},{whole}\n\
         {symbol}:\n\
         .long {whole}\n\
         .balign 8\n\
         .quad .Limage\n\
         .quad 0\n\
         .section .note.GNU-stack,\"\",@progbits\n",
        whole = 3 * 8,
    );
    Ok(text)
}
