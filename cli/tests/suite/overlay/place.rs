//! A folder with an image in it, the program's `block` commands there, and a server of the image.
//!
//! Why here: overlays on plain images and on encrypted ones are tested with the same programs.

use crate::overlay::serving::until_it_says;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

pub(crate) fn run(tool: &str, args: &[&str]) -> Output {
    Command::new(tool)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("cannot run {tool} ({error}); run scripts/setup first"))
}

pub(crate) fn ok(tool: &str, args: &[&str]) -> String {
    let output = run(tool, args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{tool} {args:?}: {said}{printed}");
    printed
}

/// A folder of its own, for one test.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        command
            .arg("block")
            .args(args)
            .current_dir(self.0.path())
            .env("SIDECORE_STATE_DIR", self.path("state"));
        command
    }

    pub(crate) fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    pub(crate) fn block(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "block {args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The one line with which a command refuses.
    pub(crate) fn refused(&self, args: &[&str]) -> String {
        let output = self.output(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "block {args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    /// Serving the image with an overlay is refused; returns the message.
    pub(crate) fn refused_to_serve(&self, overlay: &str) -> String {
        let first = ["serve", "disk.img", "--nbd", "unix:2"];
        self.refused(&[&first[..], &["--overlay", overlay]].concat())
    }

    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.block(args)).unwrap()
    }

    /// Serves the image with an overlay; `keys` are the options that open it.
    pub(crate) fn serve_with(&self, overlay: &str, keys: &[&str]) -> Serving {
        let args = ["serve", "disk.img", "--nbd", "unix:nbd.sock", "--overlay"];
        let mut child = self
            .command(&[&args[..], &[overlay], keys].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until_it_says(&mut child, "ready\n");
        Serving { child }
    }

    pub(crate) fn serve(&self, overlay: &str) -> Serving {
        self.serve_with(overlay, &[])
    }

    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.path("nbd.sock").display())
    }

    /// Runs commands of qemu-io on the export.
    pub(crate) fn qemu_io(&self, commands: &[&str]) -> Output {
        let uri = self.uri();
        let mut args = vec!["-f", "raw", "-t", "none"];
        commands
            .iter()
            .for_each(|command| args.extend(["-c", command]));
        args.push(&uri);
        run("qemu-io", &args)
    }

    pub(crate) fn io(&self, commands: &[&str]) {
        let output = self.qemu_io(commands);
        let printed = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{commands:?}: {printed}{said}");
        assert!(
            !printed.contains("failed") && !said.contains("failed"),
            "{printed}{said}"
        );
    }
}

pub(crate) struct Serving {
    pub(crate) child: Child,
}

impl Serving {
    pub(crate) fn end(mut self, signal: &str) -> Option<i32> {
        ok("kill", &[signal, &self.child.id().to_string()]);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
