//! A stack with many sessions whose clients are made by hand.
//!
//! Why here: one engine and its memory are measured: receiving, finding the session, its
//! application (64 bytes read in place, 64 written), and sending. A client is a few words, so that
//! a hundred thousand of them do not push the stack's state out of the cache.
//! Must stay true: every request is answered before the next of its session.

use super::super::served::config;
use super::super::{BenchError, interrupted};
use sidecore_net::Placement;
use sidecore_net::Stack;
use sidecore_net::nic::{Capabilities, Outgoing, Received, ReceivedChecksum};
use sidecore_net::{Event, SessionId};
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Requests that arrive together.
pub(in super::super) const BATCH: usize = 32;
/// Bytes of a request and of an answer.
pub(in super::super) const PAYLOAD: usize = 64;
/// Ethernet, IPv4, TCP with timestamps.
pub(in super::super) const HEADER: usize = 14 + 20 + 32;

/// As a NIC that segments and checks.
pub(in super::super) fn nic() -> Capabilities {
    Capabilities {
        address: [2, 0, 0, 0, 0, 1],
        mtu_bytes: 1500,
        super_segment_bytes: 65_535,
        completes_checksums: true,
        cuts_datagrams: false,
        merges_received: true,
    }
}

/// A client's side of a session.
#[derive(Clone, Copy)]
pub(in super::super) struct Client {
    pub(in super::super) sequence: u32,
    pub(in super::super) acknowledgment: u32,
    pub(in super::super) stamp: u32,
}

/// A stack with sessions, and the clients of all of them.
pub(super) struct Server {
    stack: Stack,
    clients: Vec<Client>,
    now_ns: u64,
    next: usize,
}

impl Server {
    /// Opens `count` sessions.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] where the stack has no room for that many.
    pub(super) fn new(count: usize, placement: Placement) -> Result<Self, BenchError> {
        let mut config = config(1);
        config.placement = placement;
        let mut stack = sidecore_net::memory::mapped_stack(config, &nic())?;
        let listener = stack.listen(SocketAddr::from(([10, 0, 0, 1], 80)), 4096)?;
        let mut server = Self {
            clients: Vec::with_capacity(count),
            now_ns: 1_000_000_000,
            next: 0,
            stack,
        };
        for number in 0..count {
            let mut client = Client {
                sequence: number as u32,
                acknowledgment: 0,
                stamp: 0,
            };
            server.now_ns += 10_000;
            let mut frame = syn(number, &client);
            server.put(&mut frame);
            server.stack.transmit(server.now_ns, &mut |out| {
                // IPv4 only: the stack may also send ARP.
                if out.header[12..14] == [8, 0] {
                    client.learn(out);
                }
                true
            });
            client.sequence = client.sequence.wrapping_add(1);
            client.acknowledgment = client.acknowledgment.wrapping_add(1);
            let mut frame = self::frame(number, &client, 0x10, 12);
            server.put(&mut frame);
            server.stack.process_staged();
            server.stack.accept(listener)?.ok_or_else(|| {
                let refused = format!("session {number} of {count} was not accepted");
                BenchError::Wrong(refused)
            })?;
            server.clients.push(client);
        }
        // Events of the openings are no part of a request's work.
        while server.stack.next_event().is_some() {}
        Ok(server)
    }

    fn put(&mut self, frame: &mut [u8]) {
        let received = Received {
            bytes: frame,
            checksum: ReceivedChecksum::Verified,
            segment_bytes: None,
        };
        self.stack.receive(self.now_ns, received);
    }

    /// Sessions that the stack still has.
    pub(super) fn live(&self) -> usize {
        self.stack.sessions()
    }

    /// Bytes of this structure that are the clients', not the stack's.
    pub(super) fn client_bytes(&self) -> usize {
        self.clients.capacity() * size_of::<Client>()
    }

    /// One sample: nanoseconds of engine time for a request. Each session gets at least two
    /// requests, in turn; at least `requests` are made.
    ///
    /// # Errors
    /// [`BenchError::Wrong`] where a request is not answered; [`BenchError::Interrupted`].
    pub(super) fn run(&mut self, requests: usize, cancel: &AtomicBool) -> Result<f64, BenchError> {
        // Announced outside of the timed part, so that no ARP request interrupts it.
        for host in 0..3 {
            self.put(&mut introduction(host));
        }
        let count = self.clients.len();
        let batch = BATCH.min(count);
        // Prime, so that all have their turn before one has a second.
        let stride = 7919;
        let mut frames: Vec<Vec<u8>> = (0..batch).map(|_| vec![0; HEADER + PAYLOAD]).collect();
        let mut numbers = vec![0; batch];
        // The median of batches: a batch that another program interrupted is not the engine's time.
        let mut spent_ns = Vec::with_capacity(requests / batch + 1);
        let mut done = 0;
        let mut answers: Vec<[u8; HEADER]> = Vec::with_capacity(batch);
        while done < requests.max(2 * count) {
            interrupted(cancel)?;
            for (frame, number) in frames.iter_mut().zip(&mut numbers) {
                self.next = (self.next + stride) % count;
                *number = self.next;
                fill(frame, *number, &self.clients[*number], 0x18, 12 + PAYLOAD);
            }
            self.now_ns += 1_000 * batch as u64;
            answers.clear();
            let began = Instant::now();
            for frame in &mut frames {
                let received = Received {
                    bytes: frame,
                    checksum: ReceivedChecksum::Verified,
                    segment_bytes: None,
                };
                self.stack.receive(self.now_ns, received);
            }
            self.stack.process_staged();
            while let Some(event) = self.stack.next_event() {
                if let Event::Session(id) = event {
                    serve(&mut self.stack, id)?;
                }
            }
            self.stack.transmit(self.now_ns, &mut |out| {
                let mut header = [0; HEADER];
                if out.payload[0].len() == PAYLOAD && out.header.len() == HEADER {
                    header.copy_from_slice(out.header);
                    answers.push(header);
                }
                black_box(out.payload);
                true
            });
            spent_ns.push(began.elapsed().as_nanos() as f64);
            if answers.len() != batch {
                let got = answers.len();
                return Err(BenchError::Wrong(format!(
                    "{got} answers to {batch} requests"
                )));
            }
            for header in &answers {
                let number = number_of(header);
                let client = &mut self.clients[number];
                client.acknowledgment = word(header, 38).wrapping_add(PAYLOAD as u32);
                client.sequence = word(header, 42);
                client.stamp = word(header, 58);
            }
            done += batch;
        }
        spent_ns.sort_by(f64::total_cmp);
        Ok(spent_ns[spent_ns.len() / 2] / batch as f64)
    }
}

/// The application: echoes each request.
pub(in super::super) fn serve(stack: &mut Stack, id: SessionId) -> Result<(), BenchError> {
    let mut answer = [0; PAYLOAD];
    let [first, second] = stack.peek(id)?;
    if first.len() + second.len() < PAYLOAD {
        return Ok(());
    }
    let split = first.len().min(PAYLOAD);
    answer[..split].copy_from_slice(&first[..split]);
    answer[split..].copy_from_slice(&second[..PAYLOAD - split]);
    stack.consume(id, PAYLOAD)?;
    stack.write(id, &answer)?;
    Ok(())
}

impl Client {
    /// From a SYN-ACK.
    pub(in super::super) fn learn(&mut self, out: &Outgoing<'_>) {
        self.acknowledgment = word(out.header, 38);
        self.stamp = word(out.header, 62);
    }
}

pub(in super::super) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The client that an answer goes to.
pub(in super::super) fn number_of(header: &[u8]) -> usize {
    let port = usize::from(header[36]) << 8 | usize::from(header[37]);
    usize::from(header[33]) * 50_000 + port - 1024
}

/// The first segment of a session.
pub(in super::super) fn syn(number: usize, client: &Client) -> Vec<u8> {
    let mut frame = frame(number, client, 0x02, 20);
    // MSS, SACK permitted, timestamps, window scale.
    frame[46] = 10 << 4;
    let options = [
        2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 8,
    ];
    frame[54..].copy_from_slice(&options);
    frame
}

/// The hardware address of clients 50,000 times `host` and up, so that no ARP request is needed.
pub(in super::super) fn introduction(host: u8) -> Vec<u8> {
    let mut arp = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6];
    arp.extend([0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 10, 1, 0, host]);
    arp.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
    arp
}

pub(in super::super) fn frame(number: usize, client: &Client, flags: u8, more: usize) -> Vec<u8> {
    let mut frame = vec![0; 54 + more];
    fill(&mut frame, number, client, flags, more);
    frame
}

pub(in super::super) fn fill(
    frame: &mut [u8],
    number: usize,
    client: &Client,
    flags: u8,
    more: usize,
) {
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    let total = ((40 + more) as u16).to_be_bytes();
    let head = [
        0x45,
        0,
        total[0],
        total[1],
        0,
        0,
        0x40,
        0,
        64,
        6,
        0,
        0,
        10,
        1,
        0,
        (number / 50_000) as u8,
        10,
        0,
        0,
        1,
    ];
    frame[14..34].copy_from_slice(&head);
    let mut sum: u32 = head
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
        .sum();
    sum = (sum & 0xffff) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    let port = (1024 + number % 50_000) as u16;
    frame[34..36].copy_from_slice(&port.to_be_bytes());
    frame[36..38].copy_from_slice(&80_u16.to_be_bytes());
    frame[38..42].copy_from_slice(&client.sequence.to_be_bytes());
    frame[42..46].copy_from_slice(&client.acknowledgment.to_be_bytes());
    frame[46] = 8 << 4;
    frame[47] = flags;
    frame[48..50].copy_from_slice(&1000_u16.to_be_bytes());
    if more >= 12 {
        frame[54..58].copy_from_slice(&[1, 1, 8, 10]);
        frame[58..62].copy_from_slice(&2_u32.to_be_bytes());
        frame[62..66].copy_from_slice(&client.stamp.to_be_bytes());
    }
}
