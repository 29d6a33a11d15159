//! Readers against live, dead, silent and hostile servers.

use super::*;
use crate::Publisher;
use serde_json::json;
use sidecore_sys::folder::Folder;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

/// Far more than any answer takes.
const LONG: Duration = Duration::from_secs(60);
/// Enough to see that silence ends.
const SHORT: Duration = Duration::from_millis(200);

fn folder() -> (tempfile::TempDir, Servers) {
    let folder = tempfile::tempdir().unwrap();
    let servers = Servers::at(folder.path().join("servers"));
    (folder, servers)
}

/// A server that was not made by us: for each connection, `act`.
fn hostile(servers: &Servers, name: &str, act: impl Fn(UnixStream) + Send + 'static) {
    let listener = UnixListener::bind(servers.path().join(name)).unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(act));
}

#[test]
fn a_hundred_servers_answer_each_for_itself() {
    let (_folder, servers) = folder();
    let all: Vec<Publisher> = (0..100)
        .map(|i| {
            let fields = move || json!({"read_bytes": i});
            Publisher::start_in(&servers, Kind::Image, format!("{i:03}"), fields)
        })
        .collect();
    assert!(all.iter().all(Publisher::is_published));
    let mut found = servers.list(LONG);
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(found.len(), 100);
    for (i, server) in found.iter().enumerate() {
        assert!(server.is_answering);
        assert_eq!(
            (server.pid, server.uid),
            (std::process::id(), local_socket::effective_uid())
        );
        assert_eq!(
            (&*server.name, &server.fields["read_bytes"]),
            (&*format!("{i:03}"), &json!(i))
        );
    }
    drop(all);
    assert_eq!(servers.list(LONG), []);
    assert_eq!(std::fs::read_dir(servers.path()).unwrap().count(), 0);
}

#[test]
fn a_dead_socket_is_removed_and_other_files_stay() {
    let (_folder, servers) = folder();
    let _one = Publisher::start_in(&servers, Kind::Daemon, "one", || json!({}));
    let dead = servers.path().join("image-7-0.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let file = servers.path().join("image-8-0.sock");
    std::fs::write(&file, "").unwrap();
    let link = servers.path().join("image-9-0.sock");
    let away = tempfile::tempdir().unwrap();
    let elsewhere = UnixListener::bind(away.path().join("it")).unwrap();
    std::os::unix::fs::symlink(away.path().join("it"), &link).unwrap();
    let found = servers.list(LONG);
    assert_eq!(
        found.iter().map(|it| &*it.name).collect::<Vec<_>>(),
        ["one"]
    );
    assert!(!dead.exists() && file.exists() && link.is_symlink());
    elsewhere.set_nonblocking(true).unwrap();
    assert!(elsewhere.accept().is_err(), "a link was followed");
}

/// Root asks the servers of all users, and each of them may claim the name of one of root's.
#[test]
fn own_servers_act_before_those_of_others() {
    let own = local_socket::effective_uid();
    let made = [own + 1, own, own + 2].map(|uid| {
        let place = tempfile::tempdir().unwrap();
        for name in ["image-1-0.sock", "image-2-0.sock"] {
            std::fs::write(place.path().join(name), "").unwrap();
        }
        let folder = Folder::open(place.path()).unwrap();
        (Opened { folder, uid }, place)
    });
    let (folders, _places): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let asked = own_first(&folders).into_iter();
    let asked: Vec<usize> = asked.map(|(folder, ..)| folder).collect();
    assert_eq!(asked, [1, 1, 0, 2, 0, 2]);
}

#[test]
fn silent_servers_cost_the_limit_together() {
    let (_folder, servers) = folder();
    let _one = Publisher::start_in(&servers, Kind::Image, "one", || json!({}));
    for i in 0..50 {
        // Connected by the kernel, never accepted: as a stopped process.
        let path = servers.path().join(format!("image-1-{i}.sock"));
        std::mem::forget(UnixListener::bind(path).unwrap());
    }
    let begun = Instant::now();
    let found = servers.list(SHORT);
    // One limit, not fifty of them, with room for a slow machine.
    assert!(begun.elapsed() < SHORT * 25, "{:?}", begun.elapsed());
    assert_eq!(found.len(), 51);
    assert_eq!(found.iter().filter(|it| it.is_answering).count(), 1);
    let silent = found.iter().find(|it| !it.is_answering).unwrap();
    assert_eq!((silent.kind, &*silent.name), (Kind::Image, ""));
}

#[test]
fn hostile_answers_cost_no_more_than_their_bound() {
    let (_folder, servers) = folder();
    let _one = Publisher::start_in(&servers, Kind::Image, "one", || json!({}));
    hostile(&servers, "image-1-0.sock", |mut stream| {
        let block = vec![b'x'; 1 << 20];
        // Without end, until the reader has had enough.
        while stream.write_all(&block).is_ok() {}
    });
    hostile(&servers, "image-1-1.sock", |mut stream| {
        stream.write_all(b"\xff\xfe{]\n").ok();
    });
    hostile(&servers, "image-1-2.sock", |mut stream| {
        let lie = json!({
            "kind": "stack", "pid": 1, "uid": 0, "is_answering": 3,
            "name": "a\x1b[2J\u{202e}", "started_unix_s": -1,
        });
        stream.write_all(format!("{lie}\n").as_bytes()).ok();
        stream.read_to_end(&mut Vec::new()).ok();
    });
    hostile(&servers, "image-1-3.sock", drop);
    let found = servers.list(LONG);
    assert_eq!(found.len(), 5);
    let answering: Vec<_> = found.iter().filter(|it| it.is_answering).collect();
    assert_eq!(answering.len(), 2);
    let liar = answering.iter().find(|it| it.name != "one").unwrap();
    assert_eq!((liar.kind, liar.pid), (Kind::Image, std::process::id()));
    assert_eq!(liar.uid, local_socket::effective_uid());
    assert_eq!((liar.started_unix_s, liar.fields.len()), (0, 0));
}

#[test]
fn a_client_of_many_lines_is_served_and_a_silent_one_costs_nothing() {
    let (_folder, servers) = folder();
    let _one = Publisher::start_in(&servers, Kind::Stack, "one", || json!({"drops": 5}));
    let name = std::fs::read_dir(servers.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    let silent: Vec<_> = (0..40)
        .map(|_| UnixStream::connect(name.path()).unwrap())
        .collect();
    let mut stream = UnixStream::connect(name.path()).unwrap();
    for _ in 0..3 {
        stream
            .write_all(b"{\"op\":\"status\"}\n{\"op\":\"nonsense\"}\n")
            .unwrap();
        let mut text = String::new();
        while text.matches('\n').count() < 2 {
            let mut bytes = [0; 512];
            let count = stream.read(&mut bytes).unwrap();
            assert_ne!(count, 0, "{text}");
            text += std::str::from_utf8(&bytes[..count]).unwrap();
        }
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(
            (&lines[0]["drops"], &lines[0]["kind"]),
            (&json!(5), &json!("stack"))
        );
        assert!(lines[1]["error"].is_string());
    }
    assert_eq!(servers.list(LONG).len(), 1);
    drop(silent);
}

#[test]
fn a_folder_of_another_user_is_neither_used_nor_read() {
    if local_socket::effective_uid() != 0 {
        // Only root can give a folder away.
        return;
    }
    let (folder, servers) = folder();
    let _one = Publisher::start_in(&servers, Kind::Image, "one", || json!({}));
    assert_eq!(servers.list(LONG).len(), 1);
    std::os::unix::fs::chown(servers.path(), Some(65_534), None).unwrap();
    assert_eq!(servers.list(LONG), []);
    assert!(!Publisher::start_in(&servers, Kind::Image, "two", || json!({})).is_published());
    std::os::unix::fs::chown(servers.path(), Some(0), None).unwrap();
    // Open to others: it is closed again.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(servers.path(), open).unwrap();
    let _two = Publisher::start_in(&servers, Kind::Image, "two", || json!({}));
    use std::os::unix::fs::MetadataExt;
    assert_eq!(servers.path().metadata().unwrap().mode() & 0o777, 0o700);
    for entry in std::fs::read_dir(servers.path()).unwrap() {
        let mode = entry.unwrap().metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    drop(folder);
}

#[test]
fn names_are_of_one_form() {
    assert_eq!(
        parse(OsStr::new("image-12-3.sock")),
        Some((Kind::Image, 12))
    );
    for bad in [
        "image-12.sock",
        "image-12-3-4.sock",
        "image--3.sock",
        "x-1-1.sock",
        "image-1-1",
    ] {
        assert_eq!(parse(OsStr::new(bad)), None, "{bad}");
    }
}
