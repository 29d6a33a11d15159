//! A guest of our own: memory of this process, and a client that sends what no monitor sends.

use super::*;
use sidecore_bare::width::ToU64;
use sidecore_format::source::MemorySource;
use sidecore_random::Random;
use sidecore_sys::userfault::LazyMemory;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

const PAGE: usize = PAGE_BYTES as usize;

struct Running {
    folder: tempfile::TempDir,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn new(bytes: &[u8], options: Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Arc::new(MemorySource::new(bytes.to_vec()));
        let socket = folder.path().join("socket");
        let server = Server::bind(source, &socket, options).unwrap();
        Self {
            folder,
            shared: Arc::clone(&server.shared),
            thread: Some(std::thread::spawn(move || server.run().unwrap())),
        }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("socket")).unwrap()
    }

    /// Sends regions of a guest's memory, as the first bytes of it.
    fn send(&self, memory: &LazyMemory, regions: &[(usize, usize, usize)]) -> UnixStream {
        let regions = regions.iter().map(|&(at, size, offset)| {
            serde_json::json!({
                "base_host_virt_addr": memory.address() + at.to_u64(),
                "size": size, "offset": offset, "page_size": PAGE, "page_size_kib": PAGE,
            })
        });
        let message = serde_json::Value::from_iter(regions).to_string();
        let client = self.connect();
        let descriptors = [memory.descriptor()];
        local_socket::send(client.as_fd(), message.as_bytes(), &descriptors).unwrap();
        client
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(usize) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_so(*self.shared.clients.lock()) {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn stop(&mut self) {
        Stopper(Arc::clone(&self.shared)).stop();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// `None`, said on standard error, where this process may make no userfaultfd.
fn guest(bytes: usize) -> Option<LazyMemory> {
    match LazyMemory::new(bytes) {
        Ok(memory) => Some(memory),
        Err(error @ (Errno::PERM | Errno::NOSYS)) => {
            eprintln!("skipped: no userfaultfd here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Contents without two equal pages, every third of them zeros.
fn contents(pages: usize) -> Vec<u8> {
    let mut random = Random::new(7);
    let mut bytes = vec![0; pages * PAGE];
    for (number, page) in bytes.chunks_mut(PAGE).enumerate() {
        if number % 3 != 1 {
            page.iter_mut().for_each(|byte| *byte = random.bits() as u8);
        }
    }
    bytes
}

#[test]
fn every_byte_is_the_image_s_in_any_order_of_four_threads() {
    const PAGES: usize = 256;
    let bytes = contents(PAGES + 8);
    for around_bytes in [PAGE_BYTES, 64 << 10] {
        let options = Options {
            around_bytes,
            ..Options::default()
        };
        let running = Running::new(&bytes, options);
        let Some(memory) = guest(PAGES * PAGE) else {
            return;
        };
        // The upper half of the memory lies first in the image, behind 8 other pages.
        let half = PAGES / 2 * PAGE;
        let regions = [(half, half, 8 * PAGE), (0, half, 8 * PAGE + half)];
        drop(running.send(&memory, &regions));
        let wrong = AtomicU64::new(0);
        std::thread::scope(|threads| {
            for seed in 0..4 {
                let (memory, bytes, wrong) = (&memory, &bytes, &wrong);
                threads.spawn(move || {
                    let mut random = Random::new(seed);
                    let mut order: Vec<usize> = (0..PAGES).collect();
                    for last in (1..PAGES).rev() {
                        order.swap(last, random.index(last + 1));
                    }
                    let mut page = vec![0; PAGE];
                    for number in order {
                        assert!(memory.copy_to(number * PAGE, &mut page));
                        let at = (number * PAGE + half) % (2 * half) + 8 * PAGE;
                        if page != bytes[at..at + PAGE] {
                            wrong.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(wrong.into_inner(), 0);
    }
}

#[test]
fn pages_that_were_given_back_read_as_zeros() {
    let Some(mut memory) = guest(32 * PAGE) else {
        return;
    };
    let bytes = vec![0xA5; 32 * PAGE];
    let running = Running::new(&bytes, Options::default());
    let _client = running.send(&memory, &[(0, 32 * PAGE, 0)]);
    let mut seen = vec![0; PAGE];
    assert!(memory.copy_to(3 * PAGE, &mut seen));
    assert!(seen.iter().all(|&byte| byte == 0xA5));
    // One that was there, and others that were not.
    memory.remove(2 * PAGE..6 * PAGE).unwrap();
    for page in 0..32 {
        assert!(memory.copy_to(page * PAGE, &mut seen));
        let expected = if (2..6).contains(&page) { 0 } else { 0xA5 };
        assert!(seen.iter().all(|&byte| byte == expected), "page {page}");
    }
}

#[test]
fn a_prefetched_guest_needs_no_server() {
    let Some(memory) = guest(64 * PAGE) else {
        return;
    };
    let bytes = contents(80);
    let options = Options {
        // Parts of pages count as whole ones; what lies outside of the regions is left out.
        prefetch: vec![40 * 4096 + 5..90 * 4096, 0..40 * 4096 + 5],
        ..Options::default()
    };
    let mut running = Running::new(&bytes, options);
    let _client = running.send(&memory, &[(0, 64 * PAGE, 16 * PAGE)]);
    let end = Instant::now() + Duration::from_secs(20);
    while missing(&memory) > 0 {
        assert!(Instant::now() < end, "pages are missing");
        std::thread::sleep(Duration::from_millis(2));
    }
    running.stop();
    let mut seen = vec![0; 64 * PAGE];
    assert!(memory.copy_to(0, &mut seen));
    assert!(seen == bytes[16 * PAGE..80 * PAGE]);
}

/// Pages of this process at the memory that are not resident (`/proc/self/pagemap`).
fn missing(memory: &LazyMemory) -> usize {
    use std::os::unix::fs::FileExt as _;
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0; 64 * 8];
    map.read_exact_at(&mut entries, memory.address() / PAGE_BYTES * 8)
        .unwrap();
    let is_there = |entry: &&[u8]| entry[7] >> 7 == 1;
    64 - entries.chunks(8).filter(is_there).count()
}

#[test]
fn senseless_regions_are_refused() {
    let image = 64 * PAGE_BYTES;
    let check = |text: &str| {
        let mappings: Vec<Mapping> = serde_json::from_str(text).unwrap();
        Regions::check(&mappings, image).map(|regions| regions.0.len())
    };
    let one = |start: u64, size: u64, offset: u64, more: &str| {
        format!(r#"{{"base_host_virt_addr":{start},"size":{size},"offset":{offset}{more}}}"#)
    };
    let list = |all: &[String]| format!("[{}]", all.join(","));
    let good = one(1 << 30, 8192, 4096, "");
    for (more, taken) in [
        ("", true),
        (r#","page_size":4096"#, true),
        (r#","page_size_kib":4"#, true),
        (r#","page_size_kib":4096"#, true),
        (r#","page_size":4096,"page_size_kib":1"#, true),
        (r#","page_size":512"#, false),
        (r#","page_size":0"#, false),
        (r#","page_size_kib":2048"#, false),
    ] {
        let region = list(&[one(1 << 30, 8192, 4096, more)]);
        assert_eq!(check(&region).is_ok(), taken, "{more}");
    }
    for (region, word) in [
        (one(1 << 30, 0, 0, ""), "empty"),
        (one((1 << 30) + 1, 4096, 0, ""), "whole pages"),
        (one(1 << 30, 100, 0, ""), "whole pages"),
        (one(1 << 30, 4096, 7, ""), "whole pages"),
        (one(1 << 30, 4096, image, ""), "past the image"),
        (one(1 << 30, image + 4096, 0, ""), "past the image"),
        (one(1 << 30, 4096, u64::MAX - 4095, ""), "past the image"),
        (one(u64::MAX - 4095, 4096, 0, ""), "past the image"),
        (one((1 << 30) + 4096, 4096, 0, ""), "overlaps"),
        (one(1 << 40, image, 0, ""), "more than the image"),
    ] {
        let refused = check(&list(&[good.clone(), region.clone()])).unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(word), "{region}: {refused}");
        assert!(!refused.contains('\n'));
    }
    assert!(matches!(check("[]"), Err(Refusal::Count(0))));
    let pages = (0..=REGIONS_MAX as u64).map(|page| one(page * 4096, 4096, 0, ""));
    let pages: Vec<String> = pages.collect();
    assert!(matches!(check(&list(&pages)), Err(Refusal::Count(257))));
}

#[test]
fn senseless_messages_end_the_connection_alone() {
    let options = Options {
        clients_max: 1,
        ..Options::default()
    };
    let running = Running::new(&vec![1; 4 * PAGE], options);
    let file = local_socket::poker().unwrap();
    let good = br#"[{"base_host_virt_addr":4096,"size":4096,"offset":0}]"#;
    let long = vec![b' '; MESSAGE_BYTES_MAX + 1];
    let messages: [(&[u8], usize); 6] = [
        (b"{}", 1),
        (b"[1]", 1),
        (b"\xff\xfe", 1),
        (good, 0),
        (good, 2),
        // The descriptor is none of userfaultfd.
        (good, 1),
    ];
    for (message, count) in messages {
        running.wait_until("a place is free", |clients| clients == 0);
        let mut client = running.connect();
        let descriptors = vec![file.as_fd(); count];
        local_socket::send(client.as_fd(), message, &descriptors).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
    running.wait_until("a place is free", |clients| clients == 0);
    let mut client = running.connect();
    // It may have been refused before all was sent.
    client.write_all(&long).ok();
    assert!(!matches!(client.read(&mut [0]), Ok(1..)));
    // A second client while one is served.
    running.wait_until("a place is free", |clients| clients == 0);
    let first = running.connect();
    running.wait_until("a client is served", |clients| clients == 1);
    assert_eq!(running.connect().read(&mut [0]).unwrap(), 0);
    drop(first);
    running.wait_until("it has left", |clients| clients == 0);
}

/// A client of another process, which closes its socket and dies later.
#[test]
fn a_client_s_death_ends_its_session() {
    // The program below has the numbers of x86-64.
    if guest(PAGE).is_none() || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let running = Running::new(&vec![9; 4 * PAGE], Options::default());
    let program = r#"
import array, ctypes, fcntl, json, mmap, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(323, 0o2000000 | 0o4000)
assert fd >= 0
fcntl.ioctl(fd, 0xC018AA3F, struct.pack("QQQ", 0xAA, 0, 0))
memory = mmap.mmap(-1, 4 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
fcntl.ioctl(fd, 0xC020AA00, struct.pack("QQQQ", at, 4 * 4096, 1, 0))
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
m = json.dumps([{"base_host_virt_addr": at, "size": 4 * 4096, "offset": 0, "page_size": 4096}])
s.sendmsg([m.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
s.close()
print(ctypes.c_ubyte.from_address(at + 5000).value, flush=True)
sys.stdin.read()
"#;
    let mut child = Command::new("python3")
        .args(["-c", program])
        .arg(running.folder.path().join("socket"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3; scripts/setup installs it");
    let mut said = [0; 2];
    child.stdout.take().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"9\n");
    assert_eq!(*running.shared.clients.lock(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    running.wait_until("the session has ended", |clients| clients == 0);
}
