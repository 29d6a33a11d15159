//! Manners of the command line that hold for every command: `-`, names of pictures, URLs, sizes,
//! completions.
//!
//! Messages of the program, as its users have it: alone, without the sources, a compiler or cargo.
//!
//! Why here: advice such as "cargo build" helps developers alone, and no test of a command on a
//! developer's machine meets it. Names of crates, flags and installed files are fine.

use super::repository::files;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// `sidecore` with these words and this standard input, in a folder.
fn sidecore(folder: &Path, words: &str, input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    command.args(words.split(' ')).current_dir(folder);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its words reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// The one line on standard error of a command that could not run.
fn refusal(folder: &Path, words: &str) -> String {
    let output = sidecore(folder, words, "");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words}: {said}");
    assert_eq!(said.lines().count(), 1, "{words}: {said}");
    said
}

const TREE: &str = "((a:0.1,b:0.1):0.1,c:0.1,d:0.2);\n";
/// Of the same taxa, in three genes.
const TREES: &str = "((a,b),c,d);\n((a,b),c,d);\n((a,c),b,d);\n";
const ALIGNMENT: &str = ">a\nACGTACGT\n>b\nACGTACGA\n>c\nACGAACGA\n>d\nACTAACGA\n";

#[test]
fn a_dash_is_standard_input_or_output() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("t.nwk"), TREE).unwrap();
    std::fs::write(at.join("a.fa"), ALIGNMENT).unwrap();
    std::fs::write(at.join("trees"), TREES).unwrap();
    for (words, input, begin) in [
        ("phylo draw - -o -", TREE, "<svg"),
        (
            "phylo simulate --tree - --sites 9 --model JC --seed 1 -o -",
            TREE,
            "4 9",
        ),
        ("phylo root - --midpoint -o -", TREE, "("),
        ("phylo consensus - -o -", TREE, "("),
        (
            "phylo evaluate --msa - --tree t.nwk --model JC",
            ALIGNMENT,
            "log-likelihood",
        ),
        (
            "phylo evaluate --msa a.fa --tree - --model JC --tree-out -",
            TREE,
            "(",
        ),
        ("cell table1 --svg -", "", "<svg"),
        ("phylo species -", TREES, "("),
        ("phylo concordance --tree t.nwk --genes -", TREES, "("),
        (
            "phylo concordance --tree t.nwk --genes trees -o out --table -",
            "",
            "clade",
        ),
        ("block pack - -o packed.img", "some bytes", "packed.img"),
        ("block unpack packed.img -o -", "", "some bytes"),
    ] {
        let output = sidecore(at, words, input);
        let (text, said) = (output.stdout, String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{words}: {said}");
        let text = String::from_utf8_lossy(&text);
        assert!(text.trim_start().starts_with(begin), "{words}: {text}");
    }
    assert!(!at.join("-").exists(), "a file named `-` was written");
    let words = "phylo evaluate --msa - --tree - --model JC";
    let twice = sidecore(at, words, ALIGNMENT);
    assert_eq!(twice.status.code(), Some(2));
    let twice = String::from_utf8_lossy(&twice.stderr);
    assert!(twice.contains("another option reads"), "{twice}");
    for words in [
        "block attach -",
        "block mount - m",
        "block serve - --nbd unix:s",
        "man -",
    ] {
        let said = refusal(at, words);
        assert!(said.contains("name a file"), "{words}: {said}");
    }
}

/// By a pipe, which is read to its end first, and by `<`, which is read in places.
#[test]
fn an_image_comes_by_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir(at.join("tree")).unwrap();
    let text = "some text\n".repeat(40_000);
    std::fs::write(at.join("tree/file"), &text).unwrap();
    assert!(
        sidecore(at, "block pack tree -o a.img", "")
            .status
            .success()
    );
    let by = |script: &str| {
        let script = script.replace("SIDECORE", env!("CARGO_BIN_EXE_sidecore"));
        let mut command = Command::new("sh");
        command.args(["-ec", &script]).current_dir(at);
        command.output().unwrap()
    };
    let raw = by("SIDECORE block unpack a.img -o -").stdout;
    for (words, wanted) in [
        ("info -", "seekable zstd"),
        ("verify -", "standard input: 0 of "),
        ("ls -", "file\n"),
        ("find - --name file", "file\n"),
        ("cat - file", &*text),
        ("extract - --to-stdout file", &*text),
    ] {
        for script in [
            format!("cat a.img | SIDECORE block {words}"),
            format!("SIDECORE block {words} < a.img"),
        ] {
            let output = by(&script);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{script}: {said}");
            let shown = String::from_utf8_lossy(&output.stdout);
            assert!(shown.contains(wanted), "{script}: {shown}");
        }
    }
    for words in ["unpack - -o -", "export - -o -"] {
        assert!(!raw.is_empty());
        assert_eq!(
            by(&format!("cat a.img | SIDECORE block {words}")).stdout,
            raw,
            "{words}"
        );
    }
    // The folder of the output is there, or named.
    let said = refusal(at, "block pack tree -o nowhere/a.img");
    assert!(
        said.contains("in nowhere: ") && said.contains("make that directory"),
        "{said}"
    );
    // What was cut short on its way is no image.
    let short = by("head -c 100 a.img | SIDECORE block info -");
    assert_eq!(short.status.code(), Some(2));
    let said = String::from_utf8_lossy(&short.stderr);
    assert!(said.contains("cannot open standard input"), "{said}");
}

#[test]
fn a_picture_is_what_its_name_says_or_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("t.nwk"), TREE).unwrap();
    for (name, begin) in [
        ("t.svg", &b"<svg"[..]),
        ("t.html", b"<!DOCTYPE html>"),
        ("t.png", b"\x89PNG"),
        ("t.pdf", b"%PDF"),
    ] {
        for words in ["phylo draw t.nwk -o", "cell table1 --svg"] {
            let output = sidecore(at, &format!("{words} {name}"), "");
            let said = String::from_utf8_lossy(&output.stderr);
            if output.status.code() == Some(2) && said.contains("rsvg-convert") {
                eprintln!("{name} needs librsvg2-bin (scripts/setup)");
                assert!(!at.join(name).exists());
                continue;
            }
            assert!(output.status.success(), "{words} {name}: {said}");
            assert!(
                std::fs::read(at.join(name)).unwrap().starts_with(begin),
                "{name}"
            );
            std::fs::remove_file(at.join(name)).unwrap();
        }
    }
    let refused = refusal(at, "phylo draw t.nwk -o t.jpg");
    assert!(refused.contains(".svg, .html, .png or .pdf"), "{refused}");
    assert!(!at.join("t.jpg").exists());
}

#[test]
fn unknown_schemes_are_named_with_the_known_ones() {
    let folder = tempfile::tempdir().unwrap();
    for url in [
        "gs://bucket/x.img",
        "az://c/x.img",
        "file:///etc/hostname",
        "ssh://host/x.img",
        "nbd://host/x",
        "s3:/bucket/x",
        "https:/host/x",
    ] {
        for command in ["info", "verify", "unpack -o x"] {
            let said = refusal(folder.path(), &format!("block {command} {url}"));
            assert!(said.contains(url.split('/').next().unwrap()), "{said}");
            let is_known = url.starts_with("s3:") || url.starts_with("https:");
            assert!(
                is_known && said.contains("two slashes") || said.contains("s3://"),
                "{said}"
            );
        }
    }
}

#[test]
fn one_text_refuses_sizes_and_one_times() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("raw"), [7; 70_000]).unwrap();
    for size in ["64KiB", "65536", "64k", "0.0625MiB"] {
        let words = format!("block pack raw -o x.img --frame {size} --memory 1.5GiB --time 5min");
        let output = sidecore(at, &words, "");
        assert!(
            output.status.success(),
            "{size}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    // A size that is understood, and refused for what it is.
    assert!(refusal(at, "block pack raw -o x.img --frame 100KB").contains("power of two"));
    for words in [
        "block pack raw -o x.img --frame",
        "block info x.img --memory",
        "block serve x.img --nbd unix:s --cache-size",
        "daemon --bytes",
        "phylo compare a b --memory",
    ] {
        let said = refusal(at, &format!("{words} 12XB"));
        let wanted = "`12XB` is no size; write it as 65536, 64KiB, 1.5GiB or 100MB";
        assert!(said.contains(wanted), "{words}: {said}");
    }
    for words in ["block verify x.img --time", "phylo compare a b --time"] {
        let said = refusal(at, &format!("{words} soon"));
        assert!(
            said.contains("`soon` is no time; write it as"),
            "{words}: {said}"
        );
    }
}

#[test]
fn completions_parse_and_offer_values() {
    let folder = tempfile::tempdir().unwrap();
    let script = |shell: &str| {
        let output = sidecore(folder.path(), &format!("completions {shell}"), "");
        assert!(output.status.success(), "{shell}");
        let path = folder.path().join(shell);
        std::fs::write(&path, &output.stdout).unwrap();
        path
    };
    for shell in ["bash", "zsh", "fish"] {
        let path = script(shell);
        match Command::new(shell).arg("-n").arg(&path).output() {
            Ok(output) => assert!(output.status.success(), "{shell}: {output:?}"),
            Err(error) => eprintln!("{shell} is not installed: {error}"),
        }
    }
    let bash = script("bash");
    for (line, offered) in [
        ("block pack --format", "cloop-lzo"),
        ("block pack --inner", "squashfs"),
        ("block pack --cipher", "aes-256-gcm"),
        ("block pack --tune", "speed"),
        ("block mount --fs", "ext4"),
        ("phylo search --policy", "mgps"),
        ("phylo search --names", "raxml-ng"),
        ("phylo search --effort", "fast"),
        ("phylo search --model", "GTR"),
        ("cell run --policy", "equi"),
    ] {
        let ask = format!(
            "source {}; COMP_WORDS=(sidecore {line} ''); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); \
             COMPREPLY=(); _sidecore sidecore '' \"${{COMP_WORDS[$COMP_CWORD-1]}}\"; \
             printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            bash.display()
        );
        let output = Command::new("bash").args(["-c", &ask]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().any(|word| word == offered), "{line}: {text}");
    }
}

/// Words that only a checkout of the sources can follow.
const DEVELOPERS: [&str; 5] = ["cargo ", "scripts/", "target/", "lab/", "examples/"];

/// Folders whose code is part of the program.
const PRODUCT: [&str; 9] = [
    "cli/src/",
    "core/",
    "image/",
    "daemon/",
    "net/",
    "phylo/",
    "cell/",
    "lab/bench/src/",
    "lab/drill/src/",
];

/// The text's string literals and, of clap's arguments, the doc comments: with line numbers.
fn words(text: &str, has_help: bool) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            if has_help && rest.starts_with("///") {
                found.push((line, rest[..length].to_owned()));
            }
            length
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            let length = raw.find("\"#").map_or(raw.len(), |at| at);
            found.push((line, raw[..length].to_owned()));
            length + 5
        } else if rest.starts_with("'\"'") {
            3
        } else if first == '"' {
            let mut is_escaped = false;
            let end = rest[1..].find(|letter| {
                let ends = letter == '"' && !is_escaped;
                is_escaped = letter == '\\' && !is_escaped;
                ends
            });
            let length = end.map_or(rest.len(), |end| end + 2);
            found.push((line, rest[..length].to_owned()));
            length
        } else {
            first.len_utf8()
        };
        let length = length.min(rest.len());
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

#[test]
fn no_message_needs_the_sources() {
    let is_product = |name: &str| {
        PRODUCT.iter().any(|folder| name.starts_with(folder))
            && name.contains("/src/")
            && name.ends_with(".rs")
            && !name.contains("/tests")
    };
    let mut wrong = Vec::new();
    let mut read = 0;
    for (name, text) in files().iter().filter(|(name, _)| is_product(name)) {
        // Unit tests stand last, and talk to developers.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        let included = |text: &str, words: &str| text.contains(&format!("include_str!({words})"));
        for (line, words) in words(text, name.starts_with("cli/")) {
            read += 1;
            let is_bad = DEVELOPERS.iter().any(|word| words.contains(word));
            if is_bad && !included(text, &words) {
                wrong.push(format!("{name}:{line}: {words}"));
            }
        }
    }
    assert!(read > 5000, "only {read} strings were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn strings_and_help_are_found_and_comments_are_not() {
    let text = "// \"cargo a\"\n/// cargo b\nlet c = \"cargo \\\" d\"; // cargo e\nlet f = '\"';\n";
    let found = words(&format!("{text}let g = r#\"cargo \" h\"#;"), true);
    let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [2, 3, 5], "{found:?}");
    assert_eq!(words(text, false).len(), 1);
}

/// The program alone in a folder, an empty home, and next to nothing installed: each command works
/// or names what brings the rest.
#[test]
fn the_program_alone_works_or_names_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("sidecore");
    // A copy, as cargo's folder has the libraries next to the original.
    std::fs::copy(env!("CARGO_BIN_EXE_sidecore"), &program).unwrap();
    let alone = |arguments: &str| {
        let mut command = Command::new("/usr/bin/timeout");
        command.args(["--kill-after=5", "60"]).arg(&program);
        command.args(arguments.split(' ')).env_clear();
        command.env("PATH", "/nowhere").env("HOME", folder.path());
        command.current_dir(folder.path());
        command.output().unwrap()
    };
    let is_packaged = Path::new("/usr/lib/sidecore").exists();
    let cases = [
        ("offload run -- /bin/true", Some(2), "package `sidecore`"),
        ("phylo beagle -- /bin/true", Some(2), "package `sidecore`"),
        ("rdma run -- /bin/true", Some(2), "package `sidecore`"),
        ("spe env", Some(0), "package `sidecore`"),
        (
            "net run --loopback -- /bin/true",
            Some(0),
            "package `sidecore`",
        ),
        ("papers --list", Some(0), ""),
        ("cell table2", Some(0), ""),
        ("doctor", Some(0), ""),
        ("net drill hello.drill", Some(0), ""),
    ];
    let drill = "+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n";
    std::fs::write(folder.path().join("hello.drill"), drill).unwrap();
    for (arguments, status, word) in cases {
        let output = alone(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        let both = format!("{}{errors}", String::from_utf8_lossy(&output.stdout));
        for bad in DEVELOPERS {
            assert!(!both.contains(bad), "{arguments}: {both}");
        }
        // With the package installed on this machine, nothing is missing.
        if !is_packaged {
            assert_eq!(output.status.code(), status, "{arguments}: {both}");
            assert!(errors.contains(word), "{arguments}: {both}");
        }
    }
}
