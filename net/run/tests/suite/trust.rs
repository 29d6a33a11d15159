//! `sidecore net run` on a shared machine: hostile users, engines that hang, signals.
//!
//! Why here: the protection of a program shows only in whole runs, with hostile programs at the
//! same time. Each test has network, mount and process namespaces of its own, which end with it.
//! Must stay true: no test depends on timing; one that would hang is ended after a minute. Needs
//! root, python3 and setpriv (util-linux).

use crate::comparison::{PROGRAM, library};
use std::process::{Command, Stdio};

/// Runs a script of bash in namespaces of its own, where `$S` is the program and `as_other` runs a
/// command as an unrelated user; returns its output.
fn run(script: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("{PRELUDE}\n{script}");
    let output = Command::new("timeout")
        .args([
            "--signal=KILL",
            "60",
            "unshare",
            "--mount",
            "--net",
            "--pid",
        ])
        .args([
            "--fork",
            "--mount-proc",
            "--kill-child",
            "bash",
            "-c",
            &text,
        ])
        .current_dir(folder.path())
        .env("S", PROGRAM)
        .env("SIDECORE_NET_LIBRARY", library())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}\n{printed}\n{errors}",
        output.status
    );
    printed
}

/// `until COMMAND` waits for a condition; `server` starts a server of the loopback in the
/// background; `engine` starts one with 10.91.9.2, whose host is 10.91.9.1.
const PRELUDE: &str = r#"
set -eu
ip link set lo up
mkdir -p /run/sidecore
mount -t tmpfs -o mode=755 none /run/sidecore
chmod 755 .
D=$PWD
as_other() { setpriv --reuid=23457 --regid=23457 --clear-groups "$@"; }
# One that others may read, too.
for PY in /usr/bin/python3 "$(command -v python3)"; do
    as_other "$PY" -c '' 2> /dev/null && break
done
until_so() { until "$@" > /dev/null 2>&1; do sleep 0.01; done; }
engine() {
    cat > net.toml <<'TOML'
[nic]
kind = "tap"
name = "trust0"
host = ["10.91.9.1/24"]
[stack]
addresses = ["10.91.9.2/24"]
TOML
    "$S" net up net.toml --socket "$D/net.sock" > up.log 2>&1 & ENGINE=$!
    until_so grep -q ready up.log
}
server() {
    cat > server.py <<'PY'
import select, socket
s = socket.socket(); s.bind(("127.0.0.1", 5432)); s.listen(64); s.setblocking(False)
poll = select.poll(); poll.register(s, select.POLLIN)
them = {s.fileno(): s}
open("ready", "w")
while True:
    for number, _ in poll.poll():
        one = them[number]
        try:
            if one is s:
                one, peer = s.accept()
                one.setblocking(False)
                them[one.fileno()] = one
                poll.register(one, select.POLLIN)
                print("from", peer[0], flush=True)
                continue
            data, control, _, _ = one.recvmsg(100, 1000)
            print("control", control, flush=True)
            if data:
                one.send(data)
                continue
        except BlockingIOError:
            continue
        except OSError:
            pass
        poll.unregister(one); del them[one.fileno()]; one.close()
PY
    "$S" net run --loopback "$@" -- python3 server.py > server.log 2>&1 &
    until_so test -e ready
}
ask() { "$S" net run --loopback "$@" -- python3 -c '
import socket
c = socket.create_connection(("127.0.0.1", 5432)); c.sendall(b"hello"); print(c.recv(9))'; }
"#;

fn is_root() -> bool {
    sidecore_sys::local_socket::effective_uid() == 0
}

/// Another user connects to every named socket of a run: the server is not held up, and sees no
/// connection.
#[test]
fn another_user_is_not_let_in() {
    if !is_root() {
        return;
    }
    for options in ["", "--no-rings"] {
        let printed = run(&format!(
            r#"
server {options}
ask {options}
cat > other.py <<'PY'
import fcntl, glob, os, socket, time
def v6(ip, port):
    mapped = bytes(10) + b"\xff\xff" + socket.inet_aton(ip)
    return b"\n\0" + port.to_bytes(2, "big") + bytes(4) + mapped + bytes(4)
came, kept = [], []
names = glob.glob("/run/sidecore/*loopback*") + glob.glob("/run/sidecore/*loopback*/*")
for name in names:
    for kind in socket.SOCK_STREAM, socket.SOCK_SEQPACKET:
        try:
            one, two = socket.socketpair()
            s = socket.socket(socket.AF_UNIX, kind); s.connect(name)
            socket.send_fds(s, [v6("127.0.0.1", 5432) + v6("10.0.0.5", 22)], [one.fileno()])
            fcntl.fcntl(one, fcntl.F_SETFL, 0); two.send(b"u", socket.MSG_OOB)
            kept += [s, one, two]; came.append(name)
        except OSError: pass
# Names without a file, as all can read them, and one made like that of a program of a run.
letters = "".join(chr(48 + i) for i in range(64))
def encode(raw):
    bits = "".join(f"{{byte:08b}}" for byte in raw)
    bits += "0" * (-len(bits) % 6)
    return "".join(letters[int(bits[i:i+6], 2)] for i in range(0, len(bits), 6))
def short(ip, port):
    return bytes([2]) + port.to_bytes(2, "big") + socket.inet_aton(ip) + bytes(12)
number = 0
for line in open("/proc/net/unix"):
    path = line.split()[7:]
    if not path or not path[0].startswith("@"): continue
    for role in "PS":
        number += 1
        ends = short("127.0.0.1", 999) + short("127.0.0.1", 5432)
        own = bytes(4) + number.to_bytes(8, "little") + ends
        s = socket.socket(socket.AF_UNIX)
        try:
            s.bind("\0sidecore" + role + encode(own)); s.connect("\0" + path[0][1:])
            s.settimeout(1)
            s.send(b"stolen"); s.send(b"u", socket.MSG_OOB)
            kept.append(s)
            came.append(path[0][:9] + str(s.recv(9)))
        except OSError: pass
print("came to", sorted(x for x in came if "stolen" in x or "/" in x), flush=True)
open("there", "w")
time.sleep(60)
PY
mkdir other; chown 23457 other; cd other
as_other "$PY" ../other.py &
until_so test -e there
cd ..
ask {options}
ask {options}
grep -c "from 127.0.0.1" server.log
grep -c "10.0.0.5" server.log || true
"#
        ));
        let expected = "b'hello'\ncame to []\nb'hello'\nb'hello'\n3\n0\n";
        assert_eq!(printed, expected, "{options}");
    }
}

/// A folder that another user made first, or could exchange, is not used.
#[test]
fn a_meeting_place_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let printed = run(r#"
export XDG_RUNTIME_DIR=
trap 'rm -rf /tmp/sidecore-23456' EXIT
rm -rf /tmp/sidecore-23456
as_victim() { setpriv --reuid=23456 --regid=23456 --clear-groups "$@"; }
as_other mkdir -m 777 /tmp/sidecore-23456
cd /
as_victim "$S" net run --loopback -- true 2>&1 | grep -o "belongs to user 23457" || echo "used"
ls /tmp/sidecore-23456
rmdir /tmp/sidecore-23456
as_victim "$S" net run --loopback -- true
stat -c %a-%u /tmp/sidecore-23456/net.sock.loopback
"#);
    assert_eq!(printed, "belongs to user 23457\n700-23456\n");
}

/// Programs of two runs have TCP between them: no descriptors, no credentials.
#[test]
fn descriptors_do_not_travel_between_runs() {
    if !is_root() {
        return;
    }
    for options in ["", "--no-rings"] {
        let printed = run(&format!(
            r#"
server {options}
"$S" net run --loopback {options} -- python3 -c '
import array, os, socket, struct
c = socket.create_connection(("127.0.0.1", 5432))
file = os.open("/dev/null", 0)
for control in [
    (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file])),
    (socket.SOL_SOCKET, 2, struct.pack("3i", os.getpid(), 0, 0)),
]:
    print(c.sendmsg([b"hello"], [control]), c.recv(9))'
grep control server.log | sort -u
"#
        ));
        assert_eq!(printed, "5 b'hello'\n5 b'hello'\ncontrol []\n", "{options}");
    }
}

/// The engine hangs; the supervisor does not. The engine resumes only after all calls that need no
/// answer of it have returned.
#[test]
fn a_stopped_engine_holds_no_other_call_up() {
    if !is_root() {
        return;
    }
    let printed = run(r#"
engine
cat > calls.py <<'PY'
import os, signal, socket, sys, threading, time
engine = int(sys.argv[1])
def nonblocking():
    s = socket.socket(); s.setblocking(False)
    return s, s.connect_ex(("10.91.9.1", 9))
before = nonblocking()[1]
os.kill(engine, signal.SIGSTOP)
late = []
def wait(name, call):
    try: late.append((name, call()))
    except OSError as error: late.append((name, error.errno))
def listening():
    s = socket.socket(); s.bind(("10.91.9.2", 8080)); s.listen(); return s.getsockname()[1]
def datagrams():
    s = socket.socket(type=socket.SOCK_DGRAM); s.bind(("10.91.9.2", 8081))
    return s.getsockname()[1]
def sending():
    s = socket.socket(type=socket.SOCK_DGRAM); return s.sendto(b"x", ("10.91.9.1", 9))
def connecting():
    s = socket.socket(); s.connect(("10.91.9.1", 9))
calls = [("listen", listening), ("udp", datagrams), ("send", sending), ("connect", connecting)]
threads = [threading.Thread(target=wait, args=it) for it in calls]
for thread in threads: thread.start()
kept = [nonblocking() for _ in range(50)]
print("connect", before, {it[1] for it in kept})
for _ in range(50):
    s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen()
    c = socket.create_connection(s.getsockname()); c.close()
# Far more requests than the engine's ring has room for.
for _ in range(3000):
    s, _ = nonblocking(); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); s.close()
print("kernel", late, flush=True)
os.kill(engine, signal.SIGCONT)
for thread in threads: thread.join()
print(sorted(late))
for s, _ in kept[:1]:
    import select
    poll = select.poll(); poll.register(s, select.POLLOUT); poll.poll()
    print(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), s.getsockname()[0])
PY
ulimit -n 20000
"$S" net run --socket "$D/net.sock" -- python3 calls.py $ENGINE
"#);
    let expected = "connect 115 {115}\nkernel []\n\
                    [('connect', 111), ('listen', 8080), ('send', 1), ('udp', 8081)]\n\
                    111 10.91.9.2\n";
    assert_eq!(printed, expected);
}

/// SIGTERM ends a run whose engine hangs, before and after the program has begun; nothing is left
/// behind.
#[test]
fn a_stopped_engine_does_not_keep_a_run_from_ending() {
    if !is_root() {
        return;
    }
    let printed = run(r#"
engine
"$S" net run --socket "$D/net.sock" -- python3 -c '
import os, signal, socket, sys
os.kill(int(sys.argv[1]), signal.SIGSTOP)
open("connecting", "w")
socket.create_connection(("10.91.9.1", 9))' $ENGINE & RUN=$!
until_so test -e connecting
kill -TERM $RUN
set +e; wait $RUN; echo "ended $?"
"$S" net run --socket "$D/net.sock" -- touch begun & RUN=$!
until_so pgrep -P $RUN
kill -TERM $RUN; wait $RUN; echo "ended $?"
# A program that is stopped itself.
kill -CONT $ENGINE
"$S" net run --socket "$D/net.sock" -- python3 -c '
import os, signal
open("stopping", "w").write(str(os.getpid())); os.kill(os.getpid(), signal.SIGSTOP)' & RUN=$!
until_so grep -q . stopping
until_so grep -q "^State:.*T" /proc/$(cat stopping)/status
kill -TERM $RUN; wait $RUN; echo "ended $?"
until_so sh -c '! pgrep -f "[n]et run --socket '$D'"'
ls begun 2> /dev/null; echo "nothing is left"
"#);
    let expected = "ended 143\nended 143\nended 143\nnothing is left\n";
    assert_eq!(printed, expected);
}

/// Signals interrupt threads at any moment: a finished call is not decided a second time. A reply
/// that the kernel has taken is lost where the signal comes before the caller wakes (seccomp(2)
/// waits interruptibly), so that under this many signals some are; without a memory of replies
/// nearly all were.
#[test]
fn calls_that_signals_interrupt_are_made_once() {
    if !is_root() {
        return;
    }
    let printed = run(r#"
"$S" net run --loopback --no-rings -- python3 -c '
import signal, socket
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False)
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen(64)
signal.setitimer(signal.ITIMER_REAL, 0.00005, 0.00007)
lost = 0
for turn in range(1000):
    c = socket.socket()
    try:
        c.bind(("127.0.0.1", 0)); c.connect(server.getsockname())
    except OSError:
        lost += 1; c.close(); continue
    c.sendall(b"x")
    # One whose opening was interrupted in its middle has ended.
    while True:
        a, peer = server.accept()
        if peer == c.getsockname() and a.recv(9) == b"x": break
        a.close()
    c.close(); a.close()
signal.setitimer(signal.ITIMER_REAL, 0)
print("done" if lost < 500 else lost)'
"#);
    assert_eq!(printed, "done\n");
}

/// More processes than may have rings attach, and end before they have a waiter.
#[test]
fn processes_that_only_attach_do_not_end_rings_for_all() {
    if !is_root() {
        return;
    }
    let number = libc::SYS_getsockopt;
    let (level, name) = (sidecore_net_rings::LEVEL, sidecore_net_rings::ATTACH);
    let version = sidecore_net_rings::VERSION;
    let printed = run(&format!(
        r#"
engine
"$S" net run --socket "$D/net.sock" -- python3 -c '
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
s = socket.socket(); s.bind(("10.91.9.2", 0))
def attach():
    words = (ctypes.c_uint32 * 4)({version}, 0, 0, 0)
    size = ctypes.c_uint32(16)
    to = ctypes.byref(words), ctypes.byref(size)
    failed = libc.syscall({number}, s.fileno(), {level}, {name}, *to)
    return os.strerror(ctypes.get_errno()) if failed else "attached"
for turn in range(1100):
    child = os.fork()
    if child == 0:
        os._exit(0 if attach() == "attached" else 1)
    _, status = os.waitpid(child, 0)
    if status: print("refused", turn); break
print(attach())'
"#
    ));
    assert_eq!(printed, "attached\n");
}
