//! A step of gcc's: its compilers read source after [`crate::rewrite`] has.
//!
//! Why here: `vector` is a keyword before a type and a name elsewhere, which no macro can say; so
//! gcc preprocesses in a step of its own, and this program stands before the next one.
//!
//! Must stay true: steps other than a compiler's run as gcc calls them; the user's files stay as
//! they are, since the source that the compiler reads is a copy.

use crate::{Error, Kit, rewrite, tool};
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Runs the step that gcc calls: a program and its arguments.
pub(crate) fn run(kit: &Kit, arguments: &[OsString]) -> Result<ExitCode, Error> {
    let [program, arguments @ ..] = arguments else {
        return Err(Error::Usage(
            "gcc calls this program; it is none to call by hand".into(),
        ));
    };
    let compiles = Path::new(program)
        .file_name()
        .is_some_and(|name| name == "cc1" || name == "cc1plus")
        && arguments
            .iter()
            .any(|argument| argument == "-fpreprocessed");
    let place = arguments
        .iter()
        .position(|argument| argument == "-fpreprocessed");
    let input = place
        .and_then(|place| arguments.get(place + 1))
        .filter(|_| compiles);
    let Some(input) = input else {
        return tool::become_tool(&program.to_string_lossy(), arguments);
    };
    let source = std::fs::read(input).map_err(Error::file("read", input))?;
    let macros = MACROS
        .iter()
        .find(|(name, _)| find(&source, name.as_bytes()));
    let text = match (rewrite::vectors(&source), macros) {
        (None, None) => return tool::become_tool(&program.to_string_lossy(), arguments),
        (None, Some(_)) => rewrite::guard_literals(&source),
        (Some(text), None) => text,
        (Some(text), Some(_)) => rewrite::guard_literals(&text),
    };
    let mut copy = input.clone();
    copy.push(format!(".{}.i", std::process::id()));
    std::fs::write(&copy, text).map_err(Error::file("write", &copy))?;
    let mut command = Command::new(program);
    for word in arguments {
        if word == input {
            command.arg(&copy);
        } else if word != "-fpreprocessed" || macros.is_none() {
            command.arg(word);
        }
    }
    // The copy's name is nobody's: debuggers and linkers name the source.
    if let Some(name) = rewrite::first_name(&source) {
        let mut map = OsString::from("-fdebug-prefix-map=");
        map.push(&copy);
        map.push("=");
        map.push(name);
        command.arg(map);
    }
    if let Some((_, header)) = macros {
        command.arg("-include").arg(kit.path(header));
    }
    let ended = tool::run(&mut command);
    std::fs::remove_file(&copy).map_err(Error::file("remove", &copy))?;
    ended
}

/// True where the text has the name.
fn find(text: &[u8], name: &[u8]) -> bool {
    text.windows(name.len()).any(|part| part == name)
}

/// Names that headers with intrinsics declare, and the macros that these are.
const MACROS: &[(&str, &str)] = &[
    ("__sidecore_spu_macros", "include/spu/spu_macros.h"),
    ("__sidecore_altivec_macros", "include/ppu/altivec_macros.h"),
];
