//! Explicit congestion notification with the kernel's TCP at the other end of a TAP.
//!
//! Why here: both ends of the simulated tests are ours, and would agree on a misreading of RFC
//! 3168. The wire marks each tenth of the ECN-capable data frames, in both directions: each end
//! must process the echo, reduce its window and report that, as the other one expects. Needs root
//! and /dev/net/tun, or is skipped with a note, unless `SIDECORE_ALL_PROGRAMS` is set.
#![allow(clippy::unwrap_used)] // Helper functions of tests.
#![allow(unsafe_code)] // getsockopt(2) with TCP_INFO, which rustix does not know

use crate::common;
use crate::namespace;

use common::segment::{ACK, CE, CWR, ECE, ECT_0, NOT_ECT, SYN, ecn, flags_at, set_ecn};
use namespace::{in_namespace, ip, is_left_out, no_taps};
use sidecore_net::nic::tap::{Tap, TapOptions};
use sidecore_net::nic::{Nic, Outgoing};
use sidecore_net::{Cidr, Config, Ecn, SessionId, Stack};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

#[test]
fn the_kernel_and_we_agree_on_marks() {
    if is_left_out(no_taps()) {
        return;
    }
    in_namespace(|| {
        for offload in [false, true] {
            // The kernel's `tcp_ecn`: 2 is its default, 1 requests it, too.
            for (ours_connects, kernels, ours, agreed) in [
                (true, 2, Ecn::Active, true),
                (false, 1, Ecn::Passive, true),
                (true, 0, Ecn::Active, false),
                (false, 1, Ecn::Off, false),
                (true, 1, Ecn::Passive, false),
                (false, 2, Ecn::Active, false),
            ] {
                std::fs::write("/proc/sys/net/ipv4/tcp_ecn", kernels.to_string()).unwrap();
                for v6 in [false, true] {
                    let case = format!(
                        "offload {offload}, ours connects {ours_connects}, tcp_ecn={kernels}, \
                         {ours:?}, IPv6 {v6}"
                    );
                    eprintln!("{case}");
                    let mut wire = Wire::new(offload, ours);
                    let info = exchange(&mut wire, ours_connects, v6, &case);
                    wire.judge(&info, agreed, &case);
                }
            }
        }
    });
}

/// Frames of one direction, except SYNs.
#[derive(Debug, Default)]
struct Passed {
    capable: u64,
    marked: u64,
    echoes: u64,
    cwr: u64,
    /// ECE and CWR of the SYN or SYN-ACK.
    opening: u8,
}

impl Passed {
    /// Records a frame, and marks each tenth; `bytes` may be its headers alone.
    fn note(&mut self, bytes: &mut [u8]) {
        let Some(flags) = flags_at(bytes).map(|at| bytes[at]) else {
            return;
        };
        if flags & SYN != 0 {
            assert_eq!(ecn(bytes), NOT_ECT, "flags {flags:#x}");
            self.opening = flags & (ECE | CWR);
            return;
        }
        self.echoes += u64::from(flags & ECE != 0);
        self.cwr += u64::from(flags & CWR != 0);
        if ecn(bytes) == NOT_ECT {
            return;
        }
        assert_eq!(flags & ACK, ACK);
        assert_eq!(ecn(bytes), ECT_0);
        self.capable += 1;
        if self.capable % 10 == 5 {
            set_ecn(bytes, CE);
            self.marked += 1;
        }
    }
}

/// Our stack, and the TAP between it and the kernel.
struct Wire {
    stack: Stack,
    tap: Tap,
    begun: Instant,
    /// From the kernel, and from our stack.
    passed: [Passed; 2],
}

impl Wire {
    fn new(offload: bool, ecn: Ecn) -> Self {
        let tap = Tap::open(&TapOptions {
            name: "ecn0".to_owned(),
            offload,
            ..TapOptions::default()
        });
        let tap = tap.unwrap();
        ip("address add 10.77.0.1/24 dev ecn0");
        ip("address add fd77::1/64 dev ecn0 nodad");
        let cidr = |address: &str, prefix_bits| Cidr {
            address: address.parse().unwrap(),
            prefix_bits,
        };
        let config = Config {
            addresses: vec![cidr("10.77.0.2", 24), cidr("fd77::2", 64)],
            ecn,
            ..Config::default()
        };
        Self {
            stack: Stack::new(config, &tap.capabilities()).unwrap(),
            tap,
            begun: Instant::now(),
            passed: Default::default(),
        }
    }

    /// One round of both ends; the number of frames moved.
    fn round(&mut self) -> usize {
        // The clock does not begin with 0, which stands for no time.
        let now_ns = 1_000_000_000 + self.begun.elapsed().as_nanos() as u64;
        let stack = &mut self.stack;
        let [from_kernel, from_us] = &mut self.passed;
        let received = self.tap.receive(64, &mut |frame| {
            from_kernel.note(frame.bytes);
            stack.receive(now_ns, frame);
        });
        stack.process_staged();
        let (tap, mut sent) = (&mut self.tap, 0);
        stack.transmit(now_ns, &mut |frame| {
            let mut header = frame.header.to_vec();
            from_us.note(&mut header);
            sent += 1;
            let marked = Outgoing {
                header: &header,
                ..*frame
            };
            tap.transmit(&marked).unwrap()
        });
        self.tap.flush().unwrap();
        received.unwrap() + sent
    }

    fn judge(&self, info: &[u8; TCP_INFO_BYTES], agreed: bool, case: &str) {
        let [kernels, ours] = &self.passed;
        let counters = self.stack.counters();
        let bits = info[TCPI_OPTIONS_AT] & (TCPI_OPT_ECN | TCPI_OPT_ECN_SEEN);
        assert_eq!(counters.ecn_sessions, u64::from(agreed), "{case}");
        if !agreed {
            assert_eq!(bits, 0, "{case}");
            for passed in [kernels, ours] {
                let none = [passed.capable, passed.echoes, passed.cwr];
                assert_eq!(none, [0; 3], "{case}: {kernels:?}, {ours:?}");
            }
            return;
        }
        eprintln!("  kernel {kernels:?}, ours {ours:?}");
        assert_eq!(bits, TCPI_OPT_ECN | TCPI_OPT_ECN_SEEN, "{case}");
        // RFC 3168 section 6.1.1: a request has both flags, the reply one.
        let mut openings = [kernels.opening, ours.opening];
        openings.sort_unstable();
        assert_eq!(openings, [ECE, ECE | CWR], "{case}");
        assert!(kernels.marked >= 3 && ours.marked >= 3, "{case}");
        assert_eq!(counters.ecn_ce_received, kernels.marked, "{case}");
        assert!(counters.ecn_reductions > 0, "{case}");
        let at = TCPI_DELIVERED_CE_AT;
        let delivered_marked = u32::from_ne_bytes(info[at..at + 4].try_into().unwrap());
        assert!(delivered_marked > 0, "{case}: the kernel heard no echo");
        for passed in [kernels, ours] {
            // Both echo, and stop when the other reports a reduction.
            assert!(passed.echoes > 0 && passed.cwr > 0, "{case}: {passed:?}");
        }
    }
}

/// Both ends send [`BYTES`] at once, and read the other's; TCP_INFO of the kernel socket.
fn exchange(wire: &mut Wire, ours_connects: bool, v6: bool, case: &str) -> [u8; TCP_INFO_BYTES] {
    let (kernels, us): (IpAddr, IpAddr) = if v6 {
        ("fd77::1".parse().unwrap(), "fd77::2".parse().unwrap())
    } else {
        ([10, 77, 0, 1].into(), [10, 77, 0, 2].into())
    };
    let deadline = Instant::now() + PATIENCE;
    let (peer, listener, mut session) = if ours_connects {
        let listener = TcpListener::bind((kernels, 0)).unwrap();
        let to = listener.local_addr().unwrap();
        let peer = std::thread::spawn(move || converse(listener.accept().unwrap().0));
        (peer, None, Some(connect(wire, to, deadline)))
    } else {
        let to = SocketAddr::new(us, 80);
        let listener = wire.stack.listen(to, 4).unwrap();
        let peer = std::thread::spawn(move || converse(TcpStream::connect(to).unwrap()));
        (peer, Some(listener), None)
    };
    let data = data();
    let (mut written, mut got, mut scratch) = (0, Vec::<u8>::new(), vec![0; 1 << 16]);
    loop {
        assert!(
            Instant::now() < deadline,
            "{case}: {written} written, {} got",
            got.len()
        );
        let moved = wire.round();
        if let Some(listener) = listener {
            session = session.or_else(|| wire.stack.accept(listener).unwrap());
        }
        if let Some(session) = session {
            written += wire.stack.write(session, &data[written..]).unwrap_or(0);
            let count = wire.stack.read(session, &mut scratch).unwrap_or(0);
            got.extend(&scratch[..count]);
        }
        if peer.is_finished()
            && got.len() >= BYTES
            && let Some(session) = session
        {
            let info = peer.join().unwrap();
            assert!(got == data, "{case}: what came from the kernel");
            // Otherwise the kernel's end would send its closing segments during the next case.
            wire.stack.abort(session).unwrap();
            wire.round();
            return info;
        }
        if moved == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Connects; retries while our addresses are still tentative.
fn connect(wire: &mut Wire, to: SocketAddr, deadline: Instant) -> SessionId {
    loop {
        match wire.stack.connect(to, None) {
            Ok(session) => return session,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        wire.round();
    }
}

/// The kernel's end.
fn converse(stream: TcpStream) -> [u8; TCP_INFO_BYTES] {
    // It is not the default everywhere, and some others ignore an echo.
    rustix::net::sockopt::set_tcp_congestion(&stream, "cubic").unwrap();
    let data = data();
    let mut got = vec![0; BYTES];
    std::thread::scope(|scope| {
        scope.spawn(|| (&stream).write_all(&data).unwrap());
        (&stream).read_exact(&mut got).unwrap();
    });
    assert!(got == data, "what came from us");
    tcp_info(&stream)
}

fn data() -> Vec<u8> {
    (0..BYTES).map(|at| ((at * 31) >> 3) as u8).collect()
}

fn tcp_info(stream: &TcpStream) -> [u8; TCP_INFO_BYTES] {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut len = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`, and both live for the call.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    assert_eq!(result, 0, "TCP_INFO");
    info
}

/// Length of the data that each end sends.
const BYTES: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(60);
/// `struct tcp_info` of Linux up to `tcpi_delivered_ce` (Linux 4.18), and a few places in it.
const TCP_INFO_BYTES: usize = 200;
const TCPI_OPTIONS_AT: usize = 5;
const TCPI_DELIVERED_CE_AT: usize = 196;
const TCPI_OPT_ECN: u8 = 8;
const TCPI_OPT_ECN_SEEN: u8 = 16;
