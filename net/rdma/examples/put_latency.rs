//! Half a round trip of puts of 64 B, 64 KiB and 1 MiB between two devices, by polling memory.
//!
//! `put_latency kernel` uses a thread for each end, over the kernel's loopback. `put_latency SOCKET
//! ADDRESS` has both ends in one thread, each attached to the engine at SOCKET, so that two cores
//! are enough: the engine uses the other one. One line per length: bytes, median microseconds. A
//! last argument `BYTES,ROUNDS` measures that length alone, for a profiler.

use sidecore_rdma::{
    Access, ConnectionId, Device, Event, Options, Pieces, Post, QueueId, Queues, ReadyBy, Region,
    Remote, Setup, Stag, Transport, Work,
};
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const LENGTHS: [(usize, usize); 3] = [(64, 20_000), (64 << 10, 4_000), (1 << 20, 300)];
/// Lengths and rounds of each.
type Lengths = [(usize, usize)];
const LONGEST: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(20);

type Failure = Box<dyn std::error::Error>;

/// One of the two ends: it puts into the other's memory, and polls its own for a change.
struct End {
    device: Device,
    queue: QueueId,
    connection: Option<ConnectionId>,
    own: Region,
    other: Remote,
}

impl End {
    fn new(transport: Transport) -> Result<Self, Failure> {
        let mut device = Device::open(transport)?;
        let queue = device.create_queue(1024)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // The source of puts, followed by their target.
        let own = device
            .adapter_mut()
            .register(vec![0; 2 * LONGEST], access)?;
        let other = Remote {
            stag: Stag(0),
            offset: 0,
        };
        Ok(Self {
            device,
            queue,
            connection: None,
            own,
            other,
        })
    }

    fn queues(&self) -> Queues {
        Queues {
            send: self.queue,
            receive: self.queue,
        }
    }

    fn told(&self) -> [u8; 4] {
        self.own.stag.0.to_be_bytes()
    }

    /// Makes progress, and handles events until the connection is open; then true.
    fn open(&mut self) -> Result<bool, Failure> {
        self.device.progress()?;
        match self.device.next_event() {
            Some(Event::Requested {
                connection,
                private_data,
                ..
            }) => {
                self.learn(&private_data)?;
                self.device
                    .accept(connection, self.queues(), &self.told())?;
                self.connection = Some(connection);
                Ok(false)
            }
            Some(Event::Established {
                connection,
                private_data,
            }) => {
                if !private_data.is_empty() {
                    self.learn(&private_data)?;
                }
                self.connection = Some(connection);
                Ok(true)
            }
            Some(other) => Err(format!("{other:?}").into()),
            None => Ok(false),
        }
    }

    fn learn(&mut self, told: &[u8]) -> Result<(), Failure> {
        self.other = Remote {
            stag: Stag(u32::from_be_bytes(told.try_into()?)),
            offset: LONGEST as u64,
        };
        Ok(())
    }

    fn put(&mut self, bytes: usize, mark: u8) -> Result<(), Failure> {
        self.device.adapter_mut().bytes_mut(self.own)[bytes - 1] = mark;
        let work = Work::Write {
            pieces: Pieces::from_iter([self.own.piece(0, bytes as u32)]),
            remote: self.other,
        };
        let post = Post {
            id: 0,
            work,
            fence: false,
        };
        let connection = self.connection.ok_or("not connected")?;
        self.device.post(connection, post)?;
        let mut taken = [None; 4];
        self.device.poll(self.queue, &mut taken)?;
        Ok(())
    }

    /// True once the other end's put has arrived completely.
    fn came(&mut self, bytes: usize, mark: u8) -> Result<bool, Failure> {
        if self.device.adapter().bytes(self.own)[LONGEST + bytes - 1] == mark {
            return Ok(true);
        }
        self.device.progress()?;
        Ok(self.device.adapter().bytes(self.own)[LONGEST + bytes - 1] == mark)
    }

    /// Waits for the other end's put; `drive` drives that end if no other thread does.
    fn await_put(
        &mut self,
        bytes: usize,
        mark: u8,
        mut drive: impl FnMut() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let begun = Instant::now();
        let mut looks = 0_u32;
        while !self.came(bytes, mark)? {
            drive()?;
            looks += 1;
            if looks.is_multiple_of(1 << 12) {
                std::thread::yield_now();
                if begun.elapsed() > LIMIT {
                    return Err("a put does not come".into());
                }
            }
        }
        Ok(())
    }
}

/// A mark that differs from the previous one, and from the initial memory.
fn mark(round: usize) -> u8 {
    (round % 250 + 1) as u8
}

fn answer(end: &mut End, lengths: &Lengths) -> Result<(), Failure> {
    for &(bytes, rounds) in lengths {
        for round in 0..rounds {
            end.await_put(bytes, mark(round), || Ok(()))?;
            end.put(bytes, mark(round))?;
        }
    }
    Ok(())
}

/// Measures from `end`; the other end is driven, too, if there is one.
fn measure(end: &mut End, mut other: Option<&mut End>, lengths: &Lengths) -> Result<(), Failure> {
    for &(bytes, rounds) in lengths {
        let mut times = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let begun = Instant::now();
            end.put(bytes, mark(round))?;
            if let Some(other) = other.as_deref_mut() {
                let move_end = || Ok(end.device.progress().map(drop)?);
                other.await_put(bytes, mark(round), move_end)?;
                other.put(bytes, mark(round))?;
                let move_other = || Ok(other.device.progress().map(drop)?);
                end.await_put(bytes, mark(round), move_other)?;
            } else {
                end.await_put(bytes, mark(round), || Ok(()))?;
            }
            times.push(begun.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
        times.sort_by(f64::total_cmp);
        let mut out = std::io::stdout();
        writeln!(out, "{bytes} {:.2}", times[times.len() / 2])?;
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = std::env::args().collect();
    let mut lengths = LENGTHS.to_vec();
    let last = arguments.last().and_then(|last| last.split_once(','));
    if let Some((bytes, rounds)) = last {
        let bytes: usize = bytes.parse()?;
        lengths = vec![(bytes.clamp(1, LONGEST), rounds.parse()?)];
        arguments.pop();
    }
    let lengths = &lengths[..];
    let options = Options {
        crc: false,
        segment_bytes: usize::MAX,
        setup: Setup::PeerToPeer(ReadyBy::Message),
        ..Options::default()
    };
    let (socket, local) = match &arguments[..] {
        [_, kernel] if kernel == "kernel" => (None, SocketAddr::from(([127, 0, 0, 1], 0))),
        [_, socket, address] => (Some(socket), SocketAddr::new(address.parse()?, 7199)),
        _ => return Err("put_latency kernel | SOCKET ADDRESS [BYTES,ROUNDS]".into()),
    };
    let transport = || match socket {
        Some(socket) => Transport::Stack(socket.into()),
        None => Transport::Kernel,
    };
    let (mut server, mut client) = (End::new(transport())?, End::new(transport())?);
    let listener = server.device.listen(local, 1, options)?;
    let address = server
        .device
        .listener_address(listener)
        .ok_or("no address")?;
    let (queues, told) = (client.queues(), client.told());
    client.device.connect(address, options, queues, &told)?;
    let (mut one, mut other) = (false, false);
    while !(one && other) {
        one = server.open()? || one;
        other = client.open()? || other;
    }
    if socket.is_some() {
        return measure(&mut client, Some(&mut server), lengths);
    }
    std::thread::scope(|scope| {
        let answering =
            scope.spawn(move || answer(&mut server, lengths).map_err(|error| error.to_string()));
        measure(&mut client, None, lengths)?;
        let answered = answering.join().map_err(|_| "the other end's thread")?;
        answered.map_err(Failure::from)
    })
}
