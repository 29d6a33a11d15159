//! Clients and servers in namespaces of their own, as containers have them: identity is by user and
//! process, never by a number that another namespace does not have. Needs root.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_attach::protocol::{KIND_ATTACH, KIND_STATUS};
use sidecore_attach::{
    Acceptor, AcceptorOptions, Allow, AttachError, Event, Introduction, ListenError, Protocol,
    Quota, Segment, Trust,
};
use sidecore_sys::local_socket;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const PROTOCOL: Protocol = Protocol {
    magic: u64::from_le_bytes(*b"TESTING1"),
    version: 3,
    server: "test",
};
const LONG: Duration = Duration::from_secs(60);
const SOCKET: &str = "SIDECORE_TEST_NAMESPACES";

fn open(path: &Path) -> Acceptor<Segment> {
    let options = AcceptorOptions {
        allow: Allow::default(),
        quota: Quota {
            places_max: 4,
            user_places_max: 2,
            bytes_max: 1 << 20,
            user_bytes_max: 1 << 19,
        },
        cpus: Vec::new(),
        acceptors: 1,
        remedy: |_| "no remedy".to_owned(),
    };
    Acceptor::open(PROTOCOL, path, options).unwrap()
}

/// The part of this program named `role`, in new namespaces.
fn play(role: &str, unshare: &[&str], socket: &Path) -> Child {
    Command::new("unshare")
        .args(unshare)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", role, "--nocapture", "--test-threads=1"])
        .env(SOCKET, socket)
        .spawn()
        .expect("unshare; scripts/setup installs it")
}

/// Serves until `is_over`; the process numbers of clients that attached, and how many parted.
fn serve(acceptor: &mut Acceptor<Segment>, mut is_over: impl FnMut(usize) -> bool) -> Vec<i32> {
    let (mut seen, mut parted) = (Vec::new(), 0);
    let begun = Instant::now();
    while !is_over(parted) {
        assert!(begun.elapsed() < LONG, "{seen:?}, {parted} parted");
        acceptor.wait(&[], Duration::from_millis(10)).unwrap();
        while let Some(event) = acceptor.next_event() {
            match event {
                Event::Question { from, kind, .. } if kind == KIND_ATTACH => {
                    acceptor.order(from, "test", 4096, 0);
                }
                Event::Question { from, .. } => acceptor.answer(from, KIND_STATUS, b"well"),
                Event::Made { to, peer, made, .. } => {
                    let (segment, lent) = made.unwrap();
                    seen.push(peer.pid);
                    acceptor
                        .attach(to, segment, b"terms", &[lent.as_fd()])
                        .unwrap();
                }
                Event::Parted(_) => parted += 1,
            }
        }
    }
    seen
}

fn is_root() -> bool {
    local_socket::effective_uid() == 0
}

/// The socket, where this process plays a part.
fn socket() -> Option<PathBuf> {
    std::env::var_os(SOCKET).map(PathBuf::from)
}

/// Attaches, and leaves without hanging up: its child has the socket a moment longer.
#[test]
fn part_attaches() {
    let Some(socket) = socket() else { return };
    let question = PROTOCOL.question(KIND_ATTACH, &[]);
    let trust = Trust::default();
    let asked = Introduction::begin(PROTOCOL, &socket, &trust, &question, 4096).unwrap();
    assert_eq!(asked.wait(LONG).unwrap().body, b"terms");
}

#[test]
fn part_trusts_nobody() {
    let Some(socket) = socket() else { return };
    let question = PROTOCOL.question(KIND_STATUS, &[]);
    let trust = Trust::default();
    let asked = Introduction::begin(PROTOCOL, &socket, &trust, &question, 4096);
    assert!(
        matches!(asked, Err(AttachError::Unmapped { .. })),
        "{asked:?}"
    );
}

#[test]
fn part_serves() {
    let Some(path) = socket() else { return };
    let mut acceptor = open(&path);
    assert_eq!(serve(&mut acceptor, |parted| parted == 1), [0]);
}

#[test]
fn part_takes_no_socket() {
    let Some(path) = socket() else { return };
    // All that is root's seems to be its own: they have the same number.
    let taken = sidecore_attach::ServerSocket::take(&path, true);
    assert!(
        matches!(taken, Err(ListenError::Unmapped { .. })),
        "{taken:?}"
    );
}

#[test]
fn a_client_in_a_pid_namespace_attaches_and_its_end_is_seen() {
    if socket().is_some() || !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sock");
    let mut acceptor = open(&path);
    let mut child = play("part_attaches", &["-pf", "--mount-proc"], &path);
    // It is below this namespace, which has a number for it.
    let seen = serve(&mut acceptor, |parted| parted == 1);
    assert!(seen.len() == 1 && seen[0] > 0, "{seen:?}");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_server_in_a_pid_namespace_serves_clients_that_have_no_number_there() {
    if socket().is_some() || !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sock");
    let mut server = play("part_serves", &["-pf", "--mount-proc"], &path);
    let question = PROTOCOL.question(KIND_ATTACH, &[]);
    let trust = Trust::default();
    let begun = Instant::now();
    let asked = loop {
        match Introduction::begin(PROTOCOL, &path, &trust, &question, 4096) {
            Ok(asked) => break asked,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(asked.wait(LONG).unwrap().body, b"terms");
    drop(asked);
    assert!(server.wait().unwrap().success());
}

#[test]
fn users_that_a_namespace_does_not_map_are_not_told_apart() {
    if socket().is_some() || !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.sock");
    let mut acceptor = open(&path);
    let mut client = play("part_trusts_nobody", &["-U"], &path);
    let mut status = None;
    serve(&mut acceptor, |_| {
        status = client.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
    drop(acceptor);
    let mut server = play("part_takes_no_socket", &["-U"], &path);
    assert!(server.wait().unwrap().success());
}
