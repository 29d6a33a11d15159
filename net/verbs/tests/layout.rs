//! Compares sizes and offsets of all layouts with rdma-core's headers, and the exported symbols
//! with Debian's libraries. Prints a note and passes if they are not installed (`scripts/setup`).
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

#[test]
fn layouts_are_those_of_the_headers() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("layout.c");
    let mut text = String::from(
        "#include <rdma/rdma_cma.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    let layouts = sidecore_verbs::layouts();
    for (name, _, field, _) in &layouts {
        let field = field.trim_start_matches("r#");
        writeln!(
            text,
            "printf(\"{name} %zu {field} %zu\\n\", sizeof(struct {name}), \
             offsetof(struct {name}, {field}));"
        )
        .unwrap();
    }
    text.push_str("return 0; }\n");
    std::fs::write(&source, text).unwrap();
    let program = folder.path().join("layout");
    let output = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap_or_else(|error| panic!("cc: {error}; scripts/setup installs it"));
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("rdma/rdma_cma.h: No such file") {
        println!("not compared: rdma/rdma_cma.h is not installed (Debian: librdmacm-dev)");
        return;
    }
    assert!(output.status.success(), "{said}");
    let output = Command::new(&program).output().unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    let own: String = layouts
        .iter()
        .map(|(name, bytes, field, offset)| {
            format!(
                "{name} {bytes} {} {offset}\n",
                field.trim_start_matches("r#")
            )
        })
        .collect();
    assert!(layouts.len() > 300);
    for (own, expected) in own.lines().zip(expected.lines()) {
        assert_eq!(own, expected);
    }
    assert_eq!(own, expected);
}

/// Symbols of a library, with their versions; none without the tool or the library.
fn symbols(library: &std::path::Path) -> Option<BTreeSet<String>> {
    let output = Command::new("objdump")
        .arg("-T")
        .arg(library)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let defined = text.lines().filter(|line| !line.contains("*UND*"));
    let words = defined.map(|line| line.split_whitespace().rev().take(2).collect::<Vec<_>>());
    let all: BTreeSet<_> = words
        // Older versions of a symbol stand in brackets: programs of before 2008 want them.
        .filter(|words| words.len() == 2 && !words[1].starts_with('('))
        .filter(|words| words[1].starts_with("IBVERBS_") || words[1].starts_with("RDMACM_"))
        .filter(|words| words[0] != words[1])
        .map(|words| format!("{} {}", words[1], words[0]))
        .collect();
    (!all.is_empty()).then_some(all)
}

#[test]
fn every_symbol_of_debian_s_libraries_is_there_with_its_version() {
    let own = std::env::current_exe().unwrap();
    let own = symbols(&own.parent().unwrap().join("libsidecore_verbs.so"));
    for name in ["libibverbs.so.1", "librdmacm.so.1"] {
        let folder = std::path::Path::new("/usr/lib/x86_64-linux-gnu");
        let (Some(own), Some(debian)) = (&own, symbols(&folder.join(name))) else {
            println!("not compared: {name} is not installed (Debian: libibverbs1, librdmacm1)");
            continue;
        };
        let missing: Vec<_> = debian.difference(own).collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}
