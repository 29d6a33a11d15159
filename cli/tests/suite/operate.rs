//! Servers as an operator sees them: the list, metrics, the service manager, passed sockets.
//!
//! Must stay true: nothing is left running; a test waits for what must happen, never for a time.

use crate::commands::inputs::folder;
use crate::namespace;
use crate::serving::until_it_says;
use rustix::process::{Pid, Signal, getuid, kill_process};
use serde_json::Value;
use sidecore_daemon::client::{Args, Client, ClientOptions};
use sidecore_status::metrics::strict;
use sidecore_status::{Kind, Server, Servers};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// A folder with an image of 1 MiB and a folder of servers of its own.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
        std::fs::write(folder.path().join("disk.img"), bytes).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sidecore"));
        command
            .args(words.split_whitespace())
            .current_dir(self.folder.path())
            .env("SIDECORE_SERVERS_DIR", self.path("servers"))
            .env("SIDECORE_STATE_DIR", self.path("state"));
        command
    }

    fn run(&self, words: &str) -> Output {
        self.command(words).output().unwrap()
    }

    /// The JSON of a command that ends with this status.
    fn json(&self, words: &str, status: i32) -> Value {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words}: {said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn servers(&self) -> Vec<Server> {
        Servers::at(self.path("servers")).list(Duration::from_secs(60))
    }

    /// Starts a server that says that it is ready.
    fn serve(&self, words: &str) -> Running {
        let mut command = self.command(words);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        until_it_says(&mut child, "ready\n");
        Running(child)
    }
}

/// A child that ends with the test.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn end(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Usually it has ended in order already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Runs a tool of scripts/setup.
fn tool(name: &str, args: &[&str]) -> Output {
    let output = Command::new(name).args(args).output();
    output.unwrap_or_else(|error| panic!("cannot run {name} ({error}); run scripts/setup first"))
}

/// The samples at an endpoint.
fn scrape(path: &Path) -> Vec<strict::Sample> {
    let mut stream = UnixStream::connect(path).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    strict::parse(body).unwrap()
}

fn value(samples: &[strict::Sample], name: &str) -> f64 {
    let found = samples.iter().find(|(known, ..)| known == name);
    found.unwrap_or_else(|| panic!("no {name}: {samples:?}")).2
}

#[test]
fn a_served_image_is_listed_with_its_figures_until_it_ends() {
    let place = Place::new();
    assert_eq!(
        place.json("block list --json", 0)["exports"],
        Value::Array(Vec::new())
    );
    let words = "block serve disk.img --nbd unix:a.sock --metrics unix:m.sock";
    let mut server = place.serve(words);
    let uri = format!("nbd+unix:///?socket={}", place.text("a.sock"));
    assert!(tool("nbdcopy", &[&uri, "null:"]).status.success());
    let listed = place.json("block list --json", 0);
    let export = &listed["exports"][0];
    assert_eq!(export["image"], place.text("disk.img"));
    assert_eq!(
        (&export["way"], &export["path"]),
        (
            &"serve".into(),
            &format!("unix:{}", place.text("a.sock")).into()
        )
    );
    assert_eq!(export["pid"], server.0.id());
    assert!(export["bytes"].as_u64() >= Some(1 << 20) && export["reads"].as_u64() > Some(0));
    assert_eq!(
        (&export["damaged_frames"], &export["is_answering"]),
        (&0.into(), &true.into())
    );
    for name in ["disk.img", "unix:a.sock"] {
        let found = place.json(&format!("block status {name} --json"), 0);
        assert_eq!(found["exports"][0]["pid"], export["pid"]);
    }
    let none = place.json("block status other.img --json", 1);
    assert_eq!(none["exports"], Value::Array(Vec::new()));
    let table = String::from_utf8(place.run("block list").stdout).unwrap();
    assert!(
        table.contains("disk.img") && table.contains("a.sock"),
        "{table}"
    );
    let samples = scrape(&place.path("m.sock"));
    let read = value(&samples, "sidecore_image_read_bytes_total");
    assert!(read >= f64::from(1 << 20), "{read}");
    server.end();
    assert_eq!(place.servers(), []);
    assert!(!place.path("m.sock").exists());
}

/// The bytes that were read, as a collector gets them.
fn pushed_bytes(body: &Value) -> Option<u64> {
    let metrics = &body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
    let mut metrics = metrics.as_array()?.iter();
    let read = metrics.find(|it| it["name"] == "sidecore_image_read_bytes")?;
    read["sum"]["dataPoints"][0]["asInt"].as_str()?.parse().ok()
}

/// The first request of one that has read `bytes`, at a collector that answers all.
fn collected(listener: TcpListener, bytes: u64) -> (String, Value) {
    let (sender, requests) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut text) = (stream.unwrap(), String::new());
            let mut piece = [0; 4096];
            // The end of the lists that all is in.
            while !text.ends_with("]}]}") {
                let read = stream.read(&mut piece).unwrap();
                assert!(read > 0, "it ends early: {text}");
                text += std::str::from_utf8(&piece[..read]).unwrap();
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{}").unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let body: Value = serde_json::from_str(body).unwrap();
            if sender.send((head.to_owned(), body)).is_err() {
                return;
            }
        }
    });
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let (head, body) = requests.recv_timeout(left).expect("a request in a minute");
        if pushed_bytes(&body) >= Some(bytes) {
            return (head, body);
        }
    }
}

#[test]
fn metrics_are_pushed_where_the_environment_names_a_collector() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut command = place.command("block serve disk.img --nbd unix:a.sock");
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        .env("OTEL_EXPORTER_OTLP_HEADERS", "key=of%20ours")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "100")
        .env("OTEL_SERVICE_NAME", "disks");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    until_it_says(&mut child, "ready\n");
    let mut server = Running(child);
    let uri = format!("nbd+unix:///?socket={}", place.text("a.sock"));
    assert!(tool("nbdcopy", &[&uri, "null:"]).status.success());
    let (head, body) = collected(listener, 1 << 20);
    assert!(head.starts_with("POST /v1/metrics "), "{head}");
    assert!(head.ends_with("\r\nkey: of ours"), "{head}");
    let name = &body["resourceMetrics"][0]["resource"]["attributes"][0];
    assert_eq!(name["value"]["stringValue"], "disks");
    server.end();
}

#[test]
fn a_killed_server_is_gone_and_a_stopped_one_does_not_answer() {
    let place = Place::new();
    let stopped = place.serve("block serve disk.img --nbd unix:a.sock");
    let mut killed = place.serve("block serve disk.img --nbd unix:b.sock");
    stopped.signal(Signal::STOP);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    let names = || std::fs::read_dir(place.path("servers")).unwrap().count();
    assert_eq!(names(), 2);
    let listed = place.json("block list --json", 0);
    assert_eq!(listed["exports"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["exports"][0]["is_answering"], false);
    assert_eq!(listed["exports"][0]["pid"], stopped.0.id());
    assert_eq!(names(), 1);
    let table = String::from_utf8(place.run("block list").stdout).unwrap();
    assert!(table.contains("not answering"), "{table}");
    stopped.signal(Signal::CONT);
}

#[test]
fn a_mount_in_the_background_is_listed_by_the_process_that_serves() {
    let place = Place::new();
    std::fs::create_dir(place.path("on")).unwrap();
    let mounted = place.run("block mount disk.img on --file-only --metrics unix:m.sock");
    let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
    assert_eq!(mounted.status.code(), Some(0), "{said}");
    let undo = Undo(&place);
    let listed = place.json("block list --json", 0);
    let export = &listed["exports"][0];
    assert_eq!(
        (&export["way"], &export["image"]),
        (&"file".into(), &place.text("disk.img").into())
    );
    assert!(
        export["path"]
            .as_str()
            .unwrap()
            .starts_with(&place.text("on"))
    );
    assert!(value(&scrape(&place.path("m.sock")), "sidecore_image_size_bytes") > 0.0);
    drop(undo);
    assert_eq!(
        place.json("block list --json", 0)["exports"],
        Value::Array(Vec::new())
    );
    // An address that cannot be used is the command's error, and nothing is left.
    std::fs::write(place.path("file"), "").unwrap();
    let refused = place.run("block mount disk.img on --file-only --metrics unix:file");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another path"));
    assert!(!place.path("on/image").exists());
}

/// Unmounts also when the test fails.
struct Undo<'p>(&'p Place);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.0.run("block umount on");
    }
}

#[test]
fn a_service_manager_hears_of_start_life_and_end() {
    let place = Place::new();
    let socket = UnixDatagram::bind(place.path("notify")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    let mut command = place.command("block serve disk.img --nbd unix:a.sock");
    command
        .env("NOTIFY_SOCKET", place.path("notify"))
        .env("WATCHDOG_USEC", "100000")
        .env_remove("WATCHDOG_PID");
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Running(child);
    let hear = || {
        let mut bytes = [0; 4096];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..count].to_vec()).unwrap()
    };
    let ready = hear();
    assert!(
        ready.contains("READY=1\n") && ready.contains("STATUS=image "),
        "{ready}"
    );
    assert_eq!([hear(), hear()], ["WATCHDOG=1\n", "WATCHDOG=1\n"]);
    server.end();
    let mut last = hear();
    while last == "WATCHDOG=1\n" {
        last = hear();
    }
    assert_eq!(last, "STOPPING=1\n");
}

#[test]
fn a_passed_socket_is_served_as_other_servers_do() {
    let place = Place::new();
    let image = place.text("disk.img");
    let program = env!("CARGO_BIN_EXE_sidecore");
    let serve = [
        "[",
        program,
        "block",
        "serve",
        "--engines",
        "1",
        &image,
        "]",
    ];
    let info = tool("nbdinfo", &[&["--json", "--"], &serve[..]].concat());
    let said = String::from_utf8_lossy(&info.stderr).into_owned();
    assert!(info.status.success(), "{said}");
    let info: Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["exports"][0]["export-size"], 1 << 20);
    let copy = place.text("copy");
    let copied = tool("nbdcopy", &[&["--"], &serve[..], &[&*copy]].concat());
    assert!(
        copied.status.success(),
        "{}",
        String::from_utf8_lossy(&copied.stderr)
    );
    assert!(std::fs::read(copy).unwrap() == std::fs::read(image).unwrap());
    let alone = place.run("block serve disk.img");
    assert_eq!(alone.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&alone.stderr).contains("--nbd unix:PATH"));
}

#[test]
fn root_sees_servers_of_others_and_others_see_their_own() {
    if !getuid().is_root() {
        eprintln!("NOT tested: root alone runs commands as another user");
        return;
    }
    let place = Place::new();
    // Another user has to reach the program and the image.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.folder.path(), open).unwrap();
    let program = place.path("sidecore");
    std::fs::copy(env!("CARGO_BIN_EXE_sidecore"), &program).unwrap();
    let uid = 61_000 + std::process::id() % 1000;
    let _cleared = Cleared(uid);
    let without_folder = |command: &mut Command, words: &str| {
        command
            .args(words.split(' '))
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("SIDECORE_SERVERS_DIR")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let as_root = |words: &str| without_folder(&mut Command::new(&program), words);
    let as_user = |words: &str| {
        let mut command = Command::new("setpriv");
        let id = uid.to_string();
        command
            .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
            .arg(&program);
        without_folder(&mut command, words)
    };
    let serve = format!(
        "block serve {} --nbd tcp:127.0.0.1:0",
        place.text("disk.img")
    );
    let mut theirs = Running(as_user(&serve));
    until_it_says(&mut theirs.0, "ready\n");
    let mut ours = Running(as_root(&serve));
    until_it_says(&mut ours.0, "ready\n");
    let listed = |child: Child| -> Vec<(u64, u64)> {
        let output = child.wait_with_output().unwrap();
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let number = |export: &Value, key: &str| export[key].as_u64().unwrap();
        let all = json["exports"].as_array().unwrap().iter();
        all.map(|it| (number(it, "uid"), number(it, "pid")))
            .collect()
    };
    let (user, root) = (
        listed(as_user("block list --json")),
        listed(as_root("block list --json")),
    );
    assert_eq!(user, [(uid.into(), theirs.0.id().into())]);
    assert!(
        root.contains(&user[0]) && root.contains(&(0, ours.0.id().into())),
        "{root:?}"
    );
    ours.end();
    theirs.end();
}

/// A user's folder of servers, which goes with the test.
struct Cleared(u32);

impl Drop for Cleared {
    fn drop(&mut self) {
        std::fs::remove_dir_all(format!("/tmp/sidecore-{}", self.0)).ok();
    }
}

#[test]
fn a_daemon_counts_for_its_readers() {
    let place = Place::new();
    let words = "daemon --socket d.sock --engines 1 --metrics unix:m.sock";
    let mut command = place.command(words);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    until_it_says(&mut child, "ready d.sock\n");
    let mut daemon = Running(child);
    let servers = place.servers();
    assert_eq!((servers.len(), servers[0].kind), (1, Kind::Daemon));
    let before = servers[0].fields["jobs_total"].as_u64().unwrap();
    let client = Client::attach_with(place.path("d.sock"), ClientOptions::patient()).unwrap();
    let empty = client.kernel("empty").unwrap();
    client.call(empty, Args::new()).unwrap();
    assert_eq!(client.counters().on_engines, 1);
    let fields = &place.servers()[0].fields;
    assert!(
        fields["jobs_total"].as_u64().unwrap() > before,
        "{fields:?}"
    );
    assert!(
        fields["engines"][0]["busy_ns"].as_u64() > Some(0),
        "{fields:?}"
    );
    let samples = scrape(&place.path("m.sock"));
    assert!(value(&samples, "sidecore_daemon_engine_busy_seconds_total") > 0.0);
    daemon.end();
    assert_eq!(place.servers(), []);
}

#[test]
fn a_stack_lists_its_sessions() {
    namespace::in_namespace(|| {
        let place = Place::new();
        let config = folder().join("net.toml").display().to_string();
        let words = format!("net up {config} --socket net.sock --metrics unix:m.sock");
        let mut command = place.command(&words);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        until_it_says(&mut child, "ready net.sock on sidecore0\n");
        let mut stack = Running(child);
        let mut command = place.command("net echo 10.77.0.2:7 --socket net.sock");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        until_it_says(&mut child, "ready 10.77.0.2:7\n");
        let mut echo = Running(child);
        let mut stream = std::net::TcpStream::connect("10.77.0.2:7").unwrap();
        stream.write_all(b"12345").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        let servers = place.servers();
        let server = servers.iter().find(|it| it.kind == Kind::Stack).unwrap();
        let sessions = server.fields["sessions"].as_array().unwrap();
        let own = stream.local_addr().unwrap().to_string();
        let session = sessions
            .iter()
            .find(|it| it["remote"] == own.as_str())
            .unwrap();
        assert_eq!(
            (&session["rx_bytes"], &session["tx_bytes"]),
            (&5.into(), &5.into())
        );
        assert_eq!(
            (&session["local"], &session["state"]),
            (&"10.77.0.2:7".into(), &"Established".into())
        );
        assert_eq!(
            value(
                &scrape(&place.path("m.sock")),
                "sidecore_net_sessions_opened_total"
            ),
            1.0
        );
        drop(stream);
        echo.end();
        stack.end();
    });
}

#[test]
fn a_search_shows_its_best_tree_while_it_grows() {
    let place = Place::new();
    let words = "phylo simulate --taxa 60 --sites 3000 --model JC --seed 3 -o a.phy";
    assert!(place.run(words).status.success());
    let words = "phylo search --msa a.phy --model JC --starts 8 --seed 1 --engines 1 --prefix p";
    let child = place.command(words).stderr(Stdio::null()).spawn().unwrap();
    let mut search = Running(child);
    // The first tree comes with the first step.
    let server = loop {
        let found = place
            .servers()
            .into_iter()
            .find(|it| it.kind == Kind::Search && it.fields["best_tree_newick"].is_string());
        if let Some(found) = found {
            break found;
        }
        assert!(
            search.0.try_wait().unwrap().is_none(),
            "it ended before its tree was seen"
        );
        std::thread::sleep(Duration::from_millis(5));
    };
    let tree = server.fields["best_tree_newick"].as_str().unwrap();
    assert!(tree.starts_with('(') && tree.ends_with(';'), "{tree}");
    assert_eq!(tree.matches(',').count(), 59, "{tree}");
    assert!(server.fields["log_likelihood"].as_f64().unwrap() < 0.0);
    assert_eq!(server.fields["alignment"], place.text("a.phy"));
    assert!(server.fields["step"].as_u64().unwrap() > 0);
    search.signal(Signal::TERM);
    search.0.wait().unwrap();
}
