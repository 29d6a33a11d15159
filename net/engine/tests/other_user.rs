//! Attacks by another user on an engine's sockets and its applications: denial of service, hoarding
//! memory, posing as the engine. The other user is a real one (65534), so these need root.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; figures.

#[path = "common/loopback.rs"]
mod loopback;
#[path = "../../../daemon/daemon/tests/common/other_user.rs"]
mod other_user;

use loopback::Loopback;
use other_user::{
    ARGUMENT, Child, ROLE, UID, attach_by_hand, can_be_played, mute, open_folder, pretend, say,
    wait_for_parent,
};
use sidecore_net::sock::client::{Client, ClientOptions, status};
use sidecore_net::sock::control::{Admission, Control, SockError};
use sidecore_net::sock::layout::VERSION;
use sidecore_sys::local_socket;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// An engine that only has sockets, and admits the other user.
struct Engine {
    path: PathBuf,
    _control: Control,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    fn start(folder: &Path, admission: Admission) -> Self {
        let path = folder.join("net.sock");
        let (control, mut server) = Control::start(&path, admission).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut stack = Loopback::default();
            while !stopped.load(Ordering::Acquire) {
                if server.is_asked() {
                    server.answer(server.status().count().to_string());
                }
                if server.poll(&mut stack) == 0 && server.arm() {
                    let nap = Duration::from_millis(20);
                    local_socket::poll(&[server.bell()], &mut Vec::new(), nap).unwrap();
                }
                server.disarm();
            }
        });
        Self {
            path,
            _control: control,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
    }
}

fn admission() -> Admission {
    Admission {
        uids: vec![UID],
        ..Admission::default()
    }
}

/// Not a test of its own: the parts that run as the other user.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let argument = PathBuf::from(std::env::var_os(ARGUMENT).unwrap());
    match &*role {
        "mute" => mute(&argument, 290),
        "hoard" => hoard(&argument),
        "pretend" => pretend(&argument),
        _ => panic!("{role}"),
    }
}

#[test]
fn mute_connections_of_one_user_do_not_keep_others_out() {
    if !can_be_played() {
        return;
    }
    let folder = open_folder();
    let engine = Engine::start(folder.path(), admission());
    let mut hostile: Vec<Child> = (0..2)
        .map(|_| Child::start(folder.path(), "mute", &engine.path))
        .collect();
    for child in &mut hostile {
        child.expect("begun");
    }
    let options = ClientOptions {
        chunks: 8,
        ..ClientOptions::default()
    };
    let mut attach_us = Vec::new();
    for port in 8_000..8_025 {
        let begun = Instant::now();
        let mut client = Client::attach(&engine.path, &options).unwrap();
        attach_us.push(begun.elapsed().as_micros());
        // A port each: the engine may not have noticed yet that the previous client is gone.
        let local = SocketAddr::from(([192, 0, 2, 1], port));
        client.listen(local, 1).unwrap();
    }
    attach_us.sort_unstable();
    println!(
        "25 of 25 attached beside mute connections in {} us (median), {} us (longest)",
        attach_us[12], attach_us[24]
    );
}

/// Attaches with 8 MiB, keeps the memory and hangs up, until it is refused.
fn hoard(socket: &Path) {
    let mut kept: Vec<OwnedFd> = Vec::new();
    let reason = loop {
        match attach(socket) {
            Ok(_) if kept.len() > 30 => break "never".to_owned(),
            Ok(segment) => kept.push(segment),
            Err(reason) => break reason,
        }
    };
    say(&format!("refused: {reason}"));
    say(&format!("kept: {}", kept.len()));
    wait_for_parent();
    drop(kept);
    let begun = Instant::now();
    while attach(socket).is_err() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the charge stays"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    say("attached again");
}

/// Attaches manually, with 256 chunks each way; the segment, without the connection.
fn attach(socket: &Path) -> Result<OwnedFd, String> {
    let mut question = b"SIDENET1".to_vec();
    question.extend([1, VERSION, 256].map(u32::to_le_bytes).concat());
    question.extend([0; 12]);
    attach_by_hand(socket, &question)
}

#[test]
fn memory_that_a_user_keeps_is_charged_until_it_is_let_go() {
    if !can_be_played() {
        return;
    }
    let folder = open_folder();
    let admission = Admission {
        user_bytes_max: 64 << 20,
        bytes_max: 128 << 20,
        ..admission()
    };
    let engine = Engine::start(folder.path(), admission);
    let mut hostile = Child::start(folder.path(), "hoard", &engine.path);
    let reason = hostile.expect("refused: ");
    assert!(reason.contains("user 65534 has"), "{reason}");
    // 8.25 MiB each, of 64 MiB.
    assert_eq!(hostile.expect("kept: "), "7");
    let client = Client::attach(&engine.path, &ClientOptions::default());
    assert!(client.is_ok(), "{client:?}");
    hostile.go_on();
    hostile.expect("attached again");
}

#[test]
fn an_impostor_is_told_nothing_and_refused_in_one_line() {
    if !can_be_played() {
        return;
    }
    let folder = open_folder();
    let place = folder.path().join("theirs");
    std::fs::create_dir(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(UID), Some(UID)).unwrap();
    let socket = place.join("net.sock");
    let mut impostor = Child::start(folder.path(), "pretend", &socket);
    impostor.expect("listening");
    for error in [
        Client::attach(&socket, &ClientOptions::default()).unwrap_err(),
        status(&socket).unwrap_err(),
    ] {
        assert!(
            matches!(
                error,
                SockError::Untrusted {
                    uid: UID,
                    own_uid: 0,
                    ..
                }
            ),
            "{error}"
        );
        assert!(!error.to_string().contains('\n'));
        assert_eq!(impostor.expect("heard: "), "nothing");
    }
    // Our engine does not serve in the other user's folder either.
    let error = Control::start(&place.join("other.sock"), Admission::default()).unwrap_err();
    assert!(
        error.to_string().contains("belongs to user 65534"),
        "{error}"
    );
}
