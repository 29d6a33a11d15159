//! What the stack's core costs, with nothing around it: nanoseconds of engine time for one 64-byte
//! request and its answer, over the number of live sessions and both placements, and bytes per second
//! between two stacks that call one another.
//!
//! `cargo run --release -p sidecore-net --example bench_core -- [--rounds 5] [--sessions N]`
//!
//! The clients of the first part are made by hand (a few words each), so that what is measured is
//! one engine and its memory: receiving, finding the session, its application (read 64 bytes where
//! they lie, write 64), and transmitting. Configurations alternate; medians and spread are printed.
#![allow(clippy::print_stdout)] // a program for people

use sidecore_net::nic::{Capabilities, Outgoing, Received, ReceivedChecksum};
use sidecore_net::{Cidr, Config, Event, Placement, SessionId, Stack};
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Requests that arrive together.
const BATCH: usize = 32;
/// Bytes of a request and of an answer.
const PAYLOAD: usize = 64;
/// Ethernet, IPv4, TCP with timestamps.
const HEADER: usize = 14 + 20 + 32;
/// Requests of one sample.
const REQUESTS: usize = 400_000;

type Fault = Box<dyn std::error::Error>;

fn main() -> Result<(), Fault> {
    let option = |name: &str| {
        let mut arguments = std::env::args().skip_while(|argument| argument != name);
        arguments.nth(1).map(|value| value.parse::<usize>())
    };
    let rounds = option("--rounds").unwrap_or(Ok(5))?;
    let all = vec![1, 64, 1_000, 10_000, 100_000];
    let only = option("--sessions").transpose()?;
    let counts = only.map_or(all, |count| vec![count]);
    let mut servers = Vec::new();
    for &count in &counts {
        servers.push((
            "main memory",
            count,
            Server::new(count, Placement::MainMemory)?,
        ));
        if count <= 1_024 {
            servers.push((
                "local store",
                count,
                Server::new(count, Placement::LocalStore)?,
            ));
        }
    }
    let mut samples = vec![Vec::new(); servers.len()];
    for round in 0..=rounds {
        for (server, samples) in servers.iter_mut().zip(&mut samples) {
            let ns = server.2.run()?;
            // The first round is to warm up.
            if round > 0 {
                samples.push(ns);
            }
        }
    }
    println!("engine time of one request of {PAYLOAD} bytes and its answer, {rounds} rounds:");
    // The rate of few sessions that arrive in whole batches is the one to keep.
    let median = |samples: &[f64]| {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    let at = counts.iter().position(|&count| count == 64).unwrap_or(0);
    let at = servers.iter().position(|server| server.1 == counts[at]);
    let hot = median(&samples[at.unwrap_or(0)]);
    for ((placement, count, server), samples) in servers.iter().zip(&mut samples) {
        samples.sort_by(f64::total_cmp);
        let median = samples[samples.len() / 2];
        let counters = server.stack.counters();
        println!(
            "{count:>7} sessions, {placement}: {median:6.1} ns ({:.1} to {:.1}), {:3.0} % of the hot rate, tags hit {:3.0} %",
            samples[0],
            samples[samples.len() - 1],
            100.0 * hot / median,
            100.0 * counters.search_hits as f64 / counters.searches as f64,
        );
    }
    drop(servers);
    if only.is_some_and(|count| count > 0) {
        return Ok(());
    }
    println!("bulk, one session, one thread for both stacks and the copy between them:");
    for (name, offload, verify) in [
        ("super-segments, no checksums", true, false),
        ("MTU 1500, no checksums", false, false),
        ("MTU 1500, checksums", false, true),
    ] {
        let mut rates = Vec::new();
        for _ in 0..rounds {
            rates.push(bulk(offload, verify)?);
        }
        rates.sort_by(f64::total_cmp);
        let [low, median, high] = [rates[0], rates[rates.len() / 2], rates[rates.len() - 1]];
        println!("  {name}: {median:.1} Gb/s ({low:.1} to {high:.1})");
    }
    Ok(())
}

fn nic(number: u8, offload: bool, checksums: bool) -> Capabilities {
    Capabilities {
        address: [2, 0, 0, 0, 0, number],
        mtu_bytes: 1500,
        super_segment_bytes: if offload { 65_535 } else { 0 },
        completes_checksums: !checksums,
        merges_received: offload,
    }
}

fn config(number: u8) -> Config {
    let mut config = Config::default();
    config.addresses = vec![Cidr {
        address: IpAddr::from([10, 0, 0, number]),
        prefix_bits: 8,
    }];
    config.seed = u64::from(number);
    config.no_delay = true;
    config
}

/// A client's side of a session.
#[derive(Clone, Copy)]
struct Client {
    sequence: u32,
    acknowledgment: u32,
    stamp: u32,
}

struct Server {
    stack: Stack,
    clients: Vec<Client>,
    now_ns: u64,
    next: usize,
}

impl Server {
    fn new(count: usize, placement: Placement) -> Result<Self, Fault> {
        let mut config = config(1);
        config.placement = placement;
        let mut stack = Stack::new(config, &nic(1, true, false))?;
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
            let mut frame = frame(number, &client, 0x02, 20);
            // MSS, SACK permitted, timestamps, window scale.
            frame[46] = 10 << 4;
            let options = [
                2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 8,
            ];
            frame[54..].copy_from_slice(&options);
            server.put(&mut frame);
            server.stack.transmit(server.now_ns, &mut |out| {
                if out.header[12..14] == [8, 0] {
                    client.learn(out);
                }
                true
            });
            client.sequence = client.sequence.wrapping_add(1);
            client.acknowledgment = client.acknowledgment.wrapping_add(1);
            let mut frame = self::frame(number, &client, 0x10, 12);
            server.put(&mut frame);
            server.stack.settle();
            server.stack.accept(listener)?.ok_or("not accepted")?;
            server.clients.push(client);
        }
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

    /// One sample: nanoseconds of engine time for a request.
    fn run(&mut self) -> Result<f64, Fault> {
        // The clients' hardware address, so that it need not be asked for.
        let mut arp = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6];
        arp.extend([0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 10, 1, 0, 0]);
        arp.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        for host in 0..3 {
            arp[31] = host;
            self.put(&mut arp);
        }
        let count = self.clients.len();
        let batch = BATCH.min(count);
        // Prime, so that all have their turn before one has a second.
        let stride = 7919;
        let mut frames: Vec<Vec<u8>> = (0..batch).map(|_| vec![0; HEADER + PAYLOAD]).collect();
        let mut numbers = vec![0; batch];
        // The median of batches: a batch that another program interrupted is not the engine's time.
        let mut spent_ns = Vec::with_capacity(REQUESTS);
        let mut done = 0;
        let mut answers: Vec<[u8; HEADER]> = Vec::with_capacity(batch);
        while done < REQUESTS.max(2 * count) {
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
            self.stack.settle();
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
                return Err(format!("{} answers to {batch} requests", answers.len()).into());
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

fn serve(stack: &mut Stack, id: SessionId) -> Result<(), Fault> {
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
    fn learn(&mut self, out: &Outgoing<'_>) {
        self.acknowledgment = word(out.header, 38);
        self.stamp = word(out.header, 62);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The client that an answer goes to.
fn number_of(header: &[u8]) -> usize {
    let port = usize::from(header[36]) << 8 | usize::from(header[37]);
    usize::from(header[33]) * 50_000 + port - 1024
}

fn frame(number: usize, client: &Client, flags: u8, more: usize) -> Vec<u8> {
    let mut frame = vec![0; 54 + more];
    fill(&mut frame, number, client, flags, more);
    frame
}

fn fill(frame: &mut [u8], number: usize, client: &Client, flags: u8, more: usize) {
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

/// Gigabits a second of one session's data, over half a second at least.
fn bulk(offload: bool, checksums: bool) -> Result<f64, Fault> {
    let mut a = Stack::new(config(1), &nic(1, offload, checksums))?;
    let mut b = Stack::new(config(2), &nic(2, offload, checksums))?;
    let listener = b.listen(SocketAddr::from(([10, 0, 0, 2], 80)), 1)?;
    let from = a.connect(SocketAddr::from(([10, 0, 0, 2], 80)), None)?;
    let mut to = None;
    let data = vec![7; 256 << 10];
    let mut scratch = vec![0; 70_000];
    let mut got = 0_u64;
    let mut now_ns = 1_000_000_000;
    let began = Instant::now();
    let checksum = if checksums {
        ReceivedChecksum::Unknown
    } else {
        ReceivedChecksum::Verified
    };
    while began.elapsed().as_millis() < 500 {
        for _ in 0..64 {
            now_ns += 20_000;
            let _ = a.write(from, &data);
            pass(&mut a, &mut b, now_ns, &mut scratch, checksum);
            b.settle();
            if to.is_none() {
                to = b.accept(listener)?;
            }
            if let Some(id) = to {
                let [first, second] = b.peek(id)?;
                let len = first.len() + second.len();
                b.consume(id, len)?;
                got += len as u64;
            }
            pass(&mut b, &mut a, now_ns, &mut scratch, checksum);
            a.settle();
            while a.next_event().is_some() || b.next_event().is_some() {}
        }
    }
    if a.counters().retransmitted > 0 {
        return Err("something was sent twice".into());
    }
    Ok(got as f64 * 8.0 / began.elapsed().as_nanos() as f64)
}

/// Frames from one stack to the other, copied once, as a link does.
fn pass(
    from: &mut Stack,
    to: &mut Stack,
    now_ns: u64,
    scratch: &mut [u8],
    checksum: ReceivedChecksum,
) {
    from.transmit(now_ns, &mut |out| {
        let mut at = 0;
        for piece in [out.header, out.payload[0], out.payload[1]] {
            scratch[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        let received = Received {
            bytes: &mut scratch[..at],
            checksum,
            segment_bytes: out.segment_bytes,
        };
        to.receive(now_ns, received);
        true
    });
}
