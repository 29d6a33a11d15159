//! Drivers by the name that the program was called by.
//!
//! Must stay true: every name here is a link in the kit's `bin`, and a name that is not here is the
//! ordinary program's.

use std::path::Path;

/// A driver that the program may be called as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Driver {
    name: &'static str,
    pub(crate) kind: Kind,
}

/// Kinds of drivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A compiler of SPU source.
    Spu { plus: bool },
    /// A compiler of the host's source.
    Ppu { plus: bool, narrow: bool },
    /// An SPU program into an object of the host.
    Embed,
    /// The linker of SPU objects.
    SpuLink,
    /// The assembler of the SPU's own instructions.
    SpuAssemble,
    /// The disassembler of them; of other files that of binutils.
    SpuDisassemble,
    /// A host of SPU programs that stand alone.
    Alone,
    /// A tool of binutils that reads both sides' objects as they are.
    Binutils(&'static str),
    /// A tool without a counterpart here.
    Refused(&'static str),
    /// A step of gcc's, called by gcc itself.
    Step,
}

impl Driver {
    /// The driver's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// True for the names of IBM's compilers.
    pub(crate) fn is_ibm(&self) -> bool {
        self.name.contains("xl")
    }
}

/// The driver of the name that a program was called by, with or without folders.
#[must_use]
pub fn driver_named(program: &Path) -> Option<Driver> {
    let name = program.file_name()?.to_str()?;
    DRIVERS.iter().find(|driver| driver.name == name).copied()
}

/// All names, for the links in the kit.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    let names = DRIVERS.iter().map(Driver::name);
    names.filter(|name| !NATIVE.contains(name))
}

/// Names of the machine's own compilers, for Makefiles that ran on the Cell and name them in their
/// recipes. The kit has them in a folder of their own.
pub(crate) const NATIVE: &[&str] = &["gcc", "cc", "g++", "c++"];

const fn driver(name: &'static str, kind: Kind) -> Driver {
    Driver { name, kind }
}

const NO_TIMING: &str =
    "there is no timing of SPU instructions: programs run as code of this machine";

/// The name that gcc calls its steps by.
pub(crate) const STEP: &str = "sidecore-cc-step";

const HOST: Kind = host(false, false);
const HOST_PLUS: Kind = host(true, false);
const HOST32: Kind = host(false, true);
const HOST32_PLUS: Kind = host(true, true);

const fn host(plus: bool, narrow: bool) -> Kind {
    Kind::Ppu { plus, narrow }
}

const DRIVERS: &[Driver] = &[
    driver(STEP, Kind::Step),
    driver("spu-gcc", Kind::Spu { plus: false }),
    driver("spu-cc", Kind::Spu { plus: false }),
    driver("spuxlc", Kind::Spu { plus: false }),
    driver("spu-g++", Kind::Spu { plus: true }),
    driver("spu-c++", Kind::Spu { plus: true }),
    driver("spuxlc++", Kind::Spu { plus: true }),
    driver("spuxlC", Kind::Spu { plus: true }),
    driver("gcc", HOST),
    driver("cc", HOST),
    driver("g++", HOST_PLUS),
    driver("c++", HOST_PLUS),
    // Other names of the same compilers, by their builders.
    driver("spu-elf-gcc", Kind::Spu { plus: false }),
    driver("spu-elf-g++", Kind::Spu { plus: true }),
    driver("spu-unknown-elf-gcc", Kind::Spu { plus: false }),
    driver("spu-unknown-elf-g++", Kind::Spu { plus: true }),
    driver("powerpc-unknown-linux-gnu-gcc", HOST32),
    driver("powerpc-unknown-linux-gnu-g++", HOST32_PLUS),
    driver("powerpc64-unknown-linux-gnu-gcc", HOST),
    driver("powerpc64-unknown-linux-gnu-g++", HOST_PLUS),
    driver("spu-ld", Kind::SpuLink),
    driver("spu-as", Kind::SpuAssemble),
    driver("spu_timing", Kind::Refused(NO_TIMING)),
    driver("spu-ar", Kind::Binutils("ar")),
    driver("spu-ranlib", Kind::Binutils("ranlib")),
    driver("spu-strip", Kind::Binutils("strip")),
    driver("spu-nm", Kind::Binutils("nm")),
    driver("spu-size", Kind::Binutils("size")),
    driver("spu-objdump", Kind::SpuDisassemble),
    driver("spu-objcopy", Kind::Binutils("objcopy")),
    driver("spu-readelf", Kind::Binutils("readelf")),
    driver("spu-elf-ld", Kind::SpuLink),
    driver("spu-elf-as", Kind::SpuAssemble),
    driver("spu-elf-ar", Kind::Binutils("ar")),
    driver("spu-elf-ranlib", Kind::Binutils("ranlib")),
    driver("spu-elf-strip", Kind::Binutils("strip")),
    driver("spu-elf-nm", Kind::Binutils("nm")),
    driver("spu-elf-size", Kind::Binutils("size")),
    driver("spu-elf-objdump", Kind::SpuDisassemble),
    driver("spu-elf-objcopy", Kind::Binutils("objcopy")),
    driver("spu-elf-readelf", Kind::Binutils("readelf")),
    driver("spu-elf-c++", Kind::Spu { plus: true }),
    driver("spu-elf-cc", Kind::Spu { plus: false }),
    driver("ppu-gcc", HOST),
    driver("ppu-cc", HOST),
    driver("ppuxlc", HOST),
    driver("cbexlc", HOST),
    driver("ppu-g++", HOST_PLUS),
    driver("ppu-c++", HOST_PLUS),
    driver("ppuxlc++", HOST_PLUS),
    driver("ppuxlC", HOST_PLUS),
    driver("ppu32-gcc", HOST32),
    driver("ppu32-cc", HOST32),
    driver("ppu32-g++", HOST32_PLUS),
    driver("ppu32-c++", HOST32_PLUS),
    driver(
        "ppu-as",
        Kind::Refused("PowerPC assembly cannot be assembled on this machine"),
    ),
    driver("ppu-ld", Kind::Binutils("ld")),
    driver("ppu-ar", Kind::Binutils("ar")),
    driver("ppu-ranlib", Kind::Binutils("ranlib")),
    driver("ppu-strip", Kind::Binutils("strip")),
    driver("ppu-nm", Kind::Binutils("nm")),
    driver("ppu-size", Kind::Binutils("size")),
    driver("ppu-objdump", Kind::Binutils("objdump")),
    driver("ppu-objcopy", Kind::Binutils("objcopy")),
    driver("ppu-readelf", Kind::Binutils("readelf")),
    driver("ppu32-ld", Kind::Binutils("ld")),
    driver("ppu32-ar", Kind::Binutils("ar")),
    driver("ppu32-ranlib", Kind::Binutils("ranlib")),
    driver("ppu32-strip", Kind::Binutils("strip")),
    driver("ppu32-nm", Kind::Binutils("nm")),
    driver("ppu32-objdump", Kind::Binutils("objdump")),
    driver("ppu32-objcopy", Kind::Binutils("objcopy")),
    driver("elfspe", Kind::Alone),
    driver("embedspu", Kind::Embed),
    driver("ppu-embedspu", Kind::Embed),
    driver("ppu32-embedspu", Kind::Embed),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_found_with_their_folders_and_are_distinct() {
        let names: BTreeSet<_> = all().chain(NATIVE.iter().copied()).collect();
        assert_eq!(names.len(), DRIVERS.len());
        assert!(!all().any(|name| name == "gcc"));
        for name in names {
            let path = Path::new("/any/folder").join(name);
            assert_eq!(driver_named(&path).map(|found| found.name()), Some(name));
        }
        assert_eq!(driver_named(Path::new("sidecore")), None);
    }
}
