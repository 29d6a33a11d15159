//! Compiles `src/printf.c`: Rust cannot define a function with variable arguments yet. Gives
//! symbols the versions that zlib has for them.
//!
//! rustc's own list of exported symbols has no versions, and a symbol in it cannot get one: so
//! each symbol with a version is a jump in assembly, which that list does not name, and a version
//! script of its own names them. The linker must accept two scripts, as rustc's default one (lld)
//! does. Symbols that are older than zlib's versions have none, there as here.

use std::fmt::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/printf.c");
    cc::Build::new()
        .file("src/printf.c")
        .warnings(true)
        .compile("sidecore_z_printf");
    versions()?;
    // A preloaded library must not take the place of libz.so.1 by its name: programs may still open
    // that one. All calls inside go to this library, whatever else defines the names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsidecore_z.so");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Thread-local values may be dropped after a dlclose otherwise.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}

/// Writes the jumps and the version script.
fn versions() -> Result<(), Box<dyn std::error::Error>> {
    // The functions may be in other objects of this crate, so an alias would not do.
    let jump = match std::env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "aarch64" => "b",
        _ => "jmp",
    };
    let (mut script, mut jumps) = (String::new(), String::new());
    let mut before = String::new();
    for (version, symbols) in VERSIONS.lines().filter_map(|line| line.split_once(": ")) {
        writeln!(script, "{version} {{ global:")?;
        for symbol in symbols.split(' ') {
            writeln!(script, "{symbol};")?;
            writeln!(
                jumps,
                "::std::arch::global_asm!(\".pushsection .text.{symbol},\\\"ax\\\"\", \
                 \".globl {symbol}\", \".type {symbol}, @function\", \"{symbol}:\", \
                 \"{jump} {{0}}\", \".size {symbol}, . - {symbol}\", \".popsection\", \
                 sym crate::{symbol});"
            )?;
        }
        // Each version follows the one before it.
        writeln!(script, "}}{before};")?;
        before = format!(" {version}");
    }
    let folder = std::env::var("OUT_DIR")?;
    let map = Path::new(&folder).join("symbols.map");
    std::fs::write(&map, script)?;
    std::fs::write(Path::new(&folder).join("symbols.rs"), jumps)?;
    println!(
        "cargo::rustc-cdylib-link-arg=-Wl,--version-script={}",
        map.display()
    );
    Ok(())
}

/// Symbols by version, in the order of zlib's versions.
const VERSIONS: &str = "\
ZLIB_1.2.0: compressBound deflateBound inflateBack inflateBackEnd inflateBackInit_ inflateCopy
ZLIB_1.2.0.2: gzclearerr gzungetc zlibCompileFlags
ZLIB_1.2.0.8: deflatePrime
ZLIB_1.2.2: adler32_combine crc32_combine deflateSetHeader inflateGetHeader
ZLIB_1.2.2.3: deflateTune gzdirect
ZLIB_1.2.2.4: inflatePrime
ZLIB_1.2.3.3: adler32_combine64 crc32_combine64 gzopen64 gzseek64 gztell64 inflateUndermine
ZLIB_1.2.3.4: inflateMark inflateReset2
ZLIB_1.2.3.5: gzbuffer gzclose_r gzclose_w gzoffset gzoffset64
ZLIB_1.2.5.1: deflatePending
ZLIB_1.2.5.2: deflateResetKeep gzgetc_ inflateResetKeep
ZLIB_1.2.7.1: gzvprintf inflateGetDictionary
ZLIB_1.2.9: adler32_z crc32_z deflateGetDictionary gzfread gzfwrite inflateCodesUsed \
inflateValidate uncompress2
ZLIB_1.2.12: crc32_combine_gen crc32_combine_gen64 crc32_combine_op";
