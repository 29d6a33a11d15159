//! Foreign text (names in files, a server's words, names of programs) reaches no terminal with its
//! control characters, on either output, in any command.
//!
//! Must stay true: every process that a test starts ends with the test, also when it fails.

#![allow(clippy::unwrap_used)] // A test's helpers may fail it too.

use crate::server;
use crate::serving;

use rustix::process::{Pid, Signal, kill_process};
use server::Server;
use serving::until_it_says;
use sidecore_daemon::client::{Client, ClientOptions};
use sidecore_daemon::served::Registry;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Sets the title of a terminal and its colour, clears it, turns the direction of text around, and
/// has C1's form of the same; a new line could pass for the program's own message.
const EVIL: &str = "\x1b]0;evil\x07\x1b[31m\u{9b}2J\u{202e}\u{200b}";

fn sidecore(folder: &Path, arguments: &[impl AsRef<OsStr>]) -> Output {
    // A hang fails the test instead of stopping it.
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120", env!("CARGO_BIN_EXE_sidecore")]);
    command
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// Both outputs, which must hold `shown` and no character that a terminal obeys; `forged` begins no
/// line.
fn harmless(output: &Output, shown: &str) -> String {
    let mut both = output.stdout.clone();
    both.extend_from_slice(&output.stderr);
    let text = String::from_utf8(both).expect("valid UTF-8");
    let obeyed = |c: char| {
        c != '\n' && c != '\t' && c.is_control()
            || matches!(c, '\u{200b}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert!(!text.contains(obeyed), "{text:?}");
    assert!(text.contains(shown), "`{shown}` is not in {text:?}");
    assert!(
        !text.lines().any(|line| line.starts_with("forged")),
        "{text:?}"
    );
    text
}

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn top_shows_names_of_programs_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("daemon.sock");
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["daemon", "--engines", "1", "--socket"])
        .arg(&socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until_it_says(&mut daemon, &format!("ready {}\n", socket.display()));
    let _daemon = Ended(daemon);
    // This process is the client; the kernel keeps 15 bytes of its name.
    std::fs::write("/proc/self/comm", "\x1b]0;e\x07\x1b[31m").unwrap();
    let options = ClientOptions {
        registry: Registry::default(),
        ..ClientOptions::default()
    };
    let _client = Client::attach_with(&socket, options).unwrap();
    let socket = socket.to_str().unwrap();
    for more in ["--once", "--json"] {
        let shown = sidecore(folder.path(), &["top", "--socket", socket, more]);
        let escape = if more == "--json" {
            "\\u001b]0;e"
        } else {
            "\\x1b]0;e\\x07"
        };
        harmless(&shown, escape);
    }
}

#[test]
fn names_in_images_and_of_files_are_shown_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let image = format!("{EVIL}\nforged.img");
    std::fs::write(at.join("raw"), vec![7; 300_000]).unwrap();
    let packed = sidecore(at, &["block", "pack", "raw", "-o", &image]);
    assert!(packed.status.success());
    harmless(&packed, "\\x1b]0;evil\\x07");
    // The overlay keeps its image's name.
    let mut serving = Command::new(env!("CARGO_BIN_EXE_sidecore"))
        .args(["block", "serve", &image, "--nbd", "unix:n.sock"])
        .args(["--overlay", "o.ovl"])
        .current_dir(at)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until_it_says(&mut serving, "ready\n");
    let mut serving = Ended(serving);
    kill_process(Pid::from_child(&serving.0), Signal::TERM).unwrap();
    serving.0.wait().unwrap();
    for arguments in [
        &["block", "info", "o.ovl"][..],
        &["block", "info", "o.ovl", "--json"],
        &["block", "verify", &image],
        &["block", "unpack", &image, "-o", &format!("{EVIL}out")],
        &["block", "info", &format!("{EVIL}missing")],
        &["block", "mount", "raw", &format!("{EVIL}missing")],
    ] {
        harmless(&sidecore(at, arguments), "evil");
    }
    // The parser of command lines leaves sequences out by itself, but not all.
    let word = format!("{EVIL}\nforged");
    for arguments in [
        &[&*word][..],
        &["block", "pack", "raw", "-o", "x", "--format", &word],
    ] {
        harmless(&sidecore(at, arguments), "forged");
    }
}

#[test]
fn a_registrys_words_are_shown_escaped() {
    let words = serde_json::to_string(&format!("{EVIL}\nforged")).unwrap();
    let layers = [
        format!(r#"{{"layers":[{{"digest":{words},"size":5}}]}}"#),
        format!(r#"{{"layers":[{{"digest":5,{words}:1,"size":{words}}}]}}"#),
        format!(r#"{{"manifests":[{{"digest":{words},"size":5}}]}}"#),
    ];
    for manifest in layers {
        let body = manifest.clone().into_bytes();
        let server = Server::with_guard(
            Vec::new(),
            Box::new(move |_| Some((200, Vec::new(), body.clone()))),
        );
        let url = format!("oci://{}/a/b:c", server.host());
        let output = sidecore(Path::new("/"), &["block", "info", &url]);
        assert_eq!(output.status.code(), Some(2), "{manifest}");
        let text = harmless(&output, "sidecore: ");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    }
}

#[test]
fn a_servers_headers_are_shown_escaped() {
    let mut header = "\u{9b}31m\u{202e}".to_owned();
    header.push_str("evil");
    let headers = move |name: &str| vec![(name.to_owned(), header.clone())];
    let redirect = headers("location");
    let tag = headers("etag");
    let server = Server::with_guard(
        vec![0; 1 << 20],
        Box::new(move |request| {
            if request.path.starts_with("/redirect") {
                return Some((302, redirect.clone(), Vec::new()));
            }
            let mut headers = tag.clone();
            headers.push(("content-range".into(), "bytes \x7f0-1/2".into()));
            Some((206, headers, b"ab".to_vec()))
        }),
    );
    for path in ["redirect", "image"] {
        let url = format!("http://{}/{path}", server.host());
        let output = sidecore(Path::new("/"), &["block", "info", &url, "--retries", "0"]);
        harmless(&output, "sidecore: ");
    }
}

#[test]
fn names_in_trees_alignments_and_models_are_shown_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let write = |name: &str, text: &str| std::fs::write(at.join(name), text).unwrap();
    write("good.nwk", "(a:1,b:1,c:1);");
    write("good.fa", ">a\nACGT\n>b\nACGA\n>c\nACGC\n");
    write("evil.nwk", &format!("({EVIL}:1,b:1,c:1);"));
    write("broken.nwk", &format!("(({EVIL}:1,b:1,c:1);"));
    write(
        "evil.fa",
        &format!(">{EVIL}\nACGT\n>b\nACGT\n>{EVIL}x\nACGT\n"),
    );
    write(
        "twice.fa",
        &format!(">{EVIL}\nACGT\n>{EVIL}\nACGT\n>c\nACGT\n"),
    );
    write(
        "letters.fa",
        &format!(">a\nAC{EVIL}GT\n>b\nACGT\n>c\nACGT\n"),
    );
    write("evil.part", &format!("{EVIL}, p = 1-2\n"));
    for [msa, tree, model] in [
        ["good.fa", "evil.nwk", "JC"],
        ["good.fa", "broken.nwk", "JC"],
        ["evil.fa", "good.nwk", "JC"],
        ["evil.fa", "evil.nwk", "JC"],
        ["twice.fa", "good.nwk", "JC"],
        ["letters.fa", "good.nwk", "JC"],
        ["good.fa", "good.nwk", "evil.part"],
        ["good.fa", "good.nwk", EVIL],
    ] {
        let arguments = [
            "phylo", "evaluate", "--msa", msa, "--tree", tree, "--model", model,
        ];
        harmless(&sidecore(at, &arguments), "");
    }
    // A tree is a result: a program that reads it gets every byte.
    let trees = "(a\u{ad}b:1,b:1,c:1,d:1);\n".repeat(2);
    std::fs::write(at.join("four.nwk"), trees).unwrap();
    let kept = sidecore(at, &["phylo", "consensus", "four.nwk"]);
    assert!(kept.status.success(), "{kept:?}");
    let tree = String::from_utf8(kept.stdout).unwrap();
    assert!(tree.contains("a\u{ad}b"), "{tree:?}");
}
