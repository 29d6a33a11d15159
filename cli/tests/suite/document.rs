//! The programs that a source document prints in full, extracted from its text, built by the
//! drivers, and run.
//!
//! The document is not in this repository: `SIDECORE_DOCUMENTS` names a folder that may hold its
//! text; by default it is `shared/papers` next to the repository. Without it, or without the
//! compiler's x32 ABI, the test says so and passes.

#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included
#![cfg(target_arch = "x86_64")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The default folder, next to the repository.
fn beside() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/papers")
}

/// The text with both programs, where a folder holds it.
fn document() -> Option<String> {
    let folder = std::env::var_os("SIDECORE_DOCUMENTS").map_or_else(beside, PathBuf::from);
    let files = std::fs::read_dir(folder).ok()?.flatten();
    files
        .filter_map(|file| std::fs::read_to_string(file.path()).ok())
        .find(|text| text.contains("spe_image_open(\"tlb-spu\")"))
}

/// The host's program and the SPU's: each begins with its first header and ends with main's brace.
fn programs(text: &str) -> (&str, &str) {
    let host = text.find("#include <stdlib.h>").unwrap();
    let spu = text.find("#include <spu_mfcio.h>").unwrap();
    let end = spu + text[spu..].find("\n}").unwrap() + 2;
    let host = &text[host..spu];
    (&host[..=host.rfind('}').unwrap()], &text[spu..end])
}

#[test]
fn the_documents_programs_build_and_measure_both_walks() {
    let Some(text) = document() else {
        eprintln!("skipped: no folder holds the document (SIDECORE_DOCUMENTS)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (host, spu) = programs(&text);
    std::fs::write(folder.path().join("tlb-ppu.c"), format!("{host}\n")).unwrap();
    std::fs::write(folder.path().join("tlb-spu.c"), format!("{spu}\n")).unwrap();
    std::fs::write(folder.path().join("probe.c"), "#include <stdio.h>\n").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_sidecore")).parent().unwrap();
    let paths = std::env::var("PATH").unwrap_or_default();
    let run = |script: &str| {
        let output = Command::new("timeout")
            .args(["--kill-after=5", "120", "bash", "-ec", script])
            .current_dir(folder.path())
            .env("PATH", format!("{}:{paths}", program.display()))
            .env("SIDECORE_SPE_CACHE", folder.path().join("cache"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), printed, errors)
    };
    if !run("gcc -mx32 -c probe.c").0 {
        eprintln!("skipped: gcc -mx32 needs gcc-multilib and libc6-dev-x32 (scripts/setup)");
        return;
    }
    let (built, _, errors) = run("eval \"$(sidecore spe env)\"\n\
         spu-gcc -O2 -o tlb-spu tlb-spu.c\n\
         ppu-gcc -O2 -o tlb-ppu tlb-ppu.c -lspe2");
    assert!(built, "{errors}");
    for (walk, spe) in [("the SPE's", 1), ("the PPE's", 0)] {
        let script = format!("eval \"$(sidecore spe env)\"\n./tlb-ppu 1 5 0 {spe}");
        let (ended, printed, errors) = run(&script);
        assert!(ended, "{walk}: {errors}");
        let costs = printed
            .lines()
            .filter_map(|line| line.split_once(": ")?.1.parse::<f64>().ok())
            .collect::<Vec<_>>();
        assert_eq!(costs.len(), 4, "{walk}: {printed}");
        assert!(costs.iter().all(|cost| *cost > 0.0), "{walk}: {printed}");
    }
    // And by the command, whose rows stand in `sidecore papers`.
    let documents = std::env::var_os("SIDECORE_DOCUMENTS").map_or_else(beside, PathBuf::from);
    let script = format!(
        "sidecore spe document --quick --json --folder '{}'",
        documents.display()
    );
    let (ended, printed, errors) = run(&script);
    assert!(ended, "{errors}");
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    for row in &rows[..4] {
        assert!(row["here"].as_f64().is_some_and(|cost| cost > 0.0), "{row}");
    }
    for row in &rows[4..] {
        let note = row["note"]
            .as_str()
            .is_some_and(|note| note.contains("huge"));
        assert!(row["here"].is_f64() || note, "{row}");
    }
}

#[test]
fn without_the_text_every_row_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let rows = |command: &mut Command| {
        let output = command
            .env("SIDECORE_SPE_CACHE", folder.path().join("cache"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        report["rows"].as_array().unwrap().clone()
    };
    let sidecore = || Command::new(env!("CARGO_BIN_EXE_sidecore"));
    let nowhere = rows(
        sidecore()
            .args(["spe", "document", "--json"])
            .env_remove("SIDECORE_DOCUMENTS"),
    );
    let empty = rows(
        sidecore()
            .args(["spe", "document", "--json"])
            .env("SIDECORE_DOCUMENTS", folder.path()),
    );
    for (rows, reason) in [
        (nowhere, "SIDECORE_DOCUMENTS"),
        (empty, "none has its program"),
    ] {
        assert_eq!(rows.len(), 8);
        for row in rows {
            assert!(row["here"].is_null());
            assert!(row["note"].as_str().unwrap().contains(reason), "{row}");
        }
    }
}
