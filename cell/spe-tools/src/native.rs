//! Programs of SPU assembly: `spu-as`, and what `spu-gcc` and `spu-ld` do with `.s`, `.S` and the
//! SPU's own objects.
//!
//! Must stay true: a program is of one kind, code of this machine or of the SPU itself. They differ
//! in the order of a word's bytes, so that neither could read the other's data.

use crate::{Error, options, tool};
use sidecore_spu::{Executable, Linking, Object, Part, archive_members, assemble, link};
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The arguments of a compiler's or a linker's call.
#[derive(Debug, Default)]
struct Call {
    /// Files, and libraries as `-lNAME`, in their order.
    inputs: Vec<Input>,
    output: Option<PathBuf>,
    product: Product,
    folders: Vec<PathBuf>,
    /// Arguments of the preprocessor.
    preprocessor: Vec<OsString>,
    /// Folders of `.include`.
    includes: Vec<PathBuf>,
    /// Symbols of the assembler, as statements.
    symbols: String,
    linking: Linking,
    /// An option that is not known here and would change the program.
    refused: Option<String>,
}

#[derive(Debug)]
struct Input {
    name: OsString,
    language: Language,
}

/// The language of an input, by `-x` or its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Assembly,
    /// Assembly that the preprocessor reads first.
    Preprocessed,
    /// A library that folders are searched for.
    Library,
    Other,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Product {
    #[default]
    Program,
    Objects,
    Joined,
    /// Text, which the compiler's own driver makes.
    Text,
}

/// Reasons to stop.
enum Stop {
    /// The tool has said why.
    Said,
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The exit of a tool.
fn ended(result: Result<(), Stop>) -> Result<ExitCode, Error> {
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Stop::Said) => Ok(ExitCode::FAILURE),
        Err(Stop::Error(error)) => Err(error),
    }
}

fn say(message: impl std::fmt::Display) -> Stop {
    eprintln!("{message}");
    Stop::Said
}

/// Does the part of a compiler's call that is SPU assembly. Nothing where there is none, or where
/// other sources are left in the arguments.
pub(crate) fn compile(arguments: &mut Vec<OsString>) -> Result<Option<ExitCode>, Error> {
    let call = Call::of_compiler(arguments);
    if call.product == Product::Text || !call.inputs.iter().any(is_native) {
        return Ok(None);
    }
    if call.product != Product::Objects {
        return ended(call.link()).map(Some);
    }
    let done = ended(call.make_objects())?;
    let others = call.inputs.iter().any(|input| {
        let ending = Path::new(&input.name).extension().and_then(OsStr::to_str);
        input.language == Language::Other && !matches!(ending, Some("o" | "a"))
    });
    if done == ExitCode::SUCCESS && others {
        arguments.retain(|word| {
            let mut inputs = call.inputs.iter().filter(|input| is_assembly(input));
            !inputs.any(|input| input.name == *word)
        });
        return Ok(None);
    }
    Ok(Some(done))
}

/// Links the SPU's own objects by a linker's arguments; nothing where there are none.
pub(crate) fn link_objects(arguments: &[OsString]) -> Result<Option<ExitCode>, Error> {
    let mut call = Call::default();
    call.read_linker(&mut arguments.iter().cloned());
    if !call.inputs.iter().any(is_native) {
        return Ok(None);
    }
    ended(call.link()).map(Some)
}

/// `spu-as`: one source, or the standard input.
pub(crate) fn assemble_source(name: &str, arguments: &[OsString]) -> Result<ExitCode, Error> {
    let asks = |word: &OsString| ["--version", "--help"].iter().any(|known| word == known);
    if arguments.iter().any(asks) {
        return tool::become_tool("as", arguments);
    }
    let mut call = Call::default();
    let words = arguments.iter().map(|word| word.to_string_lossy());
    call.read_assembler(words.map(Into::into));
    let usage = || {
        Error::Usage(format!(
            "{name} [-I FOLDER] [--defsym NAME=NUMBER] -o OBJECT FILE"
        ))
    };
    let input = match &call.inputs[..] {
        [] if arguments.is_empty() => return Err(usage()),
        [] => "-".into(),
        [input] => input.name.clone(),
        _ => return Err(usage()),
    };
    if is_ours(&input.to_string_lossy()) {
        let mut all: Vec<OsString> = vec!["--x32".into()];
        all.extend(arguments.iter().cloned());
        return tool::become_tool("as", &all);
    }
    let output = call.output.clone().unwrap_or_else(|| "a.out".into());
    let input = Input {
        name: input,
        language: Language::Assembly,
    };
    ended(call.object(&input).and_then(|object| {
        std::fs::write(&output, object.write()).map_err(Error::file("write", &output))?;
        Ok(())
    }))
}

/// `spu-objdump`: lines of assembly for the SPU's own files, else the tool of binutils.
pub(crate) fn disassemble(arguments: &[OsString]) -> Result<ExitCode, Error> {
    let disassembles = |word: &OsString| {
        let text = word.to_str().unwrap_or_default();
        let short = text.starts_with('-') && !text.starts_with("--");
        text.starts_with("--disassemble") || (short && text.contains(['d', 'D']))
    };
    let files = arguments
        .iter()
        .filter(|word| !word.to_string_lossy().starts_with('-'));
    let mut files = files.peekable();
    let own = |file: &&OsString| std::fs::read(file).is_ok_and(|all| Executable::is_spus(&all));
    if !arguments.iter().any(disassembles) || !files.peek().is_some_and(own) {
        return tool::become_tool("objdump", arguments);
    }
    for file in files {
        let bytes = std::fs::read(file).map_err(Error::file("read", file))?;
        let name = file.to_string_lossy();
        let text = match sidecore_spu::listing(&bytes) {
            Ok(text) => format!("\n{name}:     file format elf32-spu\n{text}"),
            Err(error) => return Err(Error::Refused(format!("{name}: {error}"))),
        };
        // A reader that has closed its end wants no more.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    Ok(ExitCode::SUCCESS)
}

fn is_assembly(input: &Input) -> bool {
    matches!(input.language, Language::Assembly | Language::Preprocessed)
        && !is_ours(&input.name.to_string_lossy())
}

/// True for assembly of the SPU, its objects, and archives of them.
fn is_native(input: &Input) -> bool {
    if input.language == Language::Other {
        return std::fs::read(&input.name).is_ok_and(|file| is_spus(&file));
    }
    is_assembly(input)
}

fn is_spus(file: &[u8]) -> bool {
    Executable::is_spus(file) || archive_members(file).is_some_and(|all| !all.is_empty())
}

impl Call {
    fn of_compiler(arguments: &[OsString]) -> Self {
        let mut call = Self::default();
        let mut language = None;
        let mut linker = Vec::new();
        let mut rest = arguments.iter().cloned();
        while let Some(argument) = rest.next() {
            let text = argument.to_string_lossy().into_owned();
            match text.as_str() {
                "-c" if call.product != Product::Text => call.product = Product::Objects,
                "-S" | "-E" | "-M" | "-MM" | "-fsyntax-only" => call.product = Product::Text,
                "-x" => language = rest.next().and_then(|name| Language::named(&name)),
                "-I" | "-D" | "-U" | "-include" | "-isystem" | "-iquote" | "-imacros"
                | "-idirafter" | "-MF" | "-MT" | "-MQ" | "-Xpreprocessor" => {
                    call.preprocessor.push(argument);
                    let value = rest.next();
                    if text == "-I" {
                        call.includes.extend(value.clone().map(PathBuf::from));
                    }
                    call.preprocessor.extend(value);
                }
                "-MD" | "-MMD" | "-MP" | "-MG" => call.preprocessor.push(argument),
                "-Xlinker" => linker.extend(rest.next()),
                "-Xassembler" => {
                    let value = rest.next().map(|word| word.to_string_lossy().into_owned());
                    call.read_assembler(value.into_iter());
                }
                "--param" => drop(rest.next()),
                "-nostartfiles" | "-nostdlib" => call.linking.is_bare = true,
                _ if text.starts_with("-Wl,") => {
                    linker.extend(text.split(',').skip(1).map(OsString::from));
                }
                _ if text.starts_with("-Wa,") => {
                    call.read_assembler(text.split(',').skip(1).map(Into::into));
                }
                _ if ["-I", "-D", "-U"]
                    .iter()
                    .any(|begin| text.starts_with(begin)) =>
                {
                    call.includes
                        .extend(text.strip_prefix("-I").map(PathBuf::from));
                    call.preprocessor.push(argument);
                }
                _ if text.starts_with('-') && text != "-" => {
                    call.read_linker_option(&text, &mut rest);
                }
                _ => call.inputs.push(Input {
                    language: language.unwrap_or_else(|| Language::of_file(&argument)),
                    name: argument,
                }),
            }
        }
        call.read_linker(&mut linker.into_iter());
        call
    }

    /// Reads a linker's arguments.
    fn read_linker(&mut self, rest: &mut dyn Iterator<Item = OsString>) {
        while let Some(argument) = rest.next() {
            let text = argument.to_string_lossy().into_owned();
            if text.starts_with('-') {
                self.read_linker_option(&text, rest);
            } else {
                self.inputs.push(Input {
                    language: Language::of_file(&argument),
                    name: argument,
                });
            }
        }
    }

    /// Reads an option of the linker's. Those that are not known print, optimise or check.
    fn read_linker_option(&mut self, text: &str, rest: &mut dyn Iterator<Item = OsString>) {
        let mut library = |name: OsString| {
            self.inputs.push(Input {
                name,
                language: Language::Library,
            });
        };
        match text {
            "-o" => self.output = rest.next().map(PathBuf::from),
            "-L" => self.folders.extend(rest.next().map(PathBuf::from)),
            "-l" => {
                if let Some(name) = rest.next() {
                    library(name);
                }
            }
            "-e" | "--entry" => {
                let name = rest.next();
                self.linking.entry = name.map(|name| name.to_string_lossy().into_owned());
            }
            // An option that stops before the link counts more.
            "-r" | "-i" | "--relocatable" if self.product == Product::Program => {
                self.product = Product::Joined;
            }
            "-s" | "--strip-all" => self.linking.strips = true,
            "--defsym" => {
                let value = rest.next().unwrap_or_default();
                self.define(&value.to_string_lossy());
            }
            "-T" | "-m" | "-Map" | "-z" | "-u" | "-y" | "-G" | "-b" | "-A" => drop(rest.next()),
            _ => {
                if let Some(name) = text.strip_prefix("-l") {
                    library(name.into());
                } else if let Some(folder) = text.strip_prefix("-L") {
                    self.folders.push(folder.into());
                } else if let Some(value) = text.strip_prefix("--defsym=") {
                    self.define(value);
                } else if let Some(name) = text.strip_prefix("--entry=") {
                    self.linking.entry = Some(name.into());
                }
            }
        }
    }

    fn define(&mut self, text: &str) {
        let pair = text.split_once('=');
        let number = pair.and_then(|(_, value)| match value.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => value.parse().ok(),
        });
        match (pair, number) {
            (Some((name, _)), Some(number)) => self.linking.symbols.push((name.into(), number)),
            _ => self.refused = Some(format!("--defsym={text} needs a number")),
        }
    }

    /// Reads an assembler's arguments.
    fn read_assembler(&mut self, mut rest: impl Iterator<Item = String>) {
        while let Some(text) = rest.next() {
            match text.as_str() {
                "-o" => self.output = rest.next().map(PathBuf::from),
                "-I" => self.includes.extend(rest.next().map(PathBuf::from)),
                "--defsym" => {
                    let value = rest.next().unwrap_or_default();
                    self.symbols += &format!("{value};");
                }
                _ if text.starts_with("-I") => self.includes.push(PathBuf::from(&text[2..])),
                _ if text.starts_with("--defsym=") => {
                    self.symbols += &format!("{};", &text["--defsym=".len()..]);
                }
                _ if text.starts_with('-') && text != "-" => {}
                _ => self.inputs.push(Input {
                    name: text.into(),
                    language: Language::Assembly,
                }),
            }
        }
    }

    /// An object for each source of assembly (`-c`).
    fn make_objects(&self) -> Result<(), Stop> {
        for input in self.inputs.iter().filter(|input| is_assembly(input)) {
            let object = self.object(input)?;
            let mut usual = Path::new(&input.name)
                .file_stem()
                .unwrap_or_default()
                .to_owned();
            usual.push(".o");
            let output = self.output.clone().unwrap_or_else(|| usual.into());
            std::fs::write(&output, object.write()).map_err(Error::file("write", &output))?;
        }
        Ok(())
    }

    /// Assembles a source.
    fn object(&self, input: &Input) -> Result<Object, Stop> {
        let path = Path::new(&input.name);
        let mut text = self.symbols.clone().into_bytes();
        if input.language == Language::Preprocessed {
            text.extend(self.preprocessed(path)?);
        } else if input.name == "-" {
            let read = std::io::stdin().read_to_end(&mut text);
            read.map_err(Error::file("read", path))?;
        } else {
            text.extend(std::fs::read(path).map_err(Error::file("read", path))?);
        }
        let own = path.parent().map(Path::to_path_buf);
        let folders = own.into_iter().chain(self.includes.iter().cloned());
        let folders = folders.collect::<Vec<_>>();
        let mut files = |name: &str| {
            let here = std::iter::once(PathBuf::from(name));
            let mut all = here.chain(folders.iter().map(|folder| folder.join(name)));
            // A device may have no end.
            let found = all.find(|file| file.is_file());
            found.and_then(|file| std::fs::read(file).ok())
        };
        assemble(&text, &path.to_string_lossy(), &mut files).map_err(say)
    }

    /// A source as the preprocessor gives it.
    fn preprocessed(&self, path: &Path) -> Result<Vec<u8>, Stop> {
        let mut command = Command::new(tool::compiler(false));
        command.args(["-E", "-x", "assembler-with-cpp", "-undef", "-D__SPU__=1"]);
        command.args(&self.preprocessor);
        let has = |names: &[&str]| {
            self.preprocessor
                .iter()
                .any(|word| names.iter().any(|name| word == name))
        };
        if let Some(output) = &self.output
            && has(&["-MD", "-MMD"])
        {
            if !has(&["-MT", "-MQ"]) {
                command.arg("-MT").arg(output);
            }
            if !has(&["-MF"]) {
                command.arg("-MF").arg(output.with_extension("d"));
            }
        }
        let output = command
            .arg(path)
            .stdin(Stdio::inherit())
            .stderr(Stdio::inherit())
            .output();
        let output = output.map_err(|source| Error::Start {
            tool: tool::compiler(false),
            source,
        })?;
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(Stop::Said)
        }
    }

    /// Links a program.
    fn link(&self) -> Result<(), Stop> {
        let refuse = |reason: &str| Stop::Error(Error::Refused(reason.into()));
        if self.product == Product::Joined {
            return Err(refuse(NOT_JOINED));
        }
        if let Some(reason) = &self.refused {
            return Err(refuse(reason));
        }
        let mut parts = Vec::new();
        for input in &self.inputs {
            let name = input.name.to_string_lossy().into_owned();
            if is_assembly(input) {
                parts.push(Part {
                    object: self.object(input)?,
                    name,
                    is_optional: false,
                });
                continue;
            }
            let bytes = if input.language == Language::Library {
                match self.library(&name)? {
                    Some(bytes) => bytes,
                    None => continue,
                }
            } else {
                std::fs::read(&input.name).map_err(Error::file("read", &input.name))?
            };
            if !is_spus(&bytes) {
                return Err(refuse(&self.mixed(&name)));
            }
            let read = |name: &str, bytes: &[u8], is_optional: bool| match Object::read(bytes) {
                Ok(object) => Ok(Part {
                    name: name.into(),
                    object,
                    is_optional,
                }),
                Err(error) => Err(say(format!("{name}: {error}"))),
            };
            match archive_members(&bytes) {
                Some(members) => {
                    for (member, bytes) in members {
                        parts.push(read(&format!("{name}({member})"), bytes, true)?);
                    }
                }
                None => parts.push(read(&name, &bytes, false)?),
            }
        }
        let image = link(parts, &self.linking).map_err(say)?;
        let output = self.output.clone().unwrap_or_else(|| "a.out".into());
        write_program(&output, &image).map_err(Error::file("write", &output))?;
        Ok(())
    }

    /// One line: a part of this machine's code, one of the SPU's own, and the ways to a program.
    fn mixed(&self, other: &str) -> String {
        let own = self.inputs.iter().find(|input| is_native(input));
        let own = own.map_or_else(String::new, |input| {
            input.name.to_string_lossy().into_owned()
        });
        format!(
            "{other} and {own}: C and SPU assembly do not go into one program: compiled code is \
             this machine's and keeps the low byte of a word first, assembly keeps the SPU's \
             order. Either compile the C of {other} by a compiler for the SPU itself (GCC's up to \
             version 9) and name its object here, or write {own} in C with spu_intrinsics.h, or \
             make two programs: one host runs both kinds"
        )
    }

    /// The contents of a library; nothing for one of the SDK's, which is not the program's own.
    fn library(&self, name: &str) -> Result<Option<Vec<u8>>, Stop> {
        let mut files = self
            .folders
            .iter()
            .map(|folder| folder.join(format!("lib{name}.a")));
        if let Some(bytes) = files.find_map(|file| std::fs::read(file).ok()) {
            return Ok(Some(bytes));
        }
        if options::is_of_sdk(&format!("-l{name}")) {
            return Ok(None);
        }
        Err(say(format!("cannot find -l{name}")))
    }
}

impl Language {
    /// The language of a name of `-x`; nothing where the file's name says it.
    fn named(name: &OsStr) -> Option<Self> {
        match name.to_str() {
            Some("assembler") => Some(Self::Assembly),
            Some("assembler-with-cpp") => Some(Self::Preprocessed),
            Some("none") => None,
            _ => Some(Self::Other),
        }
    }

    fn of_file(name: &OsStr) -> Self {
        match Path::new(name).extension().and_then(OsStr::to_str) {
            Some("s") => Self::Assembly,
            Some("S" | "sx") => Self::Preprocessed,
            _ => Self::Other,
        }
    }
}

/// Writes an executable file, a new one where there was a file: a running one keeps its own.
fn write_program(path: &Path, image: &[u8]) -> std::io::Result<()> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.is_file()) {
        std::fs::remove_file(path)?;
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o777);
    options.open(path)?.write_all(image)
}

const NOT_JOINED: &str = "objects of SPU assembly are linked to programs, not to one object (-r); \
    make an archive of them with spu-ar";

/// True for assembly that this driver made: Makefiles assemble in a step of its own, to look at the
/// instructions' timing. Registers of this machine have names that an SPU's have not.
fn is_ours(source: &str) -> bool {
    let text = std::fs::read(source).unwrap_or_default();
    text.windows(4)
        .any(|word| word == b"%rsp" || word == b"%esp")
}
