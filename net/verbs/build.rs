//! Symbols of the library and their versions, from the table `src/symbols`.
//!
//! rustc's own list of exported symbols has no versions, and a symbol in it cannot get one: so
//! each symbol is a jump in assembly, which that list does not name, and a version script of its
//! own names them. The linker must accept two scripts, as rustc's default one (lld) does.

use std::fmt::Write;
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/symbols");
    let table = std::fs::read_to_string("src/symbols")?;
    let (mut script, mut entries) = (String::new(), String::new());
    // The functions may be in other objects of this crate, so an alias would not do.
    let jump = match std::env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "aarch64" => "b",
        _ => "jmp",
    };
    let mut last: Option<&str> = None;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        match line.split_once(' ') {
            // A version: it follows the one before it of the same library.
            None => {
                if let Some(last) = last {
                    writeln!(script, "}}{};", parent(&table, last))?;
                }
                writeln!(script, "{line} {{ global:")?;
                last = Some(line);
            }
            Some((symbol, function)) => {
                writeln!(script, "{symbol};")?;
                writeln!(
                    entries,
                    "::std::arch::global_asm!(\".pushsection .text.{symbol},\\\"ax\\\"\", \
                     \".globl {symbol}\", \".type {symbol}, @function\", \"{symbol}:\", \
                     \"{jump} {{0}}\", \".size {symbol}, . - {symbol}\", \".popsection\", \
                     sym crate::{function});"
                )?;
            }
        }
    }
    if let Some(last) = last {
        writeln!(script, "}}{};", parent(&table, last))?;
    }
    let folder = std::env::var("OUT_DIR")?;
    let map = Path::new(&folder).join("symbols.map");
    std::fs::write(&map, script)?;
    std::fs::write(Path::new(&folder).join("symbols.rs"), entries)?;
    let map = map.display();
    println!("cargo::rustc-cdylib-link-arg=-Wl,--version-script={map}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // A thread of its own runs to the end of the process.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}

/// The version before another one of the same library, with a blank in front; empty for the first.
fn parent(table: &str, version: &str) -> String {
    let library = |name: &str| name.split(['_', '.']).take(1).collect::<String>();
    let versions = table.lines().filter(|line| !line.contains(' '));
    let before = versions.take_while(|&other| other != version);
    let before = before.filter(|other| library(other) == library(version));
    let found = before.last().filter(|found| !found.starts_with('#'));
    found.map(|found| format!(" {found}")).unwrap_or_default()
}
