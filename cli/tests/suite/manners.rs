//! Manners of the command line that hold for every command: `-`, names of pictures, URLs, sizes,
//! completions.

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
