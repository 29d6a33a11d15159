//! Attacks of another user on a daemon and its clients: keeping others out, hoarding memory,
//! pretending to be the daemon. The other user is real (65534), so these need root.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; figures.

#[path = "common/other_user.rs"]
mod other_user;

use other_user::{
    ARGUMENT, Child, ROLE, UID, attach_by_hand, can_be_played, mute, open_folder, pretend, say,
    wait_for_parent, wait_for_parent_and_end,
};
use rustix::fs::{Mode, OFlags};
use sidecore_daemon::client::{Args, Client, ClientError, ClientOptions, status};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{
    Allow, Daemon, DaemonOptions, PROTOCOL_VERSION, default_socket, find_socket,
};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn options(folder: &Path) -> DaemonOptions {
    DaemonOptions {
        socket: folder.join("daemon.sock"),
        engines: 2,
        oversubscribe: true,
        grace: Duration::from_micros(300),
        allow: Allow {
            uids: vec![UID],
            gids: Vec::new(),
        },
        registry: Registry::with_spin_us(),
        ..DaemonOptions::default()
    }
}

/// Not a test of its own: the other user's parts.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let argument = PathBuf::from(std::env::var_os(ARGUMENT).unwrap());
    match &*role {
        "mute" => mute(&argument, 100),
        "hoard" => hoard(&argument),
        "pretend" => pretend(&argument),
        "spin" => spin(&argument),
        "victim" => victim(),
        _ => panic!("{role}"),
    }
}

/// Attaches and calls an engine, 25 times; how long attaching took, ascending.
fn call_25_times(socket: &Path) -> Vec<u128> {
    let mut attach_us = Vec::new();
    for _ in 0..25 {
        let begun = Instant::now();
        let client = Client::attach_with(socket, ClientOptions::patient()).unwrap();
        attach_us.push(begun.elapsed().as_micros());
        let empty = client.kernel("empty").unwrap();
        client.call(empty, Args::new()).unwrap();
        assert_eq!(client.counters().on_engines, 1, "{:?}", client.counters());
    }
    attach_us.sort_unstable();
    attach_us
}

#[test]
fn mute_connections_of_one_user_do_not_keep_others_out() {
    if !can_be_played() {
        return;
    }
    let folder = open_folder();
    let daemon = Daemon::start(options(folder.path())).unwrap();
    let quiet_us = call_25_times(daemon.socket());
    let mut hostile: Vec<Child> = (0..2)
        .map(|_| Child::start(folder.path(), "mute", daemon.socket()))
        .collect();
    for child in &mut hostile {
        child.expect("begun");
    }
    let refused = || {
        let status = status(daemon.socket(), &Default::default());
        status.unwrap().refused_total
    };
    // 25 calls may be over before the machine has let the hostile ones connect often enough.
    let begun = Instant::now();
    let mut attach_us = call_25_times(daemon.socket());
    while refused() <= 100 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "nobody was crowded out: {}",
            refused()
        );
        attach_us = call_25_times(daemon.socket());
    }
    println!(
        "25 of 25 calls served beside {} mute connections; attaching took {} us (median), \
         {} us (longest); {} and {} us before",
        refused(),
        attach_us[12],
        attach_us[24],
        quiet_us[12],
        quiet_us[24]
    );
}

/// Attaches with 8 MiB, keeps the memory and hangs up, until it is refused.
fn hoard(socket: &Path) {
    let mut kept: Vec<OwnedFd> = Vec::new();
    let reason = loop {
        match attach(socket, 8 << 20) {
            Ok(_) if kept.len() > 30 => break "never".to_owned(),
            Ok(segment) => kept.push(segment),
            Err(reason) => break reason,
        }
    };
    say(&format!("refused: {reason}"));
    say(&format!("kept: {}", kept.len()));
    wait_for_parent();
    // Descriptors that the kernel does not count, and that keep the files all the same.
    let weak: Vec<OwnedFd> = kept
        .iter()
        .map(|file| {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
        })
        .collect();
    drop(kept);
    let begun = Instant::now();
    while attach(socket, 8 << 20).is_err() {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the charge stays"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let blocks = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_blocks;
    let present: i64 = weak.iter().map(blocks).sum();
    say(&format!("present: {present}"));
}

/// Attaches by hand; the segment, without the connection.
fn attach(socket: &Path, arena_bytes: u64) -> Result<OwnedFd, String> {
    let mut question = b"SIDECOR1".to_vec();
    question.extend([1, PROTOCOL_VERSION].map(u32::to_le_bytes).concat());
    question.extend(arena_bytes.to_le_bytes());
    question.extend([0; 8]);
    attach_by_hand(socket, &question)
}

#[test]
fn memory_that_a_user_keeps_is_charged_until_it_is_let_go() {
    if !can_be_played() {
        return;
    }
    let folder = open_folder();
    let daemon = Daemon::start(DaemonOptions {
        user_bytes_max: 64 << 20,
        bytes_max: 128 << 20,
        ..options(folder.path())
    })
    .unwrap();
    let mut hostile = Child::start(folder.path(), "hoard", daemon.socket());
    let reason = hostile.expect("refused: ");
    assert!(reason.contains("user 65534 has"), "{reason}");
    // 8 MiB and some 160 KiB each, of 64 MiB.
    assert_eq!(hostile.expect("kept: "), "7");
    // Others are not affected.
    let large = ClientOptions {
        arena_bytes: 32 << 20,
        ..ClientOptions::default()
    };
    let client = Client::attach_with(daemon.socket(), large).unwrap();
    assert!(
        client
            .status()
            .unwrap()
            .clients
            .iter()
            .all(|it| it.uid == 0)
    );
    hostile.go_on();
    assert_eq!(
        hostile.expect("present: "),
        "0",
        "memory is kept by O_PATH descriptors"
    );
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
    let socket = place.join("daemon.sock");
    let mut impostor = Child::start(folder.path(), "pretend", &socket);
    impostor.expect("listening");
    let error = Client::attach(&socket).unwrap_err();
    assert!(
        matches!(
            error,
            ClientError::Untrusted {
                uid: UID,
                own_uid: 0,
                ..
            }
        ),
        "{error}"
    );
    assert!(!error.to_string().contains('\n'));
    assert_eq!(impostor.expect("heard: "), "nothing");
    let error = status(&socket, &Default::default()).unwrap_err();
    assert!(matches!(error, ClientError::Untrusted { .. }), "{error}");
    assert_eq!(impostor.expect("heard: "), "nothing");
    // A client that names the user trusts it.
    let options = ClientOptions {
        trust: sidecore_attach::Trust::default().and(UID),
        ..ClientOptions::default()
    };
    let error = Client::attach_with(&socket, options).unwrap_err();
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
    assert_eq!(impostor.expect("heard: "), "32");
    // A daemon of ours does not serve in that user's folder either.
    let error = Daemon::start(DaemonOptions {
        socket: place.join("other.sock"),
        ..DaemonOptions::default()
    });
    let error = error.unwrap_err().to_string();
    assert!(error.contains("belongs to user 65534"), "{error}");
}

/// Looks for a daemon as users without `XDG_RUNTIME_DIR` do, and tries to serve there.
fn victim() {
    let error = Client::attach(find_socket(&Default::default())).unwrap_err();
    say(&format!("client: {error}"));
    let options = DaemonOptions {
        socket: default_socket(),
        engines: 1,
        ..DaemonOptions::default()
    };
    say(&format!("daemon: {}", Daemon::start(options).unwrap_err()));
}

#[test]
fn a_folder_in_tmp_that_another_user_made_is_not_trusted() {
    const VICTIM: u32 = 61_234;
    // Where a daemon of the system serves, the victim finds that one.
    if !can_be_played() || Path::new("/run/sidecore/daemon.sock").exists() {
        return;
    }
    let place = PathBuf::from(format!("/tmp/sidecore-{VICTIM}"));
    std::fs::remove_dir_all(&place).ok();
    std::fs::create_dir(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(UID), Some(UID)).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o777)).unwrap();
    let folder = open_folder();
    let mut impostor = Child::start(folder.path(), "pretend", &place.join("daemon.sock"));
    impostor.expect("listening");
    let mut victim = Child::start_as(VICTIM, folder.path(), "victim", Path::new("-"));
    let client = victim.expect("client: ");
    let daemon = victim.expect("daemon: ");
    std::fs::remove_dir_all(&place).unwrap();
    assert!(client.contains("is served by user 65534"), "{client}");
    assert!(daemon.contains("belongs to user 65534"), "{daemon}");
}

/// Keeps as many engines busy as it gets.
fn spin(socket: &Path) {
    let options = || ClientOptions {
        registry: Registry::with_spin_us(),
        arena_bytes: 4096,
        ..ClientOptions::default()
    };
    let clients = [(); 3].map(|()| Client::attach_with(socket, options()).unwrap());
    say("begun");
    std::thread::spawn(wait_for_parent_and_end);
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                let spin = client.kernel("spin_us").unwrap();
                while client.call(spin, Args::new().words(&[2_000])).is_ok() {}
            });
        }
    });
}

#[test]
fn a_users_requests_in_flight_are_limited_where_that_is_asked_for() {
    if !can_be_played() {
        return;
    }
    // Without a limit first, to see how soon two are seen at once; then twenty times as often.
    let mut looks_min = 0;
    for user_requests_max in [0, 1] {
        let folder = open_folder();
        let daemon = Daemon::start(DaemonOptions {
            user_requests_max,
            ..options(folder.path())
        })
        .unwrap();
        let mut busy = Child::start(folder.path(), "spin", daemon.socket());
        busy.expect("begun");
        let begun = Instant::now();
        let (mut looks, mut most, mut served) = (0, 0, 0);
        while looks < looks_min || served < 20 || user_requests_max == 0 && most < 2 {
            let status = status(daemon.socket(), &Default::default()).unwrap();
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "{most} at once, {served} in {looks} looks: {status:?}"
            );
            let in_flight: u32 = status.clients.iter().map(|client| client.in_flight).sum();
            assert!(user_requests_max == 0 || in_flight <= 1, "{status:?}");
            most = most.max(in_flight);
            served += in_flight;
            looks += 1;
        }
        looks_min = (20 * looks).min(LOOKS_MAX);
    }
}

/// Looks at requests in flight where few would see two at once; each takes a millisecond or so.
const LOOKS_MAX: u32 = 2_000;
