//! `spu-gcc`, `spu-g++` and `spu-ld`: SPU source into x32 code for a local store.
//!
//! Must stay true: an image is position-independent and has relative relocations alone, no
//! interpreter, and our note. Code, data and stack share the 256 KiB, so nothing that the program
//! does not use is linked.

use crate::options::{self, Product, Side};
use crate::step::Settings;
use crate::tool::{COMPILE, NO_ERRORS};
use crate::{Error, Kit, floats, kit, native, tool};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Compiles and links with the arguments of `spu-gcc`, or `spu-g++` where `plus`.
pub(crate) fn compile(
    kit: &Kit,
    plus: bool,
    mut arguments: Vec<OsString>,
) -> Result<ExitCode, Error> {
    if let Some(ended) = native::compile(&mut arguments)? {
        return Ok(ended);
    }
    let mut options = options::translate(Side::Spu, arguments)?;
    let plus = plus || options.plus;
    if plus && options.exact_floats {
        // With -frounding-math, g++ writes a double in the place of a float in a list.
        return Err(Error::Usage(
            "--floats=exact takes C: of C++ the compiler does not make all constants floats".into(),
        ));
    }
    if plus {
        options.drop_old_plus();
    }
    let mut all = defaults(kit, plus)
        .into_iter()
        .map(OsString::from)
        .collect::<Vec<_>>();
    let settings = Settings {
        lanes: options.lanes,
        narrow: false,
        host: false,
        floats: options.exact_floats,
    };
    all.extend(settings.arguments(kit));
    // Behind the user's own, some of which would change floats.
    let floats = floats::COMPILE
        .iter()
        .filter(|_| settings.floats)
        .map(OsString::from);
    let joins = options.product == Product::Joined;
    if options.links() {
        let library = kit.spu_library()?;
        all.extend(LINK.iter().map(OsString::from));
        if joins {
            all.retain(|argument| argument != "-static-pie");
        } else {
            let mut script = OsString::from("-Wl,-T,");
            script.push(kit.path(INTERRUPT_SCRIPT));
            all.push(script);
        }
        all.extend(options.arguments);
        all.extend(floats);
        if !joins {
            all.extend(["-x".into(), "none".into(), library.into_os_string()]);
            all.push("-lgcc".into());
        }
    } else {
        all.extend(options.arguments);
        all.extend(floats);
    }
    tool::become_tool(&tool::compiler(plus), &all)
}

/// `spu-ld`: partial links as they are; whole ones as the compiler's driver links.
pub(crate) fn link(kit: &Kit, arguments: &[OsString]) -> Result<ExitCode, Error> {
    if let Some(ended) = native::link_objects(arguments)? {
        return Ok(ended);
    }
    let partial = arguments
        .iter()
        .any(|argument| argument == "-r" || argument == "-i");
    let mut command = Command::new("ld");
    command.args(["-m", "elf32_x86_64"]);
    if !partial {
        command.args(["-pie", "--no-dynamic-linker", "-z", "text"]);
        command.args([
            "-z",
            "max-page-size=4096",
            "-z",
            "noseparate-code",
            "-u",
            "_start",
        ]);
        command.arg("-T").arg(kit.path(INTERRUPT_SCRIPT));
    }
    let kept = options::translate(Side::Spu, arguments.to_vec())?.arguments;
    command.args(kept);
    if !partial {
        command.arg(kit.spu_library()?);
    }
    tool::run(&mut command)
}

impl Kit {
    /// The SPU's library, compiled where it is not there yet.
    pub(crate) fn spu_library(&self) -> Result<PathBuf, Error> {
        let library = self.path("lib/libsidecore_spu.a");
        if !library.exists() {
            let flags = defaults(self, false);
            self.compile("-mx32", &flags, kit::SPU, &library)?;
        }
        Ok(library)
    }
}

/// Arguments before the user's own, so that theirs win.
pub(crate) fn defaults(kit: &Kit, plus: bool) -> Vec<String> {
    let mut all = COMPILE.iter().map(ToString::to_string).collect::<Vec<_>>();
    all.extend(NO_ERRORS.iter().map(ToString::to_string));
    all.extend(if plus { PLUS } else { C }.iter().map(ToString::to_string));
    let own = if plus { plus_folders(kit) } else { Vec::new() };
    let folders = ["include/spu", "include/common"].map(|folder| kit.path(folder));
    for folder in own.into_iter().chain(folders) {
        all.push("-isystem".into());
        all.push(folder.to_string_lossy().into_owned());
    }
    // By its name alone it is found as a system's header, which lists of dependencies leave out.
    for header in ["sidecore_vectors.h", "sidecore_assembler.h"] {
        all.extend(["-include".into(), header.into()]);
    }
    all
}

/// Folders of C++'s headers: those of the system's library, whose templates need no code of it;
/// without them the kit's own few. The part of them that depends on the processor lies where gcc
/// looks for another ABI of it alone.
fn plus_folders(kit: &Kit) -> Vec<PathBuf> {
    let (all, part) = (Path::new(PLUS_HEADERS), Path::new(PLUS_PART));
    let versions = std::fs::read_dir(all).into_iter().flatten().flatten();
    let numbers = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let newest = numbers
        .filter(|version| part.join(version.to_string()).is_dir())
        .max();
    match newest.map(|version| version.to_string()) {
        Some(version) => vec![
            kit.path(PLUS_OLD),
            all.join(&version),
            part.join(&version),
            all.join(&version).join("backward"),
        ],
        None => vec![kit.path("include/spu++")],
    }
}

/// The kit's folder of C++ headers that go before the system's.
pub(crate) const PLUS_OLD: &str = "include/plus";
const PLUS_HEADERS: &str = "/usr/include/c++";
const PLUS_PART: &str = "/usr/include/x86_64-linux-gnu/c++";

/// For C alone: code that compilers of the time accepted.
pub(crate) const C: &[&str] = &[
    "-fgnu89-inline",
    "-Wno-error=implicit-int",
    "-Wno-error=implicit-function-declaration",
    "-Wno-error=incompatible-pointer-types",
    "-Wno-error=int-conversion",
];
/// The standard of C++ that has both the constructs of the time, such as lists of exceptions, and
/// those that the vectors' operations are made of.
pub(crate) const PLUS_STANDARD: &str = "-std=gnu++14";
/// For C++: a store has no room for unwinding.
const PLUS: &[&str] = &[
    PLUS_STANDARD,
    "-faligned-new",
    "-nostdinc++",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fpermissive",
];
/// For images.
const LINK: &[&str] = &[
    "-static-pie",
    "-nostdlib",
    "-nostartfiles",
    "-Wl,-z,noseparate-code",
    "-Wl,-z,max-page-size=4096",
    "-Wl,-z,norelro",
    "-Wl,-z,text",
    "-Wl,-z,noexecstack",
    "-Wl,--build-id=none",
    "-Wl,--hash-style=gnu",
    "-Wl,--gc-sections",
    "-Wl,--gc-keep-exported",
    "-Wl,-u,_start",
    // It may be in an archive of the user's, before ours, which asks for it.
    "-Wl,-u,main",
];
/// The part of the linker's script that keeps the handler of interrupts.
const INTERRUPT_SCRIPT: &str = "spu/interrupt.ld";
