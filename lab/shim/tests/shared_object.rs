//! The built shared object, loaded and driven like an outside runner: by its pointers, through C
//! types that are declared again here.
#![allow(unsafe_code)] // calls through C's pointers

#[path = "../../../net/stack/tests/common/segment.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)] // only the checksum is used
mod segment;

use libc::{c_char, c_int, c_longlong, c_void, sockaddr, sockaddr_in, socklen_t, ssize_t, timeval};
use libloading::os::unix::{Library, Symbol};
use segment::internet_checksum;
use std::path::PathBuf;
use std::ptr::null_mut;

/// The structure as the runner sees it: 33 pointers.
#[derive(Clone, Copy)]
struct Table([*mut c_void; 33]);

// SAFETY: the interface takes calls from two threads; the pointers are never written again.
unsafe impl Send for Table {}

type Socket = unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int) -> c_int;
type Address = unsafe extern "C" fn(*mut c_void, c_int, *const sockaddr, socklen_t) -> c_int;
type Accept = unsafe extern "C" fn(*mut c_void, c_int, *mut sockaddr, *mut socklen_t) -> c_int;
type Two = unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
type One = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type Bytes = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, usize) -> ssize_t;
type Option_ =
    unsafe extern "C" fn(*mut c_void, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
type Send_ = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut usize, *mut c_longlong) -> c_int;
type Sleep = unsafe extern "C" fn(*mut c_void, u32) -> c_int;
type Time = unsafe extern "C" fn(*mut c_void, *mut timeval, *mut c_void) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void);
type Fcntl = unsafe extern "C" fn(*mut c_void, c_int, c_int, ...) -> c_int;

// Places in the structure.
const FREE: usize = 1;
const SOCKET: usize = 2;
const BIND: usize = 3;
const LISTEN: usize = 4;
const ACCEPT: usize = 5;
const READ: usize = 7;
const WRITE: usize = 12;
const FCNTL: usize = 17;
const CLOSE: usize = 19;
const GETSOCKOPT: usize = 21;
const NETDEV_SEND: usize = 24;
const NETDEV_RECEIVE: usize = 25;
const USLEEP: usize = 26;
const GETTIMEOFDAY: usize = 27;
const PIPE: usize = 31;

impl Table {
    fn user(&self) -> *mut c_void {
        self.0[0]
    }

    /// A function of the structure.
    ///
    /// # Safety
    /// `F` is the type of the function pointer that lies at this place.
    unsafe fn at<F: Copy>(&self, place: usize) -> F {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: as long as a pointer, and of this type, says the caller.
        unsafe { std::mem::transmute_copy(&self.0[place]) }
    }

    fn socket(&self) -> c_int {
        // SAFETY: this place's type.
        unsafe { self.at::<Socket>(SOCKET)(self.user(), libc::AF_INET, libc::SOCK_STREAM, 6) }
    }

    fn two(&self, place: usize, a: c_int, b: c_int) -> c_int {
        // SAFETY: used with places of this type.
        unsafe { self.at::<Two>(place)(self.user(), a, b) }
    }

    fn bytes(&self, place: usize, fd: c_int, bytes: &mut [u8]) -> ssize_t {
        // SAFETY: used with places of this type, and the bytes are good for their length.
        unsafe { self.at::<Bytes>(place)(self.user(), fd, bytes.as_mut_ptr().cast(), bytes.len()) }
    }

    fn send(&self, packet: &[u8]) {
        // SAFETY: this place's type; the packet is good for its length.
        let sent = unsafe {
            self.at::<Send_>(NETDEV_SEND)(self.user(), packet.as_ptr().cast(), packet.len())
        };
        assert_eq!(sent, 0);
    }

    /// The next packet, and when it went out.
    fn receive(&self) -> (Vec<u8>, i64) {
        let mut packet = vec![0; 70_000];
        let (mut len, mut at_us) = (packet.len(), 0);
        // SAFETY: this place's type; all three pointers are good.
        let received = unsafe {
            self.at::<Receive>(NETDEV_RECEIVE)(
                self.user(),
                packet.as_mut_ptr().cast(),
                &raw mut len,
                &raw mut at_us,
            )
        };
        assert_eq!(received, 0);
        packet.truncate(len);
        (packet, at_us)
    }

    fn now_us(&self) -> i64 {
        let mut now = timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        // SAFETY: this place's type; the time is good, and a zone may be null.
        let c_result =
            unsafe { self.at::<Time>(GETTIMEOFDAY)(self.user(), &raw mut now, null_mut()) };
        assert_eq!(c_result, 0);
        now.tv_sec * 1_000_000 + now.tv_usec
    }

    fn sleep(&self, us: u32) {
        // SAFETY: this place's type.
        assert_eq!(unsafe { self.at::<Sleep>(USLEEP)(self.user(), us) }, 0);
    }
}

/// Path of the shared object that cargo builds next to this test.
fn object() -> PathBuf {
    let test = std::env::current_exe().expect("this test's own path");
    let name = format!(
        "{}sidecore_net_shim{}",
        std::env::consts::DLL_PREFIX,
        std::env::consts::DLL_SUFFIX
    );
    let beside = test.parent().expect("a folder").join(name);
    assert!(beside.exists(), "{} is not there", beside.display());
    beside
}

fn with_interface(flags: &std::ffi::CStr, work: impl FnOnce(Table)) {
    // As the runner loads it. It must stay: threads that called it end after it is closed.
    let flags_of_loading =
        libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE | libc::RTLD_DEEPBIND;
    // SAFETY: our own object, whose start-up code does nothing.
    let library = unsafe { Library::open(Some(object()), flags_of_loading) }.expect("loads");
    let mut table = Table([null_mut(); 33]);
    // SAFETY: the symbol has this type, and the table is as long as the structure.
    unsafe {
        let init: Symbol<unsafe extern "C" fn(*const c_char, *mut Table)> = library
            .get(b"packetdrill_interface_init")
            .expect("the symbol");
        init(flags.as_ptr(), &raw mut table);
    }
    assert!(table.0.iter().all(|pointer| !pointer.is_null()));
    work(table);
    // SAFETY: this place's type; nothing is called afterwards.
    unsafe { table.at::<Free>(FREE)(table.user()) };
}

/// A TCP segment of the peer's, 192.0.2.1:40000 to 192.168.0.1:8080.
fn segment(
    flags: u8,
    sequence: u32,
    acknowledgment: u32,
    options: &[u8],
    payload: &[u8],
) -> Vec<u8> {
    let mut tcp = vec![0x9c, 0x40, 0x1f, 0x90];
    tcp.extend_from_slice(&sequence.to_be_bytes());
    tcp.extend_from_slice(&acknowledgment.to_be_bytes());
    tcp.extend_from_slice(&[
        (20 + options.len()) as u8 * 4,
        flags,
        0xff,
        0xff,
        0,
        0,
        0,
        0,
    ]);
    tcp.extend_from_slice(options);
    tcp.extend_from_slice(payload);
    let mut pseudo = vec![192, 0, 2, 1, 192, 168, 0, 1, 0, 6];
    pseudo.extend_from_slice(&(tcp.len() as u16).to_be_bytes());
    pseudo.extend_from_slice(&tcp);
    let sum = internet_checksum(&pseudo);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut ip = vec![
        0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 168, 0, 1,
    ];
    ip[2..4].copy_from_slice(&((20 + tcp.len()) as u16).to_be_bytes());
    let sum = internet_checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip.extend_from_slice(&tcp);
    ip
}

fn word(packet: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes"))
}

const SYN: u8 = 2;
const ACK: u8 = 16;

#[test]
fn a_session_from_handshake_to_close() {
    with_interface(c"", |table| {
        let listener = table.socket();
        assert_eq!(listener, 3);
        let address = sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 8080_u16.to_be(),
            sin_addr: libc::in_addr { s_addr: 0 },
            sin_zero: [0; 8],
        };
        // SAFETY: this place's type; the address is good for its length.
        let bound = unsafe {
            let len = size_of::<sockaddr_in>() as socklen_t;
            table.at::<Address>(BIND)(table.user(), listener, (&raw const address).cast(), len)
        };
        assert_eq!(bound, 0);
        assert_eq!(table.two(LISTEN, listener, 5), 0);

        // A blocking call comes from a second thread.
        let acceptor = std::thread::spawn(move || {
            let table = { table };
            let mut peer = address;
            let mut len = size_of::<sockaddr_in>() as socklen_t;
            // SAFETY: this place's type; address and length are good.
            let fd = unsafe {
                let peer = (&raw mut peer).cast();
                table.at::<Accept>(ACCEPT)(table.user(), listener, peer, &raw mut len)
            };
            (fd, peer.sin_addr.s_addr, u16::from_be(peer.sin_port))
        });
        let began_us = table.now_us();
        table.send(&segment(SYN, 0, 0, &[2, 4, 3, 232], &[]));
        let (answer, at_us) = table.receive();
        assert_eq!(answer[33], SYN | ACK);
        assert_eq!(word(&answer, 28), 1, "it acknowledges the SYN");
        assert!((began_us..=table.now_us()).contains(&at_us));
        let ours = word(&answer, 24).wrapping_add(1);
        table.sleep(100_000);
        table.send(&segment(ACK, 1, ours, &[], &[]));
        let (fd, peer, port) = acceptor.join().expect("accepts");
        assert_eq!(
            (fd, peer, port),
            (4, u32::from_ne_bytes([192, 0, 2, 1]), 40_000)
        );

        // Written bytes go out as one super-segment, and are acknowledged.
        assert_eq!(table.bytes(WRITE, fd, &mut [7; 2000]), 2000);
        let (data, _) = table.receive();
        assert_eq!(data.len(), 40 + 2000);
        table.send(&segment(ACK, 1, ours.wrapping_add(2000), &[], b"an answer"));
        let mut answer = [0; 100];
        assert_eq!(table.bytes(READ, fd, &mut answer), 9);
        assert_eq!(&answer[..9], b"an answer");

        let mut info = [0_u8; 232];
        let mut len = info.len() as socklen_t;
        // SAFETY: this place's type; room and length are good.
        let c_result = unsafe {
            let value = info.as_mut_ptr().cast();
            let call = table.at::<Option_>(GETSOCKOPT);
            call(
                table.user(),
                fd,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                value,
                &raw mut len,
            )
        };
        assert_eq!((c_result, len), (0, 232));
        assert_eq!(info[0], 1, "established");
        assert_eq!(
            u32::from_ne_bytes(info[16..20].try_into().expect("four")),
            1000,
            "tcpi_snd_mss"
        );
        let rtt_us = u32::from_ne_bytes(info[68..72].try_into().expect("four"));
        assert!((80_000..110_000).contains(&rtt_us), "{rtt_us}");

        // A non-blocking descriptor reports it by errno.
        // SAFETY: this place's type in C, a variadic function.
        unsafe {
            let fcntl = table.at::<Fcntl>(FCNTL);
            assert_eq!(fcntl(table.user(), fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
            assert_eq!(
                fcntl(table.user(), fd, libc::F_GETFL),
                libc::O_RDWR | libc::O_NONBLOCK
            );
        }
        assert_eq!(table.bytes(READ, fd, &mut answer), -1);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EAGAIN)
        );

        let (ack, _) = table.receive();
        assert_eq!((ack[33], ack.len()), (ACK, 40), "of the answer");
        // SAFETY: this place's type.
        assert_eq!(unsafe { table.at::<One>(CLOSE)(table.user(), fd) }, 0);
        let (fin, _) = table.receive();
        assert_eq!(fin[33], ACK | 1);
    });
}

#[test]
fn the_clock_is_the_callers() {
    with_interface(c"tso=off, mtu=1400", |table| {
        let first = table.now_us();
        assert!(table.now_us() > first, "it moves on at every look");
        table.sleep(3_000_000);
        let after = table.now_us();
        assert!((first + 3_000_000..first + 3_000_100).contains(&after));
        // Nothing will ever go out.
        assert_eq!(table.receive().0.len(), 0);
        // Unsupported calls report it.
        // SAFETY: this place's type; the pointer is not looked at.
        let piped = unsafe { table.at::<Pipe>(PIPE)(table.user(), null_mut()) };
        assert_eq!(piped, -1);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::ENOSYS)
        );
        assert_eq!(table.two(LISTEN, 99, 1), -1);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EBADF)
        );
    });
}

/// pipe(2).
type Pipe = unsafe extern "C" fn(*mut c_void, *mut c_int) -> c_int;
