//! A run as its user sees it: exit status, signals, what it starts and what it leaves.

use crate::cases::{lines_of, lines_on_kernel, lines_over_stack};
use crate::comparison::{Case, PROGRAM, library, over_stack, python};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// A run of the loopback.
fn run(options: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["--signal=KILL", "60", PROGRAM, "net", "run", "--loopback"])
        .args(options)
        .arg("--")
        .args(program)
        .env("SIDECORE_NET_LIBRARY", library())
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null());
    command
}

fn output(options: &[&str], program: &[&str]) -> Output {
    run(options, program).output().unwrap()
}

fn shell(words: &str) -> Output {
    output(&[], &["sh", "-c", words])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A shell under a run in the background, and its lines.
fn background(words: &str) -> (Child, BufReader<ChildStdout>) {
    // Not under timeout(1): it would pass signals on as well.
    let mut command = Command::new(PROGRAM);
    command
        .args(["net", "run", "--loopback", "--", "sh", "-c", words])
        .env("SIDECORE_NET_LIBRARY", library())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

fn line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    line
}

fn send(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn the_exit_status_is_the_programs() {
    for status in [0, 3, 255] {
        let ended = shell(&format!("exit {status}"));
        assert_eq!(ended.status.code(), Some(status), "{ended:?}");
        assert!(ended.stdout.is_empty() && ended.stderr.is_empty());
    }
}

#[test]
fn a_signal_that_ends_the_program_ends_the_run() {
    for signal in ["TERM", "USR1"] {
        let (mut child, _lines) = background(&format!("kill -{signal} $$"));
        let number = match signal {
            "TERM" => libc::SIGTERM,
            _ => libc::SIGUSR1,
        };
        assert_eq!(child.wait().unwrap().signal(), Some(number));
    }
}

#[test]
fn a_program_that_does_not_start_is_named() {
    let ended = output(&[], &["/no/such/program"]);
    assert_eq!(ended.status.code(), Some(2));
    let errors = text(&ended.stderr);
    assert!(errors.contains("cannot run /no/such/program"), "{errors}");
}

#[test]
fn a_pipe_that_is_none_is_refused() {
    for pipe in ["1", "2", "77"] {
        let ended = output(&["--supervise", pipe], &["true"]);
        assert_eq!(ended.status.code(), Some(2));
        let errors = text(&ended.stderr);
        assert!(errors.contains("the supervisor's pipe"), "{errors}");
    }
}

#[test]
fn signals_of_others_go_to_the_program() {
    use rustix::process::Signal;
    let words = "trap 'echo one' USR1; trap 'echo end; exit 4' TERM; echo ready; \
                 while :; do sleep 60 & wait $!; kill $!; done";
    let (mut child, mut lines) = background(words);
    assert_eq!(line(&mut lines), "ready\n");
    send(&child, Signal::USR1);
    assert_eq!(line(&mut lines), "one\n");
    send(&child, Signal::TERM);
    assert_eq!(line(&mut lines), "end\n");
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn the_run_ends_with_its_program_and_daemons_live_on() {
    let home = tempfile::tempdir().unwrap();
    let go = home.path().join("go");
    rustix::fs::mkfifoat(rustix::fs::CWD, &go, rustix::fs::Mode::RWXU).unwrap();
    // The daemon writes only after the run has ended, to the standard output that it still has.
    let words = format!("(read word < {}; echo daemon $word) & exit 5", go.display());
    let (mut child, mut lines) = background(&words);
    assert_eq!(child.wait().unwrap().code(), Some(5));
    std::fs::write(&go, "lives\n").unwrap();
    assert_eq!(line(&mut lines), "daemon lives\n");
    // The supervisor ends with the last of them, and with it the last writer.
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(rest.is_empty());
}

#[test]
fn programs_load_the_library_unless_they_are_not_to() {
    let print = "echo \"${LD_PRELOAD:-none}\"";
    let library = library().display().to_string();
    assert_eq!(text(&shell(print).stdout), format!("{library}\n"));
    let without = output(&["--no-rings"], &["sh", "-c", print]);
    assert_eq!(text(&without.stdout), "none\n");
}

#[test]
fn a_program_without_its_supervisor_fails_instead_of_waiting() {
    let python = python().display().to_string();
    let program = "import errno, os, signal, socket\n\
                   kept = socket.socket(); kept.bind(('127.0.0.1', 0)); kept.listen()\n\
                   client = socket.create_connection(kept.getsockname())\n\
                   accepted, _ = kept.accept()\n\
                   supervisor = os.pidfd_open(os.getppid())\n\
                   signal.pidfd_send_signal(supervisor, signal.SIGKILL)\n\
                   import select; select.select([supervisor], [], [])\n\
                   try: socket.socket().bind(('127.0.0.1', 0))\n\
                   except OSError as error: print(errno.errorcode[error.errno])\n\
                   client.settimeout(60); client.sendall(b'x'); print('sent')\n";
    let ended = run(&["--no-rings"], &[&python, "-c", program])
        .output()
        .unwrap();
    // The pair of two programs needs no supervisor.
    assert_eq!(
        text(&ended.stdout),
        "ENOSYS\nsent\n",
        "{}",
        text(&ended.stderr)
    );
    let errors = text(&ended.stderr);
    assert!(
        errors.contains("the supervisor ended unexpectedly"),
        "{errors}"
    );
}

#[test]
fn programs_of_two_runs_meet_on_the_loopback() {
    let python = python().display().to_string();
    let serve = "import socket\n\
                 s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
                 print(s.getsockname()[1], flush=True)\n\
                 a, peer = s.accept(); print(a.recv(9).decode(), peer[0], flush=True)\n";
    for options in [&[][..], &["--no-rings"]] {
        let mut server = run(options, &[&python, "-c", serve]);
        let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap());
        let port = line(&mut lines).trim().to_owned();
        let ask = format!(
            "import socket; socket.create_connection(('127.0.0.1', {port})).sendall(b'hello')"
        );
        let asked = run(options, &[&python, "-c", &ask]).output().unwrap();
        assert!(asked.status.success(), "{}", text(&asked.stderr));
        assert_eq!(line(&mut lines), "hello 127.0.0.1\n");
        assert!(server.wait().unwrap().success());
        // The listener is gone from the place where the runs have met.
        let asked = run(options, &[&python, "-c", &ask]).output().unwrap();
        let errors = text(&asked.stderr);
        assert!(errors.contains("ConnectionRefusedError"), "{errors}");
        let kernel = std::net::TcpStream::connect(("127.0.0.1", port.parse().unwrap()));
        assert!(kernel.is_err(), "the kernel has no such listener");
    }
}

/// Packets of the stack have the traffic class of their socket, whenever it was set, and sockets
/// that were accepted have that of their listener.
#[test]
fn packets_of_the_stack_have_the_class_of_their_socket() {
    let program = "\
         HOST = V4 if V4 == '127.0.0.1' else '10.91.9.1'\n\
         TOS, HEARS = (socket.IPPROTO_IP, socket.IP_TOS), (socket.IPPROTO_IP, 13)\n\
         raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)\n\
         raw.settimeout(30)\n\
         def seen(sock, payload):\n\
         \x20   port = sock.getsockname()[1].to_bytes(2, 'big')\n\
         \x20   sock.sendall(payload)\n\
         \x20   while True:\n\
         \x20       packet = raw.recv(65536); head = packet[0] % 16 * 4\n\
         \x20       if packet.endswith(payload) and packet[head:head + 2] == port:\n\
         \x20           return packet[1] & 0xfc\n\
         for when in 'listener', 'before', 'after':\n\
         \x20   # One end is the kernel's.\n\
         \x20   with socket.socket() as server:\n\
         \x20       if when == 'listener': server.setsockopt(*TOS, 0x48)\n\
         \x20       server.bind((V4 if when == 'listener' else HOST, 0)); server.listen()\n\
         \x20       client = socket.socket()\n\
         \x20       if when == 'listener': client.bind((HOST, 0))\n\
         \x20       if when == 'before': client.setsockopt(*TOS, 0x48)\n\
         \x20       client.connect(server.getsockname())\n\
         \x20       accepted, _ = server.accept()\n\
         \x20   sender = accepted if when == 'listener' else client\n\
         \x20   if when == 'after': sender.setsockopt(*TOS, 0x48)\n\
         \x20   say(when, seen(sender, b'first' + when.encode()))\n\
         \x20   sender.setsockopt(*TOS, 0xb8)\n\
         \x20   say(when, seen(sender, b'second' + when.encode()))\n\
         \x20   client.close(); accepted.close()\n\
         taker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         taker.bind((HOST, 0)); taker.setsockopt(*HEARS, 1); taker.settimeout(30)\n\
         sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         sender.setsockopt(*TOS, 0xb8); sender.bind((V4, 0))\n\
         for value in None, 0x28, 0:\n\
         \x20   if value is not None: sender.setsockopt(*TOS, value)\n\
         \x20   sender.sendto(b'x', taker.getsockname())\n\
         \x20   say([data for _, _, data in taker.recvmsg(9, 64)[1]])\n";
    assert_eq!(
        lines_over_stack("class", program),
        lines_on_kernel("class", program)
    );
}

/// Datagrams to and from hosts of the stack, of which the library sends and receives most without
/// calls: all arrive, in their order, whatever the program changes in between.
#[test]
fn datagrams_of_the_stack_are_what_they_are_on_the_kernel() {
    let program = "\
         import struct\n\
         over = V4 != '127.0.0.1'\n\
         for own, host in (\n\
         \x20   (V4, '10.91.9.1' if over else V4),\n\
         \x20   (V6, 'fd91::1' if over else V6),\n\
         ):\n\
         \x20   server, client = datagrams(host), datagrams(own)\n\
         \x20   server.settimeout(20); client.settimeout(20)\n\
         \x20   to = server.getsockname()[:2]\n\
         \x20   right = 0\n\
         \x20   for number in range(200):\n\
         \x20       client.sendto(b'%03d' % number, to)\n\
         \x20       data, by = server.recvfrom(10)\n\
         \x20       server.sendto(data[::-1], by)\n\
         \x20       answer, peer = client.recvfrom(10)\n\
         \x20       right += answer == data[::-1] and peer[:2] == to\n\
         \x20   say(right)\n\
         \x20   for number in range(40): client.sendto(b'%d' % number, to)\n\
         \x20   say([int(server.recv(10)) for _ in range(40)] == list(range(40)))\n\
         \x20   sizes = 0, 1, 1472, 8000\n\
         \x20   say([(client.sendto(bytes(it), to), len(server.recv(9000))) for it in sizes])\n\
         \x20   say(outcome(client.sendto, bytes(70_000), to))\n\
         \x20   say(outcome(client.sendto, b'x', (host, 0)))\n\
         \x20   lengths = lambda count: [len(server.recv(2000)) for _ in range(count)]\n\
         \x20   asked = [(socket.IPPROTO_UDP, 103, struct.pack('H', 400))]\n\
         \x20   say(client.sendmsg([bytes(1000)], asked, 0, to), lengths(3))\n\
         \x20   client.setsockopt(socket.IPPROTO_UDP, 103, 300)\n\
         \x20   say(client.sendto(bytes(700), to), lengths(3))\n\
         \x20   client.setsockopt(socket.IPPROTO_UDP, 103, 0)\n\
         \x20   say(client.sendto(b'head ', socket.MSG_MORE, to), client.sendto(b'body', to))\n\
         \x20   say(server.recv(20))\n\
         \x20   def burst():\n\
         \x20       sock = datagrams(own)\n\
         \x20       for number in range(20): sock.sendto(b'%d' % number, to)\n\
         \x20   say(child(burst), [int(server.recv(10)) for _ in range(20)] == list(range(20)))\n\
         \x20   def answered():\n\
         \x20       client.sendto(b'of the child', to)\n\
         \x20       data, by = server.recvfrom(20)\n\
         \x20       say(data, by[1] == client.getsockname()[1])\n\
         \x20       server.sendto(b'answer', by)\n\
         \x20       say(client.recvfrom(20)[0])\n\
         \x20   say(child(answered))\n\
         \x20   client.connect(to)\n\
         \x20   say(client.sendmsg([b'to ', b'the peer']), server.recv(20))\n\
         \x20   server.sendto(b'answer', client.getsockname()[:2])\n\
         \x20   say(client.recvfrom(20)[0])\n";
    let kernel = lines_on_kernel("datagrams", program);
    assert_eq!(lines_over_stack("datagrams", program), kernel);
    // As of a program that asks for none.
    let by_calls = lines_of("datagrams", program, |case, scratch| {
        let words = ["env", "SIDECORE_NET_UDP_RINGS=0"].map(PathBuf::from);
        let command = words.iter().chain(&case.command).cloned().collect();
        let name = case.name.clone();
        over_stack(&Case { name, command }, scratch, "")
    });
    assert_eq!(by_calls, kernel);
}

/// A socket of the stack whose datagrams have passed by rings, and the kernel's at the other end.
const RINGED: &str = "\
    import ctypes, fcntl, select, struct, termios, threading\n\
    over = V4 != '127.0.0.1'\n\
    HOST, HOST6 = ('10.91.9.1', 'fd91::1') if over else (V4, V6)\n\
    def ringed(own=V4, host=HOST):\n\
    \x20   client, server = datagrams(own), datagrams(host)\n\
    \x20   server.settimeout(20); client.settimeout(20)\n\
    \x20   for number in range(30):\n\
    \x20       client.sendto(b'%d' % number, server.getsockname()[:2])\n\
    \x20       server.sendto(*server.recvfrom(10))\n\
    \x20       assert client.recvfrom(10)[0] == b'%d' % number\n\
    \x20       time.sleep(.001)\n\
    \x20   client.setblocking(True)\n\
    \x20   return client, server, client.getsockname()[:2], server.getsockname()[:2]\n\
    def rings(): return sum('sidecore-large' in line for line in open('/proc/self/maps'))\n\
    def waiting(sock): return polled_until(sock, 'IN', select.POLLIN)\n";

/// The datagrams of a socket of the stack pass by rings where they can.
#[test]
fn a_datagram_socket_of_the_stack_has_rings() {
    let program = "\
         one = ringed(); say(rings())\n\
         two = ringed(V6, HOST6); say(rings())\n\
         two[0].connect(two[3]); two[0].send(b'x'); say(two[1].recv(9))\n\
         named, server, own, to = ringed()\n\
         connected = datagrams(); connected.connect(to)\n\
         for _ in range(30): connected.send(b'x'); server.recv(9); time.sleep(.001)\n\
         say(rings())\n\
         kernels = datagrams('127.0.0.1'); to = kernels.getsockname()\n\
         for _ in range(30): kernels.sendto(b'x', to); kernels.recvfrom(9)\n\
         say(rings())\n\
         marked = datagrams(); marked.setsockopt(socket.SOL_SOCKET, 29, 1)\n\
         to = server.getsockname()\n\
         for _ in range(30): marked.sendto(b'x', to); server.recv(9)\n\
         say(rings())\n";
    let program = format!("{RINGED}{program}");
    assert_eq!(
        lines_over_stack("has_rings", &program),
        ["1", "2", "b'x'", "4", "4", "4"]
    );
}

/// Control messages about datagrams that pass by rings, and with those that do.
#[test]
fn datagrams_by_rings_are_described_as_on_the_kernel() {
    let program = "\
         TOLD = {V4: ((0, 8), (0, 12), (0, 13)), V6: ((41, 49), (41, 51), (41, 66))}\n\
         INT = lambda value: struct.pack('i', value)\n\
         def shown(control, own):\n\
         \x20   packed = socket.inet_pton(family_of(own), own)\n\
         \x20   # Little room may cut off an address, which is another on the kernel.\n\
         \x20   hidden = lambda kind, value: len(value) if kind == 50 and len(value) < 16 \\\n\
         \x20       else value.replace(packed, b'own')\n\
         \x20   return [(level, kind, hidden(kind, value)) for level, kind, value in control]\n\
         for number, (own, host) in enumerate(((V4, HOST), (V6, HOST6))):\n\
         \x20   client, server = datagrams(own), datagrams(host)\n\
         \x20   client.settimeout(20); server.settimeout(20)\n\
         \x20   for told in TOLD[own]: client.setsockopt(*told, 1)\n\
         \x20   at, to = client.getsockname()[:2], server.getsockname()[:2]\n\
         \x20   for count in range(30):\n\
         \x20       client.sendto(b'%d' % count, to); server.sendto(*server.recvfrom(9))\n\
         \x20       data, control, flags, by = client.recvmsg(9, 200)\n\
         \x20       assert data == b'%d' % count; time.sleep(.001)\n\
         \x20   say(shown(control, own), flags, by[:2] == to, rings() == (number + 1) * over)\n\
         \x20   for room in (0, 1, 15, 16, 17, 20, 24, 28, 32, 36, 40, 47, 48, 60, 64, 72, 88):\n\
         \x20       server.sendto(b'room', at)\n\
         \x20       data, control, flags, _ = client.recvmsg(9, room)\n\
         \x20       say(room, data, shown(control, own), flags)\n\
         \x20   server.sendto(b'peeked', at); waiting(client)\n\
         \x20   say(shown(client.recvmsg(9, 99, socket.MSG_PEEK)[1], own), client.recv(9))\n\
         \x20   packed = socket.inet_pton(family_of(own), own)\n\
         \x20   place = (0, 8, INT(0) + packed + bytes(4)) if number == 0 else \\\n\
         \x20       (41, 50, packed + INT(0))\n\
         \x20   for asked in ([(0, 1, b'\\x02')], [(0, 1, INT(1))], [(0, 1, INT(300))], [place],\n\
         \x20           [(41, 67, INT(2))], [(41, 67, INT(-1))], [place, (0, 1, INT(1))],\n\
         \x20           [(socket.IPPROTO_UDP, 103, struct.pack('H', 3)), place],\n\
         \x20           [(1, 99, INT(0))]):\n\
         \x20       sent = outcome(client.sendmsg, [b'wishes'], asked, 0, to)\n\
         \x20       say([kind[:2] for kind in asked], sent)\n\
         \x20       if sent == 6: say(server.recv(9))\n\
         \x20       if asked[0][1] == 103: say(server.recv(9))\n\
         \x20   say(rings() == (number + 1) * over)\n\
         \x20   client.setsockopt(*TOLD[own][0], 0)\n\
         \x20   server.sendto(b'less', at)\n\
         \x20   say(shown(client.recvmsg(9, 200)[1], own))\n";
    let program = format!("{RINGED}{program}");
    assert_eq!(
        lines_over_stack("described", &program),
        lines_on_kernel("described", &program)
    );
}

/// The engine's status says how many sockets have rings, and why others have none.
#[test]
fn the_status_counts_the_rings_of_programs() {
    let program = "\
         import json\n\
         words = open('/proc/%d/cmdline' % os.getppid()).read().split('\\0')\n\
         path = [word for word in words if word.endswith('.toml')][0][:-4] + 'sock'\n\
         def account():\n\
         \x20   with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:\n\
         \x20       asked.connect(path)\n\
         \x20       asked.send(b'SIDENET1' + struct.pack('<II', 2, 5) + bytes(16))\n\
         \x20       answer = asked.recv(1 << 20)\n\
         \x20   status = json.loads(answer[answer.index(b'{'):])\n\
         \x20   return status['applications'][0]['rings']\n\
         client, server, own, to = ringed()\n\
         marked = datagrams(); marked.setsockopt(socket.SOL_SOCKET, 29, 1)\n\
         for _ in range(30): marked.sendto(b'x', to); server.recv(9)\n\
         say(until(lambda: account()['refused_use'] == 1))\n\
         say({key: it for key, it in account().items() if key != 'put_off'})\n\
         client.close()\n\
         say(until(lambda: account()['datagram_sockets'] == 0))\n";
    let program = format!("{RINGED}{program}");
    assert_eq!(
        lines_over_stack("account", &program),
        [
            "True",
            "{'sessions': 0, 'datagram_sockets': 1, 'granted': 1, 'refused_use': 1, \
             'refused_limit': 0, 'refused_memory': 0}",
            "True"
        ]
    );
}

/// However many the other programs of a run have: the rings of each process here take three of the
/// supervisor's maps.
#[test]
fn the_last_of_many_processes_has_rings() {
    let program = "\
         asks, says = os.pipe(), os.pipe()\n\
         def one():\n\
         \x20   client, server = datagrams(), datagrams(HOST)\n\
         \x20   server.settimeout(20)\n\
         \x20   def by_rings():\n\
         \x20       client.sendto(b'x', server.getsockname()); server.recv(9)\n\
         \x20       return rings() == 1\n\
         \x20   os.write(says[1], b'+' if until(by_rings) else b'-')\n\
         \x20   os.read(asks[0], 1)\n\
         pids, said = [], b''\n\
         for _ in range(90):\n\
         \x20   pids.append(fork(one)); said += os.read(says[0], 1)\n\
         say(said.decode())\n\
         os.write(asks[1], bytes(len(pids)))\n\
         say({finished(pid) for pid in pids})\n";
    let program = format!("{RINGED}{program}");
    assert_eq!(
        lines_over_stack("many_processes", &program),
        ["+".repeat(90).as_str(), "{0}"]
    );
}

/// What a program may do with a socket whose datagrams pass by rings, it does as on the kernel.
#[test]
fn datagrams_by_rings_are_what_they_are_on_the_kernel() {
    let program = "\
         client, server, own, to = ringed()\n\
         others = [datagrams(HOST) for _ in range(3)]\n\
         for number in range(60): others[number % 3].sendto(b'%d' % number, own)\n\
         came = [client.recvfrom(10) for _ in range(60)]\n\
         by = lambda sock: [int(it) for it, at in came if at == sock.getsockname()]\n\
         say([by(sock) == list(range(at, 60, 3)) for at, sock in enumerate(others)])\n\
         for size in 0, 1, 1472, 1473, 9000, 40_000, 65_507:\n\
         \x20   data = os.urandom(size)\n\
         \x20   say(size, client.sendto(data, to), server.recv(70_000) == data,\n\
         \x20       server.sendto(data, own), client.recv(70_000) == data)\n\
         say('long', outcome(client.sendto, bytes(65_508), to))\n\
         say('empty', outcome(client.recv, 9, socket.MSG_DONTWAIT), polled(client))\n\
         for text in b'first', b'second': server.sendto(text, own)\n\
         waiting(client)\n\
         say(struct.unpack('i', fcntl.ioctl(client, termios.FIONREAD, bytes(4))))\n\
         cut = lambda flags: client.recv_into(bytearray(2), 2, socket.MSG_TRUNC | flags)\n\
         say(client.recv(9, socket.MSG_PEEK), cut(socket.MSG_PEEK))\n\
         say(client.recvmsg(3)[0::2], client.recvmsg_into([bytearray(2), bytearray(9)])[0::2])\n\
         server.sendto(b'truncated', own); waiting(client)\n\
         say(cut(0), outcome(client.recv, 2, socket.MSG_DONTWAIT))\n\
         say(server.sendto(b'', own), waiting(client), os.read(client.fileno(), 9))\n\
         limit = struct.pack('ll', 0, 30_000)\n\
         client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)\n\
         say('limit', outcome(client.recv, 9))\n\
         client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))\n\
         later = threading.Timer(.1, lambda: server.sendto(b'later', own)); later.start()\n\
         say('waits', client.recvfrom(9)[0]); later.join()\n\
         later = threading.Timer(.1, lambda: server.sendto(b'polls', own)); later.start()\n\
         say('polls', polled(client, select.POLLIN, 20_000), client.recv(9)); later.join()\n\
         later = threading.Timer(.1, lambda: server.sendto(b'selects', own)); later.start()\n\
         say('selects', select.select([client], [], [], 20)[0] == [client], client.recv(9))\n\
         later.join()\n\
         for flags in 0, select.EPOLLET:\n\
         \x20   epoll = select.epoll(); epoll.register(client, select.EPOLLIN | flags)\n\
         \x20   say(epoll.poll(0)); server.sendto(b'one', own)\n\
         \x20   found = epoll.poll(20)\n\
         \x20   say([names(it) for _, it in found], len(epoll.poll(0)), client.recv(9))\n\
         \x20   say(epoll.poll(0)); server.sendto(b'two', own)\n\
         \x20   say([names(it) for _, it in epoll.poll(20)], client.recv(9))\n\
         \x20   later = threading.Timer(.1, lambda: server.sendto(b'late', own)); later.start()\n\
         \x20   say([names(it) for _, it in epoll.poll(20)], client.recv(9)); later.join()\n\
         \x20   epoll.unregister(client); epoll.close()\n\
         say([client.sendto(b'%03d' % it, to) for it in range(200)] == [3] * 200)\n\
         say([int(server.recv(9)) for _ in range(200)] == list(range(200)))\n\
         asked = [(socket.IPPROTO_UDP, 103, struct.pack('H', 400))]\n\
         say(client.sendmsg([bytes(600), bytes(400)], asked, 0, to),\n\
         \x20   [len(server.recv(2000)) for _ in range(3)])\n\
         client.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 8)\n\
         say(client.sendto(b'marked', to), server.recv(9))\n\
         client = datagrams(); client.connect(to); own = client.getsockname()[:2]\n\
         for _ in range(30):\n\
         \x20   client.send(b'x'); server.sendto(*server.recvfrom(9)); client.recv(9)\n\
         \x20   time.sleep(.001)\n\
         others[0].sendto(b'of another', own); server.sendto(b'of the peer', own)\n\
         say(client.recv(20), outcome(client.recv, 9, socket.MSG_DONTWAIT))\n\
         say(os.write(client.fileno(), b'written'), os.writev(client.fileno(), [b'a', b'b']))\n\
         say(server.recv(9), server.recv(9), outcome(client.send, bytes(65_508)))\n";
    let program = format!("{RINGED}{program}");
    assert_eq!(
        lines_over_stack("by_rings", &program),
        lines_on_kernel("by_rings", &program)
    );
}

/// What ends rings loses no datagram, and changes no order.
#[test]
fn datagrams_in_rings_that_end_come_by_the_kernels_socket() {
    let program = "\
         def numbered(server, own, count=20):\n\
         \x20   for number in range(count): server.sendto(b'%d' % number, own)\n\
         def read(sock, count=20):\n\
         \x20   sock.settimeout(20)\n\
         \x20   return [int(sock.recv(9)) for _ in range(count)] == list(range(count))\n\
         def full():\n\
         \x20   made = ringed(); numbered(made[1], made[2]); waiting(made[0]); time.sleep(.1)\n\
         \x20   return made\n\
         client, server, own, to = full()\n\
         twin = client.dup(); say('dup', read(twin))\n\
         server.sendto(b'x', own); say(waiting(twin), waiting(client), client.recv(9))\n\
         client, server, own, to = full()\n\
         say('option', client.setsockopt(socket.IPPROTO_IP, 8, 1), read(client))\n\
         server.sendto(b'x', own); client.settimeout(20)\n\
         say([it[:2] for it in client.recvmsg(9, 99)[1]])\n\
         client, server, own, to = full()\n\
         say('fork', child(lambda: not (int(client.recv(9)) == 0 and int(client.recv(9)) == 1)))\n\
         say([int(client.recv(9)) for _ in range(18)] == list(range(2, 20)))\n\
         say(child(lambda: client.sendto(b'of the child', to) != 12), server.recv(20))\n\
         client, server, own, to = full()\n\
         client.set_inheritable(True)\n\
         program = 'import socket, sys; it = socket.socket(fileno=int(sys.argv[1])); '\n\
         program += 'it.settimeout(20); print([int(it.recv(9)) for _ in range(20)][19])'\n\
         words = [sys.executable, '-c', program, str(client.fileno())]\n\
         say('exec', finished(os.posix_spawn(sys.executable, words, os.environ)))\n\
         client, server, own, to = full()\n\
         one, two = select.epoll(), select.epoll()\n\
         one.register(client, select.EPOLLIN); two.register(client, select.EPOLLIN)\n\
         both = [[names(it) for _, it in epoll.poll(20)] for epoll in (one, two)]\n\
         say('two', both, read(client))\n\
         client, server, own, to = full()\n\
         left, right = socket.socketpair(socket.AF_UNIX)\n\
         socket.send_fds(left, [b'x'], [client.fileno()])\n\
         passed = socket.socket(fileno=socket.recv_fds(right, 9, 1)[1][0])\n\
         say('passed', read(passed))\n\
         client, server, own, to = ringed()\n\
         came = []\n\
         def taking(): came.append(client.recv(9))\n\
         threads = [threading.Thread(target=taking) for _ in range(3)]\n\
         for thread in threads: thread.start()\n\
         time.sleep(.2); numbered(server, own, 3)\n\
         for thread in threads: thread.join()\n\
         say('threads', sorted(came))\n\
         client, server, own, to = full()\n\
         server.connect(own); client.close()\n\
         def is_refused(): return outcome(server.send, b'x') == 'ECONNREFUSED'\n\
         say('closed', until(is_refused))\n\
         client, server, own, to = ringed()\n\
         client.sendto(b'before the close', to); client.close(); say(server.recv(20))\n\
         def last():\n\
         \x20   client, server, own, to = ringed(); client.sendto(b'before the end', to)\n\
         \x20   say(server.recv(20)); return 0\n\
         say(child(last))\n\
         client, server, own, to = ringed()\n\
         client.connect(to)\n\
         for number in range(30): client.send(b'%d' % number); server.recv(9)\n\
         server.sendto(b'before', own); waiting(client); server.close(); client.send(b'x')\n\
         say('refused', polled_until(client, 'ERR'), outcome(client.recv, 9), client.recv(9))\n\
         client.send(b'x'); say(polled_until(client, 'ERR'), outcome(client.send, b'x'))\n\
         client, server, own, to = full()\n\
         say('shut', client.connect(to), client.shutdown(socket.SHUT_RD), read(client))\n";
    let program = format!("{RINGED}{program}");
    assert_eq!(
        lines_over_stack("rings_end", &program),
        lines_on_kernel("rings_end", &program)
    );
}

/// sendmmsg(2) and recvmmsg(2) over rings.
#[test]
fn many_datagrams_of_a_call_pass_by_rings() {
    let program = "\
         client, server, own, to = ringed()\n\
         class Vec(ctypes.Structure):\n\
         \x20   _fields_ = [('at', ctypes.c_void_p), ('bytes', ctypes.c_size_t)]\n\
         class Message(ctypes.Structure):\n\
         \x20   _fields_ = [('name', ctypes.c_void_p), ('name_bytes', ctypes.c_uint32),\n\
         \x20       ('pieces', ctypes.POINTER(Vec)), ('count', ctypes.c_size_t),\n\
         \x20       ('control', ctypes.c_void_p), ('control_bytes', ctypes.c_size_t),\n\
         \x20       ('flags', ctypes.c_long), ('done', ctypes.c_uint32)]\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         def messages(buffers, name=None):\n\
         \x20   made = (Message * len(buffers))()\n\
         \x20   for it, buffer in zip(made, buffers):\n\
         \x20       at = ctypes.cast(buffer, ctypes.c_void_p)\n\
         \x20       it.pieces = ctypes.pointer(Vec(at, len(buffer))); it.count = 1\n\
         \x20       if name: it.name_bytes = len(name)\n\
         \x20       if name: it.name = ctypes.cast(name, ctypes.c_void_p)\n\
         \x20   return made\n\
         ip, port = to\n\
         name = struct.pack('=H', socket.AF_INET) + struct.pack('!H', port)\n\
         name = ctypes.create_string_buffer(name + socket.inet_aton(ip) + bytes(8), 16)\n\
         for count in 1, 7, 100:\n\
         \x20   sent = [ctypes.create_string_buffer(b'%04d' % it, 4) for it in range(count)]\n\
         \x20   asked = messages(sent, name)\n\
         \x20   say(libc.sendmmsg(client.fileno(), asked, count, 0), {it.done for it in asked})\n\
         \x20   say([int(server.recv(9)) for _ in range(count)] == list(range(count)))\n\
         mark = datagrams(); mark.settimeout(20)\n\
         for count in 1, 7, 100:\n\
         \x20   for number in range(count): server.sendto(b'%04d' % number, own)\n\
         \x20   # Behind them: they have come, but for a moment.\n\
         \x20   server.sendto(b'mark', mark.getsockname()[:2]); mark.recv(9); time.sleep(.2)\n\
         \x20   into = [ctypes.create_string_buffer(3 + it % 9) for it in range(count + 5)]\n\
         \x20   asked = messages(into)\n\
         \x20   got = libc.recvmmsg(client.fileno(), asked, count + 5, 0x10000, None)\n\
         \x20   say(got, [it.done for it in asked][:9], [it.flags for it in asked][:9])\n\
         \x20   say([it.raw[:3] for it in into][:9])\n\
         say(libc.recvmmsg(client.fileno(), messages(into), 9, 0x40, None), ctypes.get_errno())\n\
         long = [ctypes.create_string_buffer(it) for it in (9, 65_508, 9)]\n\
         say(libc.sendmmsg(client.fileno(), messages(long, name), 3, 0), len(server.recv(99)))\n\
         say(libc.sendmmsg(client.fileno(), messages(long[1:], name), 2, 0), ctypes.get_errno())\n";
    let program = format!("{RINGED}{program}");
    assert_eq!(
        lines_over_stack("many", &program),
        lines_on_kernel("many", &program)
    );
}

/// The hop limit and the traffic class of a datagram are those of the packet, whether it comes by
/// rings, which begin after some calls, or by the kernel's socket.
#[test]
fn datagrams_come_with_the_marks_of_their_packets() {
    let program = "\
         IP, IP6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6\n\
         for host, far, level, asks, gives in (\n\
         \x20   (V4, '10.91.9.1', IP, (12, 13), (2, 1)),\n\
         \x20   (V6, 'fd91::1', IP6, (51, 66), (16, 67)),\n\
         ):\n\
         \x20   far = host if host in ('127.0.0.1', '::1') else far\n\
         \x20   server, client = datagrams(host), datagrams(far)\n\
         \x20   for option in asks: server.setsockopt(level, option, 1)\n\
         \x20   for hops, tos in (61, 0xb9), (255, 3), (64, 0):\n\
         \x20       client.setsockopt(level, gives[0], hops)\n\
         \x20       client.setsockopt(level, gives[1], tos)\n\
         \x20       heard = set()\n\
         \x20       for _ in range(40):\n\
         \x20           client.sendto(b'marked', server.getsockname()[:2])\n\
         \x20           data, control, _, _ = server.recvmsg(100, 1000)\n\
         \x20           heard.add(str(sorted((kind, it.hex()) for _, kind, it in control)))\n\
         \x20       say(level, sorted(heard))\n";
    assert_eq!(
        lines_over_stack("marks", program),
        lines_on_kernel("marks", program)
    );
}
