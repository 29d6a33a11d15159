//! A step of gcc's: its compilers read source after [`crate::rewrite`] and [`crate::lanes`] have.
//!
//! Why here: `vector` is a keyword before a type and a name elsewhere, and no macro can distinguish
//! the two. So gcc preprocesses in a step of its own, and this program runs before the next one.
//!
//! Must stay true: gcc's steps run unchanged, except a compiler's, and an assembler's where
//! pointers have 4 bytes. The user's files stay as they are, since the source that the compiler
//! reads is a copy.

use crate::lanes::{self, Lanes};
use crate::{Error, Kit, assembly, floats, implicit, narrow, places, print, rewrite, stack, tool};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Settings that a driver gives its steps.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Settings {
    /// The treatment of lane order.
    pub(crate) lanes: Lanes,
    /// True where the host's pointers have 4 bytes.
    pub(crate) narrow: bool,
    /// True for the host's source, whose assembly is the PowerPC's.
    pub(crate) host: bool,
    /// True where floats have the SPU's bits.
    pub(crate) floats: bool,
}

impl Settings {
    /// Arguments of gcc's that lead its steps through ours with these settings.
    pub(crate) fn arguments(self, kit: &Kit) -> [OsString; 3] {
        let mut step = kit.programs().join(crate::names::STEP).into_os_string();
        // gcc divides the wrapper's words at commas.
        step.push(format!(",{LANES}{}", self.lanes.name()));
        if self.narrow {
            step.push(format!(",{NARROW}"));
        }
        if self.host {
            step.push(format!(",{HOST}"));
        }
        if self.floats {
            step.push(format!(",{FLOATS}"));
        }
        // Else gcc's compiler preprocesses by itself and there is no preprocessed file to read.
        ["-no-integrated-cpp".into(), "-wrapper".into(), step]
    }

    /// The settings before a step's program, and the rest of the arguments.
    fn read(arguments: &[OsString]) -> (Self, &[OsString]) {
        let mut settings = Self::default();
        let mut rest = arguments;
        while let [first, behind @ ..] = rest {
            // A path that is no UTF-8 is none of the settings.
            let text = first.to_str().unwrap_or_default();
            if let Some(lanes) = text.strip_prefix(LANES).and_then(Lanes::named) {
                settings.lanes = lanes;
            } else if text == NARROW {
                settings.narrow = true;
            } else if text == HOST {
                settings.host = true;
            } else if text == FLOATS {
                settings.floats = true;
            } else {
                break;
            }
            rest = behind;
        }
        (settings, rest)
    }
}

/// Runs the step that gcc calls: a program and its arguments.
pub(crate) fn run(kit: &Kit, arguments: &[OsString]) -> Result<ExitCode, Error> {
    let (settings, arguments) = Settings::read(arguments);
    let [program, arguments @ ..] = arguments else {
        return Err(Error::Usage(
            "gcc calls this program; it is none to call by hand".into(),
        ));
    };
    let name = Path::new(program).file_name().unwrap_or_default();
    // Linkers, `collect2` and the preprocessing run of the same compiler go on as they are.
    let compiles = name == "cc1" || name == "cc1plus";
    if settings.narrow && name == "as" {
        return narrow::assemble(kit, program, arguments);
    }
    let arguments = if settings.narrow && compiles {
        narrow::compiler_arguments(arguments)
    } else {
        arguments.to_vec()
    };
    let place = arguments
        .iter()
        // Only a compilation of preprocessed source has it; the input stands behind it.
        .position(|argument| argument == "-fpreprocessed");
    let input = place
        .and_then(|place| arguments.get(place + 1))
        .filter(|_| compiles);
    let Some(input) = input else {
        return tool::become_tool(&program.to_string_lossy(), &arguments);
    };
    if settings.floats && name == "cc1plus" {
        // With -frounding-math, g++ writes a double in the place of a float in a list.
        return Err(Error::Refused(
            "error: floats: --floats=exact takes C: of C++ the compiler does not make all \
             constants floats"
                .into(),
        ));
    }
    let source = std::fs::read(input).map_err(Error::file("read", input))?;
    let compilation = Compilation {
        program,
        arguments: &arguments,
        input,
        source: &source,
    };
    let Some(read) = Read::new(kit, &compilation, settings, false)? else {
        if settings.floats {
            let ended = tool::run(Command::new(program).args(&arguments))?;
            return finished(ended, settings, &arguments);
        }
        return tool::become_tool(&program.to_string_lossy(), &arguments);
    };
    // Most casts turn out to be between pointers. The compiler's output tells, so source without a
    // place keeps its plain addresses and is compiled once.
    let ended = compilation.run(&read, &[])?;
    if !read.places || ended != ExitCode::SUCCESS || !names_places(&arguments) {
        return finished(ended, settings, &arguments);
    }
    let ended = match Read::new(kit, &compilation, settings, true)? {
        // The first pass has given all warnings.
        Some(again) => compilation.run(&again, &["-w"])?,
        None => ended,
    };
    finished(ended, settings, &arguments)
}

/// True where the compiler's output has pointers that are made from numbers.
fn names_places(arguments: &[OsString]) -> bool {
    let text = output(arguments).and_then(|file| std::fs::read(file).ok());
    text.is_some_and(|text| find(&text, places::MARK))
}

/// The file that the compiler writes.
fn output(arguments: &[OsString]) -> Option<&OsString> {
    let place = arguments.iter().position(|argument| argument == "-o")?;
    arguments.get(place + 1)
}

/// Makes the floats of a compilation's output exact where the settings ask for it.
fn finished(
    ended: ExitCode,
    settings: Settings,
    arguments: &[OsString],
) -> Result<ExitCode, Error> {
    let written = output(arguments).filter(|file| Path::new(file).is_file());
    let Some(file) = written.filter(|_| settings.floats && ended == ExitCode::SUCCESS) else {
        return Ok(ended);
    };
    let text = std::fs::read(file).map_err(Error::file("read", file))?;
    let exact = floats::exact(&text)?;
    std::fs::write(file, exact).map_err(Error::file("write", file))?;
    Ok(ended)
}

/// A call of a compiler's.
struct Compilation<'a> {
    program: &'a OsString,
    arguments: &'a [OsString],
    input: &'a OsString,
    source: &'a [u8],
}

impl Compilation<'_> {
    /// Compiles the text that was read in the place of the input.
    fn run(&self, read: &Read, more: &[&str]) -> Result<ExitCode, Error> {
        let copy = self.copy(&read.text)?;
        let mut command = self.command(&copy, &read.macros);
        // Debuggers and linkers must name the source, not the copy.
        if let Some(name) = rewrite::first_name(self.source) {
            let mut map = OsString::from("-fdebug-prefix-map=");
            map.push(&copy);
            map.push("=");
            map.push(name);
            command.arg(map);
        }
        command.args(more);
        let ended = tool::run(&mut command);
        // Whatever the compiler's result was.
        std::fs::remove_file(&copy).map_err(Error::file("remove", &copy))?;
        ended
    }

    /// The compiler's lines about a text by the options of a pass that asks it.
    fn check(&self, text: &[u8], macros: &[OsString], options: &[&str]) -> Result<String, Error> {
        let copy = self.copy(text)?;
        // A user that wants no warnings must not hide what a pass asks for.
        let arguments = self.arguments.iter().filter(|word| *word != "-w");
        let asking = Compilation {
            program: self.program,
            arguments: &arguments.cloned().collect::<Vec<_>>(),
            input: self.input,
            source: self.source,
        };
        let mut command = asking.command(&copy, macros);
        // Its lines are read here, not by the user.
        command.args(options).env("LC_ALL", "C");
        let output = command.output().map_err(|source| Error::Start {
            tool: self.program.to_string_lossy().into_owned(),
            source,
        });
        std::fs::remove_file(&copy).map_err(Error::file("remove", &copy))?;
        Ok(String::from_utf8_lossy(&output?.stderr).into_owned())
    }

    /// A file next to the input with another text.
    fn copy(&self, text: &[u8]) -> Result<OsString, Error> {
        let mut copy = self.input.clone();
        // In the input's folder, which is gcc's own choice; `.i` since the compiler goes by the
        // ending.
        copy.push(format!(".{}.i", std::process::id()));
        // New: the input may lie in /tmp, where others can put a link under any name they expect.
        let written = File::create_new(&copy).and_then(|mut file| file.write_all(text));
        written.map_err(Error::file("write", &copy))?;
        Ok(copy)
    }

    /// The compiler with a copy in the place of the input.
    fn command(&self, copy: &OsString, macros: &[OsString]) -> Command {
        let mut command = Command::new(self.program);
        for word in self.arguments {
            if word == self.input {
                command.arg(copy);
            // Without headers of ours the text stays preprocessed, and the compiler need not do it
            // again.
            } else if macros.is_empty() || !is_for_preprocessed(word) {
                command.arg(word);
            }
        }
        command.args(macros);
        command
    }
}

/// Source as the compiler gets it.
struct Read {
    text: Vec<u8>,
    /// Arguments for the compiler's own preprocessing; none where it does without.
    macros: Vec<OsString>,
    /// True where it has casts that may make pointers from numbers.
    places: bool,
}

impl Read {
    /// The source in today's words; nothing where it is in them already. With `again` its casts of
    /// pointers to numbers give places in the store, and nothing is said.
    ///
    /// # Errors
    /// A conversion of vectors that cannot be made exact, with its line.
    fn new(
        kit: &Kit,
        compilation: &Compilation<'_>,
        settings: Settings,
        again: bool,
    ) -> Result<Option<Self>, Error> {
        let source = compilation.source;
        let say = |lines: &[String]| {
            // Where compilers warn: users' tools read that.
            for line in lines.iter().filter(|_| !again) {
                eprintln!("{line}");
            }
        };
        let mut passed = Passed::new(source);
        let mut assembly = false;
        if settings.host {
            passed.pass(|text| {
                let found = assembly::translate(text)?;
                say(&found.warnings);
                assembly = found.changed;
                assembly.then_some(found.source)
            });
        } else {
            if let Some(line) = stack::renames(source) {
                return Err(Error::Refused(line));
            }
            passed.pass(rewrite::sections);
            passed.pass(rewrite::ends);
        }
        passed.pass(rewrite::arrays);
        // Before the passes below, which know vectors by today's names alone.
        passed.pass(rewrite::vectors);
        if find(source, SPU_HEADER) {
            passed.pass(stack::registers);
            if find(source, b"__sidecore_spu_macros") {
                passed.pass(print::arguments);
            }
        }
        let mut headers = MACROS
            .iter()
            .filter(|(name, _)| find(source, name.as_bytes()))
            .map(|(_, header)| *header)
            .collect::<Vec<_>>();
        let mut macros = Vec::new();
        if settings.floats && !headers.is_empty() {
            macros.push(floats::DEFINE.into());
        }
        if assembly {
            headers.push(POWERPC);
            // The header is in the source already, and its declarations must come once.
            if find(source, RESERVE.as_bytes()) {
                macros.push("-DSIDECORE_RESERVE_H".into());
            }
        }
        let check = |text: &[u8], options: &[&str]| {
            let headers = headers
                .iter()
                .flat_map(|header| ["-include".into(), kit.path(header).into_os_string()]);
            let all = macros.iter().cloned().chain(headers).collect::<Vec<_>>();
            compilation.check(text, &all, options)
        };
        if settings.floats {
            // Before the macros of other passes stand around the constants.
            let said = |text: &[u8]| check(text, floats::CONVERSIONS);
            say(&passed.cut_constants(said)?);
        }
        let converts = settings.lanes != Lanes::Off
            && passed.cast_conversions(|text| check(text, implicit::STRICT))?;
        let mut inexact = Vec::new();
        passed.pass(|text| {
            // Behind the translation of assembly, whose results are vectors as well.
            let found = lanes::rewrite(text, settings.lanes, converts)?;
            inexact = found.inexact;
            if found.exact {
                headers.insert(0, LANE_MACROS);
                macros.push("-D__SIDECORE_LANES=1".into());
            }
            Some(found.source)
        });
        if settings.lanes == Lanes::Warn {
            say(&inexact);
        } else if !inexact.is_empty() {
            inexact.truncate(INEXACT_MAX);
            return Err(Error::Refused(inexact.join("\n")));
        }
        let mut has_places = false;
        if !settings.host && find(source, SPU_HEADER) {
            passed.pass(|text| {
                let found = places::rewrite(text, again)?;
                has_places = true;
                headers.insert(0, PLACES);
                Some(found)
            });
        }
        for header in headers {
            macros.push("-include".into());
            macros.push(kit.path(header).into_os_string());
        }
        // Last, since each pass may have made intrinsics' arguments of literals.
        if !macros.is_empty() {
            passed.pass(|text| Some(rewrite::guard_literals(text)));
        }
        Ok(passed.changed.map(|text| Self {
            text,
            macros,
            places: has_places,
        }))
    }
}

/// Source, and the results of the passes over it.
struct Passed<'a> {
    source: &'a [u8],
    /// Nothing while no pass changed anything.
    changed: Option<Vec<u8>>,
}

impl<'a> Passed<'a> {
    fn new(source: &'a [u8]) -> Self {
        Self {
            source,
            changed: None,
        }
    }

    /// Puts the text through a pass, which gives nothing where it changes nothing.
    fn pass(&mut self, pass: impl FnOnce(&[u8]) -> Option<Vec<u8>>) {
        if let Some(text) = pass(self.changed.as_deref().unwrap_or(self.source)) {
            self.changed = Some(text);
        }
    }

    /// Cuts constants of single precision; lines that name those that stay rounded.
    fn cut_constants(
        &mut self,
        check: impl FnOnce(&[u8]) -> Result<String, Error>,
    ) -> Result<Vec<String>, Error> {
        let text = self.changed.as_deref().unwrap_or(self.source);
        // As below.
        let found = floats::constants(&rewrite::guard_literals(text), check)?;
        self.changed = found.source.or_else(|| self.changed.take());
        Ok(found.warnings)
    }

    /// Casts the conversions that `check` finds; true where there were any.
    fn cast_conversions(
        &mut self,
        check: impl FnMut(&[u8]) -> Result<String, Error>,
    ) -> Result<bool, Error> {
        let text = self.changed.as_deref().unwrap_or(self.source);
        // As the compiler gets it at the end: literals' commas must not divide arguments.
        let found = implicit::casts(&rewrite::guard_literals(text), check)?;
        let any = found.is_some();
        self.changed = found.or_else(|| self.changed.take());
        Ok(any)
    }
}

/// True for arguments that do not go with preprocessing a second time: line markers, which are no
/// language's, are there already.
fn is_for_preprocessed(word: &OsString) -> bool {
    [
        "-fpreprocessed",
        "-pedantic",
        "-pedantic-errors",
        "-Wpedantic",
    ]
    .iter()
    .any(|known| word == known)
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
/// Text of a header that every source of an SPU begins with.
const SPU_HEADER: &[u8] = b"__sidecore_iret";
const PLACES: &str = "include/spu/sidecore_places.h";
const LANE_MACROS: &str = "include/common/sidecore_lane_macros.h";
const POWERPC: &str = "include/ppu/sidecore_powerpc.h";
/// A name that only the includes of `sidecore_powerpc.h` declare.
const RESERVE: &str = "__sidecore_lines";
/// Lines at most that name what is refused.
const INEXACT_MAX: usize = 20;
const LANES: &str = "--lanes=";
const NARROW: &str = "--narrow";
const HOST: &str = "--host";
const FLOATS: &str = "--floats=exact";
