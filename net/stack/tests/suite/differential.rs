//! Against another implementation: smoltcp's TCP socket and ours, over an impaired link, in virtual
//! time, from a seed. Each opens in turn; both send; all bytes must arrive.

use crate::common;

use common::{Frame, Random, S, offloading, plain, v4, v6};
use sidecore_net_stack::frame::{Received, ReceivedChecksum};
use sidecore_net_stack::{SessionId, Stack};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use std::collections::{BTreeMap, VecDeque};

/// smoltcp's end of the link.
#[derive(Default)]
struct Wire {
    incoming: VecDeque<Vec<u8>>,
    outgoing: Vec<Vec<u8>>,
}

struct Rx(Vec<u8>);
struct Tx<'w>(&'w mut Vec<Vec<u8>>);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut bytes = vec![0; len];
        let result = f(&mut bytes);
        self.0.push(bytes);
        result
    }
}

impl Device for Wire {
    type RxToken<'w> = Rx;
    type TxToken<'w> = Tx<'w>;

    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx<'_>)> {
        let bytes = self.incoming.pop_front()?;
        Some((Rx(bytes), Tx(&mut self.outgoing)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.max_transmission_unit = 1514;
        capabilities.medium = Medium::Ethernet;
        capabilities
    }
}

fn data(random: &mut Random, most: u64) -> Vec<u8> {
    let len = random.below(most) as usize;
    (0..len).map(|_| random.bits() as u8).collect()
}

/// One session between the two.
fn schedule(seed: u64) {
    let mut random = Random(seed);
    let mut config = common::config(1, seed);
    config.offers.sack = random.below(2) == 0;
    config.offers.timestamps = random.below(2) == 0;
    config.no_delay = random.below(2) == 0;
    // Offloads must not matter; the link below completes checksums left to the NIC.
    let nic = if random.below(2) == 0 {
        plain(1)
    } else {
        offloading(1)
    };
    let nic = sidecore_net_stack::frame::Capabilities {
        super_segment_bytes: 0,
        completes_checksums: false,
        ..nic
    };
    let mut ours = Stack::new(config, &nic).expect("a stack");
    let mut wire = Wire::default();
    let mut now_ns = S;
    let time = |now_ns: u64| Instant::from_micros((now_ns / 1000) as i64);
    let mac = HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, 2]));
    let mut setup = Config::new(mac);
    setup.random_seed = seed;
    let mut theirs = Interface::new(setup, &mut wire, time(now_ns));
    theirs.update_ip_addrs(|addresses| {
        addresses
            .push(IpCidr::new(IpAddress::v4(10, 0, 0, 2), 24))
            .expect("room");
        let address = IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 2);
        addresses.push(IpCidr::new(address, 64)).expect("room");
    });
    let buffer = |random: &mut Random| {
        tcp::SocketBuffer::new(vec![0; 2000 + random.below(100_000) as usize])
    };
    let socket = tcp::Socket::new(buffer(&mut random), buffer(&mut random));
    let mut sockets = SocketSet::new(vec![]);
    let handle = sockets.add(socket);
    let old = random.below(2) == 0;
    let (us, them) = if old {
        (v4(1, 80), v4(2, 81))
    } else {
        (v6(1), v6(2))
    };
    let them = std::net::SocketAddr::new(them.ip(), 81);
    let mut session: Option<SessionId> = None;
    let listener = ours.listen(us, 4).expect("listens");
    if random.below(2) == 0 {
        let socket = sockets.get_mut::<tcp::Socket>(handle);
        let context = theirs.context();
        socket
            .connect(context, (us.ip(), us.port()), 49_000)
            .expect("connects");
    } else {
        sockets
            .get_mut::<tcp::Socket>(handle)
            .listen(81)
            .expect("listens");
        session = Some(ours.connect(them, None).expect("connects"));
    }
    let (to_them, to_us) = (data(&mut random, 300_000), data(&mut random, 300_000));
    let (mut sent, mut received) = (0, Vec::<u8>::new());
    let (mut their_sent, mut their_received) = (0, Vec::<u8>::new());
    let loss = [0, 2_000, 20_000][random.below(3) as usize];
    let delay_ns = 10_000 + random.below(2_000_000);
    let reorder = [0, 20_000][random.below(2) as usize];
    let mut link: BTreeMap<(u64, u64), (bool, Vec<u8>)> = BTreeMap::new();
    let mut serial = 0;
    let mut scratch = vec![0; 1 << 16];
    let limit = now_ns + 2_000 * S;
    let mut closed = false;
    let mut steps = 0;
    loop {
        steps += 1;
        assert!(steps < 1_000_000, "no end at {now_ns} ns");
        if session.is_none() {
            session = ours.accept(listener).expect("listens");
        }
        if let Some(id) = session {
            let count = ours.read(id, &mut scratch).expect("reads");
            received.extend(&scratch[..count]);
            if sent < to_them.len() {
                sent += ours.write(id, &to_them[sent..]).expect("writes");
            } else if !closed && received.len() == to_us.len() {
                // smoltcp 0.12 stops its retransmission timer when a FIN arrives; so ours is sent
                // last.
                ours.shutdown_write(id).expect("open");
                closed = true;
            }
        }
        let socket = sockets.get_mut::<tcp::Socket>(handle);
        if socket.can_recv() {
            let count = socket.recv_slice(&mut scratch).expect("reads");
            their_received.extend(&scratch[..count]);
        }
        if socket.may_send() {
            if their_sent < to_us.len() {
                their_sent += socket.send_slice(&to_us[their_sent..]).expect("writes");
            } else {
                socket.close();
            }
        }
        if received.len() == to_us.len() && their_received.len() == to_them.len() {
            let end = session.is_some_and(|id| ours.readiness(id).expect("open").end_of_input());
            if end {
                break;
            }
        }
        let progress = (sent, their_received.len(), their_sent, received.len());
        assert!(now_ns < limit, "not done after 2,000 s: {progress:?}");
        // Both send.
        let mut frames: Vec<(bool, Vec<u8>)> = Vec::new();
        ours.transmit(now_ns, &mut |out| {
            frames.push((true, Frame::of(out).bytes));
            true
        });
        theirs.poll(time(now_ns), &mut wire, &mut sockets);
        frames.extend(wire.outgoing.drain(..).map(|bytes| (false, bytes)));
        for (from_us, bytes) in frames {
            if random.happens(loss) {
                continue;
            }
            let late = if random.happens(reorder) {
                3 * delay_ns
            } else {
                0
            };
            serial += 1;
            link.insert((now_ns + delay_ns + late, serial), (from_us, bytes));
        }
        // Advance to the next event.
        let frame = link.keys().next().map(|key| key.0);
        let timer = theirs.poll_at(time(now_ns), &sockets);
        let timer = timer.map(|at| at.total_micros() as u64 * 1000);
        let next = [frame, timer, ours.next_timer()]
            .into_iter()
            .flatten()
            .min();
        // smoltcp requests to be polled now while its window holds data back.
        now_ns = next.unwrap_or(now_ns).max(now_ns + 50_000);
        while let Some(entry) = link.first_entry() {
            if entry.key().0 > now_ns {
                break;
            }
            let (from_us, mut bytes) = entry.remove();
            if from_us {
                wire.incoming.push_back(bytes);
            } else {
                let received = Received {
                    bytes: &mut bytes,
                    checksum: ReceivedChecksum::Unknown,
                    segment_bytes: None,
                };
                ours.receive(now_ns, received);
            }
        }
        ours.process_staged();
        theirs.poll(time(now_ns), &mut wire, &mut sockets);
    }
    assert!(received == to_us, "other bytes than smoltcp sent");
    assert!(
        their_received == to_them,
        "smoltcp read other bytes than were sent"
    );
}

#[test]
fn smoltcp_and_ours_understand_one_another() {
    for seed in 1..61_u64 {
        if let Err(panic) = std::panic::catch_unwind(|| schedule(seed)) {
            eprintln!("seed {seed} failed");
            std::panic::resume_unwind(panic);
        }
    }
}
