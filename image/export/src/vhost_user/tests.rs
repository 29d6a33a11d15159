//! A client of our own: memory, rings and messages, also such as no driver sends.

mod disk;

use super::request::kind;
use super::{Notifier, Server, Stopper};
use disk::Disk;
use sidecore_format::source::BlockSource;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

struct Running {
    folder: TempDir,
    disk: Arc<Disk>,
    stopper: Stopper,
    notifier: Notifier,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new(writable: bool) -> Self {
        Self::with_sectors(writable, 512)
    }

    fn with_sectors(writable: bool, sector_bytes: u32) -> Self {
        let bytes = (0..DISK_BYTES).map(|at| (at * 7 + at / 509) as u8);
        let disk = Disk::new(bytes.collect(), writable);
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let source = Arc::clone(&disk) as Arc<dyn BlockSource>;
        let queues = QUEUES as u16;
        let server = Server::bind(source, &socket, queues, "serial-1", sector_bytes).unwrap();
        Self {
            folder,
            disk,
            stopper: server.stopper(),
            notifier: server.notifier(),
            thread: Some(std::thread::spawn(move || server.run().unwrap())),
        }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("socket")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap();
        assert!(!self.socket().exists());
    }
}

/// A virtual machine without processors.
struct Guest {
    memory: GuestMemoryMmap,
    frontend: Frontend,
    kicks: Vec<EventFd>,
    calls: Vec<EventFd>,
    sent: Vec<u16>,
}

/// A descriptor: address, bytes, flags, next.
type Descriptor = (u64, u32, u16, u16);

impl Guest {
    fn new(running: &Running) -> Self {
        Self::without(running, 0)
    }

    /// A guest that does not take some of the features.
    fn without(running: &Running, left: u64) -> Self {
        let name = c"guest";
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create(name, flags).unwrap());
        file.set_len(MEMORY_BYTES).unwrap();
        let offset = FileOffset::new(file, 0);
        let range = (GuestAddress(BASE), MEMORY_BYTES as usize, Some(offset));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).unwrap();
        let mut frontend = Frontend::connect(running.socket(), 8).unwrap();
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        assert_eq!(features >> 5 & 1 == 1, !running.disk.1);
        frontend.set_features(features & !left).unwrap();
        let offered = frontend.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ;
        assert!(offered.contains(wanted));
        frontend.set_protocol_features(wanted).unwrap();
        assert_eq!(frontend.get_queue_num().unwrap(), QUEUES as u64);
        let region = memory.find_region(GuestAddress(BASE)).unwrap();
        let region = VhostUserMemoryRegionInfo::from_guest_region(region).unwrap();
        frontend.set_mem_table(&[region]).unwrap();
        let user = |at: u64| region.userspace_addr + at;
        let event = || EventFd::new(0).unwrap();
        let mut guest = Self {
            kicks: (0..QUEUES).map(|_| event()).collect(),
            calls: (0..QUEUES).map(|_| event()).collect(),
            sent: vec![0; QUEUES],
            memory,
            frontend,
        };
        for queue in 0..QUEUES {
            let ring = ring_of(queue);
            let config = VringConfigData {
                queue_max_size: LENGTH,
                queue_size: LENGTH,
                flags: 0,
                desc_table_addr: user(ring),
                used_ring_addr: user(ring + USED),
                avail_ring_addr: user(ring + AVAIL),
                log_addr: None,
            };
            let frontend = &mut guest.frontend;
            frontend.set_vring_num(queue, LENGTH).unwrap();
            frontend.set_vring_base(queue, 0).unwrap();
            frontend.set_vring_addr(queue, &config).unwrap();
            frontend.set_vring_call(queue, &guest.calls[queue]).unwrap();
            frontend.set_vring_kick(queue, &guest.kicks[queue]).unwrap();
            frontend.set_vring_enable(queue, true).unwrap();
        }
        guest
    }

    fn put<T: vm_memory::ByteValued>(&self, at: u64, value: T) {
        self.memory
            .write_obj(value, GuestAddress(BASE + at))
            .unwrap();
    }

    fn u16(&self, at: u64) -> u16 {
        self.memory.read_obj(GuestAddress(BASE + at)).unwrap()
    }

    fn describe(&self, table: u64, number: u16, (address, len, flags, next): Descriptor) {
        let at = table + u64::from(number) * 16;
        self.put(at, address);
        self.put(at + 8, len);
        self.put(at + 12, flags);
        self.put(at + 14, next);
    }

    /// Makes a chain of descriptors, from number 0 on, available and kicks.
    fn submit(&mut self, queue: usize, chain: &[Descriptor]) {
        let ring = ring_of(queue);
        for (number, descriptor) in (0..).zip(chain) {
            self.describe(ring, number, *descriptor);
        }
        self.make_available(queue, 0, 1);
    }

    fn make_available(&mut self, queue: usize, head: u16, by: u16) {
        let ring = ring_of(queue) + AVAIL;
        let slot = u64::from(self.sent[queue] % LENGTH);
        self.put(ring + 4 + 2 * slot, head);
        self.sent[queue] = self.sent[queue].wrapping_add(by);
        self.put(ring + 2, self.sent[queue]);
        self.kicks[queue].write(1).unwrap();
    }

    /// Waits until all of a queue has been used; false if nothing comes of it.
    fn is_used(&self, queue: usize, patience: Duration) -> bool {
        let begun = Instant::now();
        while self.u16(ring_of(queue) + USED + 2) != self.sent[queue] {
            if begun.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// A usual request: head, data, status; the status, and the data that came.
    fn request(
        &mut self,
        queue: usize,
        kind: u32,
        sector: u64,
        data: Result<&[u8], usize>,
    ) -> (u8, Vec<u8>) {
        let at = buffer_of(queue);
        self.put(at, kind);
        self.put(at + 4, 0_u32);
        self.put(at + 8, sector);
        self.put(at + 16, 0xff_u8);
        let (bytes, flags) = match data {
            Ok(data) => {
                let to = GuestAddress(BASE + at + 32);
                self.memory.write_slice(data, to).unwrap();
                (data.len(), NEXT)
            }
            Err(bytes) => (bytes, NEXT | WRITE),
        };
        let mut chain = vec![(BASE + at, 16, NEXT, 1)];
        if bytes > 0 {
            // In two parts that no sector divides.
            let first = bytes as u32 / 2 + 3;
            chain.push((BASE + at + 32, first, flags, 2));
            chain.push((
                BASE + at + 32 + u64::from(first),
                bytes as u32 - first,
                flags,
                3,
            ));
        }
        chain.push((BASE + at + 16, 1, WRITE, 0));
        self.submit(queue, &chain);
        assert!(
            self.is_used(queue, PATIENCE),
            "no answer to {kind} {sector}"
        );
        let mut came = vec![0; data.err().unwrap_or(0)];
        let from = GuestAddress(BASE + at + 32);
        self.memory.read_slice(&mut came, from).unwrap();
        let status = self.memory.read_obj(GuestAddress(BASE + at + 16));
        (status.unwrap(), came)
    }
}

/// Behind the rings and the first queue's buffer.
const LOST: u64 = 0x18_0000;

fn ring_of(queue: usize) -> u64 {
    queue as u64 * 0x10000
}

fn buffer_of(queue: usize) -> u64 {
    0x10_0000 + queue as u64 * 0x8_0000
}

#[test]
fn a_guest_reads_all_by_each_queue() {
    let running = Running::new(false);
    // One after another, as a guest that starts again.
    for _ in 0..2 {
        let mut guest = Guest::new(&running);
        let config = guest
            .frontend
            .get_config(0, 60, VhostUserConfigFlags::empty(), &[0; 60]);
        let config = config.unwrap().1;
        assert_eq!(config[..8], (DISK_BYTES as u64 / 512).to_le_bytes());
        assert_eq!(config[34..36], (QUEUES as u16).to_le_bytes());
        for queue in 0..QUEUES {
            let part = 128 << 10;
            for at in (0..DISK_BYTES).step_by(part) {
                let (status, came) = guest.request(queue, kind::IN, at as u64 / 512, Err(part));
                assert_eq!(status, 0);
                assert!(
                    came == running.disk.0.lock()[at..at + part],
                    "queue {queue}, {at}"
                );
            }
        }
        let (status, id) = guest.request(0, kind::GET_ID, 0, Err(20));
        assert_eq!((status, &id[..9]), (0, &b"serial-1\0"[..]));
        let last = DISK_BYTES as u64 / 512;
        for (sector, bytes, kind, expected) in [
            (last - 1, 512, kind::IN, 0),
            (last, 512, kind::IN, 1),
            (last - 1, 1024, kind::IN, 1),
            (u64::MAX, 512, kind::IN, 1),
            (u64::MAX / 512, 512, kind::IN, 1),
            (0, 100, kind::IN, 1),
            (0, 512, 77, 2),
        ] {
            let (status, _) = guest.request(1, kind, sector, Err(bytes));
            assert_eq!(status, expected, "{kind} at {sector}");
        }
        assert_eq!(guest.request(0, kind::OUT, 0, Ok(&[1; 512])).0, 1);
        assert_eq!(guest.request(0, kind::FLUSH, 0, Err(0)).0, 0);
    }
}

#[test]
fn a_guest_writes_and_clears() {
    let running = Running::new(true);
    let mut guest = Guest::new(&running);
    let bytes: Vec<u8> = (0..200 << 10).map(|at| (at / 3) as u8 | 1).collect();
    assert_eq!(guest.request(0, kind::OUT, 3, Ok(&bytes)).0, 0);
    assert!(running.disk.0.lock()[3 * 512..][..bytes.len()] == bytes);
    let range = |sector: u64, sectors: u32, flags: u32| {
        let mut range = sector.to_le_bytes().to_vec();
        range.extend(sectors.to_le_bytes());
        range.extend(flags.to_le_bytes());
        range
    };
    let two = [range(4, 2, 1), range(10, 1, 0)].concat();
    assert_eq!(guest.request(1, kind::WRITE_ZEROES, 0, Ok(&two)).0, 0);
    assert_eq!(
        guest.request(1, kind::DISCARD, 0, Ok(&range(20, 8, 0))).0,
        0
    );
    {
        let now = running.disk.0.lock();
        for sector in 3..30 {
            let is_clear = matches!(sector, 4 | 5 | 10 | 20..28);
            let found = now[sector * 512..][..512].iter().all(|&it| it == 0);
            assert_eq!(found, is_clear, "sector {sector}");
        }
    }
    for (kind, data, expected) in [
        (kind::DISCARD, range(0, 1, 1), 2),
        (kind::WRITE_ZEROES, range(0, 1, 2), 2),
        (kind::WRITE_ZEROES, range(0, u32::MAX, 0), 1),
        (kind::DISCARD, range(u64::MAX, 1, 0), 1),
        (kind::DISCARD, vec![0; 17], 1),
        (kind::DISCARD, vec![0; 16 * 33], 1),
    ] {
        assert_eq!(guest.request(0, kind, 0, Ok(&data)).0, expected, "{kind}");
    }
}

/// A guest that cannot flush has its writes durable once they are answered; another one asks.
#[test]
fn writes_of_a_guest_that_cannot_flush_are_flushed() {
    let running = Running::new(true);
    let flushes = || running.disk.2.load(std::sync::atomic::Ordering::Relaxed);
    for (left, expected) in [(1 << 9, [1, 2, 3, 3]), (0, [3; 4]), (1 << 9, [4, 5, 6, 6])] {
        let mut guest = Guest::without(&running, left);
        let range = &[7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..];
        let data = [Ok(&[1; 512][..]), Ok(range), Ok(range), Err(512)];
        let kinds = [kind::OUT, kind::DISCARD, kind::WRITE_ZEROES, kind::IN];
        for ((kind, data), expected) in kinds.into_iter().zip(data).zip(expected) {
            assert_eq!(guest.request(0, kind, 3, data).0, 0);
            assert_eq!(flushes(), expected, "{kind}");
        }
    }
}

/// Chains that a driver never makes: each is answered, or its queue is left alone; the other queue
/// and the next client are served.
#[test]
fn hostile_chains_harm_their_own_queue_alone() {
    let running = Running::new(true);
    let before = running.disk.0.lock().clone();
    let head = |guest: &Guest| {
        let at = buffer_of(0);
        guest.put(at, kind::OUT);
        guest.put(at + 8, 0_u64);
        BASE + at
    };
    type Hostile = fn(u64) -> Vec<Descriptor>;
    let cases: [(&str, Hostile); 9] = [
        ("a loop", |at| vec![(at, 16, NEXT, 1), (at, 512, NEXT, 0)]),
        ("itself", |at| vec![(at, 16, NEXT, 0)]),
        ("no status", |at| vec![(at, 16, NEXT, 1), (at, 512, 0, 0)]),
        ("beyond the memory", |at| {
            vec![
                (at, 16, NEXT, 1),
                (BASE + MEMORY_BYTES - 8, 512, NEXT, 2),
                (at, 1, WRITE, 0),
            ]
        }),
        ("nowhere", |at| {
            vec![(at, 16, NEXT, 1), (1, 512, NEXT, 2), (at, 1, WRITE, 0)]
        }),
        ("at the end of all addresses", |at| {
            vec![(u64::MAX - 4, 16, NEXT, 1), (at, 1, WRITE, 0)]
        }),
        ("next outside of the table", |at| {
            vec![(at, 16, NEXT, LENGTH)]
        }),
        ("a table of half an entry", |at| vec![(at, 24, INDIRECT, 0)]),
        ("a table in a table", |_| {
            vec![(BASE + ring_of(0), 16 * 2, INDIRECT, 0)]
        }),
    ];
    for (what, chain) in cases {
        let mut guest = Guest::new(&running);
        let at = head(&guest);
        guest.submit(0, &chain(at));
        // An answer or none: what counts is that it ends.
        let _ = guest.is_used(0, Duration::from_millis(50));
        assert_eq!(guest.request(1, kind::IN, 0, Err(512)).0, 0, "{what}");
        assert!(*running.disk.0.lock() == before, "{what}");
        assert_eq!(guest.frontend.get_vring_base(1).unwrap(), 1, "{what}");
    }
    for (what, number, by) in [
        ("an index beyond the queue", 0, 2 * LENGTH),
        ("a head outside of it", LENGTH, 1),
    ] {
        let mut guest = Guest::new(&running);
        let at = head(&guest);
        guest.describe(ring_of(0), 0, (at, 16, 0, 0));
        guest.make_available(0, number, by);
        let _ = guest.is_used(0, Duration::from_millis(50));
        assert_eq!(guest.request(1, kind::IN, 0, Err(512)).0, 0, "{what}");
        assert!(*running.disk.0.lock() == before, "{what}");
    }
}

/// A client that cuts the file of its memory short after it was mapped: what is read there reaches
/// no disk, and the next client is served.
#[test]
fn memory_that_is_cut_short_ends_its_client_alone() {
    let running = Running::new(true);
    let before = running.disk.0.lock().clone();
    for (queue, (request, flags)) in [(kind::OUT, NEXT), (kind::IN, NEXT | WRITE)]
        .into_iter()
        .enumerate()
    {
        let mut guest = Guest::new(&running);
        assert_eq!(guest.request(queue, kind::IN, 0, Err(512)).0, 0);
        let region = guest.memory.find_region(GuestAddress(BASE)).unwrap();
        let file = region.file_offset().unwrap().file();
        file.set_len(LOST).unwrap();
        let at = buffer_of(0);
        guest.put(at, request);
        guest.put(at + 8, 0_u64);
        let chain = [
            (BASE + at, 16, NEXT, 1),
            (BASE + LOST, 512, flags, 2),
            (BASE + at + 16, 1, WRITE, 0),
        ];
        guest.submit(queue, &chain);
        assert!(!guest.is_used(queue, Duration::from_millis(50)));
        // Not even for what is still there.
        guest.submit(queue, &[chain[0], chain[2]]);
        assert!(!guest.is_used(queue, Duration::from_millis(50)));
        assert!(*running.disk.0.lock() == before);
    }
    let mut guest = Guest::new(&running);
    assert_eq!(guest.request(0, kind::IN, 1, Err(512)).0, 0);
}

#[test]
fn hostile_messages_end_their_connection_alone() {
    let running = Running::new(false);
    let mut random = sidecore_random::Random::new(38);
    for round in 0..60_u32 {
        let mut stream = UnixStream::connect(running.socket()).unwrap();
        let size = random.below(200) as usize;
        let mut message = Vec::new();
        for word in [round % 45, 1, size as u32] {
            message.extend(word.to_ne_bytes());
        }
        message.extend((0..size).map(|_| random.bits() as u8));
        // Some announce more than comes.
        let cut = message.len() - random.below(5) as usize * (message.len() / 8);
        let _ = stream.write_all(&message[..cut]);
    }
    // Memory that is shorter than it is said to be, and rings that are not in it.
    let guest = Guest::new(&running);
    let region = guest.memory.find_region(GuestAddress(BASE)).unwrap();
    let mut region = VhostUserMemoryRegionInfo::from_guest_region(region).unwrap();
    region.memory_size *= 2;
    let _ = guest.frontend.set_mem_table(&[region]);
    let _ = guest.frontend.get_features();
    // One client at a time.
    drop(guest);
    let guest = Guest::new(&running);
    let config = VringConfigData {
        queue_max_size: LENGTH,
        queue_size: LENGTH,
        flags: 0,
        desc_table_addr: 64,
        used_ring_addr: u64::MAX - 3,
        avail_ring_addr: 128,
        log_addr: None,
    };
    let _ = guest.frontend.set_vring_addr(0, &config);
    let _ = guest.frontend.set_vring_num(1, 3);
    drop(guest);
    let mut guest = Guest::new(&running);
    assert_eq!(guest.request(0, kind::IN, 1, Err(512)).0, 0);
}

/// A real driver: the guest's root is the disk, with two queues, and it writes there.
#[test]
fn a_guest_of_qemu_boots_from_it() {
    let scripts = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("guest");
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &std::path::Path, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let kernel = run(&scripts.join("kernel"), &[]);
    let work = folder.path().to_str().unwrap();
    run(&scripts.join("boot-disk"), &[&kernel, work]);
    let tree = folder.path().join("tree");
    for name in ["bin", "dev", "proc"] {
        std::fs::create_dir_all(tree.join(name)).unwrap();
    }
    std::fs::copy("/bin/busybox", tree.join("bin/busybox")).unwrap();
    let noise: Vec<u8> = (0..2_000_000_u32)
        .map(|at| (at.wrapping_mul(at) >> 9) as u8)
        .collect();
    std::fs::write(tree.join("noise"), &noise).unwrap();
    std::fs::write(tree.join("init"), INIT).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tree.join("init"), mode).unwrap();
    let raw = folder.path().join("raw");
    File::create(&raw).unwrap().set_len(16 << 20).unwrap();
    let (tree, raw) = (tree.to_str().unwrap(), raw.to_str().unwrap());
    run("mkfs.ext4".as_ref(), &["-q", "-F", "-d", tree, raw]);
    let disk = Disk::new(std::fs::read(raw).unwrap(), true);
    let socket = folder.path().join("socket");
    let server = Server::bind(Arc::clone(&disk) as _, &socket, 2, "guest", 512).unwrap();
    let stopper = server.stopper();
    let thread = std::thread::spawn(move || server.run().unwrap());
    let image = format!("{kernel}/vmlinuz");
    let initramfs = format!("{work}/initramfs.cpio");
    let chardev = format!("socket,id=c,path={}", socket.display());
    let arguments = [
        "--kill-after=5",
        "500",
        "qemu-system-x86_64",
        "-accel",
        "tcg,thread=single",
        "-cpu",
        "max",
        "-smp",
        "2",
        "-m",
        "512",
        "-nodefaults",
        "-nic",
        "none",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-kernel",
        &image,
        "-initrd",
        &initramfs,
        "-append",
        "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check",
        "-object",
        "memory-backend-memfd,id=m,size=512M,share=on",
        "-numa",
        "node,memdev=m",
        "-chardev",
        &chardev,
        "-device",
        "vhost-user-blk-pci,chardev=c,num-queues=2",
    ];
    let output = Command::new("timeout").args(arguments).output().unwrap();
    stopper.stop();
    thread.join().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let story = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("guest: same"), "{story}");
    // It has written through the same queues.
    std::fs::write(raw, &*disk.0.lock()).unwrap();
    run("e2fsck".as_ref(), &["-fn", raw]);
    let copy = folder.path().join("copy");
    let dump = format!("dump /copy {}", copy.display());
    run("debugfs".as_ref(), &["-R", &dump, raw]);
    assert!(std::fs::read(copy).unwrap() == noise);
}

const INIT: &str = "#!/bin/busybox sh
export PATH=/bin
busybox mount -t devtmpfs dev /dev
busybox mount -t proc proc /proc
busybox mount -o remount,rw /
busybox cp /noise /copy
busybox sync
busybox cmp /noise /copy && echo guest: same
busybox mount -o remount,ro /
busybox poweroff -f
";

const QUEUES: usize = 2;
const LENGTH: u16 = 16;
const DISK_BYTES: usize = 1 << 20;
const MEMORY_BYTES: u64 = 4 << 20;
/// The memory does not begin at 0.
const BASE: u64 = 0x1000_0000;
const AVAIL: u64 = 0x4000;
const USED: u64 = 0x8000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const PATIENCE: Duration = Duration::from_secs(20);
