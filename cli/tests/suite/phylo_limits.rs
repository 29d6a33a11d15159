//! `sidecore phylo` at its limits: data that could be misread, files that cannot be written, small
//! inputs that grow large.
#![allow(clippy::unwrap_used)] // a failure here is a failed test, helpers included

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

const SIDECORE: &str = env!("CARGO_BIN_EXE_sidecore");

fn sidecore(folder: &Path, arguments: &str) -> Output {
    let mut command = Command::new(SIDECORE);
    let command = command.arg("phylo").args(arguments.split(' '));
    command.current_dir(folder).output().expect("sidecore runs")
}

/// Runs a line of a shell, `$S` is `sidecore phylo`.
fn shell(folder: &Path, line: &str) -> Output {
    let mut command = Command::new("bash");
    let line = line.replace("$S", &format!("{SIDECORE} phylo"));
    let command = command.args(["-c", &line]).current_dir(folder);
    command.output().expect("a shell runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exit status 2 and one line that has `part` in it.
fn refused(output: &Output, part: &str) {
    let said = said(output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(said.contains(part), "{said}");
}

/// Exit status 0 and one warning that has `part` in it; none where that is empty.
fn warned(output: &Output, part: &str) {
    let said = said(output);
    assert!(output.status.success(), "{said}");
    let lines = said.trim_end().lines().count();
    assert_eq!(lines, usize::from(!part.is_empty()), "{said}");
    assert!(said.contains(part), "{said}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A folder with `a.phy`, 8 taxa of 300 sites, and its tree `a.nwk`.
fn simulated() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let arguments = "simulate --taxa 8 --sites 300 --model JC --seed 5 -o a.phy --tree-out a.nwk";
    warned(&sidecore(folder.path(), arguments), "");
    folder
}

#[test]
fn what_changes_the_data_is_an_error_or_a_warning_that_counts() {
    let folder = simulated();
    let here = folder.path();
    let phylip = std::fs::read_to_string(here.join("a.phy")).unwrap();
    let rows: Vec<(&str, &str)> = phylip
        .lines()
        .skip(1)
        .map(|line| line.split_once(' ').unwrap())
        .collect();
    let lnl = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let evaluate = |msa: &str, tree: &str| {
        sidecore(
            here,
            &format!("evaluate --msa {msa} --tree {tree} --model JC"),
        )
    };
    let plain = evaluate("a.phy", "a.nwk");
    warned(&plain, "");
    let labels: Vec<&str> = rows.iter().map(|row| row.0).collect();
    let head = |format: &str| {
        format!(
            "#NEXUS\nbegin taxa;\ndimensions ntax=8;\ntaxlabels {};\nend;\nbegin characters;\n\
             dimensions nchar=300;\nformat datatype=dna {format};\nmatrix\n",
            labels.join(" ")
        )
    };
    let bare: String = rows.iter().map(|row| format!("{}\n", row.1)).collect();
    let marked: String = rows
        .iter()
        .map(|row| format!("{} {}\n", row.0, row.1.replace('A', "R")))
        .collect();
    let labelled: String = rows
        .iter()
        .map(|row| format!("{} {}\n", row.0, row.1))
        .collect();
    for (file, text, warning) in [
        ("nolabels.nex", head("nolabels") + &bare, ""),
        ("equate.nex", head("equate=\"R=A\"") + &marked, ""),
        (
            "exset.nex",
            head("") + &labelled + ";\nend;\nbegin assumptions;\nexset * x = 1-9;\n",
            "not followed, all that the matrix has counts alike: EXSET",
        ),
    ] {
        std::fs::write(here.join(file), text + ";\nend;\n").unwrap();
        let output = evaluate(file, "a.nwk");
        warned(&output, warning);
        assert_eq!(lnl(&output), lnl(&plain), "{file}");
    }
    // Missing lengths count where they are not fitted.
    let tree = std::fs::read_to_string(here.join("a.nwk")).unwrap();
    let mut some = tree.clone();
    let cut = some.find(':').unwrap();
    let end = cut + some[cut..].find([',', ')']).unwrap();
    some.replace_range(cut..end, "");
    let none: String = {
        let mut parts = tree.split(':');
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |text, part| {
            text + &part[part.find([',', ')', ';']).unwrap()..]
        })
    };
    std::fs::write(here.join("some.nwk"), some).unwrap();
    std::fs::write(here.join("none.nwk"), none).unwrap();
    warned(
        &evaluate("a.phy", "some.nwk"),
        "branches without a length: 1 of 13, 0.1 assumed",
    );
    warned(
        &evaluate("a.phy", "none.nwk"),
        "branches without a length: 13 of 13, 0.1 assumed",
    );
    let fitted = "evaluate --msa a.phy --tree none.nwk --model JC --opt branches";
    warned(&sidecore(here, fitted), "");
    let simulate = "simulate --tree none.nwk --sites 9 --model JC -o /dev/null";
    warned(&sidecore(here, simulate), "13 of 13");
    std::fs::write(here.join("below.nwk"), "(a:1,b:-1,(c:1,d:1):1);").unwrap();
    let simulate = "simulate --tree below.nwk --sites 9 --model JC -o /dev/null";
    refused(
        &sidecore(here, simulate),
        "1 branches have a length below 0",
    );
}

#[test]
fn a_search_reports_what_a_fit_of_its_tree_comes_to() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let four = "4 28\nL1 ACGTACGTACGTAAAAACGTAAAAAAAA\nR1 ACGTACGTAAAAAAAAAAAAACGTAAAA\n\
                R2 ACGTACGTAAAAAAAAAAAAACGTAAAA\nL2 ACGTAAAAAAAAAAAAAAAAAAAAACGT\n";
    std::fs::write(here.join("four.phy"), four).unwrap();
    let more = "simulate --taxa 12 --sites 200 --model HKY{1/3}+FU{0.4/0.1/0.2/0.3}+G4m{0.4} \
                --seed 7 -o more.phy";
    warned(&sidecore(here, more), "");
    let lnl = |output: &Output, key: &str| {
        assert!(output.status.success(), "{}", said(output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json[key].as_f64().unwrap()
    };
    for (msa, model) in [
        ("four.phy", "GTR+G"),
        ("more.phy", "GTR+G"),
        ("more.phy", "JC"),
    ] {
        let search = format!(
            "search --msa {msa} --model {model} --starts 2 --bootstraps 0 --prefix {msa}{model} \
             --json"
        );
        let found = lnl(&sidecore(here, &search), "best_lnl");
        let fit = format!(
            "evaluate --msa {msa} --tree {msa}{model}.bestTree --model {model} --opt all \
             --epsilon 0.00001 --json"
        );
        let fitted = lnl(&sidecore(here, &fit), "lnl");
        assert!(
            fitted - found < 5e-4,
            "{msa} {model}: {found}, then {fitted}"
        );
    }
}

#[test]
fn what_cannot_be_written_leaves_what_was_there() {
    let folder = simulated();
    let here = folder.path();
    let commands = [
        "$S simulate --taxa 9 --sites 9000 --model JC -o out",
        "$S evaluate --msa a.phy --tree a.nwk --model JC --site-lnl out",
        "$S ancestors --msa a.phy --tree a.nwk --model JC --opt none -o out",
        "$S ancestors --msa a.phy --tree a.nwk --model JC --opt none --fasta out",
        "$S draw a.nwk -o out",
        "$S root many.nwk --midpoint -o out",
    ];
    let tree = std::fs::read_to_string(here.join("a.nwk")).unwrap();
    std::fs::write(here.join("many.nwk"), tree.repeat(20)).unwrap();
    for command in commands {
        let output = shell(here, &format!("ulimit -f 1; {command}"));
        refused(&output, "cannot write out: ");
        assert_eq!(names(here), ["a.nwk", "a.phy", "many.nwk"], "{command}");
        std::fs::write(here.join("out"), "before").unwrap();
        let output = shell(here, &format!("ulimit -f 1; {command}"));
        refused(&output, "cannot write out: ");
        assert_eq!(
            std::fs::read(here.join("out")).unwrap(),
            b"before",
            "{command}"
        );
        // With room the file is there, whole.
        warned(&shell(here, command), "");
        assert!(
            std::fs::metadata(here.join("out")).unwrap().len() > 1024,
            "{command}"
        );
        std::fs::remove_file(here.join("out")).unwrap();
    }
}

#[test]
fn a_full_disk_leaves_no_half_file() {
    let folder = simulated();
    let here = folder.path();
    std::fs::create_dir(here.join("small")).unwrap();
    // A file system of its own, that no other process sees.
    let within = |size: &str, line: &str| {
        let line = format!("mount -t tmpfs -o size={size} none small && {{ {line}; }}");
        shell(here, &format!("unshare -m bash -c '{line}'"))
    };
    let output = within(
        "64k",
        "echo before > small/out; $S simulate --taxa 9 --sites 90000 --model JC -o small/out; \
         echo $?; ls -A small; cat small/out",
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "2\nout\nbefore\n");
    let error = said(&output);
    assert!(error.contains("cannot write small/out: "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    // A run that finds no room says so, and completes once there is some.
    let search = "$S search --msa a.phy --model JC --starts 2 --prefix small/r";
    let output = within(
        "512k",
        &format!(
            "head -c 1M /dev/zero > small/f 2>/dev/null; {search}; echo $?; rm small/f; \
             {search} >/dev/null && ls -A small"
        ),
    );
    let (out, error) = (String::from_utf8_lossy(&output.stdout), said(&output));
    assert!(out.starts_with("2\n"), "{out}{error}");
    assert!(out.contains("r.bestTree") && !out.contains(".new"), "{out}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn links_modes_pipes_and_devices_stay_what_they_are() {
    let folder = simulated();
    let here = folder.path();
    let root = |to: &str| shell(here, &format!("$S root a.nwk --midpoint -o {to}"));
    let expected = shell(here, "$S root a.nwk --midpoint").stdout;
    for to in ["/dev/stdout", "-", "/proc/self/fd/1"] {
        let output = root(to);
        warned(&output, "");
        assert_eq!(output.stdout, expected, "{to}");
    }
    warned(&root("/dev/null"), "");
    let twice =
        "echo first > all; for i in 1 2; do $S root a.nwk --midpoint -o /dev/stdout >> all; done";
    warned(&shell(here, twice), "");
    let all = std::fs::read(here.join("all")).unwrap();
    assert_eq!(all, [b"first\n", &expected[..], &expected].concat());
    refused(&root("/dev/full"), "cannot write /dev/full: No space left");
    let output = shell(
        here,
        "mkfifo p; cat p & $S root a.nwk --midpoint -o p; wait",
    );
    assert_eq!(output.stdout, expected);
    std::fs::write(here.join("file"), "before").unwrap();
    let mode = |file: &str| {
        std::fs::metadata(here.join(file))
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    std::fs::set_permissions(here.join("file"), PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("file", here.join("link")).unwrap();
    warned(&root("link"), "");
    assert_eq!(
        std::fs::read_link(here.join("link")).unwrap(),
        Path::new("file")
    );
    assert_eq!(std::fs::read(here.join("file")).unwrap(), expected);
    assert_eq!(mode("file"), 0o640);
    warned(
        &shell(here, "umask 027; $S root a.nwk --midpoint -o new"),
        "",
    );
    assert_eq!(mode("new"), 0o640);
    refused(&root("no/such"), "cannot write no/such: ");
}

/// Runs a command with 1 GiB of address space: using more is an abort, not an error.
fn bounded(folder: &Path, command: &str) -> Output {
    let output = shell(
        folder,
        &format!("ulimit -v 1048576; timeout 60 $S {command}"),
    );
    let (code, said) = (output.status.code(), said(&output));
    assert!(matches!(code, Some(0 | 2)), "{command}: {code:?} {said}");
    if code == Some(2) {
        // A warning about the alignment may come before.
        let errors = said.lines().filter(|line| !line.starts_with(" WARN "));
        assert_eq!(errors.count(), 1, "{command}: {said}");
        assert!(said.len() < 1000, "{command}: {said}");
    }
    output
}

#[test]
fn small_files_that_come_to_much_are_read_in_bounds_or_refused() {
    let folder = simulated();
    let here = folder.path();
    let write = |file: &str, bytes: &[u8]| std::fs::write(here.join(file), bytes).unwrap();
    let n = 60_000;
    let left = |k: usize| "(".repeat(k);
    let comb: String = (1..n).fold(left(n - 1) + "t0", |text, k| text + &format!(",t{k})")) + ";";
    write("comb.nwk", comb.as_bytes());
    let star: String = (0..n).map(|k| format!("t{k}:1,")).collect();
    write("star.nwk", format!("({}tz:1);", star).as_bytes());
    write(
        "deep.nwk",
        format!("{}a{};", left(500_000), ")".repeat(500_000)).as_bytes(),
    );
    write(
        "commas.nwk",
        format!("({});", ",".repeat(1 << 20)).as_bytes(),
    );
    write("many.nwk", "(a,b,(c,d));".repeat(80_000).as_bytes());
    let trees = ["comb.nwk", "star.nwk", "deep.nwk", "commas.nwk", "many.nwk"];
    for tree in trees {
        for command in [
            "consensus T",
            "compare T T",
            "root T --midpoint -o o",
            "root T --mad -o o",
            "draw T -o o",
            "support --tree T --bootstraps T -o o",
            "evaluate --msa a.phy --tree T --model JC",
            "search --msa a.phy --model JC --constraint T --prefix p --redo",
            "simulate --tree T --sites 1 --model JC -o o",
        ] {
            bounded(
                here,
                &command
                    .replace('T', tree)
                    .replace(&format!("--{tree}"), "--T"),
            );
        }
    }
    // Taxa and sites that a header claims; a matrix of one row.
    write("claims.phy", b"1000000 1000000000\na ACGT\n");
    write(
        "claims.nex",
        b"#NEXUS begin data; dimensions ntax=1000000 nchar=1000000000; matrix a A;",
    );
    let narrow: String = (0..n).map(|k| format!("t{k} A\n")).collect();
    write("narrow.phy", format!("{n} 1\n{narrow}").as_bytes());
    write(
        "wide.fa",
        [">a", ">b", ">c", ">d"]
            .map(|h| format!("{h}\n{}\n", "A".repeat(1 << 18)))
            .concat()
            .as_bytes(),
    );
    let bomb = vec![b'A'; 1 << 30];
    let mut packed = Vec::with_capacity(1 << 20);
    zstd_safe::compress(&mut packed, &bomb, 3).unwrap();
    write("bomb.zst", &packed);
    for msa in [
        "claims.phy",
        "claims.nex",
        "narrow.phy",
        "wide.fa",
        "bomb.zst",
        "/dev/zero",
        "comb.nwk",
    ] {
        bounded(
            here,
            &format!("evaluate --msa {msa} --tree a.nwk --model JC"),
        );
        // Choosing a model among that many taxa is work, not reading.
        if msa != "narrow.phy" {
            bounded(here, &format!("models --msa {msa}"));
        }
    }
    refused(&bounded(here, "compare bomb.zst a.nwk"), "--memory");
    let parts: String = (1..=300).map(|k| format!("GTR+G, p{k} = {k}\n")).collect();
    write("parts", parts.as_bytes());
    bounded(here, "evaluate --msa a.phy --tree a.nwk --model parts");
}

#[test]
fn models_are_read_from_small_files_and_not_shown() {
    let folder = simulated();
    let here = folder.path();
    std::fs::write(here.join("secret"), "root:x:0:0 hidden words\n").unwrap();
    let evaluate = |model: &str| {
        bounded(
            here,
            &format!("evaluate --msa a.phy --tree a.nwk --model {model}"),
        )
    };
    refused(&evaluate("GTR{/dev/zero}"), "no regular file");
    for model in [
        "GTR{secret}",
        "JC+FU{secret}",
        "GTR+G{secret}",
        "GTR+I{secret}",
    ] {
        let output = evaluate(model);
        refused(&output, "number 1 of the file");
        assert!(!said(&output).contains("root") && !said(&output).contains("hidden"));
    }
    shell(here, "mkfifo pipe");
    refused(&evaluate("GTR{pipe}"), "no regular file");
    std::fs::write(here.join("rates"), "1 2 1 1 2 1\n").unwrap();
    warned(&evaluate("GTR{rates}"), "");
}

#[test]
fn memory_and_time_can_be_limited() {
    let folder = simulated();
    let here = folder.path();
    let large = "simulate --taxa 100000 --sites 100000000 --model JC -o o";
    refused(&sidecore(here, large), "give --memory to allow more");
    let evaluate = "evaluate --msa a.phy --tree a.nwk --model";
    refused(
        &sidecore(here, &format!("--memory 1MiB {evaluate} MULTI64_MK+G4")),
        "",
    );
    warned(
        &sidecore(here, &format!("{evaluate} JC --memory 64MiB")),
        "",
    );
    refused(
        &sidecore(here, &format!("{evaluate} JC --memory 5")),
        "at least 1MiB",
    );
    let long = "simulate --taxa 20000 --sites 4 --model JC -o b.phy --tree-out b.nwk";
    warned(&sidecore(here, long), "");
    refused(&sidecore(here, "root b.nwk --mad -o o"), "give --time");
    refused(
        &sidecore(here, "root b.nwk --mad -o o --time 1"),
        "not done after 1 s",
    );
    // A search saves its state, and resumes.
    let search = "search --msa a.phy --model GTR+G --starts 100000 --prefix s";
    let output = sidecore(here, &format!("{search} --time 2"));
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(
        said(&output).contains("give the same command again"),
        "{}",
        said(&output)
    );
}

#[test]
fn without_threads_it_works_with_fewer_or_says_so() {
    let folder = simulated();
    let here = folder.path();
    shell(here, "chmod 777 .");
    // Another user than root, whose number of processes is limited; its own user namespace.
    let uid = 20_000 + std::process::id() % 10_000;
    let within = |command: &str| {
        shell(
            here,
            &format!(
                "setpriv --reuid {uid} --regid {uid} --clear-groups \
                 bash -c 'ulimit -u 1; exec $S {command}'"
            ),
        )
    };
    for command in [
        "evaluate --msa a.phy --tree a.nwk --model JC --engines 1",
        "evaluate --msa a.phy --tree a.nwk --model JC --engines 2",
        "search --msa a.phy --model JC --starts 1 --prefix q --redo",
        "support --tree a.nwk --bootstraps a.nwk",
        "consensus a.nwk --time 100",
    ] {
        let output = within(command);
        let (code, said) = (output.status.code(), said(&output));
        assert!(matches!(code, Some(0 | 2)), "{command}: {code:?} {said}");
        assert!(
            said.trim_end().lines().count() <= 1 && !said.contains("panicked"),
            "{said}"
        );
    }
}
