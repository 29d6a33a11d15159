//! What each way in and out carries here: a pair of stacks' link, application - engine - application,
//! and the kernel through a TAP, beside what the kernel does alone.
//!
//! `unshare -n cargo run --release -p sidecore-net --example paths` as root: it makes a TAP in a
//! network namespace that ends with it. Pairs alternate; medians of five are printed, ratios last.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // A measurement for people.

use sidecore_net::nic::pair::{self, PairOptions};
use sidecore_net::nic::{Nic, Outgoing, TransmitChecksum};
use sidecore_net::servers::{Service, serve};
use sidecore_net::setup::Setup;
use sidecore_net::sock::SocketOption;
use sidecore_net::sock::client::{Client, ClientOptions};
use sidecore_sys::{clock, cpu, interface};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn main() {
    for bytes in [64, 1514] {
        let rates: Vec<f64> = (0..RUNS).map(|_| link(bytes)).collect();
        let rate = median(rates);
        let gigabits = rate * bytes as f64 * 8.0 / 1e9;
        let per_core = median((0..RUNS).map(|_| alone(bytes)).collect());
        println!(
            "pair, {bytes:4} B: two cores {:6.2} Mpps, {gigabits:6.1} Gb/s; in and out on one core \
             {per_core:6.1} ns",
            rate / 1e6
        );
    }
    // The kernel's loopback, in a namespace that is new.
    interface::set_up("lo").ok();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("net.sock");
    let text = format!(
        "socket = {socket:?}\n[nic]\nkind = \"tap\"\nname = \"sidecore0\"\n\
         host = [\"10.77.0.1/24\"]\n[stack]\naddresses = [\"10.77.0.2/24\"]\n\
         [engine]\nalways_poll = true\n"
    );
    let (mut engine, door) = Setup::parse(&text).unwrap().bring_up().unwrap().split();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let engine = std::thread::spawn(move || {
        pin(0);
        engine.run(&stopped, |_| 0).unwrap();
        drop(door);
    });
    pin(1);
    let (mut ours, mut kernels) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        ours.push(round_trip(&socket));
        kernels.push(kernel_round_trip());
    }
    let (ours, kernels) = (median(ours), median(kernels));
    println!("64 B there and back: application - engine - application  {ours:7.2} us");
    println!("                     kernel's loopback, both ends spin   {kernels:7.2} us");
    println!(
        "                     kernel / ours                       {:7.2}",
        kernels / ours
    );
    let (mut within, mut out) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        within.push(bulk(&socket, Service::Discard));
        out.push(bulk(&socket, Service::Source));
    }
    println!(
        "TAP, one stream, kernel to application  {:7.1} Gb/s",
        median(within)
    );
    println!(
        "TAP, one stream, application to kernel  {:7.1} Gb/s",
        median(out)
    );
    stop.store(true, Ordering::Release);
    engine.join().unwrap();
}

/// Frames a second from one thread to another.
fn link(bytes: usize) -> f64 {
    let (mut near, mut far) = pair::link(&PairOptions::default()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            pin(0);
            let header = vec![1; bytes.min(66)];
            let payload = vec![2; bytes - header.len()];
            let frame = Outgoing {
                header: &header,
                payload: [&payload, &[]],
                checksum: TransmitChecksum::Complete,
                segment_bytes: None,
            };
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..64 {
                    if !near.transmit(&frame).unwrap() {
                        break;
                    }
                }
                near.flush().unwrap();
            }
        });
        pin(1);
        let mut count = 0;
        let begun = Instant::now();
        while begun.elapsed() < RUN_TIME {
            count += far
                .receive(64, &mut |frame| assert_eq!(frame.bytes[0], 1))
                .unwrap();
        }
        let rate = count as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// Nanoseconds of processor time that a frame costs where one thread sends and receives: what the ring
/// costs, whoever else uses the machine.
fn alone(bytes: usize) -> f64 {
    let (mut near, mut far) = pair::link(&PairOptions::default()).unwrap();
    let (header, payload) = (vec![1; bytes.min(66)], vec![2; bytes - bytes.min(66)]);
    let frame = Outgoing {
        header: &header,
        payload: [&payload, &[]],
        checksum: TransmitChecksum::Complete,
        segment_bytes: None,
    };
    let begun_ns = clock::thread_cpu_ns();
    let mut count = 0;
    while count < 500_000 {
        for _ in 0..32 {
            assert!(near.transmit(&frame).unwrap());
        }
        near.flush().unwrap();
        count += far
            .receive(32, &mut |frame| assert_eq!(frame.bytes[0], 1))
            .unwrap();
    }
    (clock::thread_cpu_ns() - begun_ns) as f64 / count as f64
}

/// Both applications in this thread: four crossings between cores a round trip. Median, in us.
fn round_trip(socket: &Path) -> f64 {
    let options = ClientOptions {
        spin: Duration::from_secs(1),
        ..ClientOptions::default()
    };
    let mut server = Client::attach(socket, &options).unwrap();
    let mut client = Client::attach(socket, &options).unwrap();
    let service: SocketAddr = "10.77.0.2:5000".parse().unwrap();
    let listener = server.listen(service, 1).unwrap();
    let near = client.connect(service).unwrap();
    let far = loop {
        server.poll(Duration::from_millis(10)).unwrap();
        if let Some((far, _)) = server.accept(listener) {
            break far;
        }
    };
    while !client.readiness(near).writable {
        client.poll(Duration::from_millis(10)).unwrap();
    }
    client.set(near, SocketOption::NoDelay(true)).unwrap();
    server.set(far, SocketOption::NoDelay(true)).unwrap();
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        client.write(near, &[7; 64]).unwrap();
        let mut bytes = [0; 64];
        while server.read(far, &mut bytes).unwrap().is_none() {
            server.poll(Duration::ZERO).unwrap();
        }
        server.write(far, &bytes).unwrap();
        while client.read(near, &mut bytes).unwrap().is_none() {
            client.poll(Duration::ZERO).unwrap();
        }
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    median(times)
}

fn kernel_round_trip() -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(0);
            for _ in 0..ROUND_TRIPS {
                let mut bytes = [0; 64];
                while far.read(&mut bytes).is_err() {}
                far.write_all(&bytes).unwrap();
            }
        });
        let mut times = Vec::new();
        for _ in 0..ROUND_TRIPS {
            let begun = Instant::now();
            near.write_all(&[7; 64]).unwrap();
            while near.read(&mut [0; 64]).is_err() {}
            times.push(begun.elapsed().as_secs_f64() * 1e6);
        }
        median(times)
    })
}

/// Gb/s of one stream between a socket of the kernel and an application; three parties on the cores
/// that there are.
fn bulk(socket: &Path, service: Service) -> f64 {
    let local: SocketAddr = "10.77.0.2:5001".parse().unwrap();
    let mut client = Client::attach(socket, &ClientOptions::default()).unwrap();
    let stop = AtomicBool::new(false);
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let listening = || ready.send(()).unwrap();
            serve(&mut client, service, local, &stop, listening).unwrap()
        });
        is_ready.recv().unwrap();
        let mut stream = TcpStream::connect(local).unwrap();
        let mut bytes = vec![1; 256 << 10];
        let mut count = 0;
        let begun = Instant::now();
        while begun.elapsed() < RUN_TIME {
            count += match service {
                Service::Source => stream.read(&mut bytes).unwrap(),
                Service::Echo | Service::Discard => stream.write(&bytes).unwrap(),
            };
        }
        let rate = count as f64 * 8.0 / begun.elapsed().as_secs_f64() / 1e9;
        drop(stream);
        stop.store(true, Ordering::Release);
        server.join().unwrap();
        rate
    })
}

/// Where there is such a core.
fn pin(core: usize) {
    cpu::pin(core).ok();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const RUNS: usize = 5;
const RUN_TIME: Duration = Duration::from_millis(400);
const ROUND_TRIPS: usize = 5_000;
