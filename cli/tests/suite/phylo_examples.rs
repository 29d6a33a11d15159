//! The workflows of `docs/examples`, by their programs where these are installed, else by hand.
#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

use crate::phylo_workflow::loci;
use std::path::Path;
use std::process::Command;

/// The input of the workflows of `docs/examples`: loci, and dates of all taxa but the outgroup.
fn inputs() -> tempfile::TempDir {
    let folder = loci();
    let here = folder.path();
    std::fs::remove_file(here.join("loci/d.fa")).unwrap();
    let tips = (2..=10).map(|taxon| format!("t{taxon} 0\n"));
    let dates = format!("{}mrca(t2,t3) -10\n", tips.collect::<String>());
    std::fs::write(here.join("dates.tsv"), dates).unwrap();
    folder
}

fn example(name: &str) -> (String, String) {
    let path = format!("{}/../docs/examples/{name}", env!("CARGO_MANIFEST_DIR"));
    (std::fs::read_to_string(&path).unwrap(), path)
}

/// Runs a command of a shell; the program that is tested comes first.
fn shell(folder: &Path, command: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_sidecore")).parent().unwrap();
    let paths = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("bash")
        .args(["-euc", command])
        .env("PATH", format!("{}:{paths}", program.display()))
        .current_dir(folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {said}");
}

fn exists(program: &str, version: &str) -> bool {
    let found = Command::new(program).arg(version).output();
    found.is_ok_and(|found| found.status.success())
}

/// The results that both workflows have.
fn check_results(folder: &Path) {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    assert_eq!(read("g.geneTrees").lines().count(), 3);
    assert!(read("concordance.tsv").lines().count() > 5);
    let dated = read("dated.nwk");
    assert!(dated.contains("t10") && !dated.contains("t1:"), "{dated}");
    assert!(read("species.nwk").contains("t1"));
}

#[test]
fn the_snakefile_goes_from_loci_to_dates() {
    let folder = inputs();
    let (text, path) = example("snakemake/Snakefile");
    if exists("snakemake", "--version") {
        let line = format!("snakemake --cores 1 --config outgroup=t1 --snakefile {path}");
        shell(folder.path(), &line);
        return check_results(&folder.path().join("out"));
    }
    // The rules stand in an order in which they can be run.
    std::fs::create_dir(folder.path().join("out")).unwrap();
    let (mut inputs, mut outputs, mut commands) = (Vec::new(), Vec::new(), 0);
    for line in text.lines().map(str::trim) {
        let quoted: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
        match line.split_once(':').map(|(key, _)| key) {
            Some("input") => inputs = quoted,
            Some("output") => outputs = quoted,
            Some("shell") => {
                let mut command = quoted.concat();
                for (at, input) in inputs.iter().enumerate() {
                    command = command.replace(&format!("{{input[{at}]}}"), input);
                }
                for (name, value) in [
                    ("{input}", inputs.join(" ")),
                    ("{output}", outputs.join(" ")),
                    ("{threads}", "1".to_owned()),
                    ("{config[outgroup]}", "t1".to_owned()),
                ] {
                    command = command.replace(name, &value);
                }
                assert!(!command.contains('{'), "{command}");
                shell(folder.path(), &command);
                commands += 1;
            }
            _ => {}
        }
    }
    assert_eq!(commands, 5);
    check_results(&folder.path().join("out"));
}

#[test]
fn the_nextflow_script_goes_from_loci_to_dates() {
    let folder = inputs();
    let (text, path) = example("nextflow/main.nf");
    if exists("nextflow", "-version") {
        shell(folder.path(), &format!("nextflow run {path} --outgroup t1"));
        return check_results(&folder.path().join("out"));
    }
    // Inputs have the names of variables; results lie in one folder.
    let names = "loci=loci genes=g.geneTrees species=species.nwk lengths=lengths.nwk \
                 dates=dates.tsv outgroup=t1";
    let scripts: Vec<&str> = text.split("\"\"\"").skip(1).step_by(2).collect();
    assert_eq!(scripts.len(), 5);
    for script in scripts {
        let script = script.trim().replace("${task.cpus}", "1");
        shell(folder.path(), &format!("{names}; {script}"));
    }
    check_results(folder.path());
}
