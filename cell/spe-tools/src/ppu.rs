//! `ppu-gcc` and `ppu-g++`: the host's side, for this machine.
//!
//! Must stay true: libraries before the objects are linked all the same, since Makefiles of the
//! time wrote `-lspe2` first. Names of assembly that PPE programs use are macros of the assembler.
//! A host of 32 bits has pointers of 4 bytes ([`crate::narrow`]).

use crate::narrow::Objects;
use crate::options::{self, Inputs, Options, Product, Side, Width};
use crate::step::Settings;
use crate::tool::NO_ERRORS;
use crate::{Error, Kit, spu, tool};
use std::ffi::OsString;
use std::process::ExitCode;

/// Compiles and links with the arguments of `ppu-gcc`, or `ppu-g++` where `plus`; `ppu32-gcc` where
/// `narrow`.
pub(crate) fn compile(
    kit: &Kit,
    plus: bool,
    narrow: bool,
    arguments: Vec<OsString>,
) -> Result<ExitCode, Error> {
    let mut options = options::translate(Side::Host, arguments)?;
    let plus = plus || options.plus;
    if plus {
        options.drop_old_plus();
    }
    let narrow_name = narrow;
    let narrow = match options.width {
        Some(Width::Pointers4) => true,
        Some(Width::Pointers8 | Width::Bits64) => false,
        // C++'s own library has pointers of 8 bytes.
        Some(Width::Bits32) => !plus,
        None => narrow && !plus,
    };
    let asked = narrow_asked(options.width, narrow_name);
    if plus && asked && options.links() {
        eprintln!("{PLUS_IS_WIDE}");
    }
    let mut all = vec![OsString::from("-m64")];
    all.extend(COMPILE.iter().map(OsString::from));
    all.extend(NO_ERRORS.iter().map(OsString::from));
    if !plus {
        all.extend(spu::C.iter().map(OsString::from));
    } else {
        all.extend([spu::PLUS_STANDARD, "-faligned-new", "-fpermissive"].map(OsString::from));
        all.extend(["-isystem".into(), kit.path(spu::PLUS_OLD).into_os_string()]);
    }
    if narrow {
        all.extend(NARROW.iter().map(OsString::from));
    }
    if options.width == Some(Width::Bits64) {
        all.extend(POINTERS_ARE_WIDE.map(OsString::from));
    }
    let folders = [
        "include/narrow",
        "include/ppu",
        "include/common",
        "include/host",
    ];
    for folder in &folders[usize::from(!narrow)..] {
        all.push("-isystem".into());
        all.push(kit.path(folder).into_os_string());
    }
    if options.assembly.is_none() {
        for header in ["sidecore_vectors.h", "sidecore_assembler.h"] {
            all.extend(["-include".into(), header.into()]);
        }
        let settings = Settings {
            lanes: options.lanes,
            narrow,
            host: true,
            floats: false,
        };
        all.extend(settings.arguments(kit));
    }
    if options.links() && options.product == Product::Program {
        link(kit, narrow, options, &mut all)?;
    } else {
        all.extend(options.arguments);
    }
    tool::become_tool(&tool::compiler(plus), &all)
}

/// True where a host of 32 bits is requested, by option or by name, but no width of pointers.
fn narrow_asked(width: Option<Width>, by_name: bool) -> bool {
    match width {
        Some(Width::Bits32) => true,
        None => by_name,
        Some(Width::Bits64 | Width::Pointers4 | Width::Pointers8) => false,
    }
}

/// Said where a program of C++ is linked as one of 32 bits.
const PLUS_IS_WIDE: &str = "note: C++ of 32 bits has pointers of 8 bytes here, as its library; \
    where SPUs read its structures' pointers or longs, compile all of it with --pointers=4 \
    (without the C++ library); --pointers=8 says that it is meant";

/// Adds the arguments of a link.
fn link(kit: &Kit, narrow: bool, options: Options, all: &mut Vec<OsString>) -> Result<(), Error> {
    let shared = options
        .arguments
        .iter()
        .any(|argument| argument == "-shared");
    let objects = Objects::read(&options.arguments);
    let narrow = objects.narrow || (narrow && options.inputs == Inputs::Sources);
    for object in objects.wide.iter().filter(|_| narrow) {
        eprintln!(
            "warning: {object} was compiled without -m32: its pointers have 8 bytes, those of \
             other objects 4; compile all with ppu32-gcc, or all with --pointers=8"
        );
    }
    all.push("-no-pie".into());
    all.push("-Wl,--no-as-needed".into());
    let mut folder = OsString::from("-L");
    folder.push(kit.path("lib"));
    all.push(folder);
    let low = narrow || options.width != Some(Width::Bits64);
    all.extend(options.arguments);
    if low && !shared {
        all.extend(LOW.iter().map(OsString::from));
        all.extend(["-x".into(), "none".into()]);
        if narrow {
            // Data may have the address of a library's function.
            all.push("-Wl,-z,noreloc-overflow".into());
            all.push(kit.narrow_object()?.into_os_string());
        }
        all.push(kit.host_object()?.into_os_string());
    }
    all.extend(LIBRARIES.iter().map(OsString::from));
    Ok(())
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
    "-D__powerpc__=1",
    "-D__PPC__=1",
    "-D__PPC=1",
    "-D_ARCH_PPC=1",
    "-D__VECTOR_KEYWORD_SUPPORTED__=1",
    "-D__APPLE_ALTIVEC__=1",
    "-D__VEC__=10206",
    "-D__ALTIVEC__=1",
    // Sources that have vectors of both machines take the PPE's.
    "-U__MMX__",
    "-U__SSE__",
    "-U__SSE2__",
    "-U__SSE3__",
    "-U__SSSE3__",
    "-U__SSE4_1__",
    "-U__SSE4_2__",
];
/// The names by which source tells hosts of 64 bits, whose pointers a word has no room for.
const POINTERS_ARE_WIDE: [&str; 2] = ["-D__powerpc64__=1", "-D__PPC64__=1"];
/// For code that shares neither its stack's guard nor its tables of characters with the C library.
/// Its tables of lines are the compiler's, whose addresses have 4 bytes as in the other debugging
/// data; an assembler of 64-bit objects would write 8.
const NARROW: &[&str] = &[
    "-gno-as-loc-support",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-U_FORTIFY_SOURCE",
    "-D__NO_CTYPE=1",
];
/// Calls that give memory, which a host of 32-bit addresses gets below 4 GiB, or give it back.
const LOW: &[&str] = &[
    // What asks for it stands behind the user's archives.
    "-Wl,-u,main",
    "-Wl,--wrap=main",
    "-Wl,--wrap=pthread_create",
    "-Wl,--wrap=pthread_join",
    "-Wl,--wrap=pthread_detach",
    "-Wl,--wrap=mmap",
];
/// Libraries that the C library of the time had within itself, or that ours stand on.
const LIBRARIES: &[&str] = &["-lpthread", "-lrt", "-lm"];
