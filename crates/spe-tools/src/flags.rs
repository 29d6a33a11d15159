//! Options that every compilation for a store has, the user's and that of the kit's own library.

/// The ABI of the store's images, and what SPU source assumes of its compiler.
pub(crate) const COMPILE: &[&str] = &[
    "-mx32",
    "-fPIE",
    "-mssse3",
    "-msse4.2",
    "-mpopcnt",
    "-fno-stack-protector",
    "-fcf-protection=none",
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
    "-funsigned-char",
    "-fcommon",
    "-fno-strict-aliasing",
    "-flax-vector-conversions",
    "-fno-math-errno",
    "-Wno-psabi",
    "-Wno-main",
    "-U_FORTIFY_SOURCE",
    "-D__SPU__=1",
    "-D__NO_CTYPE=1",
    // The kernel's headers where Debian keeps them: only gcc-multilib has a link to them that x32
    // finds, and that package drives out the compilers for other processors.
    "-idirafter",
    "/usr/include/x86_64-linux-gnu",
];
