//! `net run --loopback` compared with the kernel: each small program of `tests/cases/*.txtar` runs
//! plainly and under it, and must print the same and end alike.
//!
//! Why here: programs expect of sockets what the kernel does, corner cases included; it is the only
//! complete description. A case that is known to differ is listed in `KNOWN`, with the reason, and
//! must differ: one that agrees fails the test until it is removed from the list.
//!
//! Must stay true: nothing is left out. Needs python3 (3.10 or newer) and cc; where there is a
//! stack, root, too. `SIDECORE_CASES=WORD` runs only the cases whose names have the word in them.

use crate::comparison::{
    Case, Run, all_of, difference, over_stack, patience, python, run, under_loopback,
};
use crate::unpack::{folder_of_cases, unpacked};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Cases whose results differ from the kernel's, and why.
const KNOWN: &[(&str, &str)] = &[
    (
        "backlog_full",
        "a backlog holds nobody back: opening between programs takes no time",
    ),
    (
        "close_while_accepting",
        "who polls a listener that is shut sees IN beside HUP",
    ),
    (
        "fork_socket_before_connect",
        "what a child binds or connects and leaves ends with the child",
    ),
    (
        "peer_closed_poll",
        "no reset answers a write after the peer's close: polls see no ERR, SO_ERROR is 0",
    ),
    (
        "receive_low_water",
        "poll of a pair does not look at SO_RCVLOWAT",
    ),
    (
        "reuse_address",
        "nothing waits in TIME-WAIT: the port is free at once",
    ),
    ("self_connect", "a socket cannot be both ends of its pair"),
    ("truncate_stream", "a pair does not throw away by MSG_TRUNC"),
];

/// More of them, where programs load no library.
const KNOWN_WITHOUT_LIBRARY: &[(&str, &str)] = &[
    (
        "accept_errors",
        "recv and send on a listener fail with a local socket's errors",
    ),
    (
        "peer_closed_writes",
        "a pair refuses the first write after its peer's close, TCP the second",
    ),
    (
        "signals",
        "accept with SO_RCVTIMEO goes on after a signal with SA_RESTART",
    ),
];

/// Cases whose results over a stack may differ between rings and pairs, and why. They must end all
/// the same.
const KNOWN_OF_RINGS: &[(&str, &str)] = &[
    (
        "close_while_receiving",
        "who waits for a descriptor that is closed hears EBADF instead of waiting on",
    ),
    (
        "epoll_edge",
        "an edge-triggered registration is told once more when its descriptor gets rings",
    ),
    (
        "peer_closed_writes",
        "without a library a read behind a reset fails, where it returns the end",
    ),
    (
        "send_file",
        "without a library sendfile into a listener fails with a local socket's error",
    ),
    (
        "signals",
        "without a library accept with SO_RCVTIMEO goes on after a signal with SA_RESTART",
    ),
];

/// Runs, both ways, of a case that differs: by timing alone, it agrees on another one.
const RUNS_MAX: usize = 3;

#[test]
fn every_case_prints_what_it_prints_on_the_kernel() {
    all_of(|_| true, |case, scratch| judge(case, scratch, "", KNOWN));
}

/// Without the library, as a static program is, which accepts by calls to the supervisor.
#[test]
fn without_a_library_sessions_are_what_they_are_on_the_kernel() {
    let is_about_sessions = |name: &str| {
        let wanted = [
            "accept", "backlog", "close", "connect", "epoll", "exec", "fork", "linger",
        ];
        let more = [
            "poll", "rights", "reuse", "select", "shutdown", "signals", "threads",
        ];
        wanted
            .iter()
            .chain(&more)
            .any(|word| name.starts_with(word))
    };
    let known = [KNOWN, KNOWN_WITHOUT_LIBRARY].concat();
    all_of(is_about_sessions, |case, scratch| {
        judge(case, scratch, "--no-rings", &known)
    });
}

/// Over a stack, rings make no difference. Needs root, for a TAP and a network namespace.
#[test]
fn with_rings_every_case_prints_what_it_prints_with_pairs() {
    let is_about_streams = |name: &str| {
        // Urgent data does not cross the stack: there that case waits until it is ended.
        let others = [
            "udp_",
            "options_",
            "unix_",
            "resolve",
            "bind_",
            "accept_errors",
            "many_messages",
            "out_of_band",
            // The bytes and the end arrive one after the other: a poll in between sees only the
            // bytes.
            "receive_low_water",
            // So do bytes and a reset; rings keep the bytes, as the kernel does, pairs do not.
            "linger_before",
        ];
        !others.iter().any(|other| name.starts_with(other))
    };
    all_of(is_about_streams, judge_rings);
}

/// Random steps in the life of sockets, over a stack and on the kernel, with rings and with pairs.
/// Needs root, for a TAP and a network namespace. `LIFE_SEED` and `LIFE_STEPS` choose longer ones.
#[test]
fn random_steps_over_the_stack_end_as_on_the_kernel() {
    let is_random = |name: &str| name == "random_life";
    for options in ["", "--no-rings"] {
        all_of(is_random, |case, scratch| {
            let kernel = run(&case.command, scratch, patience());
            let ours = over_stack(case, scratch, options);
            let is_same = kernel.output == ours.output;
            (!is_same).then(|| difference(&case.name, &kernel, &ours))
        });
    }
}

/// A program gets rings where it can, and none where it is configured without them or has set up an
/// io_uring.
#[test]
fn a_session_of_the_stack_has_rings() {
    let folder = tempfile::tempdir().unwrap();
    let has_rings = |before: &str, options: &str| {
        let program = format!(
            "import ctypes, sys; sys.path.insert(0, {:?}); from _case import *\n{before}\n\
             client, accepted = pair()\n\
             for _ in range(20): client.sendall(b'x'); receive(accepted, 1)\n\
             say(sum('sidecore-ring' in line for line in open('/proc/self/maps')))\n",
            folder_of_cases().display().to_string()
        );
        let command = vec![python(), "-c".into(), program.into()];
        let name = "rings".to_owned();
        let ran = over_stack(&Case { name, command }, folder.path(), options);
        assert!(
            ran.output.ends_with("exit status: 0\n"),
            "{}{}",
            ran.output,
            ran.errors
        );
        ran.output.lines().next().map(str::to_owned)
    };
    // Two mappings: the shared segment, and one memory for both ends.
    assert_eq!(has_rings("", "").as_deref(), Some("2"));
    assert_eq!(has_rings("", "--no-rings").as_deref(), Some("0"));
    let io_uring = format!(
        "ctypes.CDLL(None).syscall({}, 4, ctypes.create_string_buffer(120))",
        libc::SYS_io_uring_setup
    );
    assert_eq!(has_rings(&io_uring, "").as_deref(), Some("0"));
}

/// Programs that bind to each address of the machine find the stack's among the interfaces.
#[test]
fn programs_see_the_stacks_link_and_addresses() {
    let program = "import socket, struct\n\
         links = dict((name, index) for index, name in socket.if_nameindex())\n\
         print('lo' in links, 'stack0' in links)\n\
         print(socket.if_nametoindex('stack0') == links['stack0'], \
               socket.if_indextoname(links['stack0']))\n\
         asker = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n\
         asker.bind((0, 0))\n\
         asker.sendto(struct.pack('IHHIIBxxx', 20, 22, 0x301, 7, 0, 0), (0, 0))\n\
         heard = b''\n\
         while True:\n\
         \x20   data, _, flags, sender = asker.recvmsg(65536)\n\
         \x20   kind, = struct.unpack_from('H', data, 4)\n\
         \x20   assert sender == (0, 0) and flags == 0\n\
         \x20   if kind == 3: break\n\
         \x20   heard += data\n\
         def heard_by(send, receive):\n\
         \x20   asker = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n\
         \x20   send(asker, struct.pack('IHHIIBxxx', 20, 22, 0x301, 7, 0, 0))\n\
         \x20   whole = b''\n\
         \x20   while struct.pack('IHH', 20, 3, 2) not in whole: whole += receive(asker)\n\
         \x20   return socket.inet_aton('10.91.9.2') in whole\n\
         ways = [(socket.socket.send, lambda it: it.recv(9999)),\n\
         \x20   (lambda it, what: os.write(it.fileno(), what),\n\
         \x20    lambda it: os.read(it.fileno(), 999)),\n\
         \x20   (lambda it, data: it.sendmsg([data]), lambda it: it.recvmsg(9999)[0]),\n\
         \x20   (lambda it, what: os.writev(it.fileno(), [what]),\n\
         \x20    lambda it: it.recvfrom(9999)[0])]\n\
         print(*[heard_by(*way) for way in ways])\n\
         print(socket.inet_aton('10.91.9.2') in heard, socket.inet_aton('127.0.0.1') in heard,\n\
         \x20     socket.inet_pton(socket.AF_INET6, 'fd91::2') in heard)\n\
         import array, fcntl\n\
         asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         def listed(room):\n\
         \x20   entries = array.array('B', bytes(room))\n\
         \x20   where = entries.buffer_info()[0] if room else 0\n\
         \x20   asked = struct.pack('iP', room, where)\n\
         \x20   used, = struct.unpack_from('i', fcntl.ioctl(asker, 0x8912, asked))\n\
         \x20   entries = [bytes(entries[at:at + 40]) for at in range(0, min(room, used), 40)]\n\
         \x20   name = lambda it: it[:16].rstrip(b'\\0').decode()\n\
         \x20   return used, [(name(it), socket.inet_ntoa(it[20:24])) for it in entries]\n\
         used, entries = listed(4000)\n\
         print(listed(0)[0] == used, len(entries) * 40 == used, *entries[0], *entries[-1])\n\
         print(len(listed(used - 1)[1]) == len(entries) - 1)\n\
         def asked(request, name='stack0'):\n\
         \x20   return fcntl.ioctl(asker, request, struct.pack('16s24x', name.encode()))[16:]\n\
         addresses = [asked(it)[4:8] for it in (0x8915, 0x8917, 0x8919, 0x891b)]\n\
         print(*map(socket.inet_ntoa, addresses))\n\
         flags, = struct.unpack_from('H', asked(0x8913))\n\
         mtu, kind = asked(0x8921), asked(0x8927)\n\
         print(hex(flags), *struct.unpack_from('i', mtu), *struct.unpack_from('H', kind))\n\
         print(asked(0x8915, 'lo')[4:8] == bytes([127, 0, 0, 1]))\n";
    assert_eq!(
        lines_over_stack("interfaces", program),
        [
            "True True",
            "True stack0",
            "True True True True",
            "True True True",
            "True True lo 127.0.0.1 stack0 10.91.9.2",
            "True",
            "10.91.9.2 10.91.9.2 10.91.9.255 255.255.255.0",
            "0x1043 1500 1",
            "True",
        ]
    );
}

/// Listeners of two runs, and of two programs of one, share a port of the stack.
#[test]
fn sockets_of_the_stack_share_ports() {
    let shares = "\
         def sharing():\n\
         \x20   made = socket.socket()\n\
         \x20   made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n\
         \x20   made.bind((V4, 7000)); made.listen(200); made.settimeout(0.3)\n\
         \x20   return made\n\
         def count(server):\n\
         \x20   taken = 0\n\
         \x20   while not isinstance(outcome(server.accept), str): taken += 1\n\
         \x20   return taken\n\
         servers = [sharing() for _ in range(3)]\n\
         clients = [socket.create_connection((V4, 7000)) for _ in range(150)]\n\
         counts = [count(server) for server in servers]\n\
         say(sum(counts), min(counts) > 25, max(counts) < 100)\n";
    assert_eq!(lines_over_stack("shares", shares), ["150 True True"]);
}

/// SO_SNDBUF bounds what a program can write to a peer that does not read, on the stack as in the
/// kernel, whichever end sets it and when; polls wait for room; all of it arrives.
#[test]
fn what_a_program_may_have_sent_follows_its_send_buffer() {
    let program = "\
         sizes, times = (4096, 50_000), ('listener', 'before', 'after')\n\
         HOST = V4 if V4 == '127.0.0.1' else '10.91.9.1'\n\
         for bytes, when in itertools.product(sizes, times):\n\
         \x20   limit = lambda it: it.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, bytes)\n\
         \x20   small = lambda it: it.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)\n\
         \x20   # The reader is the kernel's.\n\
         \x20   with socket.socket() as server:\n\
         \x20       if when == 'listener': limit(server)\n\
         \x20       else: small(server)\n\
         \x20       server.bind((V4 if when == 'listener' else HOST, 0)); server.listen()\n\
         \x20       client = socket.socket()\n\
         \x20       if when == 'listener': client.bind((HOST, 0)); small(client)\n\
         \x20       if when == 'before': limit(client)\n\
         \x20       client.connect(server.getsockname())\n\
         \x20       accepted, _ = server.accept()\n\
         \x20   sender, reader = (accepted, client) if when == 'listener' else (client, accepted)\n\
         \x20   if when == 'after': limit(sender)\n\
         \x20   said = sender.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)\n\
         \x20   sent = filled(sender)\n\
         \x20   follows = bytes / 2 < sent < 3 * bytes + 64_000\n\
         \x20   say(bytes, when, said == 2 * bytes, follows or sent)\n\
         \x20   say(polled(sender))\n\
         \x20   reader.settimeout(30)\n\
         \x20   say(len(receive(reader, sent)) == sent, polled_until(sender, 'OUT'))\n\
         \x20   client.close(); accepted.close()\n";
    let program = format!("{FILLED}{program}");
    assert_eq!(
        lines_over_stack("send_buffer", &program),
        lines_on_kernel("send_buffer", &program)
    );
}

/// SO_RCVBUF bounds what a peer can have sent to a program that does not read, on the stack as in
/// the kernel, whichever socket has it and since when.
#[test]
fn what_a_peer_may_have_sent_follows_the_receive_buffer() {
    let program = "\
         sizes, times = (4096, 50_000), ('listener', 'before', 'after')\n\
         HOST = V4 if V4 == '127.0.0.1' else '10.91.9.1'\n\
         for bytes, when in itertools.product(sizes, times):\n\
         \x20   limit = lambda it: it.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, bytes)\n\
         \x20   small = lambda it: it.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)\n\
         \x20   # The writer is the kernel's.\n\
         \x20   with socket.socket() as server:\n\
         \x20       if when == 'listener': limit(server)\n\
         \x20       else: small(server)\n\
         \x20       server.bind((V4 if when == 'listener' else HOST, 0)); server.listen()\n\
         \x20       client = socket.socket()\n\
         \x20       if when == 'listener': client.bind((HOST, 0)); small(client)\n\
         \x20       if when == 'before': limit(client)\n\
         \x20       client.connect(server.getsockname())\n\
         \x20       accepted, _ = server.accept()\n\
         \x20   ends = (client, accepted) if when == 'listener' else (accepted, client)\n\
         \x20   writer, reader = ends\n\
         \x20   reader.settimeout(30)\n\
         \x20   if when == 'after':\n\
         \x20       limit(reader)\n\
         \x20       # The window that the writer knew before is not taken back: it is used up.\n\
         \x20       receive(reader, filled(writer))\n\
         \x20   said = reader.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)\n\
         \x20   sent = filled(writer)\n\
         \x20   follows = bytes / 2 < sent < 3 * bytes + 300_000\n\
         \x20   say(bytes, when, said == 2 * bytes, follows or sent)\n\
         \x20   say(len(receive(reader, sent)) == sent, polled_until(writer, 'OUT'))\n\
         \x20   client.close(); accepted.close()\n";
    let program = format!("{FILLED}{program}");
    assert_eq!(
        lines_over_stack("receive_buffer", &program),
        lines_on_kernel("receive_buffer", &program)
    );
}

/// A function of programs that writes until there is no room for half a second.
const FILLED: &str = "\
    import itertools\n\
    def filled(sock):\n\
    \x20   sock.setblocking(False)\n\
    \x20   sent, end = 0, time.monotonic() + 30\n\
    \x20   while time.monotonic() < end:\n\
    \x20       done = outcome(sock.send, b'x' * 4096)\n\
    \x20       if isinstance(done, int): sent += done\n\
    \x20       elif not select.select([], [sock], [], .5)[1]: break\n\
    \x20   return sent\n";

/// close(2) with a time in SO_LINGER waits until all is acknowledged, or the time is over, on
/// nonblocking sockets, too; what is left arrives after that.
#[test]
fn a_close_that_lingers_waits_as_in_the_kernel() {
    let program = "\
         import struct, threading\n\
         HOST = V4 if V4 == '127.0.0.1' else '10.91.9.1'\n\
         def full(seconds):\n\
         \x20   # The reader is the kernel's, with little room.\n\
         \x20   with socket.socket() as server:\n\
         \x20       server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)\n\
         \x20       server.bind((HOST, 0)); server.listen()\n\
         \x20       client = socket.socket()\n\
         \x20       client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 20_000)\n\
         \x20       client.connect(server.getsockname())\n\
         \x20       accepted, _ = server.accept()\n\
         \x20   linger = struct.pack('ii', 1, seconds)\n\
         \x20   client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)\n\
         \x20   client.setblocking(False)\n\
         \x20   sent, end = 0, time.monotonic() + 30\n\
         \x20   while time.monotonic() < end:\n\
         \x20       done = outcome(client.send, b'x' * 4096)\n\
         \x20       if isinstance(done, int): sent += done\n\
         \x20       elif not select.select([], [client], [], .5)[1]: break\n\
         \x20   return client, accepted, sent\n\
         def timed(work):\n\
         \x20   begun = time.monotonic(); work(); return time.monotonic() - begun\n\
         def all_of(accepted, sent):\n\
         \x20   accepted.settimeout(60)\n\
         \x20   return len(receive(accepted, sent)) == sent, outcome(accepted.recv, 1)\n\
         client, accepted, sent = full(1)\n\
         say('its time is over', .9 < timed(client.close) < 20, *all_of(accepted, sent))\n\
         client, accepted, sent = full(60)\n\
         later = threading.Timer(.3, lambda: read.append(all_of(accepted, sent))); read = []\n\
         later.start()\n\
         say('acknowledged', .2 < timed(client.close) < 50)\n\
         later.join(); say(*read)\n\
         client, accepted, sent = full(60)\n\
         other = client.dup()\n\
         say('a duplicate is left', timed(client.close) < 50)\n\
         other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(8))\n\
         say('without a time', timed(other.close) < 50, *all_of(accepted, sent))\n";
    assert_eq!(
        lines_over_stack("lingers", program),
        lines_on_kernel("lingers", program)
    );
}

/// A datagram that the kernel behind the stack's NIC refuses is the next call's error, and an entry
/// of the error queue for sockets with IP_RECVERR.
#[test]
fn refused_datagrams_of_the_stack_are_in_the_error_queue() {
    let program = "\
         import struct\n\
         for host, level, name in ('10.91.9.1', 0, 11), ('fd91::1', 41, 25):\n\
         \x20   to = (host, closed_port(host, socket.SOCK_DGRAM))\n\
         \x20   free = socket.socket(family_of(host), socket.SOCK_DGRAM)\n\
         \x20   free.sendto(b'unheard', to)\n\
         \x20   after = socket.socket(family_of(host), socket.SOCK_DGRAM)\n\
         \x20   after.connect(to)\n\
         \x20   after.send(b'its refusal comes after that of the first')\n\
         \x20   polled_until(after, 'ERR')\n\
         \x20   free.setsockopt(level, name, 1)\n\
         \x20   free.sendto(b'refused', to)\n\
         \x20   say(polled_until(free, 'ERR'), outcome(free.recv, 1))\n\
         \x20   data, messages, _, by = free.recvmsg(100, 512, 0x2000)\n\
         \x20   (of, kind, value), = messages\n\
         \x20   at = value[20:24] if level == 0 else value[24:40]\n\
         \x20   say(data, by[:2] == to, (of, kind) == (level, name),\n\
         \x20       struct.unpack_from('IBBB', value)[:2],\n\
         \x20       socket.inet_ntop(family_of(host), at) == host)\n\
         \x20   say(outcome(free.recvmsg, 100, 512, 0x2000))\n\
         \x20   peer = socket.socket(family_of(host), socket.SOCK_DGRAM)\n\
         \x20   peer.connect(to)\n\
         \x20   for _ in range(2):\n\
         \x20       peer.send(b'refused')\n\
         \x20       say(polled_until(peer, 'ERR'), outcome(peer.recv, 1))\n";
    let of_family = |origin| {
        [
            "OUT+ERR ECONNREFUSED".to_owned(),
            format!("b'refused' True True (111, {origin}) True"),
            "EAGAIN".to_owned(),
            "OUT+ERR ECONNREFUSED".to_owned(),
            "OUT+ERR ECONNREFUSED".to_owned(),
        ]
    };
    let wanted = [of_family(2), of_family(3)].concat();
    assert_eq!(lines_over_stack("refusals", program), wanted);
}

/// Each ICMP error about a program's datagram is what the kernel makes of it: in the error queue,
/// and as the error of a socket that asks for errors or has a peer. The program itself plays the
/// router.
#[test]
fn icmp_errors_of_the_stack_are_in_the_error_queue() {
    let program = "\
         import struct\n\
         def checksum(data):\n\
         \x20   total = sum(struct.unpack('!%dH' % (len(data) // 2), data))\n\
         \x20   total = (total >> 16) + (total & 0xffff)\n\
         \x20   return ~(total + (total >> 16)) & 0xffff\n\
         def forge(host, own, to, port, kind, code, word, payload):\n\
         \x20   family = family_of(host)\n\
         \x20   is_v4 = family == socket.AF_INET\n\
         \x20   ends = b''.join(socket.inet_pton(family, it) for it in (own, host))\n\
         \x20   udp = struct.pack('!4H', port, to[1], 8 + len(payload), 0) + payload\n\
         \x20   size = 20 + len(udp)\n\
         \x20   if is_v4: head = struct.pack('!BBHHHBBH', 0x45, 0, size, 0, 0, 64, 17, 0)\n\
         \x20   else: head = struct.pack('!IHBB', 6 << 28, len(udp), 17, 64)\n\
         \x20   rest = struct.pack('!I', word) + head + ends + udp\n\
         \x20   whole = struct.pack('!BBH', kind, code, 0) + rest\n\
         \x20   whole = struct.pack('!BBH', kind, code, checksum(whole)) + rest\n\
         \x20   raw = socket.socket(family, socket.SOCK_RAW, 1 if is_v4 else 58)\n\
         \x20   raw.sendto(whole, (own, 0))\n\
         V4_KINDS = (3, 0, 0), (3, 1, 0), (3, 2, 0), (3, 3, 0), (3, 4, 1400), (3, 9, 0), \\\n\
         \x20   (3, 13, 0), (11, 0, 0), (12, 0, 9 << 24)\n\
         V6_KINDS = (1, 0, 0), (1, 1, 0), (1, 3, 0), (1, 4, 0), (2, 0, 1400), \\\n\
         \x20   (3, 0, 0), (4, 0, 6)\n\
         over = V4 != '127.0.0.1'\n\
         for own, host, level, name, kinds in (\n\
         \x20   (V4, '10.91.9.1' if over else V4, 0, 11, V4_KINDS),\n\
         \x20   (V6, 'fd91::1' if over else V6, 41, 25, V6_KINDS),\n\
         ):\n\
         \x20   made = lambda: socket.socket(family_of(host), socket.SOCK_DGRAM)\n\
         \x20   server = made(); server.bind((host, 0))\n\
         \x20   to = server.getsockname()[:2]\n\
         \x20   free = made(); free.setsockopt(level, name, 1)\n\
         \x20   peer = made(); peer.setsockopt(level, name, 1); peer.connect(to)\n\
         \x20   error = lambda it: it.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)\n\
         \x20   for sock, kind in itertools.product((free, peer), kinds):\n\
         \x20       payload = b'sent %02d ' % kind[0]\n\
         \x20       if sock is free: sock.sendto(payload, to)\n\
         \x20       else: sock.send(payload)\n\
         \x20       forge(host, own, to, sock.getsockname()[1], *kind, payload)\n\
         \x20       say(*kind, polled_until(sock, 'ERR'), error(sock))\n\
         \x20       data, messages, _, by = sock.recvmsg(100, 512, 0x2000)\n\
         \x20       (of, which, value), = messages\n\
         \x20       at = value[20:24] if level == 0 else value[24:40]\n\
         \x20       say(data, by[:2] == to, (of, which) == (level, name),\n\
         \x20           struct.unpack_from('IBBBBI', value),\n\
         \x20           socket.inet_ntop(family_of(host), at) == host)\n\
         \x20       say(outcome(sock.recvmsg, 100, 512, 0x2000), error(sock))\n\
         \x20   # Without the queue the first is no error of a socket with a peer.\n\
         \x20   plain = made(); plain.connect(to); plain.send(b'xx')\n\
         \x20   for kind in kinds[0], kinds[2] if level == 0 else kinds[1]:\n\
         \x20       forge(host, own, to, plain.getsockname()[1], *kind, b'xx')\n\
         \x20   say(polled_until(plain, 'ERR'), error(plain), error(plain))\n";
    let program = format!("import itertools\n{program}");
    // In a network of its own, whose loopback learns the MTU.
    let kernel = lines_of("icmp_errors", &program, |case, scratch| {
        let alone = "ip link set lo up && exec \"$0\" \"$@\"";
        let mut command: Vec<PathBuf> = ["unshare", "--net", "sh", "-c", alone]
            .map(PathBuf::from)
            .into();
        command.extend(case.command.iter().cloned());
        run(&command, scratch, patience())
    });
    assert_eq!(lines_over_stack("icmp_errors", &program), kernel);
}

/// Output of a program over a stack, with the names of the cases.
pub(crate) fn lines_over_stack(name: &str, program: &str) -> Vec<String> {
    lines_of(name, program, |case, scratch| over_stack(case, scratch, ""))
}

/// The same on the kernel's loopback.
pub(crate) fn lines_on_kernel(name: &str, program: &str) -> Vec<String> {
    lines_of(name, program, |case, scratch| {
        run(&case.command, scratch, patience())
    })
}

pub(crate) fn lines_of(name: &str, program: &str, by: impl Fn(&Case, &Path) -> Run) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let program = format!(
        "import sys; sys.path.insert(0, {:?}); from _case import *\n{program}",
        folder_of_cases().display().to_string()
    );
    let case = Case {
        name: name.to_owned(),
        command: vec![python(), "-c".into(), program.into()],
    };
    let ran = by(&case, folder.path());
    let output = ran.output.strip_suffix("exit status: 0\n");
    let output = output.unwrap_or_else(|| panic!("{}{}", ran.output, ran.errors));
    output.lines().map(str::to_owned).collect()
}

/// A connect after the listener was closed is refused, not accepted and reset.
#[test]
fn a_closed_listener_of_the_stack_refuses_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let program = format!(
        "import sys; sys.path.insert(0, {:?}); from _case import *\n\
         for _ in range(5):\n\
         \x20   server = listener()\n\
         \x20   address = server.getsockname()\n\
         \x20   client = socket.create_connection(address)\n\
         \x20   child = os.fork()\n\
         \x20   if child == 0: time.sleep(0.2); server.close(); os._exit(0)\n\
         \x20   server.close()\n\
         \x20   shared = outcome(lambda: bool(socket.create_connection(address)))\n\
         \x20   os.waitpid(child, 0)\n\
         \x20   say(shared, outcome(socket.create_connection, address))\n\
         import signal\n\
         server = listener(); address = server.getsockname()\n\
         child = os.fork()\n\
         if child == 0: time.sleep(60); os._exit(0)\n\
         server.close(); os.kill(child, signal.SIGKILL); os.waitpid(child, 0)\n\
         say('killed', outcome(socket.create_connection, address))\n\
         server = listener(); address = server.getsockname()\n\
         other = server.dup(); server.close()\n\
         say('dup', outcome(lambda: bool(socket.create_connection(address))))\n\
         other.close()\n\
         say('dup', outcome(socket.create_connection, address))\n\
         server = listener(); address = server.getsockname(); server.set_inheritable(True)\n\
         program = 'import os; os.close(' + str(server.fileno()) + ')'\n\
         child = os.posix_spawn(sys.executable, [sys.executable, '-c', program], os.environ)\n\
         server.close(); os.waitpid(child, 0)\n\
         say('exec', outcome(socket.create_connection, address))\n",
        folder_of_cases().display().to_string()
    );
    let command = vec![python(), "-c".into(), program.into()];
    let name = "closed".to_owned();
    let ran = over_stack(&Case { name, command }, folder.path(), "");
    let expected = "True ECONNREFUSED\n".repeat(5);
    let rest = "killed ECONNREFUSED\ndup True\ndup ECONNREFUSED\nexec ECONNREFUSED\n";
    assert!(
        ran.output == format!("{expected}{rest}exit status: 0\n"),
        "{}{}",
        ran.output,
        ran.errors
    );
}

/// A program that was executed with a session polls it before it reads: the rings of the process
/// that has made it go back.
#[test]
fn an_executed_program_polls_the_session_that_it_has_inherited() {
    let program = "\
         client, accepted = pair()\n\
         for _ in range(20): client.sendall(b'x'); receive(accepted, 1)\n\
         accepted.set_inheritable(True)\n\
         waits = 'import select, sys; it = select.poll(); it.register(int(sys.argv[1]), 1); '\n\
         waits += 'sys.exit(not it.poll(30000))'\n\
         program = [sys.executable, '-c', waits, str(accepted.fileno())]\n\
         client.sendall(b'later')\n\
         child = os.posix_spawn(sys.executable, program, os.environ)\n\
         say(finished(child), receive(accepted, 5))\n";
    assert_eq!(lines_over_stack("executed", program), ["0 b'later'"]);
}

/// A library of another build, which cannot share rings, is reported.
#[test]
fn a_library_of_another_version_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let asks = |version: u32| {
        let program = format!(
            "import sys; sys.path.insert(0, {:?}); from _case import *; import ctypes, struct\n\
             client, accepted = pair()\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             for _ in range(2):\n    \
                 asked = struct.pack('4I', {version}, 0, 0, 0)\n    \
                 words = ctypes.create_string_buffer(asked, 16)\n    \
                 room = ctypes.c_uint32(16)\n    \
                 got = libc.syscall({}, client.fileno(), {}, {}, words, ctypes.byref(room))\n    \
                 say(errno.errorcode[ctypes.get_errno()] if got else 'ok')\n",
            folder_of_cases().display().to_string(),
            libc::SYS_getsockopt,
            sidecore_net_rings::LEVEL,
            sidecore_net_rings::ATTACH,
        );
        let name = "version".to_owned();
        let command = vec![python(), "-c".into(), program.into()];
        let ran = over_stack(&Case { name, command }, folder.path(), "");
        (ran.output, ran.errors.matches("of another version").count())
    };
    let (old, other) = (0, sidecore_net_rings::VERSION + 1);
    for version in [old, other] {
        let refused = "ENOTSUP\nENOTSUP\nexit status: 0\n".to_owned();
        assert_eq!(asks(version), (refused, 1), "{version}");
    }
    let same = "ok\nok\nexit status: 0\n".to_owned();
    assert_eq!(asks(sidecore_net_rings::VERSION), (same, 0));
}

/// With `--all` an address of the kernel's is not among the stack's either; the loopback's
/// addresses stay the kernel's.
#[test]
fn with_all_only_the_loopback_is_left_to_the_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let program = format!(
        "import sys; sys.path.insert(0, {:?}); from _case import *\n\
         for address in '10.91.9.1', '127.0.0.1', '10.91.9.2':\n    \
             made = socket.socket()\n    \
             say(outcome(made.bind, (address, 8080)) or outcome(made.listen))\n",
        folder_of_cases()
    );
    let path = folder.path().join("all.py");
    std::fs::write(&path, program).unwrap();
    let case = Case {
        name: "all".to_owned(),
        command: vec![python(), path],
    };
    let output = |options: &str| over_stack(&case, folder.path(), options).output;
    assert_eq!(output(""), "None\nNone\nNone\nexit status: 0\n");
    let all = output("--all");
    assert_eq!(all, "EADDRNOTAVAIL\nNone\nNone\nexit status: 0\n");
}

/// Every reason belongs to an existing case.
#[test]
fn the_list_of_known_differences_names_cases() {
    let folder = tempfile::tempdir().unwrap();
    let cases = unpacked(folder.path());
    let all = KNOWN
        .iter()
        .chain(KNOWN_OF_RINGS)
        .chain(KNOWN_WITHOUT_LIBRARY);
    for (name, reason) in all {
        let found = cases
            .iter()
            .any(|case| case.file_stem() == Some(name.as_ref()));
        assert!(found, "no case `{name}`");
        assert!(reason.len() > 10, "no reason for `{name}`");
    }
}

/// The comparison sees a difference of output, of exit status, and a signal.
#[test]
fn a_difference_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let shell = |words: &str| {
        let command = ["sh", "-c", words].map(PathBuf::from);
        run(&command, folder.path(), Duration::from_secs(30)).output
    };
    assert_eq!(shell("echo a; exit 3"), "a\nexit status: 3\n");
    assert_eq!(shell("echo a; kill -TERM $$"), "a\nexit status: 143\n");
    assert_ne!(shell("echo a"), shell("echo b"));
    let endless = ["sleep", "60"].map(PathBuf::from);
    let output = run(&endless, folder.path(), Duration::from_millis(200)).output;
    assert!(output.starts_with("hangs"), "{output}");
}

/// Runs a case both ways; returns the fault.
fn judge(case: &Case, scratch: &Path, options: &str, known: &[(&str, &str)]) -> Option<String> {
    let known = known.iter().find(|(name, _)| *name == case.name);
    let name = &case.name;
    let kernel = run(&case.command, scratch, patience());
    if !kernel.output.ends_with("exit status: 0\n") {
        let (output, errors) = (kernel.output, kernel.errors);
        return Some(format!(
            "{name} fails on the kernel itself:\n{output}{errors}"
        ));
    }
    let ours = under_loopback(case, scratch, options);
    match (kernel.output == ours.output, known) {
        (true, None) | (false, Some(_)) => None,
        (true, Some((_, reason))) => Some(format!(
            "{name} agrees now: take it off KNOWN (its reason was: {reason})"
        )),
        (false, None) => Some(difference(name, &kernel, &ours)),
    }
}

/// Runs a case over a stack with pairs and with rings; returns the fault.
fn judge_rings(case: &Case, scratch: &Path) -> Option<String> {
    let known = KNOWN_OF_RINGS.iter().find(|(name, _)| *name == case.name);
    let mut differs = None;
    for _ in 0..RUNS_MAX {
        let pairs = over_stack(case, scratch, "--no-rings");
        let rings = over_stack(case, scratch, "");
        let ends = !rings.output.contains("hangs: ");
        if pairs.output == rings.output || known.is_some() && ends {
            return None;
        }
        differs = Some(difference(&case.name, &pairs, &rings));
    }
    differs
}
