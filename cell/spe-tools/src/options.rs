//! Options of the compilers of 2006 to 2010, as gcc of today takes them.
//!
//! Must stay true: an option that changes a program's results is never dropped silently. Dropped
//! options tuned the code for the Cell, named its libraries, or asked the SPU's linker for a
//! report.

use crate::lanes::Lanes;
use crate::{Error, tool};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The side that an option is given to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Code for a local store.
    Spu,
    /// Code of the host.
    Host,
}

/// A host's width, by the option that asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    /// `-m32`: 4-byte pointers where the source is C.
    Bits32,
    /// `-m64`.
    Bits64,
    /// `--pointers=4`: 4-byte pointers, C++ included.
    Pointers4,
    /// `--pointers=8`: pointers of this machine, with all memory below 4 GiB.
    Pointers8,
}

/// The product that the arguments ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Product {
    /// A linked program or library.
    #[default]
    Program,
    /// One object of several (`-r`).
    Joined,
    /// Objects, assembly, preprocessed source: there is no link.
    Parts,
}

/// The inputs that the arguments name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Inputs {
    /// None: the driver itself answers, as for `--version`.
    #[default]
    None,
    /// Objects and libraries alone.
    Objects,
    /// Source among them.
    Sources,
}

/// Arguments in today's words.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Arguments for gcc.
    pub(crate) arguments: Vec<OsString>,
    /// The product, where there are inputs.
    pub(crate) product: Product,
    /// The inputs.
    pub(crate) inputs: Inputs,
    /// True where an input is C++.
    pub(crate) plus: bool,
    /// Names a source that is assembly.
    pub(crate) assembly: Option<String>,
    /// The host's width, where an option says it.
    pub(crate) width: Option<Width>,
    /// The treatment of lane order.
    pub(crate) lanes: Lanes,
    /// True where floats have the SPU's bits (`--floats=exact`).
    pub(crate) exact_floats: bool,
    /// An option of the drivers' own whose value they do not know.
    pub(crate) unknown: Option<String>,
}

/// Translates the arguments of a driver.
///
/// # Errors
/// An option of the drivers' own has a value that they do not know.
pub(crate) fn translate(side: Side, arguments: Vec<OsString>) -> Result<Options, Error> {
    let own = tool::own_libraries(&arguments);
    let options = read(side, arguments, &own);
    match options.unknown {
        Some(text) => Err(Error::Usage(format!(
            "--lanes=auto|exact|off|warn, --pointers=4|8, --floats=exact|native (not {text})"
        ))),
        None if options.exact_floats && side == Side::Host => Err(Error::Usage(
            "--floats=exact is for the SPU's source: the host's floats are IEEE 754's".into(),
        )),
        None => Ok(options),
    }
}

impl Options {
    /// True where something is linked, if only to one object.
    pub(crate) fn links(&self) -> bool {
        self.product != Product::Parts && self.inputs != Inputs::None
    }

    /// Leaves standards of C++ out in which vectors' operations have no types: the one that the
    /// drivers ask for has all that programs wrote then.
    pub(crate) fn drop_old_plus(&mut self) {
        let known = [
            "-ansi",
            "-std=c++98",
            "-std=gnu++98",
            "-std=c++03",
            "-std=gnu++03",
        ];
        let old = |argument: &OsString| known.iter().any(|known| argument == known);
        self.arguments.retain(|argument| !old(argument));
    }
}

fn read(side: Side, arguments: Vec<OsString>, own: &[String]) -> Options {
    let mut options = Options::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let Some(text) = argument.to_str() else {
            options.inputs = options.inputs.max(Inputs::Objects);
            options.arguments.push(argument);
            continue;
        };
        match text {
            "-c" | "-S" | "-E" | "-M" | "-MM" | "-fsyntax-only" => {
                options.product = Product::Parts;
            }
            // An option that stops before the link counts more.
            "-r" if options.product == Product::Program => options.product = Product::Joined,
            "-m32" | "-q32" | "-m64" | "-q64" => {
                // The drivers' own option says it more exactly.
                if !matches!(options.width, Some(Width::Pointers4 | Width::Pointers8)) {
                    let wide = text.ends_with("64");
                    options.width = Some(if wide { Width::Bits64 } else { Width::Bits32 });
                }
                continue;
            }
            _ if OWN.iter().any(|start| text.starts_with(start)) => {
                read_own(&mut options, text);
                continue;
            }
            // Their value is the next argument, which may look like an input.
            "-o" | "-I" | "-D" | "-U" | "-L" | "-include" | "-isystem" | "-MF" | "-MT" | "-MQ"
            | "-x" | "-Xlinker" | "-Xassembler" | "-Xpreprocessor" | "-idirafter" | "-iquote"
            | "-imacros" | "-u" => {
                let value = arguments.next();
                if text == "-x" && value.as_deref().is_some_and(|name| name == "c++") {
                    options.plus = true;
                }
                if text == "-Xlinker" && value.as_deref().is_some_and(drops_linker_option) {
                    continue;
                }
                options.arguments.push(argument);
                options.arguments.extend(value);
                continue;
            }
            "-T" if side == Side::Spu => {
                arguments.next();
                continue;
            }
            "--param" => {
                arguments.next();
                continue;
            }
            _ if text.starts_with("-Wl,") => {
                options.arguments.extend(linker_options(text));
                continue;
            }
            // A library of the program's own may have a name of the SDK's.
            _ if drops(side, text) && !own.iter().any(|library| library == text) => {
                // The one feature of a processor that source asks for.
                if text == "-march=celledp" {
                    options.arguments.push("-D__SPU_EDP__=1".into());
                }
                continue;
            }
            _ if text.starts_with("-q") => {
                options.arguments.extend(of_xlc(text));
                continue;
            }
            _ if !text.starts_with('-') || text == "-" => note_input(&mut options, text),
            _ => {}
        }
        options.arguments.push(argument);
    }
    options
}

/// Reads an option that the compilers of the time had not.
fn read_own(options: &mut Options, text: &str) {
    let lanes = text.strip_prefix("--lanes=").and_then(Lanes::named);
    match (text, lanes) {
        (_, Some(lanes)) => options.lanes = lanes,
        ("--pointers=4", _) => options.width = Some(Width::Pointers4),
        ("--pointers=8", _) => options.width = Some(Width::Pointers8),
        ("--floats=exact", _) => options.exact_floats = true,
        ("--floats=native", _) => options.exact_floats = false,
        _ => options.unknown = Some(text.into()),
    }
}

/// The arguments of IBM's compilers in gcc's words: `-M` writes dependencies next to the object,
/// and `-ma` compiles `alloca`, which gcc always does.
pub(crate) fn of_ibm(arguments: Vec<OsString>) -> Vec<OsString> {
    let kept = arguments.into_iter().filter(|argument| argument != "-ma");
    kept.map(|argument| {
        if argument == "-M" {
            "-MD".into()
        } else {
            argument
        }
    })
    .collect()
}

/// Records an input file's needs.
fn note_input(options: &mut Options, text: &str) {
    let ending = Path::new(text)
        .extension()
        .and_then(OsStr::to_str)
        .unwrap_or_default();
    let inputs = match ending {
        "o" | "a" | "so" => Inputs::Objects,
        _ => Inputs::Sources,
    };
    options.inputs = options.inputs.max(inputs);
    match ending {
        "cc" | "cp" | "cxx" | "cpp" | "CPP" | "c++" | "C" | "ii" => options.plus = true,
        "s" | "S" | "sx" => options.assembly = Some(text.into()),
        _ => {}
    }
}

/// True for a library of the SDK's that is one with the SPU's own.
pub(crate) fn is_of_sdk(option: &str) -> bool {
    SPU_DROPPED.contains(&option)
}

/// True for an option that has no meaning here.
fn drops(side: Side, text: &str) -> bool {
    let exact = match side {
        Side::Spu => SPU_DROPPED,
        Side::Host => HOST_DROPPED,
    };
    exact.contains(&text)
        || DROPPED.contains(&text)
        || DROPPED_STARTS.iter().any(|start| text.starts_with(start))
}

/// `-Wl,a,b` without the options that only the SPU's linker knows.
fn linker_options(text: &str) -> Option<OsString> {
    let mut kept = Vec::new();
    let mut parts = text.split(',').skip(1);
    while let Some(part) = parts.next() {
        if part == "-T" || part == "-m" {
            parts.next();
        } else if !drops_linker_option(OsStr::new(part)) {
            kept.push(part);
        }
    }
    (!kept.is_empty()).then(|| format!("-Wl,{}", kept.join(",")).into())
}

/// True for an option of the linker that has no meaning here.
fn drops_linker_option(option: &OsStr) -> bool {
    let Some(text) = option.to_str() else {
        return false;
    };
    LINKER_DROPPED.contains(&text)
        || [
            "--local-store",
            "--auto-overlay",
            "--overlay",
            "--extra-stack-space",
            "--fixed-space",
            "--reserved-space",
            "--num-lines",
            "--line-size",
            "-melf",
            "-T",
            "--hash-style",
        ]
        .iter()
        .any(|start| text.starts_with(start))
}

/// Options of IBM's compilers that gcc has under another name.
fn of_xlc(text: &str) -> Option<OsString> {
    match text {
        "-qdebug" => Some("-g".into()),
        "-qnoopt" | "-qnooptimize" => Some("-O0".into()),
        _ => None,
    }
}

/// Beginnings of the drivers' own options.
const OWN: &[&str] = &["--lanes=", "--pointers=", "--floats="];
/// Options that name the processor, and options that only its compilers had.
const DROPPED: &[&str] = &[
    // A step of ours reads the output of gcc's steps, from files.
    "-pipe",
    "-maltivec",
    "-mno-altivec",
    "-mminimal-toc",
    "-mfull-toc",
    "-mno-fp-in-toc",
    "-mhard-float",
    "-mregnames",
    "-mstdmain",
    "-mwarn-reloc",
    "-mno-warn-reloc",
    "-merror-reloc",
    "-msafe-dma",
    "-munsafe-dma",
    "-mbranch-hints",
    "-mno-branch-hints",
    "-msmall-mem",
    "-mlarge-mem",
    "-mdual-nops",
    "-mno-dual-nops",
    "-mea32",
    "-mea64",
    "-mgen-cell-microcode",
    "-mwarn-cell-microcode",
    "-mno-vrsave",
    "-mvrsave",
    "-mpowerpc",
    "-mpowerpc64",
    "-mno-powerpc64",
    "-mstrict-align",
    "-mno-strict-align",
    "-msafe-hints",
    "-mno-safe-hints",
    "-mno-safe-dma",
    "-mno-small-mem",
    "-mno-stdmain",
    "-mno-vsx",
    "-mmfcrf",
    "-mno-mfcrf",
    "-mpopcntb",
    "-mno-popcntb",
    "-mfprnd",
    "-mno-fprnd",
    "-mno-toc",
    "-mno-sum-in-toc",
    "-mpowerpc-gpopt",
    "-mpowerpc-gfxopt",
    "-mno-powerpc-gpopt",
    "-mno-powerpc-gfxopt",
    "-mstring",
    "-mno-string",
    "-mmultiple",
    "-mno-multiple",
    "-mupdate",
    "-mno-update",
    "-mwarn-altivec-long",
    "-mno-warn-altivec-long",
    "-malign-power",
    "-malign-natural",
    "-mbig",
    "-mbig-endian",
    "-mlittle",
    "-mlittle-endian",
    "-mrelocatable",
    "-mrelocatable-lib",
    "-mno-relocatable",
    "-meabi",
    "-mno-eabi",
    "-mlongcall",
    "-mno-longcall",
    "-mnew-mnemonics",
    "-mold-mnemonics",
    "-mbit-align",
    "-mno-bit-align",
    "-misel",
    "-mno-isel",
    "-mxl-compat",
    "-mno-xl-compat",
];
const DROPPED_STARTS: &[&str] = &[
    "-mcpu=",
    "-mtune=cell",
    "-mtune=celledp",
    "-mtune=ppc",
    "-mtune=9",
    "-mtune=G",
    "-mtraceback=",
    "-minsert-sched-nops=",
    "-msched-costly-dep=",
    "-mprioritize-restricted-insns=",
    "-msdata",
    "-mtls-size=",
    "-mspe",
    "-mno-spe",
    "-mtune=power",
    "-march=cell",
    "-march=celledp",
    "-mabi=",
    "-mhint-max-",
    "-mcache-size=",
    "-matomic-updates",
    "-mno-atomic-updates",
    "-maddress-space-conversion",
    "-mno-address-space-conversion",
    "-mfixed-range=",
    "-mvsx",
    "-mcall-",
    "-mdual-nops=",
    "-mdouble=",
    "-mlong-double-",
    // Names of the compiler's passes, which changed.
    "-fdump-",
];
/// Libraries that are one with ours, and options for the size of the store's code.
const SPU_DROPPED: &[&str] = &[
    "-lc",
    "-lm",
    "-lgcc",
    "-lsimdmath",
    "-lmassv",
    "-lmass_simd",
    "-lmass",
    "-lmisc",
    "-lgmath",
    "-lg",
    "-lnosys",
    "-lsim",
    "-lspu_timer",
    "-lsync",
    "-lvector",
    "-lmatrix",
    "-llarge_matrix",
    "-lmpm",
    "-lmc_rand",
    "-lisolation",
    "-lsputimer",
    "-static",
    "-pie",
    "-fpic",
    "-fPIC",
    "-fpie",
    "-fPIE",
    "-no-pie",
    "-fno-pic",
    "-fno-pie",
    "-fstack-check",
    "-N",
    "-pthread",
    "-lpthread",
    "-lstdc++",
    "-lsupc++",
    "-lea",
];
/// Libraries of the host that are one with ours.
const HOST_DROPPED: &[&str] = &[
    "-lsimdmath",
    "-lmassv",
    "-lmassv_64",
    "-lmass_simd",
    "-lmass",
    "-lmass_64",
    "-lmisc",
    "-lgmath",
    "-lsync",
    "-lvector",
    "-lmatrix",
    "-llarge_matrix",
    "-lsim",
    "-N",
];
/// Options of the SPU's linker, and those that its images alone can bear.
const LINKER_DROPPED: &[&str] = &[
    "-N",
    "-n",
    "--omagic",
    "--nmagic",
    "--stack-analysis",
    "--emit-stack-syms",
    "--no-overlays",
    "--emit-stub-syms",
    "--emit-fixups",
    "--plugin",
    "--lrlive-analysis",
    "--non-overlay-stubs",
    "--soft-icache",
    "--compact-stubs",
    "-mspu",
    "--as-needed",
    "-q",
    "--emit-relocs",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(Into::into).collect()
    }

    fn translated(side: Side, text: &str) -> String {
        let arguments = read(side, words(text), &[]).arguments;
        arguments
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn options_of_the_time_are_dropped_or_translated() {
        let spu = "-W -Wall -mwarn-reloc -Wl,-N -O3 -I . -o a a.c -lsimdmath -lm -Wl,-N,-Map,a.map";
        assert_eq!(
            translated(Side::Spu, spu),
            "-W -Wall -O3 -I . -o a a.c -Wl,-Map,a.map"
        );
        let host =
            "-mabi=altivec -maltivec -mcpu=cell -m64 -lspe2 -lm -o -N b.c -qdebug -qarch=cell";
        assert_eq!(translated(Side::Host, host), "-lspe2 -lm -o -N b.c -g");
    }

    #[test]
    fn inputs_are_told_from_values() {
        let options = read(Side::Spu, words("-o x.cc -c"), &[]);
        assert_eq!(
            (options.inputs, options.product),
            (Inputs::None, Product::Parts)
        );
        assert!(!options.plus && !options.links());
        let options = read(Side::Spu, words("x.cc"), &[]);
        assert_eq!(
            (options.inputs, options.product),
            (Inputs::Sources, Product::Program)
        );
        assert!(options.plus && options.links());
        for text in ["-r -c x.c", "-c -r x.c"] {
            assert_eq!(read(Side::Spu, words(text), &[]).product, Product::Parts);
        }
        let options = read(Side::Spu, words("-r x.o y.a"), &[]);
        assert_eq!(
            (options.inputs, options.product),
            (Inputs::Objects, Product::Joined)
        );
        assert!(options.links());
        let options = read(Side::Spu, words("-c start.S"), &[]);
        assert_eq!(options.assembly.as_deref(), Some("start.S"));
        let width = |text| read(Side::Host, words(text), &[]).width;
        assert_eq!(width("-m64 a.c"), Some(Width::Bits64));
        assert_eq!(width("-m64 -m32 a.c"), Some(Width::Bits32));
        assert_eq!(width("--pointers=8 -m32 a.c"), Some(Width::Pointers8));
        assert!(translate(Side::Spu, words("--lanes=some a.c")).is_err());
        let exact = |side| translate(side, words("--floats=exact a.c"));
        assert!(exact(Side::Spu).is_ok_and(|options| options.exact_floats));
        assert!(exact(Side::Host).is_err());
        assert!(translate(Side::Spu, words("--floats=fast a.c")).is_err());
    }
}
