//! `man` and `completions`, from the outside.

use std::process::Command;

fn sidecore(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
    command.args(arguments).output().expect("it starts")
}

#[test]
fn every_command_has_a_page_and_every_shell_its_completions() {
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("man1");
    assert!(sidecore(&["man", pages.to_str().unwrap()]).status.success());
    for page in ["sidecore.1", "sidecore-block-mount.1", "sidecore-tlb.1"] {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let output = sidecore(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("umount") && text.contains("doctor"),
            "{shell}"
        );
    }
    assert_eq!(sidecore(&["man", "/proc/nowhere"]).status.code(), Some(2));
}
