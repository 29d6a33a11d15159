//! Many queue pairs between two devices of one thread: each is opened, puts its number into its
//! place of the peer's memory, and reports it by immediate data; each number is compared.
#![allow(unreachable_pub)] // an example uses it, too

use sidecore_rdma::{
    Access, ConnectionId, Device, Event, Kind, Options, Pieces, Post, QueueId, Queued, Queues,
    ReadyBy, Receive, Region, Remote, Setup, Stag, Status, Transport, Work,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Connections being opened at a time: the size of a listener's backlog.
const OPENING_MAX: usize = 256;
/// It fails after this time without progress.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of the regions per pair.
const PLACE_BYTES: usize = 8;

/// Results of [`run`].
#[derive(Debug, Clone, Copy)]
pub struct Report {
    /// Time for opening all.
    pub opening: Duration,
    /// Time in which each pair puts its number, and reports it.
    pub putting: Duration,
    /// Resident memory that both ends of all pairs took, in bytes: opened, and after use.
    pub opened_bytes: u64,
    /// See `opened_bytes`.
    pub used_bytes: u64,
}

struct Side {
    device: Device,
    queue: QueueId,
    region: Region,
    connections: Vec<ConnectionId>,
    /// Numbers reported by the peer and compared.
    compared: usize,
    /// Tag of the peer's memory.
    other: Stag,
}

/// The reason of a failure.
pub type Failure = Box<dyn std::error::Error>;

impl Side {
    fn new(transport: Transport, count: usize) -> Result<Self, Failure> {
        let mut device = Device::open(transport)?;
        let queue = device.create_queue(1 << 16)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let bytes = vec![0; 2 * count * PLACE_BYTES];
        let region = device.adapter_mut().register(bytes, access)?;
        Ok(Self {
            device,
            queue,
            region,
            connections: Vec::with_capacity(count),
            compared: 0,
            other: Stag(0),
        })
    }

    fn queues(&self) -> Queues {
        Queues {
            send: self.queue,
            receive: self.queue,
        }
    }

    fn post_receive(&mut self, connection: ConnectionId) -> Result<(), Failure> {
        let pieces = Pieces::from_iter([self.region.piece(0, 0)]);
        let receive = Receive { id: 0, pieces };
        Ok(self.device.post_receive(connection, receive)?)
    }

    fn learn(&mut self, told: &[u8]) -> Result<(), Failure> {
        if !told.is_empty() {
            self.other = Stag(u32::from_be_bytes(told.try_into()?));
        }
        Ok(())
    }

    /// Handles events; connections in the order of their opening.
    fn open(&mut self) -> Result<(), Failure> {
        self.device.progress()?;
        while let Some(event) = self.device.next_event() {
            match event {
                Event::Requested {
                    connection,
                    private_data,
                    ..
                } => {
                    self.learn(&private_data)?;
                    let told = self.region.stag.0.to_be_bytes();
                    let queues = self.queues();
                    self.post_receive(connection)?;
                    self.device.accept(connection, queues, &told)?;
                }
                Event::Established {
                    connection,
                    private_data,
                } => {
                    self.learn(&private_data)?;
                    self.connections.push(connection);
                }
                other => return Err(format!("{other:?}").into()),
            }
        }
        Ok(())
    }

    /// Puts number `index` by the pair with that number, and reports it.
    fn put(&mut self, index: usize) -> Result<(), Failure> {
        let connection = self.connections[index];
        let at = index * PLACE_BYTES;
        let own = &mut self.device.adapter_mut().bytes_mut(self.region)[at..at + PLACE_BYTES];
        own.copy_from_slice(&number(index));
        let pieces = Pieces::from_iter([self.region.piece(at as u64, PLACE_BYTES as u32)]);
        let count = self.connections.len();
        let remote = Remote {
            stag: self.other,
            offset: ((count + index) * PLACE_BYTES) as u64,
        };
        for work in [
            Work::Write { pieces, remote },
            Work::Immediate {
                value: index as u64,
                solicited: false,
            },
        ] {
            let post = Post {
                id: index as u64,
                work,
                fence: false,
            };
            self.device.post(connection, post)?;
        }
        Ok(())
    }

    fn compare(&mut self) -> Result<(), Failure> {
        self.device.progress()?;
        let mut taken = [None; 64];
        let count = self.device.poll(self.queue, &mut taken)?;
        for Queued { completion, .. } in taken[..count].iter().flatten() {
            if completion.status != Status::Done {
                return Err(format!("{completion:?}").into());
            }
            let told = completion
                .immediate
                .filter(|_| completion.kind == Kind::Receive);
            if let Some(index) = told {
                let index = usize::try_from(index)?;
                let at = (self.connections.len() + index) * PLACE_BYTES;
                let found = &self.device.adapter().bytes(self.region)[at..at + PLACE_BYTES];
                if found != number(index) {
                    return Err(format!("pair {index} put {found:?}").into());
                }
                self.compared += 1;
            }
        }
        Ok(())
    }
}

fn number(index: usize) -> [u8; PLACE_BYTES] {
    (index as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes()
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> Result<u64, Failure> {
    let text = std::fs::read_to_string("/proc/self/statm")?;
    let pages = text.split(' ').nth(1).ok_or("no such field")?;
    Ok(pages.parse::<u64>()? * rustix::param::page_size() as u64)
}

/// Opens `count` pairs to a listener at `local`, and uses each, both ways.
///
/// # Errors
/// The devices'; a wrong number; no progress.
pub fn run(
    transport: impl Fn() -> Transport,
    local: SocketAddr,
    count: usize,
) -> Result<Report, Failure> {
    let options = Options {
        crc: false,
        setup: Setup::PeerToPeer(ReadyBy::Message),
        ..Options::default()
    };
    let mut server = Side::new(transport(), count)?;
    let mut client = Side::new(transport(), count)?;
    let listener = server.device.listen(local, 2 * OPENING_MAX, options)?;
    let address = server.device.listener_address(listener);
    let address = address.ok_or("no address")?;
    let before = resident_bytes()?;
    let begun = Instant::now();
    let mut asked = 0;
    while server.connections.len() < count || client.connections.len() < count {
        let opening = asked - server.connections.len().min(client.connections.len());
        if asked < count && opening < OPENING_MAX {
            let told = client.region.stag.0.to_be_bytes();
            let queues = client.queues();
            let connection = client.device.connect(address, options, queues, &told)?;
            client.post_receive(connection)?;
            asked += 1;
        }
        server.open()?;
        client.open()?;
        if begun.elapsed() > LIMIT {
            return Err(format!("{} of {count} are open", server.connections.len()).into());
        }
    }
    let opening = begun.elapsed();
    let opened_bytes = resident_bytes()?.saturating_sub(before);
    let begun = Instant::now();
    for index in 0..count {
        server.put(index)?;
        client.put(index)?;
        server.compare()?;
        client.compare()?;
    }
    while server.compared < count || client.compared < count {
        server.compare()?;
        client.compare()?;
        if begun.elapsed() > LIMIT {
            return Err(format!("{} of {count} came", server.compared).into());
        }
    }
    Ok(Report {
        opening,
        putting: begun.elapsed(),
        opened_bytes,
        used_bytes: resident_bytes()?.saturating_sub(before),
    })
}
