//! Commands that stay in the foreground, and those that need one of them or a mount.
//!
//! Must stay true: everything that a test starts ends with it, also when it fails.

use crate::commands::{contract, inputs, json, namespace};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The commands that are run here, and in `containers`.
pub(crate) const RUN: [&str; 25] = [
    "block list",
    "block status",
    "block mount",
    "block layer",
    "snapshotter",
    "block umount",
    "block attach",
    "block detach",
    "block serve",
    "block memory",
    "block snapshot",
    "block resize",
    "daemon",
    "top",
    "offload kernels",
    "net up",
    "net status",
    "net sessions",
    "net capture",
    "net echo",
    "net discard",
    "net source",
    "rdma serve",
    "rdma ping",
    "ui",
];

/// A command in the foreground that has printed its first line; killed on drop.
pub(crate) struct Service(Child);

impl Service {
    /// Starts it and looks at its first line.
    pub(crate) fn start(words: &str, expected: &str) -> Self {
        let (service, line) = Self::first_line(words);
        assert_eq!(line, expected, "{words}");
        service
    }

    /// Starts it; its first line.
    fn first_line(words: &str) -> (Self, String) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sidecore"))
            .args(words.split_whitespace())
            .current_dir(inputs::folder())
            .env("SIDECORE_SERVERS_DIR", inputs::folder().join("servers"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        (Self(child), line.trim_end().to_owned())
    }

    /// Ends it as a service manager does; it must end well.
    pub(crate) fn end(mut self) {
        kill_process(Pid::from_child(&self.0), Signal::TERM).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Usually it has ended in order already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

pub(crate) fn ok(words: &str) -> String {
    let output = inputs::sidecore(words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{words}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Undoes a mount or a device also when the test fails.
pub(crate) struct Undo(pub(crate) String);

impl Drop for Undo {
    fn drop(&mut self) {
        // Usually it was undone in order already.
        inputs::sidecore(&self.0);
    }
}

/// The process number of the server of the layer mounted on a directory.
pub(crate) fn server_of(place: &str) -> Option<u32> {
    let listed: serde_json::Value = serde_json::from_str(&ok("block list --json")).unwrap();
    let exports = listed["exports"].as_array().unwrap();
    let is_it = |it: &&serde_json::Value| it["path"].as_str().unwrap().ends_with(place);
    let pid = exports.iter().find(is_it)?["pid"].as_u64()?;
    u32::try_from(pid).ok()
}

/// The directory of the record of the server of a mount.
fn record_of(server: u32) -> Option<std::path::PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{server}/fd")).ok()?;
    let files = files
        .flatten()
        .filter_map(|it| std::fs::read_link(it.path()).ok());
    let mut locks = files.filter(|it| it.ends_with("serving"));
    Some(locks.next()?.parent()?.to_owned())
}

/// The keepers that hold a record, by their files; two once all have been started.
fn keepers_of(record: &Path) -> Vec<u32> {
    let holds = |pid: &u32| {
        let name = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
        let mut files = files.into_iter().flatten().flatten();
        name.starts_with(b"sidecore-keeper")
            && files.any(|it| {
                std::fs::read_link(it.path()).is_ok_and(|it| {
                    it.parent() == Some(record) && it.to_string_lossy().contains("/keeper-")
                })
            })
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|it| it.file_name().to_str()?.parse().ok());
    all.filter(holds).collect()
}

/// The server of a mount and both its keepers, once all are there.
pub(crate) fn guarded(place: &str) -> (u32, Vec<u32>) {
    let found = (0..600).find_map(|_| {
        let found = server_of(place).and_then(|server| {
            let keepers = keepers_of(&record_of(server)?);
            (keepers.len() == 2).then_some((server, keepers))
        });
        if found.is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
        found
    });
    found.expect("a server with two keepers")
}

/// Kills a server or a keeper.
pub(crate) fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    // It may be gone already.
    kill_process(pid, Signal::KILL).ok();
}

#[test]
fn mount_and_attach() {
    let folder = inputs::folder();
    std::fs::create_dir_all(folder.join("on")).unwrap();
    let undo = Undo("block umount on".to_owned());
    ok("block mount made-tree.img on");
    assert_eq!(
        std::fs::read_to_string(folder.join("on/hello")).unwrap(),
        "hello\n"
    );
    ok("block umount on");
    drop(undo);
    let device = ok("block attach made.img");
    let device = device.strip_suffix('\n').unwrap().to_owned();
    let undo = Undo(format!("block detach {device}"));
    assert!(
        device.starts_with("/dev/") && Path::new(&device).exists(),
        "{device}"
    );
    ok(&undo.0);
}

#[test]
fn serve_says_ready() {
    let words = "block serve made.img --nbd unix:nbd.sock --engines 1 --memory 64MiB";
    Service::start(words, "ready").end();
    assert!(!inputs::folder().join("nbd.sock").exists());
}

#[test]
fn memory_says_ready_and_is_listed() {
    let words = "block memory made.img --socket memory.sock --trace memory.trace --around 64KiB \
                 --engines 1 --memory 64MiB";
    let server = Service::start(words, "ready");
    let said = ok("block status memory:memory.sock");
    assert!(said.contains("served    memory at memory:"), "{said}");
    server.end();
    assert!(!inputs::folder().join("memory.sock").exists());
    let words = "block memory made.img --socket memory.sock --prefetch-trace memory.trace \
                 --engines 1 --memory 64MiB";
    Service::start(words, "ready").end();
}

#[test]
fn what_is_served_is_listed() {
    let words = "block serve made.img --nbd unix:listed.sock --engines 1 --memory 64MiB";
    let server = Service::start(words, "ready");
    for (name, rest) in [
        ("block list", "--json"),
        ("block status", "made.img --json"),
    ] {
        let promise = contract::read()
            .into_iter()
            .find(|promise| promise.name == name)
            .unwrap();
        let said = ok(&format!("{name} {rest}"));
        json(&promise.keys, name, said.as_bytes());
    }
    server.end();
}

#[test]
fn a_served_overlay_takes_snapshots() {
    let words = "block serve made.img --overlay live.ovl --size 2MiB --bitmap since --nbd \
                 unix:live.sock --engines 1 --memory 64MiB";
    let server = Service::start(words, "ready");
    let promise = contract::read()
        .into_iter()
        .find(|promise| promise.name == "block snapshot")
        .unwrap();
    let said = ok("block snapshot unix:live.sock --json");
    json(&promise.keys, "block snapshot", said.as_bytes());
    assert!(said.contains("live.ovl.1"), "{said}");
    assert!(ok("block snapshot unix:live.sock named.ovl").contains("named.ovl: takes the writes"));
    assert!(ok("block info live.ovl").contains("frozen"));
    server.end();
    assert!(ok("block info named.ovl").contains("takes writes"));
}

/// A client of NBD that goes through the handshake: its connection, and the size that it was given.
fn nbd_client(socket: &Path) -> (UnixStream, u64) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    // Fixed newstyle without zeros, and the export without a name.
    let flags = 3_u32.to_be_bytes();
    let hello = [&flags[..], b"IHAVEOPT", &1_u32.to_be_bytes(), &[0; 4]].concat();
    stream.write_all(&hello).unwrap();
    let mut export = [0; 10];
    stream.read_exact(&mut export).unwrap();
    let size = u64::from_be_bytes(export[..8].try_into().unwrap());
    (stream, size)
}

/// Reads a sector over NBD; the error number of the reply.
fn nbd_read(stream: &mut UnixStream, offset: u64) -> u32 {
    let (magic, cookie) = (0x2560_9513_u32.to_be_bytes(), 7_u64.to_be_bytes());
    let place = [&offset.to_be_bytes()[..], &512_u32.to_be_bytes()].concat();
    let request = [&magic[..], &[0; 4], &cookie, &place].concat();
    stream.write_all(&request).unwrap();
    let mut reply = [0; 16];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[8..], cookie);
    let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
    if error == 0 {
        stream.read_exact(&mut [0; 512]).unwrap();
    }
    error
}

#[test]
fn a_served_disk_becomes_larger() {
    let words = "block serve made.img --overlay grows.ovl --nbd unix:grows.sock --engines 1 \
                 --memory 64MiB";
    let server = Service::start(words, "ready");
    let socket = inputs::folder().join("grows.sock");
    let (mut before, former_bytes) = nbd_client(&socket);
    let promise = contract::read()
        .into_iter()
        .find(|promise| promise.name == "block resize")
        .unwrap();
    let said = ok("block resize unix:grows.sock 8MiB --json");
    json(&promise.keys, "block resize", said.as_bytes());
    assert!(said.contains("8388608"), "{said}");
    let smaller = inputs::sidecore("block resize unix:grows.sock 1MiB");
    let said = String::from_utf8_lossy(&smaller.stderr);
    assert_eq!(smaller.status.code(), Some(2), "{said}");
    assert!(said.contains("does not become smaller"), "{said}");
    // NBD has no message for it: a connection keeps the size that it was given.
    assert!(former_bytes < 8 << 20, "{former_bytes}");
    assert_eq!(nbd_read(&mut before, 0), 0);
    assert_eq!(nbd_read(&mut before, former_bytes), 22, "EINVAL");
    // The same client sees it when it connects again.
    drop(before);
    let (mut after, size_bytes) = nbd_client(&socket);
    assert_eq!(size_bytes, 8 << 20);
    assert_eq!(nbd_read(&mut after, (8 << 20) - 512), 0);
    drop(after);
    let uri = format!(
        "nbd+unix:///?socket={}",
        inputs::folder().join("grows.sock").display()
    );
    let info = Command::new("nbdinfo")
        .args(["--size", &uri])
        .output()
        .expect("nbdinfo; scripts/setup installs it");
    assert_eq!(String::from_utf8_lossy(&info.stdout).trim(), "8388608");
    server.end();
    // Of a file without a server, too.
    assert!(ok("block resize grows.ovl 9MiB").contains("9 MiB, 8 MiB before"));
    assert!(ok("block info grows.ovl").contains("9437184"));
}

/// A guest hears of it by the channel of its server's messages, and reads the size again.
#[test]
fn a_guests_disk_becomes_larger() {
    let words = "block serve made.img --overlay sized.ovl --vhost-user sized.sock --engines 1 \
                 --memory 64MiB";
    let server = Service::start(words, "ready");
    let mut guest = UnixStream::connect(inputs::folder().join("sized.sock")).unwrap();
    let (mut channel, theirs) = UnixStream::pair().unwrap();
    // A message that does not come fails the test.
    for stream in [&guest, &channel] {
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
    }
    // Request, version 1, length, body.
    let message = |request: u32, body: &[u8]| {
        let len = u32::try_from(body.len()).unwrap();
        let head = [request, 1, len].map(u32::to_ne_bytes).concat();
        [&head[..], body].concat()
    };
    // SET_OWNER, and SET_PROTOCOL_FEATURES with BACKEND_REQ and CONFIG.
    guest.write_all(&message(3, &[])).unwrap();
    let features = (1_u64 << 5) | (1 << 9);
    let features = message(16, &features.to_ne_bytes());
    guest.write_all(&features).unwrap();
    // SET_BACKEND_REQ_FD, and GET_FEATURES, which is answered behind it.
    let given = message(21, &[]);
    sidecore_sys::local_socket::send(guest.as_fd(), &given, &[theirs.as_fd()]).unwrap();
    guest.write_all(&message(1, &[])).unwrap();
    guest.read_exact(&mut [0; 20]).unwrap();
    assert!(ok("block resize vhost-user:sized.sock 8MiB").contains("8 MiB, "));
    // CONFIG_CHANGE_MSG.
    let mut change = [0; 12];
    channel.read_exact(&mut change).unwrap();
    assert_eq!(change.to_vec(), message(2, &[]));
    // GET_CONFIG of the first eight bytes: the number of sectors.
    let config = [0_u32, 8, 0, 0, 0].map(u32::to_ne_bytes).concat();
    guest.write_all(&message(24, &config)).unwrap();
    let mut answer = [0; 12 + 12 + 8];
    guest.read_exact(&mut answer).unwrap();
    assert_eq!(answer[24..], 16_384_u64.to_ne_bytes());
    drop((guest, channel, theirs));
    server.end();
}

#[test]
fn daemon_and_top() {
    let words = "daemon --socket daemon.sock --engines 1 --grace-ms 1";
    let daemon = Service::start(words, "ready daemon.sock");
    for name in ["top", "offload kernels"] {
        let promise = contract::read()
            .into_iter()
            .find(|promise| promise.name == name)
            .unwrap();
        let said = ok(&format!("{name} --socket daemon.sock --json"));
        json(&promise.keys, name, said.as_bytes());
    }
    daemon.end();
}

#[test]
fn the_stack() {
    namespace::in_namespace(|| {
        let up = Service::start("net up net.toml", "ready net.sock on sidecore0");
        let echo = Service::start("net echo --socket net.sock", "ready [::]:7");
        let discard = Service::start(
            "net discard 10.77.0.2:9 --socket net.sock",
            "ready 10.77.0.2:9",
        );
        let source = Service::start(
            "net source 10.77.0.2:19 --socket net.sock",
            "ready 10.77.0.2:19",
        );
        // A session, so that the lists of those that hold memory have an entry.
        let session = std::net::TcpStream::connect("10.77.0.2:9").unwrap();
        kept("net status", "");
        kept(
            "net sessions",
            "--state established --port 9 --prefix 10.77.0.0/24",
        );
        drop(session);
        for service in [echo, discard, source, up] {
            service.end();
        }
    });
}

#[test]
fn frames_of_a_stack_are_captured() {
    namespace::in_namespace(|| {
        let _up = Service::start("net up net.toml", "ready net.sock on sidecore0");
        kept("net capture", "-w frames.pcapng --seconds 0 --filter tcp");
        let several = "-w several.pcapng --file-bytes 64KiB --files 2";
        kept("net capture", &format!("{several} -s 64 -c 9 --seconds 0"));
    });
}

/// Runs a command that asks the stack, and looks for the keys that the page promises of it.
fn kept(name: &str, options: &str) {
    let promises = contract::read();
    let promise = promises.iter().find(|promise| promise.name == name);
    let said = ok(&format!("{name} {options} --socket net.sock --json"));
    json(&promise.unwrap().keys, name, said.as_bytes());
}

#[test]
fn rdma_serves_and_pings() {
    let (mut serve, line) = Service::first_line("rdma serve 127.0.0.1:0 --clients 2");
    let address = line.strip_prefix("ready ").unwrap();
    let promise = contract::read()
        .into_iter()
        .find(|promise| promise.name == "rdma ping")
        .unwrap();
    let ping = format!("rdma ping {address} --rounds 5 --bytes 4000 --settle-ms 0");
    let said = ok(&format!("{ping} --json"));
    json(&promise.keys, "rdma ping", said.as_bytes());
    assert!(ok(&ping).contains("5 rounds, 20000 bytes each way"));
    // The second client was the last.
    assert_eq!(serve.0.wait().unwrap().code(), Some(0));
}

#[test]
fn the_page_is_served_until_a_signal() {
    let (ui, line) = Service::first_line("ui --tree made.nwk --listen 127.0.0.1:0");
    let (host, token) = line
        .strip_prefix("ready http://")
        .and_then(|url| url.split_once("/?token="))
        .unwrap();
    let ask = |path: &str| {
        let mut stream = std::net::TcpStream::connect(host).unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        std::io::read_to_string(stream).unwrap()
    };
    assert!(ask(&format!("/{token}/")).starts_with("HTTP/1.1 200"));
    assert!(ask("/").starts_with("HTTP/1.1 403"));
    let tree = ask(&format!("/{token}/api/tree/file"));
    let given = std::fs::read_to_string(inputs::folder().join("made.nwk")).unwrap();
    let tips = |text: &str| text.matches(',').count();
    assert!(tree.trim_end().ends_with(';'), "{tree}");
    assert_eq!(tips(tree.rsplit("\r\n").next().unwrap()), tips(&given));
    ui.end();
    let (ui, line) = Service::first_line("ui --listen unix:ui.sock");
    assert!(
        line.starts_with("ready unix:ui.sock http://localhost/?token="),
        "{line}"
    );
    assert!(inputs::folder().join("ui.sock").exists());
    ui.end();
    assert!(!inputs::folder().join("ui.sock").exists());
}
