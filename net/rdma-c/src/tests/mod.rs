//! Each call of the header as a program in C makes it: what it refuses, what it returns.
//!
//! `tests/rdma.c` has the same calls in C, one after the other; the cases that a program should not
//! have are here.

mod pairs;
mod refusals;
mod values;

use crate::shared::*;
use crate::*;
use sidecore_bare::width::ToU64;
use std::ffi::CString;
use std::ptr;
use std::time::Instant;

/// Longer than any step here takes.
const LONG: Duration = Duration::from_secs(60);

/// A device on the kernel's TCP, with one queue.
struct Side {
    rdma: *mut SidecoreRdma,
    queue: i64,
}

// SAFETY: one thread at a time uses a device, which the header asks for.
unsafe impl Send for Side {}

impl Side {
    fn open() -> Self {
        let mut rdma = ptr::null_mut();
        // SAFETY: a place for the device; an empty string.
        let opened = unsafe { sidecore_rdma_open(&mut rdma, c"".as_ptr()) };
        assert_eq!(opened, 0);
        assert!(!rdma.is_null());
        // SAFETY: the device just opened.
        let queue = unsafe { sidecore_rdma_queue(rdma, 64) };
        assert!(queue >= 0, "{queue}");
        Self { rdma, queue }
    }

    fn register(&self, bytes: &mut [u8], access: c_uint) -> RawRegion {
        let mut region = RawRegion {
            address: 0,
            bytes: 0,
            key: 0,
            reserved: 0,
        };
        let (address, count) = (bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: a device, and memory that outlives it in each test.
        let registered =
            unsafe { sidecore_rdma_register(self.rdma, address, count, access, &mut region) };
        assert_eq!(registered, 0);
        assert_eq!(region.bytes, count.to_u64());
        region
    }

    fn listen(&self, address: &str, options: *const RawOptions) -> i64 {
        let address = CString::new(address).expect("no zero in it");
        // SAFETY: a device, a string, NULL or options.
        unsafe { sidecore_rdma_listen(self.rdma, address.as_ptr(), 4, options) }
    }

    fn connect(&self, address: &str, options: *const RawOptions, data: &[u8]) -> i64 {
        let address = CString::new(address).expect("no zero in it");
        let (data, count, queue) = (data.as_ptr().cast(), data.len(), self.queue);
        // SAFETY: a device, a string, NULL or options, that number of bytes.
        unsafe {
            let (rdma, address) = (self.rdma, address.as_ptr());
            sidecore_rdma_connect(rdma, address, options, queue, queue, data, count)
        }
    }

    fn progress(&self) {
        // SAFETY: a device.
        assert!(unsafe { sidecore_rdma_progress(self.rdma) } >= 0);
    }

    fn event(&self) -> Option<RawEvent> {
        let mut event = RawEvent::from(&sidecore_rdma::Event::Established {
            connection: connection(0),
            private_data: Vec::new(),
        });
        // SAFETY: a device, and a place for an event.
        match unsafe { sidecore_rdma_event(self.rdma, &mut event) } {
            0 => None,
            1 => Some(event),
            error => panic!("an event: {error}"),
        }
    }

    fn poll(&self) -> Option<RawCompletion> {
        let mut one = std::mem::MaybeUninit::uninit();
        // SAFETY: a device, and room for one completion, which is there if 1 is returned.
        unsafe {
            match sidecore_rdma_poll(self.rdma, self.queue, one.as_mut_ptr(), 1) {
                0 => None,
                1 => Some(one.assume_init()),
                error => panic!("a completion: {error}"),
            }
        }
    }

    fn post(&self, connection: i64, work: &RawWork) -> c_int {
        // SAFETY: a device, and work.
        unsafe { sidecore_rdma_post(self.rdma, connection, work) }
    }

    fn post_receive(&self, connection: i64, id: u64, pieces: &[RawPiece]) -> c_int {
        let count = c_uint::try_from(pieces.len()).expect("few");
        // SAFETY: a device, and that number of pieces.
        unsafe { sidecore_rdma_post_receive(self.rdma, connection, id, pieces.as_ptr(), count) }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // SAFETY: opened by `open`; its last use.
        unsafe { sidecore_rdma_close(self.rdma) };
    }
}

/// A connection between two devices of one thread.
struct Two {
    server: Side,
    client: Side,
    /// The connection, of each side's numbers.
    accepted: i64,
    connected: i64,
}

impl Two {
    fn open(options: Option<RawOptions>) -> Self {
        let (server, client) = (Side::open(), Side::open());
        let options = options.as_ref().map_or(ptr::null(), ptr::from_ref);
        let (listener, address) = listening(&server, options);
        let connected = client.connect(&address, options, b"hello");
        assert!(connected >= 0, "{connected}");
        let mut two = Self {
            server,
            client,
            accepted: -1,
            connected,
        };
        let request = two.event_of(|two| &two.server);
        assert_eq!((request.kind, request.listener), (1, listener));
        assert_eq!(request.private_data[..5], *b"hello");
        assert_eq!(request.private_bytes, 5);
        two.accepted = request.connection;
        let (rdma, queue) = (two.server.rdma, two.server.queue);
        // SAFETY: a device; no private data.
        let accepted =
            unsafe { sidecore_rdma_accept(rdma, two.accepted, queue, queue, ptr::null(), 0) };
        assert_eq!(accepted, 0);
        for side in [Self::client, Self::server] {
            assert_eq!(two.event_of(side).kind, 2);
        }
        two
    }

    fn client(&self) -> &Side {
        &self.client
    }

    fn server(&self) -> &Side {
        &self.server
    }

    /// Makes progress on both sides until `found` returns something.
    fn until<T>(&self, mut found: impl FnMut(&Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            for side in [&self.server, &self.client] {
                side.progress();
            }
            if let Some(found) = found(self) {
                return found;
            }
            assert!(begun.elapsed() < LONG, "nothing happens");
        }
    }

    fn event_of(&self, side: impl Fn(&Self) -> &Side) -> RawEvent {
        self.until(|two| side(two).event())
    }

    fn completion_of(&self, side: impl Fn(&Self) -> &Side) -> RawCompletion {
        self.until(|two| side(two).poll())
    }
}

/// A listener on the loopback, and its address.
fn listening(side: &Side, options: *const RawOptions) -> (i64, String) {
    let listener = side.listen("127.0.0.1:0", options);
    assert!(listener >= 0, "{listener}");
    // SAFETY: a device.
    let port = unsafe { sidecore_rdma_port(side.rdma, listener) };
    assert!(port > 0, "{port}");
    (listener, format!("127.0.0.1:{port}"))
}

fn options() -> RawOptions {
    RawOptions {
        size: u32::try_from(size_of::<RawOptions>()).expect("small"),
        send_depth: 0,
        receive_depth: 0,
        reads: 0,
        without_crc: 0,
        waits: 0,
        peer_to_peer: 0,
        immediate_alone: 0,
        reserved: [0; 4],
    }
}

fn piece(region: &RawRegion, bytes: u32) -> RawPiece {
    RawPiece {
        address: region.address,
        bytes,
        key: region.key,
    }
}

/// Work of a kind, with these pieces of local memory.
fn work(id: u64, kind: u32, pieces: &[RawPiece]) -> RawWork {
    let none = RawPiece {
        address: 0,
        bytes: 0,
        key: 0,
    };
    let mut all = [none; 4];
    all[..pieces.len()].copy_from_slice(pieces);
    RawWork {
        id,
        kind,
        fence: 0,
        piece_count: u32::try_from(pieces.len()).expect("few"),
        key: 0,
        remote: 0,
        operand: 0,
        compare: 0,
        operand_mask: 0,
        compare_mask: 0,
        solicited: 0,
        reserved: 0,
        pieces: all,
    }
}
