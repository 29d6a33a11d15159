//! `ppu-gcc` and `ppu-g++`: the host's side, for this machine.
//!
//! Must stay true: libraries that stand before the objects are linked all the same, since Makefiles
//! of the time wrote `-lspe2` first; names of assembly that PPE programs use are macros of the
//! assembler.

use crate::options::{self, Side};
use crate::{Error, Kit, spu, tool};
use std::ffi::OsString;
use std::process::ExitCode;

/// Compiles and links with the arguments of `ppu-gcc`, or `ppu-g++` where `plus`.
pub(crate) fn compile(
    kit: &Kit,
    plus: bool,
    narrow: bool,
    arguments: Vec<OsString>,
) -> Result<ExitCode, Error> {
    let options = options::translate(Side::Host, arguments);
    let plus = plus || options.plus;
    let shared = options
        .arguments
        .iter()
        .any(|argument| argument == "-shared");
    let low = narrow || !options.wide;
    let mut all = COMPILE.iter().map(OsString::from).collect::<Vec<_>>();
    if !plus {
        all.extend(spu::C.iter().map(OsString::from));
    } else {
        all.push("-fpermissive".into());
    }
    for folder in ["include/ppu", "include/common", "include/host"] {
        all.push("-isystem".into());
        all.push(kit.path(folder).into_os_string());
    }
    if options.assembly.is_none() {
        for header in ["sidecore_vectors.h", "sidecore_assembler.h"] {
            all.extend(["-include".into(), header.into()]);
        }
        all.extend(spu::step(kit));
    }
    if options.links && options.inputs && !options.partial {
        all.push("-no-pie".into());
        all.push("-Wl,--no-as-needed".into());
        let mut folder = OsString::from("-L");
        folder.push(kit.path("lib"));
        all.push(folder);
        all.extend(options.arguments);
        if low && !shared {
            all.extend(LOW.iter().map(OsString::from));
            all.extend([
                "-x".into(),
                "none".into(),
                kit.host_object()?.into_os_string(),
            ]);
        }
        all.extend(LIBRARIES.iter().map(OsString::from));
    } else {
        all.extend(options.arguments);
    }
    tool::become_tool(&tool::compiler(plus), &all)
}

/// Assumptions of PPE source about its compiler. Without PIE, static data has addresses of 32 bits,
/// which programs put into words.
const COMPILE: &[&str] = &[
    "-fno-pie",
    "-funsigned-char",
    "-fcommon",
    "-fno-strict-aliasing",
    "-flax-vector-conversions",
    "-mssse3",
    "-msse4.2",
    "-Wno-psabi",
    "-D__PPU__=1",
    "-D__VEC__=10206",
    "-D__ALTIVEC__=1",
];
/// Calls that give memory, which a host of 32-bit addresses gets below 4 GiB.
const LOW: &[&str] = &[
    "-Wl,--wrap=main",
    "-Wl,--wrap=pthread_create",
    "-Wl,--wrap=mmap",
];
/// Libraries that the C library of the time had within itself, or that ours stand on.
const LIBRARIES: &[&str] = &["-lpthread", "-lrt", "-lm"];
