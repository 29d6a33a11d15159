//! Servers of remote images: options that name files, which must work after the server has changed
//! its directory, and ends while the remote side is silent.

use crate::mount::remote::{Request, Server};
use crate::mount::scratch::{Scratch, is_running, noise, signal, text, wait_for};
use rustix::process::Signal;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// An HTTP server that answers until the test silences it.
struct Far {
    server: Server,
    silent: Arc<Silent>,
}

#[derive(Default)]
struct Silent {
    /// Requests that are still answered.
    answers: AtomicU64,
    is_over: AtomicBool,
    unanswered: AtomicU64,
}

impl Far {
    /// One that answers a number of requests.
    fn new(image: &Path, answers: u64) -> Self {
        Self::with(image, answers, 0..0)
    }

    /// One that answers no request that begins in a range.
    fn silent_between(image: &Path, range: Range<u64>) -> Self {
        Self::with(image, u64::MAX, range)
    }

    fn with(image: &Path, answers: u64, range: Range<u64>) -> Self {
        let silent = Arc::new(Silent::default());
        silent.answers.store(answers, Ordering::SeqCst);
        let state = Arc::clone(&silent);
        let count = |left: u64| left.checked_sub(1);
        let guard = move |request: &Request| {
            let order = Ordering::SeqCst;
            let first = request.header("range").and_then(|it| {
                let (first, _) = it.strip_prefix("bytes=")?.split_once('-')?;
                first.parse().ok()
            });
            let is_inside = first.is_some_and(|first| range.contains(&first));
            if is_inside || state.answers.fetch_update(order, order, count).is_err() {
                state.unanswered.fetch_add(1, order);
                while !state.is_over.load(order) {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            None
        };
        let server = Server::with_guard(std::fs::read(image).unwrap(), Box::new(guard));
        Self { server, silent }
    }

    fn is_silent_now(&self) {
        self.silent.answers.store(0, Ordering::SeqCst);
    }

    fn until_it_is_asked_in_vain(&self) {
        wait_for("a request is left without an answer", || {
            self.silent.unanswered.load(Ordering::SeqCst) > 0
        });
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.silent.is_over.store(true, Ordering::SeqCst);
    }
}

/// An image of a tree with a file that is read in many requests.
fn packed(scratch: &Scratch) -> PathBuf {
    let tree = scratch.path("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("large"), noise(21, 24 << 20)).unwrap();
    let image = scratch.image("packed");
    scratch.ok(&["pack", text(&tree), "-o", text(&image), "--level", "1"]);
    image
}

fn reader(path: &Path) -> Child {
    let mut command = Command::new("dd");
    command
        .arg(format!("if={}", path.display()))
        .args(["of=/dev/null", "bs=64K"]);
    command.stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_signal_ends_what_waits_for_a_source_that_is_silent() {
    let scratch = Scratch::new();
    let image = packed(&scratch);
    let on = scratch.path("on");
    let cases: [(&[&str], &str); 3] = [
        (&["mount"], "large"),
        (&["mount", "--rootless"], "large"),
        (&["mount", "--file-only"], "image"),
    ];
    for (command, file) in cases {
        let far = Far::new(&image, u64::MAX);
        let url = far.server.url();
        scratch.ok(&[command, &[&url, text(&on)]].concat());
        let pid = scratch.server();
        far.is_silent_now();
        let mut read = reader(&on.join(file));
        far.until_it_is_asked_in_vain();
        signal(pid, Signal::TERM);
        wait_for("the server has ended", || !is_running(pid));
        assert!(!read.wait().unwrap().success(), "{command:?}");
        scratch.assert_nothing_left();
    }
    let far = Far::new(&image, u64::MAX);
    let device = scratch.ok(&["attach", &far.server.url()]);
    let pid = scratch.server();
    far.is_silent_now();
    let mut read = reader(Path::new(device.trim()));
    far.until_it_is_asked_in_vain();
    signal(pid, Signal::TERM);
    wait_for("the server has ended", || !is_running(pid));
    assert!(!read.wait().unwrap().success());
    scratch.assert_nothing_left();
}

#[test]
fn a_signal_ends_a_server_whose_client_waits_for_a_source_that_is_silent() {
    let scratch = Scratch::new();
    let image = packed(&scratch);
    for overlay in [None, Some(scratch.path("overlay"))] {
        let far = Far::new(&image, u64::MAX);
        let socket = format!("unix:{}", scratch.path("socket").display());
        let url = far.server.url();
        let mut words = vec!["block", "serve", &url, "--nbd", &socket];
        if let Some(overlay) = &overlay {
            words.extend(["--overlay", text(overlay)]);
        }
        let mut serving = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        let mut serving = serving.args(words).stdout(Stdio::piped()).spawn().unwrap();
        crate::mount::serving::until_it_says(&mut serving, "ready\n");
        far.is_silent_now();
        let uri = format!("nbd+unix:///?socket={}", scratch.path("socket").display());
        let copy = Command::new("nbdcopy")
            .args([&uri, "null:"])
            .stderr(Stdio::null())
            .spawn();
        far.until_it_is_asked_in_vain();
        signal(serving.id(), Signal::TERM);
        wait_for("the server has ended", || !is_running(serving.id()));
        assert_eq!(serving.wait().unwrap().code(), Some(0));
        copy.unwrap().wait().unwrap();
        assert!(!scratch.path("socket").exists());
    }
}

#[test]
fn a_signal_ends_a_mount_that_is_not_done_yet() {
    let scratch = Scratch::new();
    let (far, mounting) = half_mounted(&scratch);
    signal(scratch.server(), Signal::TERM);
    let output = mounting.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    scratch.assert_nothing_left();
    drop(far);
}

/// The server waits in the kernel for an answer that it gives itself, and can only end if nothing
/// of it keeps the FUSE device open.
#[test]
fn a_server_that_is_killed_while_it_mounts_is_gone() {
    let scratch = Scratch::new();
    let (far, mounting) = half_mounted(&scratch);
    let server = scratch.server();
    signal(server, Signal::KILL);
    let output = mounting.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    wait_for("the server is gone", || !is_running(server));
    drop(far);
    // The next command removes the rest.
    let on = scratch.path("on");
    let again = scratch.sidecore(&["umount", text(&on)]).output().unwrap();
    assert!(!again.status.success());
    scratch.assert_nothing_left();
}

/// A mount whose server waits for a silent source, in the middle of mounting.
fn half_mounted(scratch: &Scratch) -> (Far, Child) {
    let tree = scratch.path("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("large"), noise(22, 4 << 20)).unwrap();
    let plain = scratch.make("squashfs", &tree);
    // Squashfs' tables are at the end of `plain`; padding moves that away from the image's end.
    let mut file = std::fs::File::options().append(true).open(&plain).unwrap();
    file.write_all(&noise(24, 4 << 20)).unwrap();
    let image = scratch.image("packed");
    scratch.ok(&["pack", text(&plain), "-o", text(&image), "--level", "1"]);
    let far = Far::silent_between(&image, 1 << 20..6 << 20);
    let on = scratch.path("on");
    let url = far.server.url();
    let mount = ["mount", &url, text(&on)];
    let mounting = scratch
        .sidecore(&mount)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    far.until_it_is_asked_in_vain();
    wait_for("it has a record", || scratch.servers().len() == 1);
    (far, mounting)
}

#[test]
fn relative_paths_are_those_of_the_commands_directory() {
    let scratch = Scratch::new();
    let image = packed(&scratch);
    let far = Far::new(&image, u64::MAX);
    let url = far.server.url();
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        command
            .arg("block")
            .args(words)
            .current_dir(scratch.dir.path());
        // Relative as well: the server's records are used to its end.
        command.env("SIDECORE_STATE_DIR", "state");
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    };
    let kept = |dir: &str| {
        let mut files = Command::new("find");
        let found = files.arg(scratch.path(dir)).args(["-type", "f"]).output();
        let found = String::from_utf8(found.unwrap().stdout).unwrap();
        found
            .lines()
            .filter(|line| !line.ends_with("/lock"))
            .count()
    };
    let cases: [(&str, &[&str], &str); 3] = [
        ("one", &["mount"], "on/large"),
        ("two", &["mount", "--rootless"], "on/large"),
        ("three", &["mount", "--file-only"], "on/image"),
    ];
    for (cache, command, file) in cases {
        let trace = format!("trace-{cache}");
        let options = [&url, "on", "--cache", cache, "--trace", &trace];
        run(&[command, &options[..]].concat());
        assert!(reader(&scratch.path(file)).wait().unwrap().success());
        wait_for("frames are kept", || kept(cache) > 0);
        run(&["umount", "on"]);
        let trace = std::fs::read_to_string(scratch.path(&trace)).unwrap();
        assert!(trace.lines().count() > 2, "{trace}");
        scratch.assert_nothing_left();
    }
    let overlay = ["--overlay", "overlay", "--cache", "four"];
    let device = run(&[&["attach", &url][..], &overlay].concat());
    assert!(reader(Path::new(device.trim())).wait().unwrap().success());
    wait_for("frames are kept", || kept("four") > 0);
    run(&["detach", device.trim()]);
    wait_for("the server has ended", || scratch.records() == 0);
    scratch.assert_nothing_left();
    assert!(scratch.path("overlay").exists());
}

/// Another user's `cat` of the one file of a mount; returns its output.
fn read_by_another(scratch: &Scratch) -> Option<i32> {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]);
    let file = scratch.path("on/image");
    let read = command
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    read.status().unwrap().code()
}

#[test]
fn the_one_file_is_open_to_those_alone_who_may_read_what_it_is_made_of() {
    let scratch = Scratch::new();
    let chmod = |mode: &str, path: &Path| {
        crate::mount::scratch::tool(Command::new("chmod").arg(mode).arg(path));
    };
    chmod("755", scratch.dir.path());
    std::fs::write(scratch.path("raw"), noise(23, 1 << 20)).unwrap();
    std::fs::write(scratch.path("words"), "correct horse\n").unwrap();
    let (raw, words) = (scratch.path("raw"), scratch.path("words"));
    let (image, locked) = (scratch.image("plain"), scratch.image("locked"));
    let key = ["--passphrase-file", text(&words)];
    scratch.ok(&["pack", text(&raw), "-o", text(&image)]);
    let pack = ["pack", text(&raw), "-o", text(&locked), "--encrypt"];
    scratch.ok(&[&pack[..], &key].concat());
    let on = scratch.path("on");
    let overlay = scratch.path("overlay");
    let with = ["--overlay", text(&overlay)];
    for (image, mode, options, status) in [
        (&image, "644", &[][..], 0),
        (&image, "600", &[][..], 1),
        // A user that may not read the key may not read the contents.
        (&locked, "644", &key[..], 1),
        // Nor the writes in the overlay.
        (&image, "644", &with[..], 1),
    ] {
        chmod(mode, image);
        let mount = ["mount", "--file-only", text(image), text(&on)];
        scratch.ok(&[&mount[..], options].concat());
        if overlay.exists() {
            chmod("600", &overlay);
            scratch.ok(&["umount", text(&on)]);
            scratch.ok(&[&mount[..], options].concat());
        }
        assert_eq!(
            read_by_another(&scratch),
            Some(status),
            "{mode} {options:?}"
        );
        scratch.ok(&["umount", text(&on)]);
        scratch.assert_nothing_left();
    }
}
